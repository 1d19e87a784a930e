#!/usr/bin/env bash
# Pre-train on several hosts, started and joined by Open MPI (mpirun), which uses InfiniBand and the scheduler's own way to
# start processes where it knows them. It needs a Horovod with MPI: load or install Open MPI, then run/setup.sh.
#
#   run/mpi_job.sh HOSTFILE --recipe R --data_dir D --output_dir O [more flags of `bert-horovod pretrain`]
#   run/mpi_job.sh - --recipe R ...           in a job of SLURM, PBS or LSF: its hosts
#
#   INTERFACES=eth1   the network that carries gradients, where hosts have several
#
# Ctrl-C, SIGTERM or SIGUSR1 saves and stops; the same command resumes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
export PATH="$root/.venv/bin:$PATH"
flags=(--mpi)
[ "$1" = - ] || flags+=(-hostfile "$1")
exec bert-horovod launch "${flags[@]}" ${INTERFACES:+--network_interfaces "$INTERFACES"} -- pretrain "${@:2}"
