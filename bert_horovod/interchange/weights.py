"""model.safetensors, whole or in shards, to float32 arrays under today's parameter names.

Other files (pytorch_model.bin) are never read: they are pickles, which can run code.
"""

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_horovod.errors import UserError

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # NumPy has no bfloat16
_BUFFERS = ("position_ids", "token_type_ids")  # constants that old versions saved
_PREFIXES = {"embeddings.": "bert.embeddings.", "encoder.": "bert.encoder.", "pooler.": "bert.pooler."}


def read_weights(directory: Path) -> dict[str, np.ndarray]:
    """All floating-point tensors of a Hugging Face BERT directory, float32, by name.

    Names are those of BertForPreTraining: `bert.` is put before those of a bare BertModel, and LayerNorm's old `gamma`
    and `beta` become `weight` and `bias`. Saved position ids are dropped. bfloat16, float16 and float64 become float32.

    Raises:
        UserError: there is no model.safetensors, or it is damaged, or a tensor is twice there or no float.
    """
    tensors: dict[str, np.ndarray] = {}
    for path in _files(directory):
        for saved_name, values in _read_file(path):
            name = _modern_name(saved_name)
            if name in tensors:
                raise UserError(f"{path}: two tensors for {name}, one of them as {saved_name}")
            tensors[name] = values
    return tensors


def _files(directory: Path) -> list[Path]:
    if (directory / WEIGHTS_FILE).is_file():
        return [directory / WEIGHTS_FILE]
    index = directory / INDEX_FILE
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{index} is damaged: expected JSON with a weight_map of file names") from error
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise UserError(f"{index} names {name!r}: expected a file in the same directory")
            if not (directory / name).is_file():
                raise UserError(f"{directory} has no {name}, which {INDEX_FILE} names: the copy is incomplete")
        return [directory / name for name in names]
    if (directory / "pytorch_model.bin").is_file() or (directory / "pytorch_model.bin.index.json").is_file():
        raise UserError(
            f"{directory} has its weights in pytorch_model.bin only, a pickle, which is never read here; convert it "
            "with transformers: AutoModelForPreTraining.from_pretrained(directory)"
            ".save_pretrained(new_directory, safe_serialization=True)"
        )
    raise UserError(f"{directory} has no {WEIGHTS_FILE}: expected a Hugging Face directory with safetensors weights")


def _read_file(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with safe_open(path, framework="np"):  # checks header, sizes and the file's length
            pass
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
            # Mapped by hand, because not every safetensors version gives NumPy a bfloat16 tensor.
            contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; copy it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if name.split(".")[-1] in _BUFFERS:
            continue
        if entry["dtype"] not in _DTYPES:
            raise UserError(f"{path}: {name} has dtype {entry['dtype']}: expected one of {', '.join(_DTYPES)}")
        offset = 8 + header_bytes + entry["data_offsets"][0]
        raw = np.ndarray(entry["shape"], _DTYPES[entry["dtype"]], contents, offset)
        if entry["dtype"] == "BF16":  # the upper half of a float32
            yield name, (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            with np.errstate(over="ignore"):  # an infinity is reported with the tensor's name later
                yield name, raw.astype(np.float32)


def _modern_name(name: str) -> str:
    for old, new in _PREFIXES.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith("LayerNorm.beta"):
        return name.removesuffix("beta") + "bias"
    return name
