"""Options of the optimizer in whole runs: what must not change the result does not, and a run goes on where it stopped."""
import json

import numpy as np
import pytest

from metrics_file import loss_curve
from support import CRUN, TRAINER, run
from tensors import load, newest

EVERYTHING = {
    "lars": ["--optimizer", "lars", "--lars-eta", 0.02, "--lr", 0.5],
    "adamw": ["--optimizer", "adamw", "--lr", 0.001, "--weight-decay", 0.05],
    "lamb": ["--optimizer", "lamb", "--lr", 0.01, "--weight-decay", 0.05],
    "adam": ["--optimizer", "adam", "--lr", 0.001, "--no-bn-decay"],
    "nesterov": ["--nesterov", "--lr", 0.01],
    "caffe2": ["--sgd-rule", "caffe2", "--lr", 0.01],
}
OPTIONS = ["--label-smoothing", 0.1, "--clip-grad-norm", 1.5, "--ema", 0.9, "--lr-policy", "multistep", "--lr-milestones", "1,2"]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 50, 20)  # the last batch of an epoch is short


def train(data, out, *args, world=1, epochs=3, batch=16):
    launch = [CRUN, "--standalone", "--nproc_per_node", world, "trainer"] if world > 1 else [TRAINER]
    p = run(*launch, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
            "--num-channels", 1, "--batch-size", batch, "--num-epochs", epochs, "--device", "ref", "--checkpoint-dir", out,
            "--seed", 3, *args)
    assert p.returncode in (0, 75), p.stdout + p.stderr
    return p


def largest_difference(a, b):
    return np.max(np.abs(a - b) / np.abs(b))


