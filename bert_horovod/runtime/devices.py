"""The device of this process; the only place that asks TensorFlow for one.

XLA's choices of algorithms on a GPU: it times several for each matrix product and takes the fastest. Another choice
adds in another order. A process keeps its choices as files in a directory of its own, by XLA's own names, which hold
the GPU and XLA's version; a file that is there before a program is compiled decides.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.host import BFLOAT16, instructions, peak_resident_bytes


def use_devices(local_rank: int, local_size: int, threads: int) -> None:
    """Give this rank its GPU, or its share of the host's cores; call it once, before TensorFlow uses a device.

    `threads`: intra-op threads on a CPU; 0: the host's cores / its ranks. Raises UserError if the host has GPUs, but
    fewer of them than ranks.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if local_rank >= len(gpus):
            raise UserError(
                f"{local_size} ranks on this host but {len(gpus)} GPUs; give each GPU one rank: -np {len(gpus)}, or "
                f"slots={len(gpus)} for this host in the -hostfile"
            )
        keep_xla_choices()
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[local_rank], True)
        return
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(threads or max(1, cores // local_size))
    tf.config.threading.set_inter_op_parallelism_threads(2)


def has_gpu() -> bool:
    """Whether this rank computes on a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def host_has_gpu() -> bool:
    """Whether this host has a GPU at all; does not initialise it."""
    return bool(tf.config.list_physical_devices("GPU"))


def gpu_details() -> dict | None:
    """TensorFlow's details of this rank's GPU: device_name, compute_capability (major, minor); None without a GPU."""
    gpus = tf.config.get_visible_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]) if gpus else None


def fast_products() -> tuple[str, ...]:
    """Dtypes in which this rank's device multiplies matrices faster than in float32, the fastest first.

    Such products are summed in float32. A CPU has at most bfloat16.
    """
    if not has_gpu():
        return ("bfloat16",) if BFLOAT16 & instructions() else ()
    capability = (gpu_details() or {}).get("compute_capability", (0, 0))
    if capability >= (8, 0):
        return ("bfloat16", "float16")
    return ("float16",) if capability >= (7, 0) else ()


def xla_multiplies_well() -> bool:
    """Whether XLA's products of matrices are as fast as TensorFlow's: not on CPUs with AVX-512, which it half uses."""
    return has_gpu() or "avx512f" not in instructions()


def peak_memory_bytes() -> int:
    """Peak memory of this process so far: the GPU's if it has one, else resident memory."""
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] if has_gpu() else peak_resident_bytes()


# XLA has two autotuners, each with a flag of its own.
CHOICES_FLAGS = ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_experimental_autotuner_cache_dir")
_NAME = re.compile(r"[\w=+-][\w.=+-]*")
_directory: Path | None = None


def keep_xla_choices() -> None:
    """Let XLA write its choices, and read those of `add`; call it before anything is compiled.

    Does nothing if XLA_FLAGS already names a directory.
    """
    global _directory
    flags = os.environ.get("XLA_FLAGS", "")
    if _directory is not None or any(flag in flags for flag in CHOICES_FLAGS):
        return
    _directory = Path(tempfile.mkdtemp(prefix="bert_horovod.xla."))
    atexit.register(shutil.rmtree, _directory, ignore_errors=True)
    os.environ["XLA_FLAGS"] = " ".join([flags, *(f"--{flag}={_directory}" for flag in CHOICES_FLAGS)]).strip()


def choices() -> dict[str, str]:
    """This process's choices so far: texts by name; empty if it keeps none."""
    if _directory is None:
        return {}
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(_directory.glob("*.textproto"))}


def add_choices(chosen: dict[str, str]) -> None:
    """Let programs that are compiled from now on take these choices; raises ValueError for a name that is no file's."""
    for name, text in chosen.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a choice of XLA")
        if _directory is not None:
            (_directory / name).write_text(text, encoding="utf-8")
