# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with PyTorch (1.13 or newer) that goes on in its processes when a rank dies, with no step lost.

    crun --nproc_per_node 4 --max-restarts 100 --warm-spares 1 ddp_inprocess.py 500

Kill one of the processes meanwhile (kill -9): the others keep theirs, and the weights at the end are those of a run that
nobody disturbed. On GPUs over NCCL, else over Gloo. Under torchrun, or alone, it is an ordinary program.
"""
import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import crun


class Net(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def batch(step, rank, device):
    """The same ones again if a step is done again: random, but by step and rank."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.randn(16, 8, generator=generator).to(device)
    return x, x.sum(1, keepdim=True)


def own_device():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@crun.inprocess  # called again with the RANK, WORLD_SIZE, MASTER_PORT of the next round
def main(steps):
    me = crun.info()
    crun.phase("starting")
    device = own_device()
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    state = crun.State(model, optimizer)
    start = state.restore()  # a function instead of nothing would load a checkpoint where no rank has anything
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step {start}", flush=True)
    # else DDP lays its sums out anew after the first step, and one after a recovery is as good but has other last bits
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(start, steps):
        x, y = batch(step, me.rank, device)
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.commit(step + 1)
        crun.report(step + 1, loss=loss.item())
    crun.phase("closing")
    dist.barrier()  # nobody ends while another one may need its state
    weights = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"rank {me.rank} of {me.world_size}: {steps} steps, weights {weights[:16]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:  # alone
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    main(int(sys.argv[1]))
