"""Makes the shards of tasks: what is missing of their blocks, by workers, then shards of those blocks."""

import os
from collections.abc import Collection
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.blocks import (
    Block,
    BlockArrays,
    BlockFile,
    JoinJob,
    blocks_by_task,
    find_blocks,
    group_blocks,
    in_order,
    missing_blocks,
)
from bert_horovod.corpus.preparing.planning import Plan, Settings
from bert_horovod.corpus.preparing.pool import local_pool, run_jobs
from bert_horovod.corpus.preparing.workers import BlocksJob, Done, do
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.statistics import hints_of
from bert_horovod.errors import UserError
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.wording import counted

_SMALL_BYTES = 32 << 20  # one process has read less than this before others have started


@dataclass
class Made:
    """Shards of tasks, and what making them cost."""

    blocks: list[Block]  # of all tasks, in order, empty ones too
    shards: list[BlockFile]  # the files of the blocks that have text, in order
    hashes: dict[SourceFile, str]  # SHA-256 of the plan's `to_hash`
    workers: int = 0
    kept_blocks: int = 0  # that an earlier call had made
    made_bytes: int = 0  # of text, in blocks that this call made
    worker_seconds: float = 0.0  # of all workers, without their start
    memory: tuple[int, int] = (0, 0)  # bytes of the smallest worker before the first text, of the largest at its peak


def make_shards(
    path: Path,
    plan: Plan,
    settings: Settings,
    *,
    untrusted: Collection[SourceFile],
    vocabulary_size: int,
    workers: int | None,
) -> Made:
    """Make what the directory lacks of a plan, as whole shards."""
    tasks = plan.tasks
    trusted = [task for task in tasks if not any(piece.source in untrusted for piece in task.pieces)]
    kept = find_blocks(path, trusted)
    kept_blocks = blocks_by_task(kept)
    kept_count = sum(map(len, kept_blocks.values()))
    jobs: list[BlocksJob | SourceFile] = [
        BlocksJob(path, task, number, begin, stop_before, settings)
        for task in tasks
        for number, begin, stop_before in missing_blocks(kept_blocks.get(task.key, []))
    ]
    if kept_count:
        runs_left = counted(len(jobs), "run")
        print(f"{path}: finished already: {counted(kept_count, 'block')}; left to make: {runs_left} of blocks")
    text_bytes = sum(job.task.bytes for job in jobs if isinstance(job, BlocksJob))
    jobs += plan.to_hash
    if workers is None:
        workers = 1 if text_bytes < _SMALL_BYTES else min(len(os.sched_getaffinity(0)), len(jobs))
    pool = local_pool(workers) if workers > 1 else nullcontext()
    with pool as executor:
        done, hashes = _work(path, settings, jobs, text_bytes, executor)
        made = [file for each in done for file in each.files]
        files = [*kept, *made]
        shards = join_shards(path, files, plan, vocabulary_size, executor)
    return Made(
        in_order(files, tasks),
        shards,
        hashes,
        workers,
        kept_count,
        sum(block.counts["bytes"] for file in made for block in file.blocks),
        sum(each.seconds for each in done),
        (min((each.memory_before for each in done), default=0), max((each.memory_peak for each in done), default=0)),
    )


def _work(
    path: Path, settings: Settings, jobs: list[BlocksJob | SourceFile], text_bytes: int, executor: Executor | None
) -> tuple[list[Done], dict[SourceFile, str]]:
    """Do the jobs; returns what came of those that make blocks, and the hashes of the files."""
    all_done: list[Done] = []
    hashes: dict[SourceFile, str] = {}
    tokens = unknown_tokens = 0
    head = {"settings": settings.described(), "vocabulary": settings.tokenizer.recorded()}
    with ReadingProgress("prepare", text_bytes) as progress:
        far = np.zeros((len(jobs), 2), np.int64)  # bytes and documents by job

        def report(number: int, done_bytes: int, documents: int) -> None:
            far[number] = done_bytes, documents
            progress.at(*map(int, far.sum(axis=0)))

        for number, done in run_jobs(executor, do, jobs, path, report):
            job = jobs[number]
            if isinstance(job, SourceFile):
                hashes[job] = done
                continue
            all_done.append(done)
            blocks = [block for file in done.files for block in file.blocks]
            report(number, job.task.bytes, sum(block.counts["documents"] for block in blocks))
            tokens += sum(block.counts["tokens"] for block in blocks)
            unknown_tokens += sum(block.totals["unknown_tokens"] for block in blocks)
            refuse_unknown(path, head, unknown_tokens, tokens)
    return all_done, hashes


def join_shards(
    path: Path, files: list[BlockFile], plan: Plan, vocabulary_size: int, executor: Executor | None = None
) -> list[BlockFile]:
    """The files of the plan's shards, in order, of files that hold all its blocks; these are joined where needed."""
    blocks = in_order(files, plan.tasks)
    arrays = BlockArrays(path, [block for block in blocks if block.counts["tokens"]], files, vocabulary_size)
    groups = group_blocks(blocks, plan)
    shards = dict(enumerate(arrays.joined(group) for group in groups))
    jobs = {number: shard for number, shard in shards.items() if isinstance(shard, JoinJob)}
    total = sum(block.counts["bytes"] for job in jobs.values() for block in job.blocks)
    with ReadingProgress("join", total) as progress:
        done_bytes = documents = 0
        for i, joined in run_jobs(executor, do, list(jobs.values()), path, lambda *_: None):
            shards[list(jobs)[i]] = joined
            done_bytes += joined.entry["bytes"]
            documents += joined.entry["documents"]
            progress.at(done_bytes, documents)
    return [shard for shard in shards.values() if isinstance(shard, BlockFile)]


def refuse_unknown(path: Path, head: dict[str, Any], unknown: int, tokens: int) -> None:
    """Clear the directory and raise UserError if most tokens are [UNK]; `head`: as hints_of takes it."""
    if unknown > tokens / 2:
        destination.clear(path)
        raise UserError(
            f"{100 * unknown / tokens:.0f} % of the tokens are [UNK]; expected a vocabulary that knows "
            f"the text: {hints_of(head).unknown} Make one for this text with: bert-horovod vocab"
        )
