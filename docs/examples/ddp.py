# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with PyTorch (1.13 or newer) that crun sees into: heartbeat, phases, a stop in good order, errors in its report.

    crun --nproc_per_node 2 --max-restarts 3 --hang-timeout 5m ddp.py checkpoint.pt 200

It runs under torchrun, or alone, as well: every call of crun is harmless there.
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import crun


def batch(step, rank):
    """8 points of a line, other ones in each step and rank."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.randn(8, 4, generator=generator)
    return x, x.sum(1, keepdim=True)


def save(path, step, model, optimizer):
    if crun.info().rank == 0:
        torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()


def resume(path, model, optimizer):
    """-> steps that are done"""
    if not os.path.exists(path):
        return 0
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


@crun.record  # an exception, with its place, step and phase, is in crun's failure report
def main(path, steps):
    me = crun.info()
    crun.on_preemption()  # a SIGTERM that asks for a stop in good order no longer ends us before the loop has looked
    crun.phase("starting")  # from here on this rank is watched for hangs
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mean = float("nan")
    for step in range(resume(path, model, optimizer), steps):
        x, y = batch(step, me.rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told = torch.tensor([loss.item(), float(crun.stopping())])  # ranks learn of a stop at different steps: one says so to all
        dist.all_reduce(told)
        mean = told[0].item() / me.world_size
        crun.report(step + 1, loss=mean)
        if told[1] > 0 or (step + 1) % 50 == 0:
            with crun.phase("checkpoint"):
                save(path, step + 1, model, optimizer)
        if told[1] > 0:
            crun.requeue()  # exit code 75: start me again to go on
    crun.phase("closing")
    save(path, steps, model, optimizer)
    print(f"rank {me.rank} of {me.world_size}: loss {mean:.9f}, torch {torch.__version__}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:  # alone
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    main(sys.argv[1], int(sys.argv[2]))
