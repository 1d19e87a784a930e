"""Learn in time that a job or a host ends: a job of SLURM by its time, a host by a cloud's notice or a file."""

import datetime
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable

from bert_horovod.errors import RunError, UserError
from bert_horovod.runtime.children import run_whole

_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def stop_time(before: str) -> float:
    """When to stop, in seconds since the epoch: this job's end minus `before`.

    Raises:
        UserError: `before` has another form, this process is in no job of SLURM, or the time to stop is already past.
    """
    before_s = duration_s("--stop_before", before)
    end = job_end()
    stop = end - before_s
    if stop <= time.time():
        raise UserError(
            f"--stop_before {before}: the job ends in {max(0, end - time.time()):.0f} s, before the run could begin; "
            "give less, or the job more time"
        )
    return stop


def duration_s(flag: str, text: str) -> float:
    """A duration such as 90s, 10m or 1h, in seconds; raises UserError that names the flag.

    >>> duration_s("--stop_before", "10m")
    600.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise UserError(f"{flag} {text}: expected a number with s, m or h, as in 90s, 10m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def job_end() -> float:
    """The end of this process's job of SLURM, in seconds since the epoch; raises ReportedError."""
    end, job = (os.environ.get(name, "") for name in ("SLURM_JOB_END_TIME", "SLURM_JOB_ID"))
    if end.isdecimal():
        return float(end)
    if not job:
        raise UserError(
            "--stop_before: found no SLURM_JOB_END_TIME and no SLURM_JOB_ID; expected a job of SLURM. Elsewhere let "
            "the scheduler send SIGTERM or SIGUSR1 before the end: the run saves and stops"
        )
    try:  # SLURM before 22.05 does not set SLURM_JOB_END_TIME
        asked = subprocess.run(
            ["squeue", "--noheader", "--jobs", job, "--format", "%e"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return datetime.datetime.fromisoformat(asked.stdout.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RunError(f"--stop_before: squeue does not tell when job {job} ends: {error}") from error


POLL_S = 5.0  # clouds give 30 s and more
_ANSWER_S = 20.0
_CANNOT_RUN = (126, 127)  # the shell's exit codes


def watch(command: str, ask_to_stop: Callable[[], None]) -> None:
    """Ask every POLL_S seconds, in a thread; once the command ends with 0 call `ask_to_stop` and ask no more.

    Raises UserError if the shell cannot run the command.
    """
    code = exit_code(["sh", "-c", command])
    if code in _CANNOT_RUN:
        raise UserError(
            f"--stop_when {command}: the shell cannot run it (exit code {code}); expected a command that ends with 0 "
            "once this host is to be taken away, and with another code before"
        )

    def poll() -> None:
        while exit_code(["sh", "-c", command]) != 0:
            time.sleep(POLL_S)
        ask_to_stop()

    threading.Thread(target=poll, name="notice", daemon=True).start()


def exit_code(words: list[str]) -> int | None:
    """The exit code of a program; None: it gave no answer in time, and was killed."""
    try:
        return run_whole(words, _ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
