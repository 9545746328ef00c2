"""What bench_recovery.py runs with PyTorch: usage pytorch_recovery.py inprocess|snapshots STEPS FOLDER [IMAGE_SIZE BATCH]

ResNet-18 over all ranks (gloo), random images by step and rank. `inprocess`: crun.inprocess and crun.State; `snapshots`: rank 0
saves each 10 steps, and whoever is started resumes from there. GROUP_TIMEOUT_S: of the process group. Each rank says each step it has finished, and when.
"""
import datetime
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

import crun

EVERY = 10


def batch(step, rank, size, n):
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    return torch.randn(n, 3, size, size, generator=generator), torch.randint(10, (n,), generator=generator)


def save(path, step):
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.new")
        os.replace(f"{path}.new", path)


def resume(path):
    if not path.exists():
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


# Once for each process: they outlive its rounds, and a spare has them ready.
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def main(way, steps, folder, size=32, n=32):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("GROUP_TIMEOUT_S", 1800))))
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    state, path = crun.State(model, optimizer), pathlib.Path(folder) / "snapshot.pt"
    start = state.restore() if way == "inprocess" else resume(path)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)  # its sums are laid out once and for all
    crun.phase("starting")
    for step in range(start, steps):
        x, y = batch(step, rank, size, n)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.commit(step + 1)
        crun.report(step + 1)
        print(f"rank {rank} pid {os.getpid()} attempt {attempt} step {step + 1} at {time.monotonic():.4f}", flush=True)
        if way == "snapshots" and (step + 1) % EVERY == 0:
            save(path, step + 1)
    dist.barrier()
    if rank == 0:
        torch.save([p.detach() for p in model.parameters()], pathlib.Path(folder) / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run = crun.inprocess(main) if sys.argv[1] == "inprocess" else main
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
