"""What bench_recovery.py runs with PyTorch: usage pytorch_recovery.py inprocess|anew|snapshots FOLDER NET [IMAGE_SIZE BATCH]

NET over all ranks (gloo): resnet18, or mlp (0.9 M parameters); random input by step and rank. `inprocess`: crun.inprocess and crun.State;
`anew`: the same, but the process group is made anew in each round, as with a PyTorch that cannot reconnect it; `snapshots`: rank 0 saves
each 10 steps, and whoever is started resumes from there. GROUP_TIMEOUT_S: of the process group. Each rank says each step it has finished,
and when, and what it was given by another one. The last step is the number in FOLDER/last, once that is there.
"""
import datetime
import itertools
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import crun

EVERY = 10


def batch(step, rank, shape):
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    return torch.randn(*shape, generator=generator), torch.randint(10, shape[:1], generator=generator)


def mlp(width=640):
    layer = torch.nn.Linear
    return torch.nn.Sequential(layer(128, width), torch.nn.ReLU(), layer(width, width), torch.nn.ReLU(), layer(width, width), torch.nn.ReLU(), layer(width, 10))


def timed(take):
    def taking(tensors, *where):
        began = time.monotonic()
        take(tensors, *where)
        print(f"given {sum(t.numel() * t.element_size() for t in tensors)} bytes in {time.monotonic() - began:.4f} s", flush=True)
    return taking


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


WAY, FOLDER, NET = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
crun._state._take = timed(crun._state._take)
if WAY == "anew":
    crun._reconnect.Kept.why_not = lambda *_: "as asked"

# Once for each process: they outlive its rounds, and a spare has them ready.
torch.manual_seed(0)
if NET == "mlp":
    model = mlp()
else:
    import torchvision
    model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def main(size=32, n=32):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("GROUP_TIMEOUT_S", 1800))))
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    state, path = crun.State(model, optimizer), FOLDER / "snapshot.pt"
    start = resume(path) if WAY == "snapshots" else state.restore()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)  # its sums are laid out once and for all
    crun.phase("starting")
    for step in itertools.count(start):
        if (FOLDER / "last").exists() and step >= int((FOLDER / "last").read_text()):
            break
        x, y = batch(step, rank, (n, 128) if NET == "mlp" else (n, 3, size, size))
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.commit(step + 1)
        crun.report(step + 1)
        print(f"rank {rank} pid {os.getpid()} attempt {attempt} step {step + 1} at {time.monotonic():.4f}", flush=True)
        if WAY == "snapshots" and (step + 1) % EVERY == 0:
            save(path, step + 1)
    dist.barrier()
    if rank == 0:
        torch.save([p.detach() for p in model.parameters()], FOLDER / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run = main if WAY == "snapshots" else crun.inprocess(main)
    run(*map(int, sys.argv[4:]))
