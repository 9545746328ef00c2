"""DDP over gloo, as it comes: `hanging.py sleeps|stops|computes RANK`. That rank, in the first attempt, keeps the others waiting in an all_reduce."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="env://")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
for _ in range(5):
    model(torch.randn(8, 4)).sum().backward()
if rank == int(sys.argv[2]) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if sys.argv[1] == "sleeps":
        time.sleep(3600)
    elif sys.argv[1] == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            torch.randn(300, 300) @ torch.randn(300, 300)
dist.all_reduce(torch.ones(1))
print(f"rank {rank} restart {os.environ['TORCHELASTIC_RESTART_COUNT']} went on", flush=True)
dist.destroy_process_group()
