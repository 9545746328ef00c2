"""`import crun` beside a torch: docs/examples/ddp.py under crun and without. The torch is that of CRUN_TORCH_PYTHON, Debian's by default; tests/peer runs the same with PyPI's."""
import contextlib
import os
import pathlib
import re
import signal
import struct
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # tests/peer has these tests too
from processes import marked, wait  # noqa: E402
from support import ROOT, free_port, run  # noqa: E402
from test_pytorch import PYTHON, torch  # noqa: E402, F401
from torch_rounds import INPROCESS, Rounds, crun_for, pausing, steps_of  # noqa: E402, F401

pytestmark = pytest.mark.slow
DDP = ROOT / "docs" / "examples" / "ddp.py"

FAILS = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import torch.nn.functional as F
import ddp

steps, real = 0, F.mse_loss

def loss(*args):
    global steps
    steps += 1
    if steps == 7 and os.environ["RANK"] == "1":
        raise ValueError("no such loss")
    return real(*args)

save = ddp.save

def failing_save(*args):
    if os.environ["RANK"] == "1":
        raise ValueError("no such disk")
    save(*args)

if sys.argv[2] == "step":
    F.mse_loss = loss
else:
    ddp.save = failing_save
ddp.main(sys.argv[3], 60)
"""


@pytest.fixture
def crun(tmp_path):
    c = crun_for(tmp_path, PYTHON)
    yield c
    c.close()


def losses(out):
    return re.findall(r"^rank (\d) of (\d): loss ([\d.]+), torch ", out, re.M)


def test_the_example_stops_in_good_order_and_goes_on_to_the_same_end(crun, tmp_path):
    part, whole = tmp_path / "part.pt", tmp_path / "whole.pt"
    p = crun.start("--nproc-per-node", 2, "--drain-timeout", 300, DDP, part, 10 ** 9)
    wait("a checkpoint", part.exists, 200)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 75, err
    steps = int(run(PYTHON, "-c", "import sys, torch; print(torch.load(sys.argv[1])['step'])", part, timeout=120).stdout) + 30
    ends = []
    for path in part, whole:
        rc, out, err = crun.run("--nproc-per-node", 2, "--no-log-prefix", DDP, path, steps, timeout=500)
        assert rc == 0, err
        ends.append(sorted(losses(out)))
    assert len(ends[0]) == 2 and ends[0] == ends[1]


@pytest.mark.parametrize("where, said, progress", [
    ("step", r"ValueError: no such loss \(\w+\.py:\d+ in loss\), after step 6 \(error.json\)", "step 6, phase step"),
    ("save", r"ValueError: no such disk \(\w+\.py:\d+ in failing_save\), after step 50, in phase checkpoint \(error.json\)", "step 50, phase checkpoint")])
def test_the_failure_report_says_step_and_phase(crun, tmp_path, where, said, progress):
    job = tmp_path / "job.py"
    job.write_text(FAILS)
    rc, _, err = crun.run("--nproc-per-node", 2, job, DDP, where, tmp_path / "checkpoint.pt", timeout=300)
    assert rc == 1 and re.search(rf"^  message   {said}$", err, re.M) and f"\n  progress  {progress}\n" in err, err


def test_the_example_runs_without_crun(crun, tmp_path):
    env = {**crun.env, "LIBCRUN": "/nowhere/libcrun.so.0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    p = run(PYTHON, DDP, tmp_path / "checkpoint.pt", 20, env=env, timeout=300)
    assert p.returncode == 0 and losses(p.stdout), p.stderr
    assert os.path.exists(tmp_path / "checkpoint.pt")


# --- recovery in process


def test_the_others_keep_their_processes_and_the_weights_are_those_of_an_undisturbed_run(crun, tmp_path):
    """One after another, and a warm spare takes its place: rank 0, the one that came for it, one that is stopped."""
    undisturbed, _ = Rounds(crun, INPROCESS, 400).end()
    job = Rounds(crun, "--warm-spares", 1, *pausing(tmp_path, 400, 40, 140, 240))
    pids, _ = job.in_round(1)
    for n, (victim, signo) in enumerate([(0, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)]):
        spare = job.spare(pids)
        (tmp_path / f"go-{40 + 100 * n}").touch()
        wait("the steps after", lambda: steps_of(pids[3]) > 50 + 100 * n)
        os.kill(pids[victim], signo)
        after, step = job.in_round(n + 2)
        assert after[victim] == spare
        assert step > 50 + 100 * n, "no step is lost"
        assert {r for r in range(4) if pids[r] != after[r]} == {victim}
        pids = after
    weights, err = job.end()
    assert len(undisturbed) == 1 and weights == undisturbed
    for n, (victim, text) in enumerate([(0, "killed by SIGKILL"), (0, "killed by SIGKILL"), (1, "hung at step")]):
        assert re.search(rf"restart {n + 1}/9 \(rank {victim} {text}.*\), kept 3 workers", err), err


STATES = """
import os, torch
import torch.distributed as dist
from crun import _state
import crun

