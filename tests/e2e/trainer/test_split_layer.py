"""The last layer over a group of ranks: --model-parallel-size and --model-parallel-dim, as processes."""
import shutil
import signal
import subprocess

import numpy as np
import pytest

from metrics_file import loss_curve, records
from support import CRUN, run
from tensors import newest

FIXED = ["--arch", "mlp", "--image-size", 28, "--num-channels", 1, "--device", "ref", "--base-learning-rate", 0.01, "--lr-policy", "fixed",
         "--crop-scale", "0.6,1", "--batch-size", 32, "--num-epochs", 3, "--max-steps", 8, "--label-smoothing", 0.1]


def train(world, data, *args, code=0, timeout=300):
    p = run(CRUN, "--standalone", "--nproc_per_node", world, "trainer", "--train-data", data / "train", *FIXED, *args, timeout=timeout)
    assert p.returncode == code, p.stdout + p.stderr
    return p


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 148, 20)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    train(1, data, "--num-labels", 11, "--test-data", data / "train", "--log-dir", out)
    return out


def evaluations(folder):
    return [(r["test_loss"], r["test_acc1"], r["test_acc5"]) for r in records(folder) if "test_loss" in r]


# three ranks in groups of two: one is spare
@pytest.mark.parametrize("world, size, dim, more", [(4, 2, "1", []), (3, 2, "0", []), (3, 3, "-1", ["--zero", 1]), (4, 0, "0", ["--enable-model-parallel"])])
def test_losses_are_those_of_one_rank(data, alone, tmp_path, world, size, dim, more):
    p = train(world, data, "--num-labels", 11, "--test-data", data / "train", "--log-dir", tmp_path, "--model-parallel-size", size,
              "--model-parallel-dim", dim, "--check-replicas", 1, *more)
    group = size or world
    over = "features" if dim == "0" else "classes"
    assert f"groups of {group} ranks that share the last layer, split over {over}: {world // group}; spare ranks: {world % group}" in p.stdout + p.stderr
    one, other = loss_curve(alone), loss_curve(tmp_path)
    assert len(one) == len(other) == 8
    worst = np.max(np.abs(one - other) / np.abs(one))
    print(f"{world} ranks in groups of {group}, dim {dim}: largest relative difference of 8 losses {worst:.2e}")
    assert worst <= 1e-9
    assert evaluations(alone) and np.allclose(evaluations(tmp_path), evaluations(alone), rtol=1e-9)


def test_a_spare_rank_stops_in_good_order_with_the_others(data):
    line = [CRUN, "--standalone", "--nproc_per_node", 3, "trainer", "--train-data", data / "train", *FIXED, "--num-labels", 11, "--max-steps", 0, "--num-epochs", 100000,
            "--model-parallel-size", 2, "--model-parallel-dim", "1", "--progress", "torch", "--print-freq", 1]
    p = subprocess.Popen([str(a) for a in line], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for text in p.stderr:
        if "Epoch: [0][" in text:
            p.send_signal(signal.SIGTERM)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=60) == 75 and "stopped at step" in rest, rest


