"""Three ranks over Gloo; rank 1 gathers where the others reduce. With a debug socket, which answers what each has called."""
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main

with worker_main():
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        dist.all_gather([torch.zeros(4)] * 3, torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))
    sys.exit("it did not hang")
