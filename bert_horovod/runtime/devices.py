"""The device of this process; the only place that asks TensorFlow for one."""

import os
import resource

from bert_horovod.errors import UserError
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.autotuning import keep_choices


def use_devices(local_rank: int, local_size: int, threads: int) -> None:
    """Give this rank its GPU, or its share of the host's cores; call it once, before TensorFlow uses a device.

    Args:
        local_rank: this process's number on its host.
        local_size: ranks on this host.
        threads: intra-op threads on a CPU; 0: the host's cores / its ranks.

    Raises:
        UserError: the host has GPUs, but fewer of them than ranks.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if local_rank >= len(gpus):
            raise UserError(
                f"{local_size} ranks on this host but {len(gpus)} GPUs; give each GPU one rank: -np {len(gpus)}, or "
                f"slots={len(gpus)} for this host in the -hostfile"
            )
        keep_choices()
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


def peak_memory_bytes() -> int:
    """Peak memory of this process so far: the GPU's if it has one, else resident memory."""
    if has_gpu():
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    try:  # this process's peak alone; ru_maxrss also counts the process that started it
        with open("/proc/self/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
