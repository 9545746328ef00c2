"""--zero: moments and gradients that are cut over ranks change neither training nor what is saved."""
import json
import re

import numpy as np
import pytest

from metrics_file import loss_curve, records
from support import CRUN, TRAINER, faulty_disk, run
from tensors import load, newest

FILES = ["model.safetensors", "train.safetensors"]
ROWS = {
    # Without weight decay Adam would divide gradients of 1e-17, which differ by rounding, by their own size.
    "adam": ["--optimizer", "adam", "--weight-decay", 0.0001, "--clip-grad-norm", 0.4, "--ema", 0.9],
    "lars": ["--optimizer", "lars", "--lars-eta", 0.02, "--weight-decay", 0.01],
}


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 100, 20)


def train(data, out, *args, world=1, steps=10, refused=False, env=None):
    launch = [CRUN, "--standalone", "--nproc_per_node", world, TRAINER] if world > 1 else [TRAINER]
    p = run(*launch, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size", 10,
            "--max-steps", steps, "--num-epochs", 100, "--device", "ref", "--checkpoint-dir", out, "--seed", 3, "--threads", 1,
            "--loader-threads", 1, "--lr", 0.01, "--lr-policy", "fixed", "--sync-bn", *args, timeout=300, env=env)
    assert refused or p.returncode == 0, p.stdout + p.stderr
    return p


def distance(a, b):
    """The largest |a - b| / max(1, |b|) of all tensors of two checkpoints."""
    worst = 0
    for file in FILES:
        x, y = load(newest(a) / file), load(newest(b) / file)
        assert x.keys() == y.keys()
        worst = max(worst, *(float(np.max(np.abs(x[k] - y[k]) / np.maximum(1, np.abs(y[k])))) for k in x))
    return worst


def optimizer_mib(p):
    return float(re.search(r"memory a rank:.*optimizer ([0-9.]+) MiB", p.stderr + p.stdout)[1])


@pytest.mark.parametrize("zero, name, more", [(1, "adam", []), (1, "lars", []), (2, "lars", []), (2, "adam", ["--accumulate", 2]), (3, "adam", ["--accumulate", 2]), (3, "lars", [])])
def test_ranks_with_cut_moments_are_one_rank(data, tmp_path, zero, name, more):
    whole = train(data, tmp_path / "1", *ROWS[name], *more)
    cut = train(data, tmp_path / "3", *ROWS[name], *more, "--zero", zero, world=3)
    assert np.max(np.abs(loss_curve(tmp_path / "3") / loss_curve(tmp_path / "1") - 1)) <= 1e-9
    assert distance(tmp_path / "3", tmp_path / "1") <= 1e-9
    assert optimizer_mib(cut) <= optimizer_mib(whole) / 2


def test_checkpoints_go_from_layout_to_layout(data, tmp_path):
    """Taken up and saved without a step: the same bytes. Trained on from there: the same run."""
    args = ROWS["adam"]
    train(data, tmp_path / "all", *args, steps=8)
    train(data, tmp_path / "a", *args, "--zero", 1, world=2, steps=4)
    before = "a"
    for after, zero, world in (("b", 0, 1), ("c", 2, 3), ("d", 3, 2), ("e", 0, 2), ("f", 3, 3), ("g", 1, 1)):
        train(data, tmp_path / after, *args, "--zero", zero, "--resume", tmp_path / before, world=world, steps=4)
        for file in FILES:
            assert (newest(tmp_path / after) / file).read_bytes() == (newest(tmp_path / before) / file).read_bytes()
        before = after
    train(data, tmp_path / "end", *args, "--zero", 1, "--resume", tmp_path / "g", world=3, steps=8)
    assert newest(tmp_path / "end").name == newest(tmp_path / "all").name
    assert distance(tmp_path / "end", tmp_path / "all") <= 1e-9


@pytest.mark.parametrize("zero", [0, 1])
def test_a_resume_reads_each_file_once(data, tmp_path, zero):
    train(data, tmp_path / "out", *ROWS["adam"], steps=4)
    size = sum((newest(tmp_path / "out") / f).stat().st_size for f in FILES)
    train(data, tmp_path / "out", *ROWS["adam"], "--zero", zero, "--resume", "auto", world=3, steps=5, env=faulty_disk(reads=tmp_path / "reads"))
    read = sum(map(int, (tmp_path / "reads").read_text().split()))
    assert size * 0.9 < read < size * 1.5, f"{read} bytes of files of {size} were read"  # headers are looked at more often


