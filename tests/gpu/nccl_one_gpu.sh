#!/bin/sh
# NCCL between two ranks on one GPU, each of which passes for a host of its own. Usage: nccl_one_gpu.sh CRUN TRAINER; 77: there is no GPU.
set -eu
crun=$1 trainer=$2
"$trainer" comm-test --device cuda --comm local --max-bytes 1024 >/dev/null 2>&1 || { echo "no GPU can be used here"; exit 77; }
for command in comm-test comm-bench; do
    CUDA_VISIBLE_DEVICES=0 "$crun" --standalone --nproc_per_node 2 sh -c '
        export NCCL_HOSTID=rank$RANK NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_DEBUG=WARN
        export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 LOCAL_RANK=0
        exec "$@"' sh "$trainer" "$command" --device cuda --comm nccl --oversubscribe --max-bytes 1048576
done
