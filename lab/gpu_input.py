"""Whether rows come as fast as the step takes them: the input section of lab/gpu.py."""

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.prefetch import prefetch
from bert_horovod.batches.rows import StoreDataset
from bert_horovod.collectives.world import World
from bert_horovod.corpus.manifest import COUNTS, FORMAT
from bert_horovod.corpus.store import Shard, Store, open_store, token_dtype, write_manifest, write_shard
from bert_horovod.measuring.real_step import RealStep, measure
from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.inputs import make_batch
from lab.gpu_work import work_recipe

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DOCUMENTS, SENTENCES = 400, 200  # of a made store: 2 million tokens
LONGEST = 50  # tokens of a sentence: 25 on average, as in books
DEPTH = 2  # steps made ahead, as in training
IN_MEMORY = Path("/dev/shm")


def keeping_up(work: dict[str, Any]) -> dict[str, Any]:
    """Rows/s that one rank's thread makes alone, and how long a step waits for its rows.

    `data_dir`: a token store; None: one that is made in memory, of words as frequent as in text. `seconds`: of each.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as directory:
        data_dir, recipe = work["data_dir"], work_recipe(work)
        store = open_store(data_dir) if data_dir else make_store(Path(directory) / "store", recipe.model.vocab_size)
        index_dir = Path(directory) / "index"
        rows_per_s = rows_alone(recipe, store, index_dir, work["seconds"])
        step = RealStep(recipe, 0, store, index_dir, World())
        measured = measure(step, recipe, 0, World(), work["seconds"], float("inf"))
        step.close()
    computing_s = measured["step_s"] - measured["input_wait_s"]
    return {
        "configuration": measured["configuration"],
        "store": data_dir or "made in memory",
        "input_rows_per_s": rows_per_s,
        "step_rows_per_s": recipe.execution.micro_batch / computing_s,  # without waiting
        "input_wait_s": measured["input_wait_s"],
        "input_wait_share": measured["input_wait_s"] / measured["step_s"],
    }


def rows_alone(recipe: Recipe, store: Store, index_dir: Path, seconds: float) -> float:
    """Rows/s that the input thread makes, tensors and copies to the device included, while nobody computes."""
    dataset, task, rows = StoreDataset(store, recipe, index_dir), Pretraining(recipe.objective.pairs), 0
    source = dataset.open(0, "train")

    def make(number: int) -> Any:
        return make_batch(number, recipe.phase[0].global_batch, source, dataset, task, recipe, World())

    batches = prefetch(make, 0, 1 << 30, DEPTH)
    for _ in range(DEPTH + 1):
        next(batches)  # the first ones read the store, and are made ahead of the clock
    began = time.perf_counter()
    while (passed_s := time.perf_counter() - began) < seconds:
        next(batches)
        rows += recipe.phase[0].global_batch
    batches.close()
    return rows / passed_s


def make_store(path: Path, vocabulary_size: int) -> Store:
    """Write and open a token store of random sentences, the k-th word as frequent as 1 / k (Zipf)."""
    path.mkdir()
    words = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(vocabulary_size - len(SPECIAL_TOKENS)))]
    text = "\n".join(words) + "\n"
    (path / "vocab.txt").write_text(text, encoding="utf-8")
    random = np.random.default_rng(0)
    lengths = random.integers(1, LONGEST, DOCUMENTS * SENTENCES)
    ordinary = vocabulary_size - len(SPECIAL_TOKENS)
    tokens = len(SPECIAL_TOKENS) - 1 + (ordinary + 1) ** random.random(lengths.sum())
    shard = Shard(
        tokens=np.minimum(tokens, vocabulary_size - 1).astype(token_dtype(vocabulary_size)),
        sentences=np.concatenate(([0], np.cumsum(lengths))).astype(np.uint32),
        sections=np.arange(0, DOCUMENTS * SENTENCES + 1, SENTENCES, dtype=np.uint32),
        documents=np.arange(DOCUMENTS + 1, dtype=np.uint32),
        held_out=np.zeros(DOCUMENTS, bool),
        document_hashes=np.zeros((DOCUMENTS, 2), np.uint64),
        titles=np.full(DOCUMENTS, ord("\n"), np.uint8),
    )
    entry = write_shard(path / "shard-00000", shard, 1)
    source = {"name": "made", "bytes": 1, "sha256": "0", "unknown_tokens": 0}
    zeros = dict.fromkeys(("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents"), 0)
    write_manifest(
        path,
        {
            "format": FORMAT,
            "shards": [entry],
            "settings": {},
            "sources": [source | {name: entry[name] for name in ("documents", "tokens")}],
            "totals": {count: entry[count] for count in COUNTS} | zeros,
            "passed_over": {},
            "duplicates": {"documents": 0, "tokens": 0, "sha256": None},
            "vocabulary": {
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
                "size": vocabulary_size,
                "lowercase": True,
            },
        },
    )
    return open_store(path)
