"""state["data"]: the position of a StatefulDataLoader, or of the like, is part of a crun.State: ranks are killed, and each sample of an epoch is taken once."""
import collections
import importlib.util
import json
import os
import signal
import sys

import pytest
from processes import wait
from torch_rounds import crun_for, steps_of

pytestmark = pytest.mark.timeout(600)
RANKS, SAMPLES, BATCH, STEPS = 2, 44, 2, 66  # six epochs

JOB = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import crun

kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
data = torch.arange({samples}).reshape(-1, 1)

class Loader:
    # what a loader of torchdata is, as far as State knows it; it fetches two batches ahead
    def __init__(self, rank):
        self.rank, self.given, self.begin = rank, 0, 0

    def set_epoch(self, epoch):
        self.order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))[self.rank::{ranks}].split({batch})

    def __iter__(self):
        begin, self.begin = self.begin, 0
        ahead = [(n + 1, data[taken]) for n, taken in enumerate(self.order)][begin:]
        for self.given, batch in ahead:
            yield batch

    def state_dict(self):
        return {{"given": self.given}}

    def load_state_dict(self, state):
        self.begin = self.given = state["given"]

def make(rank):
    if kind == "stand-in":
        loader = Loader(rank)
        return loader, loader
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
    sampler = StatefulDistributedSampler(data, {ranks}, rank, shuffle=True, seed=1)
    return StatefulDataLoader(data, batch_size={batch}, sampler=sampler, num_workers=1), sampler

@crun.inprocess
def main():
    dist.init_process_group("gloo")
    me, model = crun.info(), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader, order = make(me.rank)
    state = crun.State(model, optimizer)
    state["data"] = loader
    order.set_epoch(0)
    step = state.restore()
    ddp = DistributedDataParallel(model)
    crun.phase("starting")
    with open(folder / f"{{me.rank}}", "a") as told:
        print(json.dumps([-1, me.round, step, os.getpid()]), file=told, flush=True)
        while step < {steps}:
            order.set_epoch(step * {ranks * batch} // len(data))
            for x in loader:
                print(json.dumps([step + 1, me.round, x.flatten().tolist(), os.getpid()]), file=told, flush=True)
                optimizer.zero_grad()
                ddp(x.float()).mean().backward()
                optimizer.step()
                step += 1
                state.commit(step)
                crun.report(step)
                time.sleep(0.02)
    crun.phase("closing")
    dist.barrier()
    dist.destroy_process_group()

main()
"""


@pytest.mark.parametrize("kind", ["stand-in", "torchdata"])
def test_no_sample_is_lost_or_comes_twice(tmp_path, kind):
    if kind == "torchdata" and not importlib.util.find_spec("torchdata"):
        pytest.skip("no torchdata here")
    crun, script, folder = crun_for(tmp_path, sys.executable), tmp_path / "job.py", tmp_path / "told"
    crun.env["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    text = JOB.replace("{ranks * batch}", str(RANKS * BATCH))
    script.write_text(text.format(samples=SAMPLES, ranks=RANKS, batch=BATCH, steps=STEPS))
    folder.mkdir()
    p = crun.start("--nproc-per-node", RANKS, "--hold-timeout", 120, "--max-restarts", 5, "--restart-backoff", 0, script, kind, folder)

    def told():
        return [[json.loads(line) for line in (folder / str(r)).read_text().splitlines()] if (folder / str(r)).exists() else [] for r in range(RANKS)]
    for round_, (victim, after) in enumerate([(1, 5), (0, 30)], 1):
        pid = wait(f"round {round_}", lambda: all(any(line[:2] == [-1, round_] for line in lines) for lines in told()) and told()[victim][-1][3], 300)
        wait("its steps", lambda: steps_of(pid) >= after, 300)
        os.kill(pid, signal.SIGKILL)
    out, err = p.communicate(timeout=300)
    crun.close()
    assert p.returncode == 0 and err.decode().count("kept 1 worker") == 2, out.decode() + err.decode()
    taken = collections.defaultdict(set)
    for rank, lines in enumerate(told()):
        for step, _, samples, _ in lines:
            if step > 0:
                taken[step, rank].add(tuple(samples))
    assert sorted(taken) == [(step, rank) for step in range(1, STEPS + 1) for rank in range(RANKS)]
    assert all(len(batches) == 1 for batches in taken.values()), "a step that is done again takes the same"
    for epoch in range(STEPS * RANKS * BATCH // SAMPLES):
        steps = range(epoch * SAMPLES // (RANKS * BATCH) + 1, (epoch + 1) * SAMPLES // (RANKS * BATCH) + 1)
        assert sorted(s for step in steps for rank in range(RANKS) for s in [*taken[step, rank]][0]) == list(range(SAMPLES)), epoch
