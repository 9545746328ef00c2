"""trainer on a GPU: losses beside the processor's, convergence, a killed worker."""
import json
import re
import signal
import subprocess
import threading
import time
import os

import numpy as np
import pytest

from support import CRUN, TRAINER, run, worker_pid
from tensors import load, newest

STEPS = 20
HALVES = {"fp16": ["--amp", "fp16"], "bf16": ["--amp", "bf16"]}


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return np.array([m["loss"] for m in lines if "lr" in m])


def twenty_steps(data, out, *args):
    p = run(TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", 64, "--batch-size", 32, "--lr", 0.02, "--lr-policy", "fixed",
            "--max-steps", STEPS, "--num-epochs", 100, "--seed", 11, "--log-dir", out, *args, timeout=600)
    assert p.returncode == 0, p.stdout + p.stderr
    found = losses(out)
    assert len(found) == STEPS and np.isfinite(found).all()
    return found


@pytest.fixture(scope="module")
def processor(shapes, tmp_path_factory):
    """The same training on the processor in other orders of summation: threads, parts of a batch, blocked and plain layouts."""
    data, at = shapes(64, 640, 40), tmp_path_factory.mktemp("processor")
    orders = {"1 thread": ["--threads", 1], "3 threads": ["--threads", 3], "channels last": ["--memory-format", "nhwc"],
              "planes": ["--memory-format", "nchw"], "double": ["--device", "ref", "--threads", 8]}
    return {name: twenty_steps(data, at / str(i), "--device", "cpu", "--amp", "off", *args) for i, (name, args) in enumerate(orders.items())}


def spread(runs):
    """Largest distance of a processor's run from the one in double precision, up to each step: errors grow with the steps."""
    exact = runs["double"]
    return np.maximum.accumulate(np.max([np.abs(r - exact) for r in runs.values()], axis=0))


def test_fp32_losses_lie_in_the_spread_of_summation_orders(shapes, tmp_path, processor, keep):
    found = twenty_steps(shapes(64, 640, 40), tmp_path / "gpu", "--device", "cuda", "--amp", "off", "--no-tf32")
    exact, wide = processor["double"], spread(processor)
    print("\nstep  double      GPU        |difference|  spread of the processor's runs")
    for i in range(STEPS):
        print(f"{i + 1:4}  {exact[i]:.6f}  {found[i]:.6f}  {abs(found[i] - exact[i]):.2e}      {wide[i]:.2e}")
    keep("losses-fp32", {"double": exact.tolist(), "gpu": found.tolist(), "spread": wide.tolist()})
    # A sixth member of a family of five lies outside their range now and then: twice the spread, and a loss's own rounding.
    assert (np.abs(found - exact) <= 2 * wide + 4e-7 * np.abs(exact)).all()


@pytest.mark.parametrize("kind", HALVES)
def test_halves_fall_with_fp32(shapes, tmp_path, processor, kind, keep):
    found = twenty_steps(shapes(64, 640, 40), tmp_path / kind, "--device", "cuda", *HALVES[kind])
    exact = processor["double"]
    keep(f"losses-{kind}", found.tolist())
    print(f"\n{kind}: first loss {found[0]:.4f}, last five {found[-5:].mean():.4f}; double {exact[0]:.4f}, {exact[-5:].mean():.4f}")
    assert abs(found[0] - exact[0]) <= 0.02 * exact[0]
    assert abs(found[-5:].mean() - exact[-5:].mean()) <= 0.1 * exact[-5:].mean()


@pytest.mark.parametrize("kind", ["off", *HALVES])
def test_resnet18_learns_the_shapes(shapes, tmp_path, kind, keep):
    data = shapes(64, 4000, 1000)
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "resnet18", "--image-size", 64, "--batch-size", 64, "--nesterov",
            "--lr", 0.05, "--crop-scale", "0.5,1", "--num-epochs", 6, "--device", "cuda", "--amp", kind, "--seed", 3, "--log-dir", tmp_path, timeout=600)
    assert p.returncode == 0, p.stdout + p.stderr
    reached = float(re.findall(r"Acc@1 ([\d.]+) Acc@5", p.stdout)[-1])
    print(f"\n{kind}: {reached} % after 6 epochs")
    keep(f"shapes-{kind}", reached)
    assert reached >= 97


def test_a_graph_computes_what_single_launches_do(shapes, tmp_path):
    one = twenty_steps(shapes(64, 640, 40), tmp_path / "graph", "--device", "cuda", "--amp", "off", "--deterministic")
    two = twenty_steps(shapes(64, 640, 40), tmp_path / "eager", "--device", "cuda", "--amp", "off", "--deterministic", "--no-cuda-graphs")
    assert (one == two).all(), "the same kernels in the same order, yet other losses"


