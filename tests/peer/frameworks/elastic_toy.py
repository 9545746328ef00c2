"""DDP with snapshots: `elastic_toy.py SNAPSHOT STEPS [FAIL_AT]`; rank 1 of the first start fails there."""
import os
import sys
import time

import torch
import torch.distributed as dist

path, steps, fail_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optim = torch.optim.SGD(model.parameters(), lr=0.05)
first = 0
if os.path.exists(path):
    snapshot = torch.load(path)
    model.module.load_state_dict(snapshot["model"])
    first = snapshot["step"]
for step in range(first, steps):
    torch.manual_seed(1000 + step)
    loss = model(torch.randn(8, 8)[dist.get_rank()::dist.get_world_size()]).square().mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step == fail_at and dist.get_rank() == 1 and first == 0:
        sys.exit(5)
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "step": step + 1}, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()
    time.sleep(0.02)
if dist.get_rank() == 0:
    print("first", "later" if first else "0", [round(v, 5) for v in model.module.weight.flatten().tolist()])
dist.destroy_process_group()
