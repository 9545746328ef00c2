"""crun.inprocess on a card: a DDP program over NCCL, two ranks that share the GPU, each of which is killed once while a warm spare waits.

CRUN_TORCH_PYTHON: a Python with PyTorch for CUDA; that of the tests by default. CRUN_TEST_TORCH_CPU: one for the processor will do, over Gloo."""
import os
import re
import signal
import subprocess
import sys

import pytest

from processes import wait
from support import ROOT
from torch_rounds import INPROCESS, Rounds, crun_for, pausing, steps_of

PYTHON = os.environ.get("CRUN_TORCH_PYTHON", sys.executable)
STEPS, WORLD, PAUSES = 900, 2, (100, 500)
PARTS = re.compile(r"kept 1 worker.*?: detect ([\d.]+) ms, stop ([\d.]+) ms, rendezvous ([\d.]+) ms, spawn ([\d.]+) ms(?:, ranks met \d+ ms)?, first step ([\d.]+) ms")


@pytest.fixture(scope="module")
def torch():
    """-> the version, and the backend of the example"""
    p = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__, 'nccl' if torch.cuda.is_available() else 'gloo')"], capture_output=True, text=True,
                       timeout=300, check=False)
    if p.returncode != 0:
        pytest.skip(f"{PYTHON} has no torch")
    version, backend = p.stdout.split()
    if backend == "gloo" and not os.environ.get("CRUN_TEST_TORCH_CPU"):
        pytest.skip(f"torch {version} of {PYTHON} sees no GPU")
    return version, backend


@pytest.fixture
def crun(tmp_path):
    c = crun_for(tmp_path, PYTHON)
    yield c
    c.close()


def test_ranks_keep_their_processes_and_the_furthest_commit_wins(torch, crun, tmp_path, two_hosts, keep):
    calm = Rounds(crun, *two_hosts, PYTHON, INPROCESS, STEPS, ranks=WORLD, name="calm")
    job = Rounds(crun, "--warm-spares", 1, *two_hosts, PYTHON, *pausing(tmp_path, STEPS, *PAUSES), ranks=WORLD, name="disturbed")
    pids, _ = job.in_round(1)
    for n, (victim, pause) in enumerate(zip((1, 0), PAUSES)):
        spare = job.spare(pids)
        (tmp_path / f"go-{pause}").touch()
        wait("the steps after", lambda: steps_of(pids[1 - victim]) > pause + 50)
        reached = steps_of(pids[1 - victim])
        os.kill(pids[victim], signal.SIGKILL)
        after, step = job.in_round(n + 2)
        assert after[victim] == spare and after[1 - victim] == pids[1 - victim], "the survivor keeps its process, the spare takes the place"
        assert step >= reached, "no step is lost"
        pids = after
    weights, err = job.end()
    undisturbed, _ = calm.end()
    splits = [[float(v) for v in m] for m in PARTS.findall(err)]
    keep("recovery-torch", {"torch": torch[0], "backend": torch[1], "detect, stop, rendezvous, spawn, first step, ms": splits})
    print(f"\ntorch {torch[0]}, {torch[1]}: kill to the next step {', '.join(f'{sum(s):.0f} ms' for s in splits)}; split {splits}")
    assert len(splits) == 2, err[-3000:]
    assert len(undisturbed) == 1 and weights == undisturbed
