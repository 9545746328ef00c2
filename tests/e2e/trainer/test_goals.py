"""What training makes small, what counts as better, what it ends for, and which samples it draws: in whole runs, over layouts."""
import json
import re
import shutil

import numpy as np
import pytest

from metrics_file import loss_curve, records, steps_of
from support import CRUN, TRAINER, run
from tensors import load, newest

TEXT = """input size=24
conv stem out=8 kernel=3 stride=2 pad=1 bias=no
bn norm
relu
repeat i times=3
conv blocks.{i} out=8 kernel=3 pad=1
relu
end
avgpool
classifier head
"""
LAYOUTS = {"two": [], "zero": ["--zero", 3], "stages": ["--stages", 2], "classes": ["--enable-model-parallel", "--model-parallel-dim", 1],
           "features": ["--enable-model-parallel", "--model-parallel-dim", 0]}
GOALS = {"bce": ["--loss", "bce", "--label-smoothing", 0.1], "weights": ["--class-weights", "0.5,2,1", "--label-smoothing", 0.1, "--clip-grad-norm", 0.1],
         "lamb": ["--optimizer", "lamb", "--lr", 0.003, "--weight-decay", 0.05, "--clip-grad-norm", 0.1, "--no-bn-decay"],
         "balanced": ["--class-weights", "balanced", "--optimizer", "lars", "--lars-eta", 0.02, "--ignore-index", 1]}


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(24, 60, 30, 3)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "tiny.net"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def train(data, net):
    def run_it(out, *args, world=1, rc=0, device="ref"):
        launch = [CRUN, "--standalone", "--nproc-per-node", world, TRAINER] if world > 1 else [TRAINER]
        p = run(*launch, "--train-data", data / "train", "--arch", net, "--batch-size", 16, "--device", device, "--seed", 1, "--lr", 0.05,
                "--checkpoint-dir", out, "--sync-bn", *args)
        assert p.returncode == rc, p.stdout + p.stderr
        return p
    return run_it


def manifest(folder):
    return json.loads((newest(folder) / "manifest.json").read_text())["meta"]


@pytest.mark.parametrize("goal", GOALS)
def test_losses_are_those_of_one_process_in_every_layout(train, tmp_path, goal):
    train(tmp_path / "one", *GOALS[goal], "--num-epochs", 2)
    one = loss_curve(tmp_path / "one")
    assert len(one) == 8 and (goal == "lamb" or one[-1] < one[0])  # whose first steps are as long as the weights
    for name, args in LAYOUTS.items():
        train(tmp_path / name, *GOALS[goal], "--num-epochs", 2, *args, world=2)
        assert np.max(np.abs(loss_curve(tmp_path / name) / one - 1)) <= 1e-9, name
    train(tmp_path / "cpu", *GOALS[goal], "--num-epochs", 2, "--device", "cpu")
    assert np.max(np.abs(loss_curve(tmp_path / "cpu") / one - 1)) <= 1e-3
    train(tmp_path / "split", *GOALS[goal], "--num-epochs", 2, *LAYOUTS["classes"], "--device", "cpu", world=2)
    assert np.max(np.abs(loss_curve(tmp_path / "split") / one - 1)) <= 1e-3


def test_the_goals_differ(train, tmp_path):
    train(tmp_path / "plain", "--max-steps", 3)
    curves = {"plain": tuple(loss_curve(tmp_path / "plain"))}
    for goal, args in GOALS.items():
        train(tmp_path / goal, *args, "--max-steps", 3)
        curves[goal] = tuple(loss_curve(tmp_path / goal))
    assert len(set(curves.values())) == len(GOALS) + 1


def test_what_is_held_out_is_a_function_of_seed_and_name(data, net, train, tmp_path):
    p = train(tmp_path / "a", "--val-split", 0.3, "--num-epochs", 1)
    trained, held = map(int, re.search(r"data: (\d+) training images, (\d+) held out", p.stderr).groups())
    assert trained + held == 60 and 6 <= held <= 30
    assert manifest(tmp_path / "a")["val_split"] == {"share": 0.3, "held_out": held}
    assert [r["test_images"] for r in records(tmp_path / "a") if "test_loss" in r] == [held]

    def names(world, seed, where):
        launch = [CRUN, "--standalone", "--nproc-per-node", world, TRAINER] if world > 1 else [TRAINER]
        q = run(*launch, "--evaluate", "--train-data", where, "--val-split", 0.3, "--arch", net, "--seed", seed,
                "--device", "ref", "--report", tmp_path / f"report-{world}-{seed}-{where.parent.name}")
        assert q.returncode == 0, q.stderr
        lines = (tmp_path / f"report-{world}-{seed}-{where.parent.name}" / "predictions.csv").read_text().splitlines()[1:]
        return sorted("/".join(line.split(",")[0].split("/")[-2:]) for line in lines)

    one = names(1, 1, data / "train")
    assert len(one) == held and names(2, 1, data / "train") == one and names(1, 2, data / "train") != one
    other = tmp_path / "moved" / "train"  # elsewhere, with a class less: the others' samples are held out as before
    other.mkdir(parents=True)
    kept = sorted(d for d in (data / "train").iterdir() if d.is_dir())[1:]
    for d in kept:
        shutil.copytree(d, other / d.name)
    assert names(1, 1, other) == [n for n in one if n.split("/")[0] in {d.name for d in kept}]


