"""Reads the files of a row index and checks them; index.py describes the arrays."""

from pathlib import Path

import numpy as np

from bert_horovod.errors import DamagedData, unreadable
from bert_horovod.storage.reading import hash_file, load_array, read_json
from bert_horovod.storage.typed import check_type

ARRAYS = ("start", "first", "by_length", "classes", "template_rows", "template_lengths")
_CHUNK = 1 << 20  # windows checked at once


def narrow(count: int) -> type:
    """The dtype for numbers from 0 to count - 1."""
    return np.uint32 if count <= 1 << 32 else np.int64


def positions_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Positions of sequences with so many tokens in their segments: [CLS], a [SEP] for each segment, the tokens."""
    return first + second + 2 + (second > 0)


def read_arrays(path: Path, sequence_length: int, tokens: int, check: bool) -> dict[str, np.ndarray]:
    """Read the arrays by name; `check`: also compare them with their hashes and each other. Raises DamagedData."""
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
            file = path
            check_arrays(arrays, tokens)
    except (OSError, ValueError) as error:
        raise unreadable(error, file) or DamagedData(
            f"{file} is missing or damaged ({getattr(error, 'strerror', error)}); "
            f"remove {path} and run again: it is made anew"
        ) from error
    return arrays


def check_arrays(arrays: dict[str, np.ndarray], tokens: int) -> None:
    """Raise ValueError if the arrays of an index contradict each other or do not fit a store of so many tokens."""
    windows = len(arrays["start"])
    in_class, largest_run, run_end, sequences, most_tokens = arrays["classes"]
    length = len(in_class) - 1
    rows, lengths = arrays["template_rows"], arrays["template_lengths"].astype(np.int64)
    if not windows or np.any(arrays["classes"] < 0) or np.any(arrays["classes"] > max(windows, length)):
        raise ValueError("its classes count more windows than there are, or none")
    if in_class.sum() != windows or sequences.sum() != windows:
        raise ValueError(f"its classes do not add up to {windows} windows")
    if np.any(largest_run > run_end) or np.any(run_end > in_class) or np.any((largest_run < 1) & (in_class > 0)):
        raise ValueError("its runs are outside of their classes")
    if len(rows) != len(lengths) or not lengths.size or np.any(rows < 1) or np.any(rows > windows):
        raise ValueError("its templates have no rows, or more rows than there are windows")
    if np.any(lengths.sum(axis=1) > length) or np.any(lengths[:, 0] < 1) or np.any(np.diff(lengths, axis=1) > 0):
        raise ValueError(f"its templates are not descending lengths that fit into {length} positions")
    used = np.zeros(length + 1, np.int64)
    np.add.at(used, lengths, rows[:, None])
    if np.any(used[1:] != sequences[1:]) or sequences[0]:
        raise ValueError("its templates hold other sequences than there are")
    class_end, sequence_end = np.cumsum(in_class), np.cumsum(sequences)
    for low in range(0, windows, _CHUNK):
        numbers = np.arange(low, min(low + _CHUNK, windows))
        start, first, window = (arrays[name][numbers].astype(np.int64) for name in ("start", "first", "by_length"))
        second = np.searchsorted(class_end, numbers, side="right")
        if np.any(first < 1) or np.any(start < 0) or np.any(start > tokens - first - second):
            raise ValueError(f"its windows are outside of the store's {tokens} tokens")
        if np.any((window < 0) | (window >= windows)):
            raise ValueError(f"by_length names windows outside of its {windows}")
        positions = np.searchsorted(sequence_end, numbers, side="right")
        first, second = arrays["first"][window].astype(np.int64), np.searchsorted(class_end, window, side="right")
        if np.any(positions_of(first, second) != positions) or np.any(first + second > most_tokens[positions]):
            raise ValueError("by_length is not in the order of lengths")
