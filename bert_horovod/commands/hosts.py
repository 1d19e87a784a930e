"""Print a hostfile for the job in which this command runs: of SLURM, PBS, LSF, Grid Engine, Kubernetes or SkyPilot.

bert-horovod hosts --output hosts && bert-horovod doctor -hostfile hosts
"""

import argparse
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--slots", type=int, metavar="N", help="ranks on each host (default: as the scheduler says)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of to standard output")


def run(arguments: argparse.Namespace) -> None:
    """Print the hosts, and on standard error the variable or file that they were read from."""
    from bert_horovod.cluster.launching.hostfiles import (
        MAXIMUM_SLOTS,
        OPERATORS_HOSTFILE,
        format_hostfile,
        from_scheduler,
    )
    from bert_horovod.commands.shared.output_flags import require_output_file
    from bert_horovod.errors import UserError
    from bert_horovod.storage.writing import write_output
    from bert_horovod.wording import counted

    if arguments.slots is not None and not 1 <= arguments.slots <= MAXIMUM_SLOTS:
        raise UserError(f"--slots {arguments.slots}: expected 1 to {MAXIMUM_SLOTS}")
    hosts_and_source = from_scheduler()
    if hosts_and_source is None:
        raise UserError(
            "found no job of SLURM, PBS, LSF, Grid Engine, SkyPilot or Kubernetes (SLURM_JOB_NODELIST, PBS_NODEFILE, "
            "LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE, LSB_HOSTS, PE_HOSTFILE, SKYPILOT_NODE_IPS and "
            f"OMPI_MCA_orte_default_hostfile are not set, and there is no {OPERATORS_HOSTFILE}); run this inside a "
            "job, or write the hostfile by hand: a line `host slots=N` for each host"
        )
    hosts, source = hosts_and_source
    if arguments.output:
        files = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "OMPI_MCA_orte_default_hostfile")
        require_output_file(arguments, more_inputs=[Path(os.environ[name]) for name in files if name in os.environ])
    if arguments.slots:
        hosts = dict.fromkeys(hosts, arguments.slots)
    if arguments.output:
        write_output(arguments.output, format_hostfile(hosts))
    else:
        print(format_hostfile(hosts), end="")
    print(f"{counted(len(hosts), 'host')}, {counted(sum(hosts.values()), 'slot')}, from {source}", file=sys.stderr)