@pytest.mark.parametrize("batch", [16, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERYTHING)
def test_losses_do_not_depend_on_the_world(shapes, tmp_path, name, batch):
    data = shapes(28, 3 * batch + 2 * batch // 16, 20)  # the last batch of an epoch is short
    args = EVERYTHING[name] + OPTIONS + ["--sync-bn"]
    train(data, tmp_path / "one", *args, batch=batch)
    train(data, tmp_path / "two", *args, world=2, batch=batch)
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert len(one) == 12 and one[-1] < one[0]
    worst = largest_difference(two, one)
    print(f"{name}: largest relative difference of 12 losses {worst:.2e}")
    assert worst <= 1e-10


def test_parts_of_one_rank_are_as_good_as_ranks(shapes, tmp_path):
    """Batch statistics are those of 8 images either way."""
    data = shapes(28, 48, 20)
    args = EVERYTHING["nesterov"] + OPTIONS
    train(data, tmp_path / "parts", *args, "--accumulate", 2)
    train(data, tmp_path / "ranks", *args, world=2)
    assert largest_difference(loss_curve(tmp_path / "parts"), loss_curve(tmp_path / "ranks")) <= 1e-10
    train(data, tmp_path / "both", *args, "--accumulate", 3, world=2)  # 8 = 3 + 3 + 2: still every image once
    counts = [json.loads(line) for line in (tmp_path / "both" / "metrics.jsonl").read_text().splitlines()]
    assert len([c for c in counts if "lr" in c]) == 9


def test_more_parts_than_samples_are_as_many_as_samples(data, tmp_path):
    """A part without a sample costs as much as one with: 65536 of them took minutes a step."""
    args = EVERYTHING["nesterov"] + OPTIONS
    train(data, tmp_path / "all", *args, "--accumulate", 65536, world=2, epochs=1)
    train(data, tmp_path / "enough", *args, "--accumulate", 8, world=2, epochs=1)
    assert np.array_equal(loss_curve(tmp_path / "all"), loss_curve(tmp_path / "enough"))


def test_the_rules_differ(data, tmp_path):
    last = set()
    for name, args in EVERYTHING.items():
        train(data, tmp_path / name, *args, epochs=1)
        last.add(loss_curve(tmp_path / name)[-1])
    assert len(last) == len(EVERYTHING)


@pytest.mark.parametrize("name", ["adamw", "lars"])
def test_a_stopped_run_goes_on_bit_for_bit(data, tmp_path, name):
    args = EVERYTHING[name] + OPTIONS + ["--accumulate", 2]
    train(data, tmp_path / "whole", *args)
    train(data, tmp_path / "parts", *args, "--checkpoint-every", 1, "--max-time", "1ms")  # stops after a step
    assert len(loss_curve(tmp_path / "parts")) < 12
    train(data, tmp_path / "parts", *args, "--resume", "auto")
    assert np.array_equal(loss_curve(tmp_path / "whole"), loss_curve(tmp_path / "parts"))
    for file in ("model.safetensors", "train.safetensors"):
        assert (newest(tmp_path / "whole") / file).read_bytes() == (newest(tmp_path / "parts") / file).read_bytes()


def test_another_optimizer_begins_without_momentum(data, tmp_path):
    train(data, tmp_path, *EVERYTHING["nesterov"], epochs=1)
    p = train(data, tmp_path, *EVERYTHING["adamw"], "--resume", "auto", epochs=2)
    assert "the optimizer is adamw now and was another: it begins without momentum" in p.stderr


ADAM = ["--optimizer", "adam", "--lr", 0.001, "--lr-policy", "fixed", "--warmup-epochs", 0, "--weight-decay", 0]


def largest_step(before, after):
    """Of any weight between two checkpoints. Adam's first is the rate for every gradient above --adam-eps."""
    a, b = (load(folder / "model.safetensors") for folder in (before, after))
    return max(np.max(np.abs(a[k] - b[k])) for k in a if "running" not in k and "num_batches" not in k)


def test_adams_count_begins_where_its_moments_do(data, tmp_path):
    out = tmp_path / "sgd"
    train(data, out, "--lr", 0.01, epochs=3)
    before = newest(out)
    train(data, out, *ADAM, "--resume", "auto", "--max-steps", 13, epochs=9)
    assert largest_step(before, newest(out)) == pytest.approx(0.001, rel=1e-3)
    train(data, tmp_path / "late", *ADAM, "--start-epoch", 2, "--pretrained", before, "--max-steps", 9, epochs=9)
    assert largest_step(before, newest(tmp_path / "late")) == pytest.approx(0.001, rel=1e-3)


def test_adams_count_is_kept_with_its_moments(data, tmp_path):
    for name in ("whole", "parts"):
        train(data, tmp_path / name, "--lr", 0.01, epochs=1)
    train(data, tmp_path / "whole", *ADAM, "--resume", "auto")
    for steps in (6, 12):
        train(data, tmp_path / "parts", *ADAM, "--resume", "auto", "--max-steps", steps)
    assert (newest(tmp_path / "whole") / "model.safetensors").read_bytes() == (newest(tmp_path / "parts") / "model.safetensors").read_bytes()


def test_the_average_is_kept_and_evaluated(data, tmp_path):
    train(data, tmp_path / "a", "--ema", 0.5, "--lr", 0.05, epochs=1)
    train(data, tmp_path / "b", "--lr", 0.05, epochs=1)
    model = load(newest(tmp_path / "a") / "model.safetensors")
    state = load(newest(tmp_path / "a") / "train.safetensors")
    plain = load(newest(tmp_path / "b") / "model.safetensors")
    for name, value in model.items():
        if f"ema.{name}" in state:
            assert np.array_equal(value, plain[name])  # the average changes nothing in training
            assert not np.array_equal(value, state[f"ema.{name}"])
    assert sum(name.startswith("ema.") for name in state) >= 8


def test_rates_scale_as_asked(data, tmp_path):
    train(data, tmp_path / "a", "--lr", 0.64, "--lr-policy", "fixed", "--warmup-epochs", 0, "--lr-scale", "batch256", epochs=1)
    train(data, tmp_path / "b", "--lr", 0.02, "--lr-policy", "fixed", "--warmup-epochs", 0, "--lr-scale", "workers", epochs=1, world=2)
    for out in ("a", "b"):
        lines = [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
        assert {line["lr"] for line in lines if "lr" in line} == {0.04}


@pytest.mark.parametrize("args, says", [
    (["--optimizer", "adam", "--nesterov"], "--nesterov and --sgd-rule are rules of --optimizer sgd"),
    (["--nesterov", "--sgd-rule", "caffe2"], "caffe2's rule is Nesterov's already"),
    (["--nesterov", "--momentum", 0], "--nesterov needs a --momentum above 0"),
    (["--optimizer", "adamw", "--beta2", 1], "adam needs both below 1"),
    (["--ema", 1], "never moves"),
    (["--lr-milestones", "30,20"], "expected epochs that rise, got 20 after 30"),
    (["--lr-milestones", "x"], "x"),
])
def test_contradictions_are_one_sentence(data, args, says):
    p = run(TRAINER, "--train-data", data / "train", *args)
    assert p.returncode == 2 and says in p.stderr and p.stderr.count("\n") == 1, p.stderr
