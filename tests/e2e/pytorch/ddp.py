"""Two ranks or more learn a line by DDP over gloo; one of them can be made to die in the first attempt."""
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(8, 4)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5 and "KILL_RANK" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == int(os.environ["KILL_RANK"]):
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
all_weights = [torch.empty_like(weights) for _ in range(world)]
dist.all_gather(all_weights, weights)
assert all(torch.equal(w, weights) for w in all_weights)
print(f"rank {rank} of {world} torch {torch.__version__} restart {os.environ['TORCHELASTIC_RESTART_COUNT']} sum {int(total)} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
