#!/usr/bin/env bash
# Pre-train in a PBS job. Edit the numbers below (one process a GPU: mpiprocs = ngpus), then, at the project's root:
#
#   qsub -v RECIPE=run/recipes/bert-base.toml,DATA_DIR=/data/store,OUTPUT_DIR=/shared/bert run/pbs.sh
#
# Five minutes before the time limit the run saves and stops, and so it does at qdel; the same qsub resumes it.
# To queue the next job at once: qsub -W depend=afterany:JOB -v ...
#PBS -N bert
#PBS -l select=4:ncpus=32:mpiprocs=8:ngpus=8
#PBS -l walltime=24:00:00
#PBS -j oe
cd "$PBS_O_WORKDIR" || exit
export PATH="$PWD/.venv/bin:$PATH"
exec timeout --foreground --preserve-status --signal=USR1 "${SAVE_AFTER:-1435m}" \
    bert-horovod launch -- pretrain --recipe "$RECIPE" --data_dir "$DATA_DIR" --output_dir "$OUTPUT_DIR"
