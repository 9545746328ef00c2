"""`import crun` with the torch of this environment: the tests of tests/e2e/pytorch, and the callbacks in the trainers that they are for."""
import importlib.util
import os
import pathlib
import re
import signal
import sys

import pytest

from trainers import HUGGING_FACE, LIGHTNING

os.environ["CRUN_TORCH_PYTHON"] = sys.executable
path = pathlib.Path(__file__).resolve().parents[1] / "e2e" / "pytorch" / "test_crun_module.py"
spec = importlib.util.spec_from_file_location("crun_module_tests", path)
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
globals().update({name: getattr(tests, name) for name in dir(tests) if name.startswith("test_the_") or name in ("torch", "crun")})

NEVER = -1
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"
BOTH = pytest.mark.parametrize("needs, text", [("lightning", LIGHTNING), ("transformers", HUGGING_FACE)], ids=["lightning", "hugging-face"])


@pytest.fixture
def job(tmp_path):
    """job(needs, text, steps, fail at) -> arguments of crun"""
    def arguments(needs, text, steps, fail_at):
        if not importlib.util.find_spec(needs):
            pytest.skip(f"no {needs} here")
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "job.py").write_text(text)
        return ["--nproc-per-node", 2, "--no-log-prefix", "--drain-timeout", 300, tmp_path / "job.py", tmp_path / "out", steps, fail_at]
    return arguments


def steps_saved(out):
    """By Lightning in resume.ckpt, by Hugging Face in checkpoint-N."""
    names = [p.name for p in out.iterdir()]
    if "resume.ckpt" in names:
        import torch
        return torch.load(out / "resume.ckpt", weights_only=False)["global_step"]
    return max(int(name.split("-")[1]) for name in names if name.startswith("checkpoint-"))


@BOTH
def test_a_stop_is_agreed_upon_saved_and_resumed(crun, job, needs, text, tmp_path):
    p = crun.start(*job(needs, text, 10 ** 6, NEVER))
    while p.stdout.readline() != b"up\n":
        assert p.poll() is None
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=200)
    assert p.returncode == 75, err
    steps = steps_saved(tmp_path / "out")
    assert steps > 5
    rc, out, err = crun.run(*job(needs, text, steps + 4, NEVER), timeout=300)
    assert rc == 0 and f"from later to {steps + 4}\n" in out, out + err


# Rank 1 is at work when SIGTERM comes, rank 0 waits for its gradients: Lightning's own handler would broadcast, and wait for ever.
AT_WORK = """
        if self.global_step == 5 and self.global_rank == 1:
            handler, came = signal.getsignal(signal.SIGTERM), []
            signal.signal(signal.SIGTERM, lambda *a: came.append(handler(*a)))
            print("up", flush=True)
            while not came:
                time.sleep(0.01)
        x, y = batch
"""


def test_lightnings_own_handler_stays_out_of_a_stop(crun, job, tmp_path):
    text = "import signal, time\n" + LIGHTNING.replace("self.global_rank == 0", "False").replace("        x, y = batch\n", AT_WORK.lstrip("\n"))
    p = crun.start(*job("lightning", text, 10 ** 6, NEVER))
    while p.stdout.readline() != b"up\n":
        assert p.poll() is None
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=200)
    assert p.returncode == 75 and steps_saved(tmp_path / "out") == 6, err


@BOTH
def test_the_report_of_a_failure_says_step_and_phase(crun, job, needs, text):
    rc, _, err = crun.run(*job(needs, text, 50, 7), timeout=300)
    assert rc == 1 and re.search(r"^  message   ValueError: no such batch \(job\.py:\d+ in \w+\), after step 7 \(error.json\)$", err, re.M), err
    assert re.search(r"^  progress  step 7, phase step$", err, re.M), err


@pytest.mark.parametrize("needs, arguments", [("lightning", ["lightning_inprocess.py"]), ("transformers", ["hf_inprocess.py", "out"])], ids=["lightning", "hugging-face"])
def test_a_trainer_goes_on_in_its_processes(crun, tmp_path, needs, arguments):
    """Rank 0 dies, and the weights at the end are those of an undisturbed run."""
    if not importlib.util.find_spec(needs):
        pytest.skip(f"no {needs} here")
    command = ["--nproc-per-node", 2, "--no-log-prefix", "--hold-timeout", 120, "--max-restarts", 3, "--restart-backoff", 0, EXAMPLES / arguments[0], *arguments[1:], 150]
    ends = []
    for killed in False, True:
        with open(tmp_path / "out.txt", "wb") as out:
            p = crun.start(*command, stdout=out, cwd=tmp_path)
        said = (tmp_path / "out.txt").read_text
        if killed:
            pids = dict(tests.wait("round 1", lambda: len(b := re.findall(r"^rank (\d) \(pid (\d+)\): round 1 begins", said(), re.M)) == 2 and b, 300))
            tests.wait("some steps", lambda: tests.steps_of(pids["1"]) >= 20, 300)
            os.kill(int(pids["0"]), signal.SIGKILL)
        _, err = p.communicate(timeout=500)
        assert p.returncode == 0, err.decode()
        ends.append(set(re.findall(r"^rank \d of 2: (.*)$", said(), re.M)))
    after = dict(re.findall(r"^rank (\d) \(pid (\d+)\): round 2 begins", said(), re.M))
    assert after["1"] == pids["1"] and after["0"] != pids["0"]
    assert len(ends[0]) == 1 and ends[0] == ends[1], ends
    assert "restart 1/3 (rank 0 killed by SIGKILL), kept 1 worker" in err.decode()