def test_a_damaged_checkpoint_is_passed_over_by_all_ranks(data, tmp_path):
    train(data, tmp_path / "out", *ROWS["adam"], "--checkpoint-every", 4, "--checkpoint-keep", 9, steps=8)
    file = newest(tmp_path / "out") / "train.safetensors"
    bits = bytearray(file.read_bytes())
    bits[len(bits) // 2] ^= 1
    file.write_bytes(bits)
    p = train(data, tmp_path / "out", *ROWS["adam"], "--zero", 1, "--resume", "auto", world=3, steps=8)
    said = p.stdout + p.stderr
    assert said.count("the checkpoint of step 8 is passed over") == 1 and "resumed from step 4 " in said, said
    assert (tmp_path / "out" / "step-00000008.corrupt").exists()
    for n in (4, 8):
        file = tmp_path / "out" / f"step-{n:08}" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    p = train(data, tmp_path / "out", *ROWS["adam"], "--zero", 1, "--resume", "auto", world=3, steps=8, refused=True)
    assert p.returncode != 0 and "holds no sound checkpoint, only 2 damaged" in p.stdout + p.stderr, p.stdout + p.stderr


def test_saves_by_steps_and_by_time_take_all_ranks(data, tmp_path):
    train(data, tmp_path / "steps", *ROWS["adam"], "--zero", 1, "--checkpoint-every", 3, "--checkpoint-keep", 9, "--checkpoint-sync", world=3)
    assert sorted(p.name for p in (tmp_path / "steps").glob("step-*")) == [f"step-{n:08}" for n in (3, 6, 9, 10)]
    train(data, tmp_path / "time", *ROWS["adam"], "--zero", 1, "--checkpoint-seconds", 0.001, "--checkpoint-keep", 9, world=2)
    assert len(list((tmp_path / "time").glob("step-*"))) >= 2
    for saved in (tmp_path / "time").glob("step-*"):
        assert json.loads((saved / "manifest.json").read_text())


def test_evaluation_gathers_parameters_and_averages(data, tmp_path):
    """Of the same checkpoint, in training and by itself, with fewer steps than there are and with them all."""
    found = {}
    for zero, world in ((0, 1), (3, 3)):
        out = tmp_path / str(zero)
        args = [*ROWS["adam"], "--zero", zero, "--test-data", data / "val"]
        train(data, out, *args, world=world, steps=20)
        p = train(data, tmp_path / f"none-{zero}", *args, "--evaluate", "--resume", out, world=world, steps=20)
        found[zero] = [r["test_loss"] for r in records(out) if "test_loss" in r] + [float(re.search(r"loss +([0-9.]+)", p.stdout + p.stderr)[1])]
    assert len(found[0]) >= 2 and found[3] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("like, more", [(0, []), (2, ["--amp", "bf16", "--accumulate", 2]), (0, ["--amp", "bf16", "--model-parallel-size", 2, "--model-parallel-dim", 1])],
                         ids=["fp32", "bf16, parts", "bf16, split over classes"])
def test_on_the_processor_two_ranks_keep_every_bit(data, tmp_path, like, more):
    """Of two numbers there is one sum, whoever takes it, and whatever else is summed with it."""
    weights = set()
    for zero in (like, 3):
        train(data, tmp_path / str(zero), "--device", "cpu", "--zero", zero, *more, world=2)
        weights.add((newest(tmp_path / str(zero)) / "model.safetensors").read_bytes())
    assert len(weights) == 1


def test_a_run_that_diverges_names_a_tensor(data, tmp_path):
    said = [train(data, tmp_path / str(zero), "--lr", 1e9, "--weight-decay", 1, "--zero", zero, world=2, steps=40, refused=True) for zero in (0, 3)]
    for p in said:
        assert p.returncode != 0
    named = [re.search(r"training diverged: the loss is [-a-z]+, (.*?);", p.stdout + p.stderr) for p in said]
    assert all(named) and named[0][1] == named[1][1], [p.stderr for p in said]


def test_levels_that_there_are_not_are_refused(data, tmp_path):
    for more in (["--zero", 4], ["--fsdp", "--zero", 1]):
        p = train(data, tmp_path / "out", *more, refused=True)
        assert p.returncode == 2 and "--zero" in p.stderr and not (tmp_path / "out").exists()
