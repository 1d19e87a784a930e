"""Which launcher started this process, read from the environment before any heavy import."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from bert_horovod.errors import UserError

# Launcher, and its variables of a process's rank, the number of ranks, the rank on its host and the number of ranks
# there.
_LAUNCHERS = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
# Variables of a process's rank and of the number of ranks, of launchers whose ranks cannot form a world here.
_OTHER_LAUNCHERS = {
    "torchrun or a PyTorchJob": ("RANK", "WORLD_SIZE"),
    "mpirun_rsh of MVAPICH2": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "jsrun": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    "flux run": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    "mpiexec of PALS": ("PALS_RANKID", "PALS_SIZE"),
    "aprun": ("ALPS_APP_PE", "ALPS_APP_SIZE"),
    "PMIx": ("PMIX_RANK", "PMIX_SIZE"),
}
# From here on SLURM reserves step ids for itself: for a job's script, for the shell that salloc opens.
_FIRST_RESERVED_STEP = 0xFFFFFFF0
_HYDRAS_OWN = ("PMI_FD", "PMI_PORT", "MPI_LOCALRANKID")  # set by mpirun of MPICH and Intel MPI, and not by SLURM
# Address and port of horovodrun's rendezvous server, which every rank asks for the addresses of the others.
_SERVER = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
_SERVER_ANSWERS_S = 10
_MAXIMUM_RANKS = 1 << 20
ATTEMPT = "BERT_HOROVOD_ATTEMPT"  # set by `launch`: its attempt's id, in the environment of all its processes
# Set by `launch --restarts` if it could not reach a host to kill the ranks that a failed attempt left there.
RANKS_MAY_LIVE = "BERT_HOROVOD_RANKS_MAY_LIVE"
UNEVEN = "BERT_HOROVOD_UNEVEN"  # set by `launch` if hosts have different numbers of ranks: a rank knows its own alone


@dataclass(frozen=True)
class Launch:
    """This process's place among the ranks, from the launcher's variables; known before Horovod starts."""

    launcher: str | None = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1  # ranks on this host; 1 if the launcher does not say
    ranks_may_live: bool = False  # ranks of an earlier attempt, on a host that cannot be reached


def started_by() -> Launch:
    """Read from the environment which launcher started this process, as which rank of how many."""
    for launcher, *names in _LAUNCHERS:
        if not _is_rank(launcher, names[0], os.environ):
            continue
        rank, size, local_rank, local_size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            return Launch(
                launcher,
                int(rank),
                int(size),
                int(local_rank) if local_rank.isdecimal() else 0,
                int(local_size) if local_size.isdecimal() else 1,
                bool(os.environ.get(RANKS_MAY_LIVE)),
            )
    return Launch()


def launch() -> Launch:
    """As started_by, for a process that joins a world.

    Raises UserError if that world may change during the run, and for a rank of a launcher that is not known: each of
    its ranks would be a run of its own, in the same directory.
    """
    if os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0"):
        # All ranks raise it, not rank 0 alone: after one rank's end the launcher may kill the others before this line.
        raise UserError(
            "found an elastic horovodrun (--host-discovery-script), which changes the world in mid-step, so "
            "that no run could be repeated; for hosts that fail and come back: bert-horovod launch --restarts N"
        )
    launched = started_by()
    if launched.launcher is None:
        _refuse_others(os.environ)
    return launched


def _refuse_others(environment: Mapping[str, str]) -> None:
    """Raise UserError if another launcher started this process as one rank of several; tell of a lone PMIX_RANK."""
    for launcher, names in _OTHER_LAUNCHERS.items():
        given = {name: environment[name] for name in names if environment.get(name, "").isdecimal()}
        variables = " ".join(f"{name}={value}" for name, value in given.items())
        if int(given.get(names[0], "0")) > 0 or int(given.get(names[1], "1")) > 1:
            raise UserError(
                f"found {variables} of {launcher}, whose ranks Horovod cannot join: each would train alone; "
                "expected bert-horovod launch, horovodrun, or mpirun or srun of the MPI that Horovod was "
                f"built with; if nothing has started this process as a rank: unset {' '.join(given)}"
            )
        if launcher == "PMIx" and given:
            print(
                f"found {variables}, but nothing that says of how many ranks: this process runs alone; several need "
                "bert-horovod launch, or mpirun or srun of the MPI that Horovod was built with",
                file=sys.stderr,
            )


def _is_rank(launcher: str, variable: str, environment: Mapping[str, str]) -> bool:
    """Whether a launcher's variables make this process a rank.

    SLURM sets SLURM_PROCID, and perhaps PMI_RANK, for a job's script too, but only the processes of a job's steps are
    ranks.
    """
    step = environment.get("SLURM_STEP_ID", "")
    in_step = step.isdecimal() and int(step) < _FIRST_RESERVED_STEP
    if launcher == "srun":
        return in_step
    in_script = "SLURM_JOB_ID" in environment and not in_step
    return variable != "PMI_RANK" or not in_script or any(name in environment for name in _HYDRAS_OWN)


def check_horovodruns_server(environment: Mapping[str, str] = os.environ) -> None:
    """Raise UserError if HOROVOD_RANK and HOROVOD_SIZE are left over in the environment.

    Horovod would wait for ranks that nobody started.
    """
    variables = " ".join(f"{name}={environment[name]}" for name in ("HOROVOD_RANK", "HOROVOD_SIZE"))
    mend = "nothing has started this process as a rank: unset HOROVOD_RANK HOROVOD_SIZE, or start it with horovodrun"
    rank, size = int(environment["HOROVOD_RANK"]), int(environment["HOROVOD_SIZE"])
    if not rank < size <= _MAXIMUM_RANKS:
        raise UserError(f"found {variables}, which is no rank of a world; {mend}")
    address, port = (environment.get(name, "") for name in _SERVER)
    if not address or not port.isdecimal():
        raise UserError(f"found {variables} in the environment, but no {' and '.join(_SERVER)}; {mend}")
    try:
        socket.create_connection((address, int(port)), _SERVER_ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"found {variables} in the environment, but horovodrun's server at {address}:{port} does not answer "
            f"({error}); {mend}"
        ) from error
