"""PyTorch's side of bench_parallel.py: one rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) over Gloo, one thread. Arguments: scheme (ddp, zero,
head, fsdp: FSDP2, a unit a residual block; pipe: 1F1B, a stage a rank, as many micro-batches), batch of all ranks, image size, classes, steps. Prints its memory before there is a model, then the median step and the most memory it had to itself."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

scheme, batch, image, classes, steps = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def own_memory():
    """USS: pages of nobody else's."""
    with open("/proc/self/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("Private_")) << 10


class Gather(torch.autograd.Function):
    """Everybody's rows; backward, the sum of everybody's gradients of this rank's."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g[:len(g) // world])
        dist.reduce_scatter_tensor(out, g.contiguous())
        return out


dist.barrier()
print(own_memory(), flush=True)
model = torchvision.models.resnet18(num_classes=classes)
share = batch // world
x, y = torch.randn(share, 3, image, image), torch.randint(0, classes, (share,))
loss_of = torch.nn.CrossEntropyLoss()
head = pipe = None
if scheme == "pipe":  # two or four stages, which cost about the same; the whole batch enters and leaves in its pieces
    m = model
    parts = [[m.conv1, m.bn1, m.relu, m.maxpool, m.layer1], [m.layer2], [m.layer3], [m.layer4, m.avgpool, torch.nn.Flatten(), m.fc]]
    each = len(parts) // world
    model = torch.nn.Sequential(*(layer for part in parts[rank * each:(rank + 1) * each] for layer in part))
    pipe = Schedule1F1B(PipelineStage(model, rank, world, torch.device("cpu")), world, loss_of)
    x, y = torch.randn(batch, 3, image, image), torch.randint(0, classes, (batch,))
if scheme == "head":
    mesh = init_device_mesh("cpu", (world,))
    head = parallelize_module(torch.nn.Sequential(model.fc), mesh, {"0": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    model.fc = torch.nn.Identity()
if scheme == "fsdp":
    mesh = init_device_mesh("cpu", (world,))
    for part in (m for m in model.modules() if isinstance(m, torchvision.models.resnet.BasicBlock)):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif not pipe:
    model = DistributedDataParallel(model)
parameters = [*model.parameters(), *(head.parameters() if head else [])]
rates = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}
if scheme == "zero":
    optimizers = [ZeroRedundancyOptimizer(parameters, torch.optim.SGD, **rates)]
else:
    optimizers = [torch.optim.SGD(p, **rates) for p in ([list(model.parameters()), list(head.parameters())] if head else [parameters])]


def forward():
    if pipe:
        pipe.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if rank == world - 1 else {}))
        return
    if not head:
        loss = loss_of(model(x), y)
        loss.backward()
        return
    features, labels = Gather.apply(model(x)), torch.cat(labels_of_all())
    with loss_parallel():
        loss = loss_of(head(features), labels)
        loss.backward()


def labels_of_all():
    parts = [torch.empty_like(y) for _ in range(world)]
    dist.all_gather(parts, y)
    return parts


times, most = [], 0
for _ in range(steps):
    start = time.perf_counter()
    for o in optimizers:
        o.zero_grad()
    forward()
    most = max(most, own_memory())  # gradients and what is left of activations
    for o in optimizers:
        o.step()
    times.append(time.perf_counter() - start)
print(statistics.median(times[2:]), flush=True)
os._exit(0)
