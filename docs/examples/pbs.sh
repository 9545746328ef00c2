#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two nodes with eight workers each. PBS starts this script on the first node; crun reaches the others by ssh, as PBS' list has them.
#PBS -N train
#PBS -l select=2:ncpus=64:mpiprocs=8:ngpus=8
#PBS -l walltime=24:00:00
#PBS -r y

cd "$PBS_O_WORKDIR" || exit 1

# PBS_NODEFILE names each node once for each of its mpiprocs: so many workers are started there.
crun-launcher --hostfile "$PBS_NODEFILE" --run-id "$PBS_JOBID" --max-restarts 3 --log-dir "logs/$PBS_JOBID" \
    train.py --data "$HOME/data"
code=$?

# 75: stopped in good order before the end (qdel's SIGTERM, the end of the walltime). -r y above allows it.
if [ "$code" -eq 75 ]; then
    qrerun "$PBS_JOBID"
fi
exit "$code"
