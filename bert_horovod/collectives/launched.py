"""Who started this process, read from the environment before anything heavy is imported."""

import os
from dataclasses import dataclass

from bert_horovod.errors import UserError

# launcher, and the variables in which it tells a process its rank, the number of ranks, its rank on the host and the
# number of ranks there
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
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
# Set by cluster/launching/restarts.py where it could not reach a host to end what a failed attempt has left there.
RANKS_MAY_LIVE = "BERT_HOROVOD_RANKS_MAY_LIVE"


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process, known before Horovod starts."""

    launcher: str | None = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1  # ranks on this host; 1 where the launcher does not say
    ranks_may_live: bool = False  # those of an attempt before, on a host that is cut off


def started_by() -> Launch:
    """Read from the environment who started this process, as which rank of how many."""
    for launcher, *names in _LAUNCHERS:
        rank, size, local_rank, local_size = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return Launch(
                launcher,
                int(rank),
                int(size),
                int(local_rank) if local_rank.isdigit() else 0,
                int(local_size) if local_size.isdigit() else 1,
                bool(os.environ.get(RANKS_MAY_LIVE)),
            )
    return Launch()


def launch() -> Launch:
    """Who started this process that is to join a world; raises UserError where that world may change under way."""
    if os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0"):
        # Every rank says so: when one has ended, the launcher may kill the others before they come here.
        raise UserError(
            "found an elastic horovodrun (--host-discovery-script), which changes the world in mid-step, so "
            "that no run could be repeated; for hosts that fail and come back: bert-horovod launch --restarts N"
        )
    return started_by()