def step(model, optimizer, n):
    optimizer.zero_grad()
    model(torch.full((4, 3), float(n))).sum().backward()
    optimizer.step()

def everything(model, optimizer, schedule):
    return [t.clone() for t in model.state_dict().values()] + [v["momentum_buffer"].clone() for v in optimizer.state.values()] + [torch.tensor(schedule.get_last_lr())]

def made():
    torch.manual_seed(crun.info().rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

def again():
    # as in the next round, but for the round
    _state._agreed = (-1, [])
    return crun.State

@crun.inprocess
def main():
    dist.init_process_group("gloo")
    for copy in False, True:
        _state._last = None
        parts = made()
        state = again()(*parts, copy=copy)
        assert state.restore(lambda: 7) == 7
        step(*parts[:2], 1)
        parts[2].step()
        state.commit(8)
        expected = everything(*parts)

        parts[0](torch.ones(4, 3))  # changes the running statistics, as a step that is not finished does
        new = made()
        assert again()(*new, copy=copy).restore() == 8
        assert all(map(torch.equal, everything(*new), expected)), "a new set of parts goes on from the commit"
        assert again()(*new, copy=copy).restore() == 8
        assert all(map(torch.equal, everything(*new), expected)), "and the same parts do"

        step(*new[:2], 2)  # not committed
        newer, state = made(), again()
        if copy:
            assert state(*newer, copy=True).restore() == 8
            assert all(map(torch.equal, everything(*newer), expected))
        else:
            try:
                state(*newer).restore()
                raise AssertionError("the borrowed tensors have changed")
            except RuntimeError as e:
                assert "no rank has its state any more" in str(e), e
    dist.destroy_process_group()

main()
"""


def test_the_state_is_that_of_the_last_commit(crun, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(STATES)
    rc, _, err = crun.run("--max-restarts", 1, job, timeout=200)
    assert rc == 0, err


GIVEN = """
import torch
import torch.distributed as dist
import crun
from crun import _state

_state.PIECE = 1000  # several messages, tensors cut in two

class Odd:
    def __init__(self, fill):
        self.values = {"half": torch.full((7,), fill).half(), "flags": torch.tensor([True, False]) ^ (fill > 0), "none": torch.zeros(0, 3), "one": torch.tensor(fill),
                       "wide": torch.arange(2000, dtype=torch.float64).reshape(50, 40).t() + fill, "text": str(fill)}
    def state_dict(self):
        return self.values
    def load_state_dict(self, values):
        self.values = values

@crun.inprocess
def main():
    dist.init_process_group("gloo")
    me = crun.info()
    part = Odd(float(me.rank))
    state = crun.State(part)
    if me.rank % 2:  # as if it had been in the round before: 1 and 3 are the furthest, 0 and 2 are newcomers
        _state._agreed, _state._last = (-1, []), None
        state._take(5)
    assert state.restore() == 5
    expected = Odd(1.0 if me.rank == 0 else 3.0 if me.rank == 2 else float(me.rank)).values
    for name, value in expected.items():
        got = part.values[name]
        assert torch.equal(got, value) and got.dtype == value.dtype if torch.is_tensor(value) else got == value, (name, got, value)
    dist.barrier()
    dist.destroy_process_group()

main()
"""


def test_the_state_goes_from_those_that_have_it_to_the_others(crun, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(GIVEN)
    rc, _, err = crun.run("--nproc-per-node", 4, "--max-restarts", 1, job, timeout=200)
    assert rc == 0, err


def test_the_example_of_recovery_runs_without_crun(crun):
    env = {**crun.env, "LIBCRUN": "/nowhere/libcrun.so.0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    p = run(PYTHON, INPROCESS, 20, env=env, timeout=300)
    assert p.returncode == 0 and "rank 0 of 1: 20 steps, weights " in p.stdout, p.stderr
