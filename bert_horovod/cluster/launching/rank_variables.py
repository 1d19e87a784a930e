"""Choose the environment variables that the ranks get: those that a run needs, and those that the user names.

Not all, because horovodrun writes them into command lines, which every user of a host can read.
"""

import re
from collections.abc import Iterable, Mapping

from bert_horovod.errors import UserError
from bert_horovod.runtime.children import python_settings

_NAMES = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|TMPDIR|HOSTNAME|SSH_AUTH_SOCK|KRB5CCNAME"
    "|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|CONDA_PREFIX|PYTHON[A-Z]+"
    # Settings of Horovod, the network's libraries and the processors'
    "|(BERT_HOROVOD|HOROVOD|NCCL|GLOO|UCX|FI|PSM2|OMPI|PMIX|PRTE|GRPC|MALLOC|TCMALLOC|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS)_[A-Z]\\w*"
    "|(CUDA|CUDNN|CUBLAS|NVIDIA|XLA|HIP|HSA|ROCM|ROCR|MIOPEN)_[A-Z]\\w*"
    # TensorFlow's own; Terraform keeps secrets in TF_VAR_...
    "|TF_(CPP|XLA|GPU|CUDA|CUDNN|CUBLAS|ENABLE|DISABLE|DETERMINISTIC|FORCE|NUM|USE|FP16|MKL|ONEDNN|PROFILER)_?\\w*"
    # Of SLURM's job, its number and end for --stop_before
    "|SLURM_JOB_(ID|END_TIME|NODELIST|NUM_NODES|CPUS_PER_NODE)"
)
# Words of a secret's name; `--env NAME` still passes one on. A partition key of InfiniBand (NCCL_IB_PKEY) is no secret,
# nor is the path SSH_AUTH_SOCK.
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|COOKIE|JWT|(?<![A-Z])PWD|(?<!SSH_)AUTH(?!OR)|"
    r"((?<!IB_P)KEY|TOKEN|PASS|CRED)(S|FILE)?\d*(_|$)",
    re.IGNORECASE,
)
# mpirun reads these in a scheduler's job; it does not pass them on.
_OF_MPIRUN = re.compile(r"(SLURM|PBS|LSB|LSF|SGE|PE)_\w+|JOB_ID")


def for_ranks(
    environment: Mapping[str, str], more: Iterable[str] = (), network_interfaces: str | None = None
) -> dict[str, str]:
    """The variables that the ranks get from this process's environment; raises UserError if one of `more` is not set.

    `more`: names from the user. `network_interfaces`: for NCCL, unless the environment names others.
    """
    more = set(more)
    if missing := sorted(more - environment.keys()):
        raise UserError(f"--env {missing[0]}: the environment has no such variable; set it, or leave the flag away")
    passed_on = {
        name: value
        for name, value in environment.items()
        if name in more or (_NAMES.fullmatch(name) and not _SECRET.search(name))
    }
    added = {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({"NCCL_SOCKET_IFNAME": network_interfaces} if network_interfaces else {})
    return added | passed_on | python_settings()


def for_mpirun(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that mpirun itself needs in addition to those of the ranks."""
    return {name: text for name, text in environment.items() if _OF_MPIRUN.fullmatch(name)}
