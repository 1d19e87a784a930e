"""Memory that the C library keeps for the next step instead of giving it back to the kernel."""

import ctypes
import os

# From malloc.h; see mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_SETTINGS = (
    (_M_TRIM_THRESHOLD, -1),  # as a size: the largest
    (_M_MMAP_MAX, 0),
    (_M_ARENA_MAX, 1),  # a thread's own arena has room for 64 MiB; larger blocks would be mapped anew each time
)
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
)
_GPU_DRIVER = "/dev/nvidiactl"


def keep_freed_memory() -> bool:
    """From now on let malloc of this process keep what is freed; True if it does.

    Otherwise glibc gives each tensor of 32 MiB or more back when it is freed, so that the kernel has to find and clear
    its pages again in every step. The process holds its peak until it ends, and the peak may be some percent higher.
    Nothing is changed if the environment sets malloc itself, where the C library has no mallopt, or on a GPU, where
    tensors are not malloc's.

    Call it before the process starts its first thread, because a thread that has taken memory has an arena of its own,
    which glibc later gives to other threads too, whatever the limit is then.
    """
    gpu = os.path.exists(_GPU_DRIVER) and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")
    if gpu or any(variable in os.environ for variable in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # A list, because all of them are to be set, whatever the first one answers.
    return min([mallopt(parameter, value) for parameter, value in _SETTINGS]) == 1
