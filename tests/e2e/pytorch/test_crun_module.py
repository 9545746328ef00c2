"""`import crun` beside a torch: docs/examples/ddp.py under crun and without. The torch is that of CRUN_TORCH_PYTHON, Debian's by default; tests/peer runs the same with PyPI's."""
import os
import pathlib
import re
import signal
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # tests/peer has these tests too
from crun_run import Crun  # noqa: E402
from processes import wait  # noqa: E402
from support import LIBCRUN, ROOT, free_port, run  # noqa: E402
from test_pytorch import PYTHON, torch  # noqa: E402, F401

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
    c = Crun(tmp_path)
    c.env |= {"LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "PYTHON_EXEC": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
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
