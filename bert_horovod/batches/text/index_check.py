"""Reads the files of a row index and compares them with their hashes; index.py describes the arrays."""

from pathlib import Path

import numpy as np

from bert_horovod.errors import damaged
from bert_horovod.storage.reading import hash_file, load_array, read_json
from bert_horovod.storage.typed import check_type

ARRAYS = ("start", "first", "by_length", "classes", "template_rows", "template_lengths")


def narrow(count: int) -> type:
    """The dtype for numbers from 0 to count - 1."""
    return np.uint32 if count <= 1 << 32 else np.int64


def positions_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Positions of sequences with so many tokens in their segments: [CLS], a [SEP] for each segment, the tokens."""
    return first + second + 2 + (second > 0)


def read_arrays(path: Path, sequence_length: int, tokens: int, check: bool) -> dict[str, np.ndarray]:
    """Read the arrays by name; `check`: also compare them with their hashes. Raises DamagedData."""
    arrays: dict[str, np.ndarray] = {}
    file = path / "start.npy"
    try:
        arrays["start"] = load_array(file, narrow(tokens), (None,), inside=path)
        windows = len(arrays["start"])
        for name, dtype, shape in (
            ("first", np.uint16, (windows,)),
            ("by_length", narrow(windows), (windows,)),
            ("classes", np.int64, (5, sequence_length + 1)),
            ("template_rows", np.int64, (None,)),
            ("template_lengths", np.uint16, (None, None)),
        ):
            file = path / f"{name}.npy"
            arrays[name] = load_array(file, dtype, shape, inside=path)
        if check:
            file = path / "hashes.json"
            check_type(hashes := read_json(file, inside=path), dict[str, str], "it")
            for name in ARRAYS:
                file = path / f"{name}.npy"
                if hashes.get(name) != hash_file(file):
                    raise ValueError("its SHA-256 is another")
    except (OSError, ValueError) as error:
        raise damaged(error, file, f"remove {path} and run again: it is made anew") from error
    return arrays
