"""Reads model.safetensors, in one file or in shards, as memory-mapped arrays with current parameter names; writes it.

If there is only pytorch_model.bin, a pickle, which may contain code, PyTorch's unpickler for tensors alone reads it. A
repository that was cloned without Git LFS has three lines of text in place of a large file.
"""

import hashlib
import importlib.metadata
import json
import mmap
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version
from safetensors import SafetensorError, safe_open

from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.storage.reading import check_type, open_regular, parse_json, read_json, shown

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # NumPy has no bfloat16
_NAME_LENGTH = 200  # characters of a file name, at most
_BUFFERS = ("position_ids", "token_type_ids")  # constants that old versions of transformers saved
_PREFIXES = {"embeddings.": "bert.embeddings.", "encoder.": "bert.encoder.", "pooler.": "bert.pooler."}


def map_weights(directory: Path, rename: Callable[[str], str] = str) -> dict[str, np.ndarray]:
    """All floating-point tensors of a Hugging Face BERT directory by name, memory-mapped in the saved dtype.

    as_float32 converts them. Names are those of BertForPreTraining: names of a bare BertModel get the prefix `bert.`,
    and LayerNorm's old `gamma` and `beta` become `weight` and `bias`. Saved position ids are dropped. `rename` is
    called with each of these names. Raises UserError if there are no weights, or only weights that cannot be read
    without running code, DamagedData for a damaged file, a name that occurs twice, or a tensor of another dtype.
    """
    tensors: dict[str, np.ndarray] = {}
    for path, mapper in _files(directory):
        for saved_name, array in mapper(path).items():
            name = rename(_modern_name(saved_name))
            if name in tensors:
                raise DamagedData(f"{path}: two tensors for {name[:200]}, one of them as {saved_name[:200]}")
            tensors[name] = array
    return tensors