def test_another_share_is_refused(train, tmp_path):
    train(tmp_path, "--val-split", 0.3, "--num-epochs", 1)
    p = train(tmp_path, "--val-split", 0.2, "--num-epochs", 2, "--resume", "auto", rc=78)
    assert "--val-split was 0.3 and is 0.2" in p.stderr
    train(tmp_path, "--val-split", 0.3, "--num-epochs", 2, "--resume", "auto")


@pytest.mark.parametrize("by", ["top1", "top5", "loss"])
def test_the_best_is_the_best_by_what_was_asked(data, train, tmp_path, by):
    train(tmp_path, "--test-data", data / "val", "--num-epochs", 5, "--lr", 0.3, "--lr-policy", "fixed", "--best-by", by, "--checkpoint-keep", 0)
    evals = [r for r in records(tmp_path) if "test_loss" in r]
    key = {"top1": lambda r: r["test_acc1"], "top5": lambda r: r["test_acc5"], "loss": lambda r: -r["test_loss"]}[by]
    first_best = max(range(len(evals)), key=lambda i: (round(key(evals[i]), 9), -i))
    assert len(evals) == 5 and (tmp_path / "best").resolve().name == f"step-{4 * (first_best + 1):08d}", evals


def test_another_best_by_forgets_the_best(data, train, tmp_path):
    train(tmp_path, "--test-data", data / "val", "--num-epochs", 1)
    p = train(tmp_path, "--test-data", data / "val", "--num-epochs", 2, "--best-by", "loss", "--resume", "auto")
    assert "--best-by was auto and is now loss" in p.stderr
    assert 0 < manifest(tmp_path)["best_top1"] < 1 and (tmp_path / "best").resolve().exists()


STILL = ["--lr", 0, "--lr-policy", "fixed", "--lr-mul", "norm.*=0", "--early-stop", 2, "--num-epochs", 9]  # no evaluation is better than the first


@pytest.mark.parametrize("world", [1, 2])
def test_early_stopping_counts_over_a_resume(data, train, tmp_path, world):
    test = ["--test-data", data / "val", "--eval-every", 1]
    p = train(tmp_path / "whole", *test, *STILL, world=world)
    assert "ends early: the last 2 evaluations were no better" in p.stderr and len(steps_of(tmp_path / "whole")) == 12
    train(tmp_path / "parts", *test, *STILL, "--max-steps", 8, world=world)
    assert manifest(tmp_path / "parts")["judged"] == 4  # it is saved before the evaluation, which the next run repeats
    p = train(tmp_path / "parts", *test, *STILL, "--resume", "auto", world=world)
    assert "ends early" in p.stderr and len(steps_of(tmp_path / "parts")) == 12
    p = train(tmp_path / "parts", *test, *STILL, "--resume", "auto", world=world)
    assert "ends early" in p.stderr and len(steps_of(tmp_path / "parts")) == 12
    p = train(tmp_path / "parts", *test, *STILL, "--early-stop", 3, "--resume", "auto", world=world)
    assert len(steps_of(tmp_path / "parts")) == 16


def ids_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = {}
    for line in lines:
        steps.setdefault((line["epoch"], line["step"]), []).extend(line["ids"])
    return [sorted(steps[k]) for k in sorted(steps)]


