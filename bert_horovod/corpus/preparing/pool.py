"""Runs a store's jobs in this process, or in several processes on this machine.

Their progress is a bar on a terminal, and plain lines otherwise.
"""

import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_horovod.errors import RunError, file_error
from bert_horovod.runtime.children import end_with_parent

_REPORT_EVERY_S = 1.0

Report = Callable[[int, int], None]
Work = Callable[[Any, Report], Any]  # takes a job and a function that reports progress as two rising numbers


def run_jobs(
    executor: Executor | None, work: Work, jobs: list[Any], directory: Path, report: Callable[[int, int, int], None]
) -> Iterator[tuple[int, Any]]:
    """Do jobs and yield (the job's number, its result) as they are done; without an executor this process does them.

    `work`, a function of a module, because it is pickled, is called with a job and a function that reports progress.
    Workers write that into a file for each job in the directory; `report` gets a job's number and the last two numbers.
    """
    if executor is None:
        for number, job in enumerate(jobs):
            yield number, work(job, functools.partial(report, number))
        return
    words = [directory / f".worker-{number}" for number in range(len(jobs))]
    futures: dict[Future, int] = {}
    pending: set[Future] = set()
    try:
        for number, (job, word) in enumerate(zip(jobs, words, strict=True)):
            futures[executor.submit(_work, work, job, word)] = number
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_REPORT_EVERY_S, return_when=FIRST_COMPLETED)
            for future in pending:
                if future.running():
                    _pass_on(words[futures[future]], functools.partial(report, futures[future]))
            for future in done:
                yield futures[future], future.result()
    except (BrokenProcessPool, BrokenPipeError) as error:  # the latter: it died while it was being started
        raise RunError(
            "a worker has died (killed, or out of memory: each needs about 0.2 GB); what is finished is kept: run the "
            "same command again, with fewer --workers"
        ) from error
    finally:
        for future in pending:
            future.cancel()
        for word in words:
            word.unlink(missing_ok=True)


@contextmanager
def local_pool(workers: int) -> Iterator[Executor]:
    """A pool of processes that end with this process and ignore Ctrl-C."""
    context = multiprocessing.get_context("spawn")
    try:
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))
    except OSError as error:  # of the semaphores; glibc says EACCES or ENOENT for a /dev/shm that it cannot use
        raise file_error(
            error,
            f"cannot make semaphores for worker processes in /dev/shm: {error.strerror}; make it writable (in a "
            "container: --shm-size 1g, or a tmpfs there), or let one process do the work: --workers 1",
        ) from error
    try:
        yield executor
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def _work(work: Work, job: Any, word: Path) -> Any:
    last = 0.0

    def report(first: int, second: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_EVERY_S:
            last = time.monotonic()
            word.write_text(f"{first} {second}\n", encoding="ascii")

    return work(job, report)


def _pass_on(word: Path, report: Report) -> None:
    try:
        first, second = word.read_text(encoding="ascii").split()
        report(int(first), int(second))
    except (OSError, ValueError):  # not there yet, or half written
        return
