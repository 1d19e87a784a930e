"""Find environment variables that libraries read as numbers but that are not: the libraries give no error."""

import os
import re
from collections.abc import Mapping

# Lists of numbers count as numbers: OpenMP takes one for each level of nested regions, Horovod one for each rank of a
# host.
_NUMBERS = (
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_GPU_THREAD_COUNT",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_MAX_VLOG_LEVEL",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_NUM_NCCL_STREAMS",
    "HOROVOD_THREAD_AFFINITY",
    "HOROVOD_STALL_CHECK_DISABLE",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_GLOO_TIMEOUT_SECONDS",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_AUTOTUNE",
)
_NUMBER = re.compile(r"\s*\d+(\.\d+)?(\s*,\s*\d+)*\s*")


def misread_numbers(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables that should be numbers and are not, as `NAME=value`."""
    return [
        f"{name}={environment[name][:200]}"
        for name in _NUMBERS
        if environment.get(name) and not _NUMBER.fullmatch(environment[name])
    ]
