"""A bit that flips in one rank: found within the interval, the rank named and replaced, and the end is that of the undisturbed run."""
import json
import re
import subprocess

import pytest

from support import CRUN, TRAINER
from tensors import newest

IMAGES, BATCH, EPOCHS, EVERY = 256, 32, 3, 5
PER_EPOCH = IMAGES // BATCH
STEPS = PER_EPOCH * EPOCHS


def train(data, out, *options, device="cpu", world=2, crun=(), code=0):
    command = [CRUN, "--nproc_per_node", world, "--restart-backoff", 0, *crun, "trainer", "--train-data", data / "train",
               "--arch", "convnet", "--num-channels", 1, "--image-size", 28, "--batch-size", BATCH, "--num-epochs", EPOCHS, "--device", device,
               "--amp", "off", "--base-learning-rate", 0.01, "--checkpoint-dir", out, "--seed", 7, "--log-level", "info", *options]
    done = subprocess.run([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout[-6000:]
    return done.stdout


def weights(out):
    folder = newest(out)
    return [(folder / name).read_bytes() for name in ("model.safetensors", "train.safetensors")]


def losses(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row and row.get("event", "step") == "step"]


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, the tensors at the end and the losses, by device and world"""
    known = {}

    def of(device, world):
        if (device, world) not in known:
            data, out = shapes(28, IMAGES, 20), tmp_path_factory.mktemp("undisturbed") / "out"
            text = train(data, out, "--check-replicas", EVERY, device=device, world=world)
            assert "replicas" not in text
            known[device, world] = data, weights(out), losses(out)
        return known[device, world]

    return of


@pytest.mark.parametrize("device, world, what", [("cpu", 2, "weights"), ("cpu", 2, "moments"), ("cpu", 2, "sums"), ("cpu", 3, "weights"),
                                                 ("ref", 2, "weights"), ("ref", 2, "sums")])
def test_who_corrupts_is_named_and_replaced_and_the_end_is_the_same(undisturbed, tmp_path, device, world, what):
    data, tensors, curve = undisturbed(device, world)
    step, culprit = 12, 1
    text = train(data, tmp_path / "out", "--check-replicas", EVERY, "--drill-corrupt", f"{what}@{step}:{culprit}", device=device, world=world,
                 crun=("--max-restarts", 3))
    assert f"a bit of this rank's {what} flips in step {step}" in text
    found = re.search(r"step (\d+): .* of rank \d+ are not those of rank \d+; back to step (\d+)", text)
    assert found and step <= int(found[1]) <= step + EVERY and int(found[2]) < step, text[-4000:]
    assert f"silent corruption in rank {culprit}, whose" in text and "another process takes its place" in text
    assert f"restart 1/3 (rank {culprit} exited with code 76), kept {world - 1} worker" in text, text[-4000:]
    assert weights(tmp_path / "out") == tensors
    assert losses(tmp_path / "out") == curve  # no step is told twice, none as it was while a bit was wrong


def test_where_nobody_would_take_its_place_it_stays_and_is_mended(undisturbed, tmp_path):
    data, tensors, _ = undisturbed("cpu", 2)
    text = train(data, tmp_path / "out", "--check-replicas", EVERY, "--drill-corrupt", "weights@12:0")
    assert "silent corruption in rank 0, whose" in text and "it stays, as nobody would take its place" in text
    assert weights(tmp_path / "out") == tensors


def test_no_checkpoint_holds_a_state_that_was_not_compared(undisturbed, tmp_path):
    data, tensors, _ = undisturbed("cpu", 2)
    text = train(data, tmp_path / "out", "--check-replicas", 1000, "--checkpoint-every", 3, "--checkpoint-keep", 0, "--checkpoint-sync", "--drill-corrupt", "weights@5:1")
    assert re.search(r"step 6: .*; back to step 3", text), text[-4000:]
    assert weights(tmp_path / "out") == tensors
    assert sorted(p.name for p in (tmp_path / "out").glob("step-*")) == [f"step-{n:08}" for n in range(3, STEPS + 1, 3)]


def test_parts_that_have_one_owner_are_said_not_to_be_compared(shapes, tmp_path):
    text = train(shapes(28, IMAGES, 20), tmp_path / "out", "--check-replicas", EVERY, "--zero", 1, "--optimizer", "adam", "--base-learning-rate", 0.001,
                 "--drill-corrupt", "weights@12:1", crun=("--max-restarts", 3))
    assert "--zero 1: moments and sums of gradients have one owner each" in text
    assert "silent corruption in rank 1" in text, text[-4000:]


@pytest.mark.parametrize("value, sentence", [("weights", "is not WHAT@STEP:RANK"), ("bits@3:1", "is not WHAT@STEP:RANK"), ("weights@0:1", "STEP"),
                                             ("weights@3:-1", "RANK")])
def test_a_drill_that_makes_no_sense_is_refused(value, sentence):
    done = subprocess.run([TRAINER, "--drill-corrupt", value, "--train-data", "null"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and sentence in done.stderr and "drill-corrupt" in done.stderr, done.stderr
