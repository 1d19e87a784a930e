"""Who started this process, read from the environment before anything heavy is imported."""

import os
from dataclasses import dataclass

# launcher, and the variables in which it tells a process its rank, the number of ranks, and its rank on the host
_LAUNCHERS = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process, known before Horovod starts."""

    launcher: str | None = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0


def launch() -> Launch:
    """Read from the environment who started this process, as which rank of how many."""
    for launcher, *names in _LAUNCHERS:
        rank, size, local_rank = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return Launch(launcher, int(rank), int(size), int(local_rank) if local_rank.isdigit() else 0)
    return Launch()