# --- equal bits in halves, one thing at a time: what the killed worker below has all of

def engines(text):
    """Of each plan that was made: how many graphs, and 64 bits of their engines (log level info)."""
    return re.findall(r"the plan runs (\d+) graphs, by engines (\w+)", text)


def forty_steps(data, out, *args, steps=40):
    p = run(TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", 64, "--batch-size", 64, "--lr", 0.02, "--lr-policy", "fixed",
            "--warmup-epochs", 0, "--max-steps", steps, "--num-epochs", 100, "--seed", 7, "--device", "cuda", "--amp", "fp16", "--deterministic", "--checkpoint-dir", out,
            "--resume", "auto", "--log-level", "info", *args, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return out, engines(p.stderr)


def expect_equal_bits(one, two):
    """Folders of checkpoints, each with the engines that its run took."""
    a, b = (load(newest(folder) / "model.safetensors") for folder, _ in (one, two))
    assert a.keys() == b.keys()
    others = {k: float(np.max(np.abs(a[k].astype(np.float64) - b[k].astype(np.float64)))) for k in a if a[k].tobytes() != b[k].tobytes()}
    print(f"\nengines of one: {one[1]}, of the other: {two[1]}; tensors with other bits, and by how much: {others}")
    assert not others, "the weights differ in their bits"


@pytest.fixture(scope="module")
def forty(shapes, tmp_path_factory):
    return forty_steps(shapes(64, 640, 40), tmp_path_factory.mktemp("forty"))


def test_halves_give_equal_bits_when_run_again(shapes, tmp_path, forty):
    expect_equal_bits(forty, forty_steps(shapes(64, 640, 40), tmp_path))


def test_halves_without_fusions_give_equal_bits_when_run_again(shapes, tmp_path):
    expect_equal_bits(*(forty_steps(shapes(64, 640, 40), tmp_path / name, "--no-conv-fusion") for name in ("one", "two")))


def test_halves_give_equal_bits_when_stopped_and_resumed(shapes, tmp_path, forty):
    half = forty_steps(shapes(64, 640, 40), tmp_path, steps=20)
    whole = forty_steps(shapes(64, 640, 40), tmp_path)
    assert half[1] == whole[1], "the resumed run takes other engines"
    expect_equal_bits(forty, whole)


def test_halves_give_equal_bits_without_graphs(shapes, tmp_path, forty):
    expect_equal_bits(forty, forty_steps(shapes(64, 640, 40), tmp_path, "--no-cuda-graphs"))


# --- kill

class Job:
    """crun with one GPU worker whose lines are stamped as they come."""

    def __init__(self, out, data, run_id):
        self.lines = []
        self.p = subprocess.Popen(
            [str(a) for a in (CRUN, "--standalone", "--nproc_per_node", 1, "--max-restarts", 3, "--run-id", run_id, TRAINER, "--train-data",
                              data / "train", "--arch", "resnet18", "--image-size", 64, "--batch-size", 64, "--num-epochs", 6, "--lr", 0.02, "--device", "cuda",
                              "--amp", "fp16", "--deterministic", "--checkpoint-dir", out, "--checkpoint-every", 20, "--resume", "auto", "--print-freq", 1,
                              "--log-level", "info", "--seed", 7)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for(self, pattern, seconds=180):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.p.poll() is None:
            if any(re.search(pattern, line) for _, line in list(self.lines)):
                return
            time.sleep(0.02)
        raise AssertionError(f"no line with {pattern}:\n" + "\n".join(line for _, line in self.lines[-30:]))

    def finish(self):
        code = self.p.wait(timeout=300)
        self.reader.join(timeout=10)
        assert code == 0, "\n".join(line for _, line in self.lines[-40:])


def test_a_killed_worker_comes_back_and_ends_with_the_same_weights(shapes, tmp_path):
    data = shapes(64, 640, 40)
    calm = Job(tmp_path / "calm", data, "gpu-calm")
    calm.finish()
    job = Job(tmp_path / "killed", data, "gpu-kill")
    job.wait_for(r"saved step 20\b")
    killed = time.monotonic()
    os.kill(worker_pid("gpu-kill", 0), signal.SIGKILL)
    job.finish()
    print("\nmilliseconds after kill -9:")
    for at, line in job.lines:
        if at >= killed and re.search(r"restart 1/3|resumed from|device: |first step", line):
            print(f"  {1e3 * (at - killed):8.0f}  {line}")
    assert any("resumed from step" in line for _, line in job.lines)
    expect_equal_bits(*((tmp_path / name, engines("\n".join(line for _, line in of.lines))) for name, of in (("calm", calm), ("killed", job))))
