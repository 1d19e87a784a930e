"""Shards of stores of format 2, which earlier versions wrote: a directory of .npy files. They are read, not written.

The arrays are those of shard.py, but for `checksums` and `parts`: each shard is one part.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.shard import Shard, checked, see_which, token_dtype
from bert_horovod.errors import damaged
from bert_horovod.storage.reading import load_array, open_regular

ARRAYS = ("tokens", "sentences", "sections", "documents", "held_out", "document_hashes", "titles")


def map_directory(store: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> Shard:
    """Map the arrays of a shard, and check all but the tokens; raises ReportedError."""
    shapes: dict[str, tuple[type | np.dtype, tuple[int | None, ...]]] = {
        "tokens": (token_dtype(vocabulary_size), (shard_entry["tokens"],)),
        "sentences": (np.uint32, (shard_entry["sentences"] + 1,)),
        "sections": (np.uint32, (shard_entry["sections"] + 1,)),
        "documents": (np.uint32, (shard_entry["documents"] + 1,)),
        "held_out": (np.bool_, (shard_entry["sections"],)),
        "document_hashes": (np.uint64, (shard_entry["documents"], 2)),
        "titles": (np.uint8, (None,)),
    }
    arrays = {}
    for name, (dtype, shape) in shapes.items():
        file = store / shard_entry["name"] / f"{name}.npy"
        try:
            arrays[name] = load_array(file, dtype, shape, inside=store)
        except (OSError, ValueError) as error:
            raise damaged(error, file, see_which(store)) from error
    return checked(Shard(**arrays), store / shard_entry["name"])


def hash_directory(directory: Path) -> str:
    """SHA-256, in hexadecimal, over a shard's files in a fixed order; missing files count as empty."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        file = directory / f"{name}.npy"
        size = file.stat().st_size if file.is_file() else 0
        digest.update(f"{name} {size}\n".encode())
        if size:
            with open_regular(file) as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()
