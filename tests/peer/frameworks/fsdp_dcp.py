"""FSDP2 on a DeviceMesh; distributed checkpoints, read again."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make(mesh):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model, optim, n):
    torch.manual_seed(100 + n)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
    dist.all_reduce(loss)
    return loss.item()


mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
model, optim = make(mesh)
losses = [step(model, optim, n) for n in range(3)]
m, o = get_state_dict(model, optim)
dcp.save({"model": m, "optim": o}, checkpoint_id=sys.argv[1])
losses += [step(model, optim, 3)]
model, optim = make(mesh)
m, o = get_state_dict(model, optim)
dcp.load({"model": m, "optim": o}, checkpoint_id=sys.argv[1])
set_state_dict(model, optim, model_state_dict=m, optim_state_dict=o)
assert abs(step(model, optim, 3) - losses[3]) < 1e-6, "what was loaded is what was saved"
if dist.get_rank() == 0:
    print([round(x, 5) for x in losses])
dist.destroy_process_group()
