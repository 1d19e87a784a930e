"""Reads pytorch_model.bin, a pickle, which may contain code; PyTorch's unpickler for tensors alone runs none."""

import importlib.metadata
import pickle
from pathlib import Path

import numpy as np
from packaging.version import Version

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.lfs_pointer import refuse_lfs_pointer
from bert_horovod.storage.reading import open_regular

# Before 2.6.0, a file could run code in spite of weights_only=True (CVE-2025-32434).
_SAFE_SINCE = Version("2.6.0")


def map_torch_file(path: Path) -> dict[str, np.ndarray]:
    """The floating-point tensors of a file that torch.save wrote, by name; bfloat16 becomes float32.

    Raises:
        UserError: PyTorch is missing or too old to read the file safely; the file holds other things than tensors.
        DamagedData: the file is damaged.
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
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in loaded.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
