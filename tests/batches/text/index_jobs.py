"""Row indexes that two ranks make together: jobs for two_ranks."""

import os
from pathlib import Path

from bert_horovod.batches.source import open_source_once
from bert_horovod.batches.text import crews, making
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.collectives.world import World
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import ReportedError
from bert_horovod.recipe.sections import Recipe


def make_together(world: World, store: Path, recipe: Recipe, index_dirs: list[Path] | None) -> dict:
    """Make an index and open it; `index_dirs`: each rank's own. Returns what this rank cut, saw and reads."""
    cut: list[int] = []
    cut_piece = making.cut_piece

    def counted(plan: making.RowPlan, number: int) -> None:
        cut.append(number)
        cut_piece(plan, number)

    host = crews.socket.gethostname
    making.cut_piece = counted
    if index_dirs:
        crews.socket.gethostname = lambda: f"host-{world.rank}"
    try:
        dataset = StoreDataset(open_store(store), recipe, index_dirs[world.rank] if index_dirs else None)
        rows = open_source_once(dataset, 0, "train", world)
        batch = rows.assemble(list(range(8)))
        directory = index_dirs[world.rank] if index_dirs else store / "index"
        return {"cut": cut, "ids": batch["input_ids"].tolist(), "left": sorted(os.listdir(directory))}
    finally:
        making.cut_piece, crews.socket.gethostname = cut_piece, host


def fail_on_rank_1(world: World, store: Path, recipe: Recipe) -> str:
    """The error on this rank if rank 1 cannot write its pieces."""
    cut_piece = making.cut_piece

    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    if world.rank == 1:
        making.cut_piece = fail
    try:
        StoreDataset(open_store(store), recipe).make_files(0, world)
    except ReportedError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        making.cut_piece = cut_piece
    return ""
