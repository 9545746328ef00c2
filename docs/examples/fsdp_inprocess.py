# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with PyTorch (2.6 or newer) that goes on in its processes when a rank dies: the lost part of the state
comes from a rank that has the same one (hsdp: groups of two, each a whole copy), or from its second owner (fsdp: one
group).

    crun --nproc_per_node 4 --max-restarts 100 --warm-spares 1 fsdp_inprocess.py hsdp 500 checkpoints

Where all owners of a part are gone, all begin with the newest checkpoint (torch.distributed.checkpoint, each 50 steps).
"""
import hashlib
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import crun

EVERY = 50


def make(layout, device, width=64):
    world = dist.get_world_size()
    mesh = (init_device_mesh(device, (world // 2, 2), mesh_dim_names=("replicate", "shard")) if layout == "hsdp" else
            init_device_mesh(device, (world,), mesh_dim_names=("shard",)))
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(n, width), torch.nn.ReLU()) for n in (8, width, width)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.003)


def batch(step, rank, device):
    """The same ones again if a step is done again: random, but by step and rank."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 1000 + rank)).to(device)
    return x, x.sum(1, keepdim=True)


class Checkpoints:
    def __init__(self, folder, model, optimizer):
        self.folder, self.of = pathlib.Path(folder), (model, optimizer)

    def path(self, step):
        return self.folder / f"step-{step}"

    def save(self, step):
        if not (self.path(step) / ".metadata").exists():  # it is written last
            model, optimizer = get_state_dict(*self.of)
            with crun.phase("checkpoint"):
                dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self.path(step))

    def load(self):
        """-> steps that are done"""
        step = max((int(path.parent.name[5:]) for path in self.folder.glob("step-*/.metadata")), default=0)
        if step > 0:
            model, optimizer = get_state_dict(*self.of)
            dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=self.path(step))
            set_state_dict(*self.of, model_state_dict=model, optim_state_dict=optimizer)
        return step


@crun.inprocess  # called again with the RANK, WORLD_SIZE, MASTER_PORT of the next round
def main(layout, steps, folder):
    me = crun.info()
    crun.phase("starting")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(me.local_rank)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    model, optimizer = make(layout, device)
    checkpoints = Checkpoints(folder, model, optimizer)
    state = crun.State(model, optimizer, replicas=2)
    start = state.restore(checkpoints.load)
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step {start}", flush=True)
    for step in range(start, steps):
        x, y = batch(step, me.rank, device)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.commit(step + 1)
        crun.report(step + 1, loss=loss.item())
        print(f"rank {me.rank}: step {step + 1}: loss {loss.item().hex()}", flush=True)
        if (step + 1) % EVERY == 0:
            checkpoints.save(step + 1)
    crun.phase("closing")
    dist.barrier()  # nobody ends while another one may need its state
    weights = hashlib.sha256(b"".join(p.full_tensor().detach().cpu().numpy().tobytes() for p in model.parameters()))
    print(f"rank {me.rank} of {me.world_size}: {steps} steps, weights {weights.hexdigest()[:16]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