@pytest.mark.parametrize("args, says", [
    (["--model-parallel-size", 4, "--model-parallel-dim", "1"], "2 ranks cannot hold a model over 1 stage of tensor groups of 4: that takes at least 4"),
    (["--model-parallel-dim", "1"], "--model-parallel-dim 1: over which ranks?"),
    (["--model-parallel-size", 2, "--model-parallel-dim", "2"], "model-parallel-dim"),
    (["--model-parallel-size", 2, "--model-parallel-dim", "0", "--arch", "convnet"], "'fc' reads maps of 7 x 7 (expected 1 x 1 where features are split)"),
])
def test_what_cannot_be_is_refused(data, tmp_path, args, says, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in (p := train(2, data, *args, "--num-labels", 11, code=2)).stdout + p.stderr


CHAIN = [(1, []), (4, ["--model-parallel-size", 2, "--model-parallel-dim", "1", "--zero", 1]), (3, ["--zero", 1]),
         (4, ["--model-parallel-size", 2, "--model-parallel-dim", "0"]), (2, []), (3, ["--model-parallel-size", 3, "--model-parallel-dim", "0", "--zero", 1]),
         (2, ["--model-parallel-size", 2, "--model-parallel-dim", "1"]), (5, ["--zero", 1]), (3, ["--model-parallel-size", 3, "--model-parallel-dim", "1"]),
         (4, ["--model-parallel-size", 2, "--model-parallel-dim", "0", "--zero", 1])]


@pytest.mark.parametrize("chain", [CHAIN[1::2], pytest.param(CHAIN, marks=pytest.mark.slow)], ids=["every other", "all"])
def test_checkpoints_go_from_layout_to_layout(data, tmp_path, chain):
    """Taken up and saved without a step: the same bytes over all layouts. Trained on from there: the same run."""
    adam = ["--num-labels", 11, "--optimizer", "adam", "--ema", 0.9]
    train(4, data, *adam, "--model-parallel-size", 2, "--model-parallel-dim", "1", "--checkpoint-dir", tmp_path / "0", "--max-steps", 3, "--checkpoint-sync")
    for i, (world, layout) in enumerate(chain):
        how = ["--checkpoint-sync"] if i % 3 == 0 else []
        train(world, data, *adam, *layout, *how, "--resume", tmp_path / str(i), "--checkpoint-dir", tmp_path / str(i + 1), "--max-steps", 3)
        for file in ("model.safetensors", "train.safetensors"):
            assert (newest(tmp_path / str(i + 1)) / file).read_bytes() == (newest(tmp_path / "0") / file).read_bytes(), layout
    train(1, data, *adam, "--log-dir", tmp_path / "alone")
    train(4, data, *adam, *CHAIN[1][1], "--resume", tmp_path / str(len(chain)), "--checkpoint-dir", tmp_path / "end", "--log-dir", tmp_path / "on")
    assert np.max(np.abs(loss_curve(tmp_path / "on") / loss_curve(tmp_path / "alone")[3:] - 1)) <= 1e-9


def test_a_group_without_a_dimension_shares_nothing_and_says_so(data, tmp_path):
    p = train(2, data, "--enable-model-parallel", "--max-steps", 1)
    assert "--model-parallel-dim is not given: the last layer is whole on every rank" in p.stdout + p.stderr


def test_a_sum_of_losses_is_a_mean_at_a_higher_rate(data, tmp_path):
    """Without momentum, clipping and decay; every batch is full."""
    for name, args in {"sum": ["--loss-reduction", "sum", "--lr", 0.01 / 32], "none": ["--loss-reduction", "none", "--lr", 0.01 / 32], "mean": ["--lr", 0.01]}.items():
        train(1, data, "--momentum", 0, "--weight-decay", 0, "--max-steps", 4, "--log-dir", tmp_path / name, *args)
    assert np.allclose(loss_curve(tmp_path / "sum"), loss_curve(tmp_path / "mean"), rtol=1e-10)
    assert np.array_equal(loss_curve(tmp_path / "sum"), loss_curve(tmp_path / "none"))


def test_images_of_an_ignored_class_count_nowhere(data, tmp_path):
    train(2, data, "--ignore-index", 1, "--max-steps", 1, "--log-dir", tmp_path / "two")
    train(1, data, "--ignore-index", 1, "--max-steps", 1, "--log-dir", tmp_path / "one")
    train(1, data, "--max-steps", 1, "--log-dir", tmp_path / "all")
    one, two, everything = (loss_curve(tmp_path / n)[0] for n in ("one", "two", "all"))
    assert abs(one - two) <= 1e-10 and abs(one - everything) > 1e-6


def test_a_run_of_ignored_images_alone_says_so(data, tmp_path):
    ignored = tmp_path / "data" / "train" / "only"
    ignored.parent.mkdir(parents=True)
    shutil.copytree(next((data / "train").iterdir()), ignored)
    split = ["--model-parallel-size", 2, "--model-parallel-dim", "1", "--zero", 2, "--accumulate", 2, "--clip-grad-norm", 1, "--ema", 0.9]
    p = train(2, tmp_path / "data", "--num-labels", 11, "--ignore-index", 0, *split, code=65)
    assert "counted in epoch 1: each is of class 0 (--ignore-index 0), or could not be decoded" in p.stdout + p.stderr


MANY = ["--train-data", "null", "--base-learning-rate", 0.01, "--lr-policy", "fixed", "--sync-bn", "--label-smoothing", 0.1]


def train_many(world, out, *args, timeout=480):
    p = run(CRUN, "--standalone", "--nproc_per_node", world, "trainer", *MANY, "--log-dir", out, *args, timeout=timeout)
    assert p.returncode == 0, p.stdout + p.stderr
    return loss_curve(out)


@pytest.mark.parametrize("network", [["--arch", "mlp", "--image-size", 8, "--num-labels", 2000],
                                     pytest.param(["--arch", "resnet18", "--image-size", 32, "--num-labels", 20000], marks=pytest.mark.slow)], ids=["mlp", "resnet18"])
def test_the_first_loss_over_many_classes_is_that_of_a_whole_layer_on_cpu(tmp_path, network):
    args = [*network, "--device", "cpu", "--amp", "off", "--null-images", 32, "--batch-size", 16, "--max-steps", 2]
    one = train_many(1, tmp_path / "one", *args)
    for dim, size in ("1", 2), ("0", 2), ("1", 3):  # they are no multiple of 3
        other = train_many(size, tmp_path / (dim + str(size)), *args, "--model-parallel-dim", dim, "--model-parallel-size", size)
        print(f"dim {dim}, {size} ranks: losses {other}, of one rank {one}")
        assert abs(other[0] - one[0]) <= 1e-5 * one[0] and abs(other[1] - one[1]) <= 1e-3 * one[1]


@pytest.mark.parametrize("classes", [2000, pytest.param(20000, marks=pytest.mark.slow)])
def test_twenty_losses_over_many_classes_are_those_of_one_rank(tmp_path, classes):
    args = ["--num-labels", classes, "--arch", "mlp", "--num-channels", 1, "--image-size", 8, "--device", "ref", "--null-images", 120, "--batch-size", 6, "--max-steps", 20]
    one = train_many(1, tmp_path / "one", *args)
    two = train_many(4, tmp_path / "four", *args, "--model-parallel-dim", "1", "--model-parallel-size", 2, "--zero", 1)
    worst = np.max(np.abs(one - two) / np.abs(one))
    print(f"largest relative difference of 20 losses {worst:.2e}")
    assert len(one) == 20 and worst <= 1e-9
