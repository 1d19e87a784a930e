"""Toy token stores and recipes that several tests share."""

import dataclasses
import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import FORMAT, SourceEntry
from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.preparing.preparation import Preparation
from bert_horovod.corpus.preparing.summary import Result
from bert_horovod.corpus.reading.vocabulary import read_vocabulary
from bert_horovod.corpus.shard import COUNTS, Shard, shard_file, token_dtype, write_shard
from bert_horovod.corpus.store import Store, open_store, write_duplicates, write_manifest, write_sources
from bert_horovod.exchange.methods import METHODS
from bert_horovod.optimizers.rules import RULES
from bert_horovod.recipe.sections import ExchangeMethod, Optimizer, Recipe
from bert_horovod.recipe_files.loading import recipe_from_table

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = SPECIAL + [f"word{i}" for i in range(993)]
SMALL_VOCABULARY = SPECIAL + [f"word{i}" for i in range(57)]


TOY_MODEL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
TOY_STEP = {
    "model": TOY_MODEL,
    "phase": [{"sequence_length": 32}],
    "execution": {"micro_batch": 4, "xla": "off", "threads": 1},
}


def prepare(
    inputs: list[str], vocabulary: Path, store: Path, *, settings: Settings | None = None, **options: Any
) -> Result:
    """Make a token store of files with a vocab.txt."""
    words = read_vocabulary(vocabulary)
    return Preparation(inputs, vocabulary, Path(store), words, settings or Settings(), **options).make()


def write_toy_store(
    path: Path,
    seed: int = 1,
    shards: int = 3,
    documents: int = 20,
    sections: int = 2,
    sentences: int = 30,
    longest: int = 30,
    held_out: float = 0.0,
    vocabulary: list[str] = VOCABULARY,
    duplicates: tuple[int, ...] = (),
) -> Store:
    """Write and open a store of random tokens: up to so many sections a document, sentences a section, and so on."""
    random = np.random.default_rng(seed)
    arrays = [
        toy_shard(random, documents, sections, sentences, longest, held_out, len(vocabulary)) for _ in range(shards)
    ]
    return write_store(path, arrays, vocabulary, duplicates)


def write_store(
    path: Path,
    shards: Sequence[Shard | list[Shard]],
    vocabulary: list[str] = VOCABULARY,
    duplicates: tuple[int, ...] = (),
) -> Store:
    """Write and open a store of these shards, or of shards of these parts."""
    path.mkdir()
    text = "\n".join(vocabulary) + "\n"
    (path / "vocab.txt").write_text(text, encoding="utf-8")
    entries = []
    for number, shard in enumerate(shards):
        parts = shard if isinstance(shard, list) else [shard]
        entries.append(write_shard(shard_file(path, f"shard-{number:05d}"), parts, 1))
    sources = [SourceEntry(name="a.txt", bytes=9, sha256="0", documents=1, tokens=9, unknown_tokens=0)]
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_manifest(
        path,
        {
            "format": FORMAT,
            "shards": entries,
            "settings": {},
            "sources": write_sources(path, sources),
            "totals": {count: sum(entry[count] for entry in entries) for count in COUNTS}
            | dict.fromkeys(("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents"), 0),
            "passed_over": {},
            "duplicates": {
                "documents": len(duplicates),
                "tokens": 0,
                "sha256": write_duplicates(path, np.array(duplicates, np.int64)),
            },
            "vocabulary": {"sha256": digest, "size": len(vocabulary), "lowercase": True},
        },
    )
    return open_store(path)


def toy_shard(
    random: np.random.Generator,
    documents: int,
    sections: int,
    sentences: int,
    longest: int,
    held_out: float,
    vocabulary_size: int,
) -> Shard:
    """Random sizes and ordinary tokens."""
    per_document = random.integers(1, sections + 1, documents)
    per_section = random.integers(1, sentences + 1, per_document.sum())
    per_sentence = random.integers(1, longest + 1, per_section.sum())
    starts = [
        np.concatenate(([0], np.cumsum(sizes))).astype(np.uint32) for sizes in (per_sentence, per_section, per_document)
    ]
    return Shard(
        tokens=random.integers(len(SPECIAL), max(vocabulary_size, len(SPECIAL) + 1), per_sentence.sum()).astype(
            token_dtype(vocabulary_size)
        ),
        sentences=starts[0],
        sections=starts[1],
        documents=starts[2],
        held_out=random.random(len(per_section)) < held_out,
        document_hashes=np.zeros((documents, 2), np.uint64),
        titles=np.full(documents, ord("\n"), np.uint8),
    )


def toy_recipe_table(**sections: dict[str, Any]) -> dict[str, Any]:
    """The table of a recipe that trains in seconds on a store of SMALL_VOCABULARY; sections update its own."""
    table: dict[str, Any] = {
        "model": TOY_MODEL | {"vocab_size": len(SMALL_VOCABULARY)},
        "data": {"seed": 7},
        "objective": {},
        "optimizer": {"name": "adamw", "max_grad_norm": 0.5},
        "exchange": {},
        "numerics": {},
        "execution": {
            "micro_batch": 32,
            "log_steps": 1,
            "checkpoint_steps": 1000,
            "evaluate_steps": 0,
            "evaluate_rows": 16,
            "bucket_bytes": 20000,
            "trackers": [],
            "xla": "off",  # compiling takes longer than training does
            "threads": 1,
            "replay_steps": 0,  # two more graphs to trace
        },
    }
    phase = {"sequence_length": 32, "global_batch": 32, "steps": 20, "learning_rate": 0.002, "warmup": 0.1}
    table["phase"] = [phase | sections.pop("phase", {})]
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values
    return table


def recipe_of(**sections: Any) -> Recipe:
    """The default recipe with other sections, given as their dataclasses."""
    return dataclasses.replace(recipe_from_table({}), **sections)


def optimizer_of(name: str = "adamw", **settings: Any) -> Optimizer:
    """An update rule's section."""
    return RULES[name](**settings)


def exchange_of(method: str = "gradients", **settings: Any) -> ExchangeMethod:
    """An exchange's section."""
    return METHODS[method](**settings)


def more_rows(table: str) -> Any:
    """The further rows of a test's table, those of experiments, as in "rows.PAIRS"; none where their folder is gone."""
    if not (Path(__file__).parent / "experiments" / "rows.py").is_file():
        return {}
    module, _, name = table.partition(".")
    return getattr(importlib.import_module(f"tests.experiments.{module}"), name)


def toy_recipe(**sections: dict[str, Any]) -> Recipe:
    """The recipe of toy_recipe_table."""
    return recipe_from_table(toy_recipe_table(**sections))
