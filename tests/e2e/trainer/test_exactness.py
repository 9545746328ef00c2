"""What is defined not to depend on the number of ranks does not, and a killed run goes on bit for bit."""
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest

from metrics_file import loss_curve, steps_of
from support import CRUN, TRAINER, run
from tensors import newest

STEPS = 50
RATE = ["--lr", 0.01]
ADAM = ["--lr", 0.001]
TABLE = {  # every option that full precision and synchronised statistics make independent of the world
    "sgd": RATE,
    "nesterov": [*RATE, "--nesterov"],
    "caffe2": [*RATE, "--sgd-rule", "caffe2"],
    "lars": [*RATE, "--optimizer", "lars", "--lars-eta", 0.02],
    "adam": [*ADAM, "--optimizer", "adam"],
    "adamw": [*ADAM, "--optimizer", "adamw", "--weight-decay", 0.05],
    "clip": [*RATE, "--clip-grad-norm", 0.5],
    "smoothing": [*RATE, "--label-smoothing", 0.1],
    "ema": [*RATE, "--ema", 0.9],
    "no-bn-decay": [*RATE, "--no-bn-decay", "--weight-decay", 0.01],
    "buckets": [*RATE, "--bucket-mb", 1],
    "scaled-loss": [*RATE, "--loss-scale", 128],
    "cosine": [*RATE, "--lr-policy", "cosine", "--warmup-epochs", 1],
    "step": [*RATE, "--lr-policy", "step", "--lr-step", 2],
    "multistep": [*RATE, "--lr-policy", "multistep", "--lr-milestones", "1,3"],
    "poly": [*RATE, "--lr-policy", "poly"],
    "exp": [*RATE, "--lr-policy", "exp", "--lr-gamma", 0.99],
    "inv": [*RATE, "--lr-policy", "inv", "--lr-gamma", 0.01, "--lr-power", 0.75],
}
SHORT = {"nesterov": [3], "lars": [3], "adamw": [2]}  # the rest is slow
ROWS = [pytest.param(name, [2, 3, 4], STEPS, marks=pytest.mark.slow, id=name) for name in TABLE] + [
    pytest.param(name, worlds, 25, id=f"{name}-short") for name, worlds in SHORT.items()]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 100, 20)  # 10 a step: 3 and 4 ranks have uneven shares


def command(data, out, *args, world=1, device="ref", batch=10, steps=STEPS):
    launch = [CRUN, "--standalone", "--nproc_per_node", world, TRAINER] if world > 1 else [TRAINER]
    return [*launch, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size",
            batch, "--max-steps", steps, "--num-epochs", 100, "--device", device, "--checkpoint-dir", out, "--seed", 3,
            "--threads", 1, "--loader-threads", 1, *args]


def train(*args, **kw):
    p = run(*command(*args, **kw), timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return p


@pytest.mark.parametrize("name, worlds, steps", ROWS)
def test_losses_are_those_of_one_rank(data, tmp_path, name, worlds, steps):
    args = [*TABLE[name], "--sync-bn", "--lr-policy", "fixed"]
    if "--lr-policy" in TABLE[name]:
        args = [*TABLE[name], "--sync-bn"]
    train(data, tmp_path / "1", *args, steps=steps)
    one = loss_curve(tmp_path / "1")
    assert len(one) == steps
    for world in worlds:
        train(data, tmp_path / str(world), *args, world=world, steps=steps)
        worst = np.max(np.abs(loss_curve(tmp_path / str(world)) - one) / np.abs(one))
        print(f"{name}, {world} ranks: largest relative difference of {steps} losses {worst:.2e}")
        assert worst <= 1e-10


def test_accumulated_parts_are_ranks_with_statistics_of_their_own(shapes, tmp_path):
    """Two ranks of two parts each are four ranks: batch statistics are those of three images either way."""
    data = shapes(28, 96, 20)
    args = [*RATE, "--lr-policy", "fixed"]
    train(data, tmp_path / "parts", *args, "--accumulate", 2, world=2, batch=12, steps=20)
    train(data, tmp_path / "ranks", *args, world=4, batch=12, steps=20)
    one, other = loss_curve(tmp_path / "parts"), loss_curve(tmp_path / "ranks")
    assert np.max(np.abs(one - other) / np.abs(one)) <= 1e-10


EVERYTHING = ["--opt-level", "O1", "--accumulate", 2, "--ema", 0.9, "--lr", 0.01, "--clip-grad-norm", 2, "--checkpoint-every", 3]


def command_lines():
    for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield p.read_bytes()
        except OSError:
            pass


def kill_after_a_checkpoint(argv, out):
    """SIGKILL to the whole job once it has written a checkpoint."""
    p = subprocess.Popen([str(a) for a in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 100
    while not (out / "latest").exists() and p.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    p.send_signal(signal.SIGKILL)
    p.wait(timeout=30)
    while any(str(out).encode() in line for line in command_lines()):  # its ranks, which die a little later
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("device", ["cpu", pytest.param("ref", marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_run_with_fp16_accumulation_and_average_goes_on_bit_for_bit(data, tmp_path, world, device):
    """The first scale, 65536, is too large for these gradients: what is left of it must survive, too."""
    kw = {"world": world, "device": device, "batch": 3 if world == 3 else 6, "steps": 24}
    train(data, tmp_path / "whole", *EVERYTHING, **kw)
    kill_after_a_checkpoint(command(data, tmp_path / "killed", *EVERYTHING, **kw), tmp_path / "killed")
    train(data, tmp_path / "killed", *EVERYTHING, "--resume", "auto", **kw)
    assert np.array_equal(loss_curve(tmp_path / "whole"), loss_curve(tmp_path / "killed"))
    scales = [(line["loss_scale"], line["skipped"]) for line in steps_of(tmp_path / "whole")]
    assert scales == [(line["loss_scale"], line["skipped"]) for line in steps_of(tmp_path / "killed")]
    assert scales[-1][0] == 65536 / 2 ** scales[-1][1] < 65536
    for file in ("model.safetensors", "train.safetensors"):
        assert (newest(tmp_path / "whole") / file).read_bytes() == (newest(tmp_path / "killed") / file).read_bytes()


def test_three_ranks_leave_equal_files_twice(data, tmp_path):
    for name in ("first", "second"):
        train(data, tmp_path / name, *RATE, world=3, device="cpu", steps=8)
    for file in ("model.safetensors", "train.safetensors"):
        assert (newest(tmp_path / "first") / file).read_bytes() == (newest(tmp_path / "second") / file).read_bytes()
