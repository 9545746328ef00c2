#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One crun on each host of a hostfile, started by Open MPI; mpirun must run on one of them, where they meet.
mpirun --hostfile "${1:-hosts}" --map-by ppr:1:node --bind-to none \
    crun-launcher --nnodes 2 --nproc-per-node gpu --max-restarts 3 train.py
