#!/usr/bin/env python3
"""How full packed rows are, beside rows of one sequence, and what their index and their assembly cost.

python lab/packing.py --data_dir STORE [--data_dir STORE] [--short_documents]

Fill is positions that are not [PAD] over all positions. The context is the mean, over tokens, of the length of the
sequence that a token is in. The index is measured against the bytes of the store's shards. Rows/s are those of one
core that assembles 64 rows at a time, in seconds of processor time.
"""

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.mask_rates import MaskRate
from bert_horovod.batches.text.rows import Rows
from bert_horovod.batches.words import token_roles
from bert_horovod.corpus.shard import Shard, file_bytes, shard_file, write_shard
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.recipe.settings import Objective
from bert_horovod.reporting.tables import lines
from lab.size import write_remade

LENGTHS = (512, 128)
ROWS = 64  # assembled at once
SECONDS = 2.0  # of assembling
RATE = MaskRate(0.15, 0.15)
SHORTEST, LONGEST = 20, 400  # tokens in a short document


def short_documents(store: Store, path: Path) -> Store:
    """Write the store's text as a corpus of short documents: runs of whole sentences, from 20 to 400 tokens.

    Each is cut where it first has as many tokens as a draw from [20, 400).
    """
    random = np.random.default_rng(0)
    for file in store.path.iterdir():
        if file.is_file() and not file.name.startswith(("shard-", ".", "manifest")):
            shutil.copy(file, path)
    entries = [
        write_shard(shard_file(path, entry["name"]), [_regrouped(shard, random)], entry["bytes"])
        for entry, shard in zip(store.manifest["shards"], store.shards, strict=True)
    ]
    write_remade(store, path, entries)
    return open_store(path)


def _regrouped(shard: Shard, random: np.random.Generator) -> Shard:
    sentences = np.asarray(shard.sentences, np.int64)
    starts = [0]
    while starts[-1] < len(sentences) - 1:
        end = np.searchsorted(sentences, sentences[starts[-1]] + random.integers(SHORTEST, LONGEST))
        longest = np.searchsorted(sentences, sentences[starts[-1]] + LONGEST, side="right") - 1
        starts.append(int(min(max(starts[-1] + 1, min(end, longest)), len(sentences) - 1)))
    count = len(starts) - 1
    return dataclasses.replace(
        shard,
        sections=np.array(starts, np.uint32),
        documents=np.arange(count + 1, dtype=np.uint32),
        held_out=np.zeros(count, bool),
        document_hashes=np.zeros((count, 2), np.uint64),
        titles=np.full(count, ord("\n"), np.uint8),
        parts=None,
    )


def measure(store: Store, length: int, packing: bool, directory: str) -> list[str]:
    """One line of the table, of rows of sentence pairs."""
    index = open_index(store, length, "next_sentence", packing, directory=directory)
    sequences, lengths = index.classes.sequences, np.arange(length + 1)
    positions = sequences @ lengths
    index_bytes = sum(file.stat().st_size for file in index.path.glob("*/*"))
    store_bytes = sum(map(file_bytes, store.manifest["shards"]))
    objective = Objective(pair="next_sentence")
    speed = rows_per_s(Rows(store, index, token_roles(store, objective), objective, RATE, 0))
    return [
        f"{length}, {'packed' if packing else 'one sequence'}",
        f"{positions / (index.rows * length):.2%}",
        f"{sequences @ lengths**2 / positions:.1f}",
        f"{index.windows / index.rows:.2f}",
        f"{index_bytes / store_bytes:.2%}",
        f"{speed:,.0f}",
    ]


def rows_per_s(rows: Rows) -> float:
    """How fast a core assembles them."""
    rows.assemble(np.arange(ROWS))
    assembled, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < SECONDS:
        rows.assemble(np.arange(assembled, assembled + ROWS))
        assembled += ROWS
    return assembled / seconds


def main() -> None:
    """Print a table for each store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, action="append", type=Path, help="token store; repeatable")
    parser.add_argument("--short_documents", action="store_true", help="also each store's text cut into short ones")
    arguments = parser.parse_args()
    for path in arguments.data_dir:
        with tempfile.TemporaryDirectory() as work:
            stores = {str(path): open_store(path)}
            if arguments.short_documents:
                name = f"{path}, cut into documents of {SHORTEST} to {LONGEST} tokens"
                (cut := Path(work, "cut")).mkdir()
                stores[name] = short_documents(stores[str(path)], cut)
            for name, store in stores.items():
                print(f"\n{name}: {store.manifest['totals']['tokens']:,} tokens")
                cells = [["length", "fill", "context", "sequences a row", "index, of the store", "rows/s"]]
                with tempfile.TemporaryDirectory() as directory:
                    cells += [measure(store, *case, directory) for case in product(LENGTHS, (True, False))]
                print(lines(cells), flush=True)


if __name__ == "__main__":
    main()
