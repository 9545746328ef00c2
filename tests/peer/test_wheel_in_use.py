"""The wheel in a fresh environment beside PyTorch: the example of DDP and the trainers with their callbacks, a failure that crun reports with step and phase, and the
curves of all three on the page of the wheel's rendezvousd."""
import contextlib
import importlib.util
import re
import site
import subprocess
import sys

import pytest

from browser import Browser, card
from crun_run import Crun
from daemon import Daemon
from support import ROOT, run
from trainers import HUGGING_FACE, LIGHTNING

DDP = """
import os, sys
folder = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import torch.nn.functional as F
import ddp

real = F.mse_loss

def loss(*args):
    if os.path.exists(folder + "/fail") and os.environ["RANK"] == "1":
        raise ValueError("no such batch")
    return real(*args)

F.mse_loss = loss
ddp.main(folder + "/checkpoint.pt", 10 ** 9)
"""
WHEN_ASKED = 'os.path.exists(folder + "/fail")'
EXAMPLES = ROOT / "docs" / "examples"
JOBS = [("ddp", "torch", DDP, [EXAMPLES]), ("lightning", "lightning", LIGHTNING.replace("self.global_step == fail_at", WHEN_ASKED), [10 ** 9, -1]),
        ("hugging-face", "transformers", HUGGING_FACE.replace("self.calls == fail_at", WHEN_ASKED), [10 ** 9, -1])]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One with the wheel, and what this Python has: PyTorch."""
    out = tmp_path_factory.mktemp("wheel")
    p = subprocess.run([ROOT / "dev", "wheel", out], capture_output=True, text=True, timeout=1800, check=False)
    if p.returncode and re.search("urlopen error|could not get|No matching distribution found", p.stdout + p.stderr, re.I):
        pytest.skip("no network: sources and compiler cannot be downloaded")
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    venv = out / "env"
    assert run(sys.executable, "-m", "venv", venv).returncode == 0
    p = run(venv / "bin/python", "-m", "pip", "install", "--no-index", "--no-deps", *out.glob("*.whl"))
    assert p.returncode == 0, p.stderr
    packages, = venv.glob("lib/*/site-packages")
    (packages / "peer.pth").write_text("\n".join(site.getsitepackages()))
    return venv


@pytest.mark.parametrize("name, needs, text, arguments", JOBS, ids=[j[0] for j in JOBS])
def test_a_failure_has_step_and_phase_and_the_page_has_the_curve(environment, tmp_path, name, needs, text, arguments):
    if not importlib.util.find_spec(needs):
        pytest.skip(f"no {needs} here")
    (tmp_path / "job.py").write_text(text)
    with contextlib.closing(Crun(tmp_path, environment / "bin" / "crun")) as crun, \
            Daemon("--http-port", "0", program=environment / "bin" / "rendezvousd") as d, Browser(tmp_path / "profile") as b:
        crun.env = {k: v for k, v in crun.env.items() if k not in ("LIBCRUN", "PYTHONPATH", "PYTHON_EXEC", "VIRTUAL_ENV")} | {"OMP_NUM_THREADS": "1"}
        p = crun.start("--nnodes", 1, "--nproc-per-node", 2, "--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--rdzv-id", name,
                       tmp_path / "job.py", tmp_path, *arguments)
        b.open(d.http + "/")
        b.wait(f"{card(name)} !== undefined", "the job is on the page, open, for there are no others", 300)
        chart = f"[...{card(name)}.querySelectorAll('figure svg')].find(s => s.getAttribute('aria-label').startsWith('Loss'))"
        b.wait(f"{chart} && {chart}.querySelector('.line').getAttribute('d').includes('L')", "a curve of some points", 300)
        (tmp_path / "fail").touch()
        out, err = p.communicate(timeout=300)
        err = err.decode()
        assert p.returncode == 1 and re.search(r"^  message   ValueError: no such batch \(job\.py:\d+ in \w+\), after step \d+ \(error.json\)$", err, re.M), err
        assert re.search(r"^  progress  step \d+, phase step$", err, re.M), err
        b.wait(f"/failed/.test({card(name)}.innerText) && {card(name)}.querySelector('pre')", "the failure is on the page", 120)
        shown = " ".join(b.js(card(name) + ".innerText").split())
        assert "exit code 1" in shown and "ValueError: no such batch" in shown, shown
        assert b.errors == []