def test_balanced_draws_take_each_class_as_often(data, net, tmp_path):
    def draw(name, *args, world=1):
        launch = [CRUN, "--standalone", "--nproc-per-node", world, TRAINER] if world > 1 else [TRAINER]
        p = run(*launch, "--train-data", tmp_path / "few", "--arch", net, "--batch-size", 11, "--device", "ref", "--num-epochs", 12, "--lr", 0.01,
                "--debug-batch-sha", tmp_path / name, "--shuffle", "balanced", *args)
        assert p.returncode in (0, 75), p.stderr
        return ids_of(tmp_path / name)

    classes = sorted(d for d in (data / "train").iterdir() if d.is_dir())
    counts = [2, 6, 20]
    for d, n in zip(classes, counts):
        (tmp_path / "few" / d.name).mkdir(parents=True)
        for f in sorted(d.iterdir())[:n]:
            (tmp_path / "few" / d.name / f.name).symlink_to(f)
    one = draw("one")
    flat = np.concatenate([np.array(s) for s in one])
    assert len(flat) == 12 * 28
    ends = np.cumsum(counts)
    seen = np.array([((flat >= e - n) & (flat < e)).sum() for e, n in zip(ends, counts)])
    assert ((seen - 112) ** 2 / 112).sum() < 9.21, seen  # chi square of two degrees, 1 %
    rare = np.bincount(flat, minlength=28)
    assert rare[:2].min() > 3 * rare[8:].max() / 2, rare
    assert draw("two", world=2) == one
    draw("parts", "--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 1, "--max-steps", 7)
    assert draw("parts", "--checkpoint-dir", tmp_path / "ck", "--resume", "auto") == one


def test_rates_fall_from_the_last_layer_to_the_first(train, tmp_path):
    """One step of plain SGD: a parameter moves by rate times gradient."""
    args = ["--momentum", 0, "--weight-decay", 0, "--lr-policy", "fixed", "--warmup-epochs", 0]
    before = tmp_path / "before"
    train(before, *args, "--max-steps", 1, "--lr", 0)
    moved = {}
    for name, more, world in (("all", [], 1), ("decayed", ["--layer-decay", 0.5], 1), ("stages", ["--layer-decay", 0.5, "--stages", 2], 2),
                              ("zero", ["--layer-decay", 0.5, "--zero", 3], 2), ("mul", ["--layer-decay", 0.5, "--lr-mul", "head.*=0.5"], 1)):
        train(tmp_path / name, *args, *more, "--max-steps", 1, world=world)
        a, b = load(newest(before) / "model.safetensors"), load(newest(tmp_path / name) / "model.safetensors")
        moved[name] = {k: b[k].astype(float) - a[k] for k in a if "running" not in k and "num_batches" not in k}
    layers = {"stem": 4, "norm": 4, "blocks.0": 3, "blocks.1": 2, "blocks.2": 1, "head": 0}  # layers behind it
    assert len(moved["all"]) == 11
    for k, v in moved["all"].items():
        share = 0.5 ** layers[k.rsplit(".", 1)[0]]
        for name in ("decayed", "stages", "zero"):
            np.testing.assert_allclose(moved[name][k], share * v, rtol=1e-4, atol=1e-7, err_msg=f"{name} {k}")
        np.testing.assert_allclose(moved["mul"][k], share * v * (0.5 if k.startswith("head") else 1), rtol=1e-4, atol=1e-7)


def test_averages_move_as_seldom_as_asked(train, tmp_path):
    """Four steps an epoch, one epoch of warm-up: until step 5 the average is a copy, of steps 1, 4 and 5; then it moves after 8, 9 and 12."""
    args = ["--ema", 0.75, "--ema-every", 3, "--warmup-epochs", 1, "--num-epochs", 3, "--checkpoint-every", 1, "--checkpoint-keep", 0, "--checkpoint-sync"]
    for name, more, world in (("one", [], 1), ("two", ["--zero", 3], 2)):
        train(tmp_path / name, *args, *more, world=world)
        weights = {i: load(tmp_path / name / f"step-{i:08d}" / "model.safetensors")["head.weight"].astype(float) for i in range(1, 13)}
        average = {i: load(tmp_path / name / f"step-{i:08d}" / "train.safetensors")["ema.head.weight"].astype(float) for i in range(1, 13)}
        want = None
        for i in range(1, 13):
            if (i - 1) % 4 % 3 == 0:
                want = weights[i] if i <= 5 else 0.75 * want + 0.25 * weights[i]
            np.testing.assert_allclose(average[i], want, rtol=1e-4, atol=1e-7, err_msg=f"{name}, step {i}")


@pytest.mark.parametrize("args, says", [
    (["--loss", "bce", "--class-weights", "1,1,1"], "--class-weights are those of --loss ce"),
    (["--bce-threshold", 0.2, "--mixup", 0.2], "--bce-threshold 0.2: labels share an image only with --loss bce and --mixup or --cutmix"),
    (["--bce-threshold", 0.2, "--mixup", 0.2, "--loss", "bce", "--label-smoothing", 0.1], "--label-smoothing 0.1: with --bce-threshold targets are 0 or 1"),
    (["--class-weights", "1,2"], "2 numbers for 3 classes"),
    (["--class-weights", "1,x,2"], "x"),
    (["--class-weights", "0,0,0"], "all are 0"),
    (["--val-split", 0.1, "--test-data", "x"], "drop one of the two"),
    (["--early-stop", 2], "nothing is evaluated"),
    (["--shuffle", "balanced", "--sampler", "sharded"], "--shuffle balanced"),
    (["--recipe", "resnet"], "--recipe: 'resnet' is not one of torchvision-v1, torchvision-v2, rsb-a3, deit3-s, caffe2, goyal, torchshard"),
])
def test_contradictions_are_one_sentence(data, net, args, says):
    p = run(TRAINER, "--train-data", data / "train", "--arch", net, "--device", "ref", *args)
    assert p.returncode == 2 and says in p.stderr and p.stderr.count("\n") == 1, p.stderr
