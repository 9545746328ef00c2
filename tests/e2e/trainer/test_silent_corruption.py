"""A bit that flips in one rank: found within the interval, the rank named and replaced, and the end is that of the undisturbed run."""
import json
import re
import subprocess

import numpy as np
import pytest

from metrics_file import records
from support import CRUN, TRAINER
from tensors import load, newest

IMAGES, BATCH, EPOCHS, EVERY = 256, 32, 3, 5
PER_EPOCH = IMAGES // BATCH
STEPS = PER_EPOCH * EPOCHS
NULL = [TRAINER, "--train-data", "null", "--null-images", 40, "--arch", "mlp", "--image-size", 8, "--num-labels", 4, "--batch-size", 20, "--max-steps", 2]


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
    step, culprit = 12, 1 if world == 2 else 0
    text = train(data, tmp_path / "out", "--check-replicas", EVERY, "--drill-corrupt", f"{what}@{step}:{culprit}", device=device, world=world,
                 crun=("--max-restarts", 3))
    assert f"a bit of this rank's {what} flips in step {step}" in text
    found = re.search(r"step (\d+): .* of rank (\d+) are not those of rank \d+; back to step (\d+)", text)
    assert found and step <= int(found[1]) <= step + EVERY and int(found[3]) < step, text[-4000:]
    assert world == 2 or int(found[2]) == culprit, text[-4000:]
    assert f"silent corruption in rank {culprit}, whose" in text and "another process takes its place" in text
    assert f"restart 1/3 (rank {culprit} exited with code 76), kept {world - 1} worker" in text, text[-4000:]
    assert weights(tmp_path / "out") == tensors
    assert losses(tmp_path / "out") == curve  # no step is told twice, none as it was while a bit was wrong


def test_an_evaluation_before_the_step_that_all_go_back_to_stays_in_the_metrics(shapes, tmp_path):
    """They go back to the first step of the epoch behind it, and do not evaluate again."""
    data, out, end = shapes(28, IMAGES, 20), tmp_path / "out", PER_EPOCH
    text = train(data, out, "--test-data", data / "val", "--check-replicas", end, "--drill-corrupt", f"weights@{end + 2}:1", crun=("--max-restarts", 3))
    assert f"back to step {end}, and on from there" in text and "restart 1/3" in text, text[-4000:]
    assert [record["step"] for record in records(out) if "test_images" in record] == [end, 2 * end, STEPS]


@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_a_sum_that_becomes_no_number_is_doubted_and_its_rank_named_and_replaced(undisturbed, tmp_path, device):
    """It spoils that rank's weights; the next loss, which all ranks sum, is no number on any of them."""
    data, tensors, curve = undisturbed(device, 2)
    text = train(data, tmp_path / "out", "--check-replicas", EVERY, "--drill-corrupt", "nan@12:1", device=device, crun=("--max-restarts", 3))
    assert "one of this rank's sums becomes no number in step 12" in text
    assert re.search(r"step 13: training diverged: the loss is nan, .* is not finite; .*; believed only if a replay comes to the same", text), text[-4000:]
    assert "step 12: the next loss is no number; back to step 10" in text, text[-4000:]
    assert "silent corruption in rank 1, whose" in text and "restart 1/3 (rank 1 exited with code 76), kept 1 worker" in text, text[-4000:]
    assert (weights(tmp_path / "out"), losses(tmp_path / "out")) == (tensors, curve)


def test_a_run_that_really_diverges_ends_and_says_which_tensor_did(shapes, tmp_path):
    """The replay comes to the same: then a loss that is no number is what it is. Checkpoints hold numbers alone."""
    out = tmp_path / "out"
    text = train(shapes(28, IMAGES, 20), out, "--base-learning-rate", 1e6, "--warmup-epochs", 0, "--checkpoint-every", 1, "--checkpoint-keep", 0, "--check-replicas", EVERY, code=1)
    assert "the next loss is no number; back to step" in text, text[-4000:]
    assert re.search(r"training diverged: the loss is (nan|inf), .* (is|are) not finite; lower --base-learning-rate", text), text[-4000:]
    for path in out.glob("step-*/*.safetensors"):
        assert all(np.isfinite(v).all() for v in load(path).values()), path


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


@pytest.mark.parametrize("value, sentence", [("weights", "expected WHAT@STEP:RANK"), ("bits@3:1", "expected WHAT@STEP:RANK"), ("weights@0:1", "STEP"),
                                             ("weights@3:-1", "RANK")])
def test_a_drill_that_makes_no_sense_is_refused(value, sentence):
    done = subprocess.run([TRAINER, "--drill-corrupt", value, "--train-data", "null"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and sentence in done.stderr and "drill-corrupt" in done.stderr, done.stderr


def test_second_owners_are_said_not_to_be_compared():
    done = subprocess.run([str(a) for a in (*NULL, "--procs", 2, "--check-replicas", 1, "--zero", 1, "--replicate-state", 1)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "one owner each" not in done.stderr, done.stderr
    assert "--zero 1: moments and sums of gradients are not compared with what their second owners have (--replicate-state), so a bit that flips in them is not seen" in done.stderr, done.stderr


def test_a_misspelt_drill_behind_a_good_one_is_refused():
    done = subprocess.run([TRAINER, "--drill-corrupt", "weights@2:1", "--drill-corrupt", "wieghts@3:1", "--train-data", "null"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "expected WHAT@STEP:RANK, WHAT one of weights, moments, sums and nan" in done.stderr, done.stderr


@pytest.mark.parametrize("options, sentence", [
    (["--drill-corrupt", "weights@2:7", "--check-replicas", 1], "--drill-corrupt weights@2:7: expected a rank from 0 to 1"),
    (["--drill-corrupt", "weights@2:1"], "--drill-corrupt needs --check-replicas STEPS"),
    (["--loss-spike", 3], "--loss-spike 3 needs --check-replicas STEPS")])
def test_what_would_do_nothing_is_refused(options, sentence):
    done = subprocess.run([str(a) for a in (*NULL, "--procs", 2, *options)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and sentence in done.stderr and "step" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("world", [1, 2])
def test_one_rank_is_told_that_nobody_is_there_to_compare_with(world):
    done = subprocess.run([str(a) for a in (*NULL, "--procs", world, "--check-replicas", 1)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--check-replicas 1: one rank has nobody to compare its state with") == (world == 1), done.stderr