def as_float32(mapped: np.ndarray) -> np.ndarray:
    """A mapped tensor as float32 in memory; values that are too large for float32 become infinite."""
    if mapped.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (mapped.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return mapped.astype(np.float32)


def weight_files(directory: Path) -> list[Path]:
    """The files that `map_weights` reads; raises its errors for missing ones."""
    return [path for path, _ in _files(directory)]


def _files(directory: Path) -> list[tuple[Path, Callable[[Path], dict[str, np.ndarray]]]]:
    """The weight files, each with the function that maps it: safetensors if present, else PyTorch's."""
    for whole, index, mapper in (
        (WEIGHTS_FILE, INDEX_FILE, map_file),
        (TORCH_FILE, f"{TORCH_FILE}.index.json", map_torch_file),
    ):
        if (directory / whole).is_file():
            return [(directory / whole, mapper)]
        if (directory / index).is_file():
            return [(path, mapper) for path in _shards(directory, index)]
    raise UserError(f"{directory} has no {WEIGHTS_FILE}: expected a Hugging Face directory with safetensors weights")


def _shards(directory: Path, index_name: str) -> list[Path]:
    index = directory / index_name
    try:
        check_type(weight_map := read_json(index)["weight_map"], dict[str, str], "weight_map")
    except OSError as error:
        raise file_error(error, f"cannot read {index}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedData(f"{index} is damaged: expected JSON with a weight_map of file names") from error
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or len(name) > _NAME_LENGTH or not name.isprintable():
            raise DamagedData(f"{index} names {shown(name)}: expected a file in the same directory")
        if not (directory / name).is_file():
            raise DamagedData(f"{directory} has no {name}, which {index_name} names: the copy is incomplete")
    return [directory / name for name in names]


def map_file(path: Path, inside: Path | None = None) -> dict[str, np.ndarray]:
    """The floating-point tensors of a safetensors file, memory-mapped; bfloat16, which NumPy lacks, as uint16.

    Raises DamagedData if the file is damaged, UserError if `inside` is given and the file lies outside that directory.
    """
    refuse_lfs_pointer(path, inside)
    try:
        with open_regular(path, inside) as file:
            # Mapped by hand, because not every safetensors version gives NumPy a bfloat16 tensor.
            contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with safe_open(f"/proc/self/fd/{file.fileno()}", framework="np"):  # checks header, sizes, the file's length
                pass
        header_bytes = int.from_bytes(contents[:8], "little")
        header = parse_json(contents[8 : 8 + header_bytes])
        header.pop("__metadata__", None)
        return {
            name: _map_tensor(contents, 8 + header_bytes, name, description)
            for name, description in header.items()
            if name.split(".")[-1] not in _BUFFERS
        }
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, MemoryError) as error:
        raise DamagedData(f"{path} is damaged: {str(error)[:200]}; copy it again") from error


def write_file(path: Path, tensors: dict[str, np.ndarray]) -> str:
    """Write float32 tensors as a safetensors file, and sync it; returns its SHA-256, in hexadecimal.

    It replaces safetensors' own writer, which first copies all tensors in memory, holds the GIL, and does not hash.
    Other Python threads run while this function hashes and writes. Raises OSError.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *tensors.values()):
            part = part if isinstance(part, bytes) else np.ascontiguousarray(part, np.float32)
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _map_tensor(contents: mmap.mmap, begin: int, name: str, description: dict[str, Any]) -> np.ndarray:
    if description["dtype"] not in _DTYPES:
        raise ValueError(f"{name[:100]} has dtype {description['dtype']}: expected one of {', '.join(_DTYPES)}")
    return np.ndarray(
        description["shape"], _DTYPES[description["dtype"]], contents, begin + description["data_offsets"][0]
    )


def _modern_name(name: str) -> str:
    for old, new in _PREFIXES.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith("LayerNorm.beta"):
        return name.removesuffix("beta") + "bias"
    return name


# Before 2.6.0, a file could run code in spite of weights_only=True (CVE-2025-32434).
_SAFE_SINCE = Version("2.6.0")


def map_torch_file(path: Path) -> dict[str, np.ndarray]:
    """The floating-point tensors of a file that torch.save wrote, by name; bfloat16 becomes float32.

    Raises UserError if PyTorch is missing or too old to read it safely, or it holds other things, DamagedData if
    damaged.
    """
    refuse_lfs_pointer(path)
    otherwise = (
        "or convert it where transformers is: AutoModelForPreTraining.from_pretrained(directory)"
        ".save_pretrained(new_directory, safe_serialization=True)"
    )
    try:
        version = Version(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version is None or version < _SAFE_SINCE:
        raise UserError(
            f"{path} is a pickle, which only PyTorch {_SAFE_SINCE} or newer reads without running code in it; found "
            f"{f'torch {version}' if version else 'no torch'}: pip install 'torch>={_SAFE_SINCE}', {otherwise}"
        )
    import torch

    with open_regular(path):  # refuses a FIFO, which would block torch.load
        pass
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds other things than tensors, which may be code, or is damaged: it is not read; take the "
            f"model.safetensors from where it is published, {otherwise}"
        ) from error
    except (RuntimeError, ValueError, EOFError, LookupError, AttributeError, TypeError, OSError, MemoryError) as error:
        text = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DamagedData(f"{path} is damaged: {text}; copy it again") from error
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise UserError(f"{path} holds no dict of tensors by name; expected a model's state_dict")
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in loaded.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }


_BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: Path, inside: Path | None = None) -> None:
    """Raise UserError if the file is a Git LFS pointer; if it is unreadable, its reader raises the error."""
    try:
        with open_regular(path, inside) as file:
            beginning = file.read(len(_BEGINNING))
    except OSError:
        return
    if beginning == _BEGINNING:
        raise UserError(
            f"{path} is a pointer of Git LFS, a text of {path.stat().st_size} bytes, in place of the file; run "
            "git lfs pull where it was cloned, or download the file itself"
        )
