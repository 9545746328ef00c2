"""Two stages of a pipeline, four micro-batches."""
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(rank)
part = torch.nn.Linear(8, 8)
stage = PipelineStage(part, rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
torch.manual_seed(7)
x, y, losses = torch.randn(8, 8), torch.randn(8, 8), []
if rank == 0:
    schedule.step(x)
else:
    schedule.step(target=y, losses=losses)
    print([round(loss.item(), 5) for loss in losses])
assert part.weight.grad is not None
dist.barrier()
dist.destroy_process_group()
