"""crun.inprocess with a PyTorch that can reconnect a group: the back end is kept, all that is around it is right, and otherwise it is said why not."""
import os
import re
import signal
import sys

import pytest

from processes import wait
from torch_rounds import crun_for

JOB = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import crun
from crun import _groups

folder, back_end = sys.argv[1:]

@crun.inprocess
def main():
    dist.init_process_group(back_end)
    me = crun.info()
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = crun.State(model, optimizer)
    start = state.restore()
    broadcasts = []
    torch.nn.parallel.distributed._sync_module_states = lambda *a, of=torch.nn.parallel.distributed._sync_module_states, **k: (broadcasts.append(1), of(*a, **k))
    ddp = DistributedDataParallel(model)
    ddp(torch.full((1, 2), float(me.rank + 1))).sum().backward()
    part = dist.new_group([0, 2])
    both = torch.tensor([1.0 + me.rank])
    if me.rank != 1:
        dist.all_reduce(both, group=part)
    crun.phase("starting")
    kept = _groups.current.kept.backend
    print(f"rank {me.rank} pid {os.getpid()} round {me.round}: back end {id(kept) if kept else None}, ranks {dist.get_process_group_ranks(None)}, is {dist.get_rank()}, "
          f"gradient {model.weight.grad[0, 0].item()}, sum {both.item()}, broadcasts {len(broadcasts)}", flush=True)
    optimizer.step()
    state.commit(start + 1)
    crun.report(start + 1)
    go = torch.zeros(1)
    while not go.item():  # until the test says so, or a rank dies
        time.sleep(0.01)
        go += me.rank == 0 and os.path.exists(os.path.join(folder, f"go-{me.round}"))
        dist.broadcast(go, 0)
    dist.destroy_process_group()

main()
"""
SAID = r"^rank (\d) pid (\d+) round {} *: back end (\w+), ranks (.*), is (\d), gradient (.*), sum (.*), broadcasts (\d)$"


@pytest.mark.parametrize("back_end, why", [("gloo", None), ("cpu:gloo", "'cpu:gloo' names devices, or several back ends")])
def test_a_kept_back_end_serves_the_next_round(tmp_path, back_end, why):
    import torch.distributed.distributed_c10d as c10d
    if not hasattr(c10d, "ReconfigureOptions"):
        pytest.skip("this PyTorch cannot reconnect a group: 2.15 can")
    crun, script = crun_for(tmp_path, sys.executable), tmp_path / "job.py"
    script.write_text(JOB)
    with open(tmp_path / "out", "wb") as out:
        p = crun.start("--nproc-per-node", 3, "--no-log-prefix", "--hold-timeout", 120, "--max-restarts", 3, "--restart-backoff", 0, script, tmp_path, back_end, stdout=out)

    def said(n):
        return wait(f"round {n}", lambda: len(f := re.findall(SAID.format(n), (tmp_path / "out").read_text(), re.M)) == 3 and sorted(f), 240)
    first = said(1)
    os.kill(int(first[1][1]), signal.SIGKILL)
    second = said(2)
    (tmp_path / "go-2").touch()
    _, err = p.communicate(timeout=120)
    crun.close()
    assert p.returncode == 0, err.decode()
    for n, round_ in enumerate((first, second)):
        assert [r[3:7] for r in round_] == [("[0, 1, 2]", str(i), "2.0", "2.0" if i == 1 else "4.0") for i in range(3)], "ranks, gradients and sub-groups are right"
        assert {r[7] for r in round_} == {"1" if n == 0 else "0"}, "ranks that State has made equal need no broadcast"
    assert [first[i][1] == second[i][1] for i in range(3)] == [True, False, True]
    assert [first[i][2] == second[i][2] and first[i][2] != "None" for i in (0, 2)] == [why is None] * 2
    assert (f"takes longer than to reconnect it: {why}\n" in err.decode()) == (why is not None), err.decode()
