"""Any layout is one process: points drawn by a seed, ranks as processes over Gloo, ResNet-18 on the double-precision device. What
tests/worker/run/test_exact.c does with ranks as threads and a network of two blocks."""
import random

import numpy as np
import pytest

from metrics_file import loss_curve
from support import TRAINER, run
from tensors import load, newest

BATCH, STEPS, BOUND = 24, 20, 1e-9
AXES = {
    "world": [1, 2, 3, 4, 6, 8], "tensor": [1, 2, 3, 4], "dim": [0, 1], "zero": [0, 1, 2, 3], "parts": [1, 2],
    "half": [[], ["--opt-level", "O1", "--amp-dtype", "bf16"], ["--amp", "bf16"]], "sync": [True, False],
    "rule": [[], ["--nesterov"], ["--sgd-rule", "caffe2"], ["--optimizer", "lars", "--lars-eta", 0.02], ["--optimizer", "adam", "--adam-eps", 0.01, "--clip-grad-norm", 0.5],
             ["--optimizer", "adamw", "--adam-eps", 0.01, "--ema", 0.9]],
    "loss": ["mean", "sum"], "smooth": [0, 0.1]}


def goes_together(p):
    own = not p["sync"]
    return (p["world"] % p["tensor"] == 0 and (p["tensor"] > 1 or p["dim"] == 0) and (own or not p["half"])
            and (not own or p["world"] * p["parts"] <= 2))  # the last maps are 1 x 1: statistics of few images are chaotic


def draw(rng):
    while True:
        p = {name: rng.choice(values) for name, values in AXES.items()}
        if goes_together(p):
            return p


def pairs(p):
    at = [(name, AXES[name].index(value)) for name, value in p.items()]
    return {(a, b) for i, a in enumerate(at) for b in at[i + 1:]}


def points(n, seed):
    """Of some candidates the one with most new pairs of values."""
    rng, seen, chosen = random.Random(seed), set(), []
    for _ in range(n):
        chosen.append(max((draw(rng) for _ in range(200)), key=lambda p: len(pairs(p) - seen)))
        seen |= pairs(chosen[-1])
    return chosen


def train(data, size, out, p, world, accumulate, *more):
    rate = 0.01 if size == 16 else 0.002  # at 32 pixels 0.01 is chaotic: what sums differ by, 1e-16, grows tenfold a step
    rate = rate / BATCH if p["loss"] == "sum" else rate
    sync = ["--sync-bn"] if p["sync"] else []
    q = run(TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", size, "--num-channels", 1, "--input", "plain", "--batch-size", BATCH, "--max-steps", STEPS,
            "--num-epochs", 100, "--device", "ref", "--checkpoint-dir", out, "--seed", 3, "--loader-threads", 1, "--lr", rate, "--lr-policy", "fixed",
            "--num-labels", 37, "--loss-reduction", p["loss"], "--label-smoothing", p["smooth"], "--accumulate", accumulate, *sync, *p["half"], *p["rule"],
            *(["--procs", world] if world > 1 else []), *more, timeout=900)
    assert q.returncode == 0, q.stderr
    weights = load(newest(out) / "model.safetensors")
    return loss_curve(out), np.concatenate([weights[k].ravel() for k in sorted(weights)])


def distance(a, b):
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b))))


def name_of(p):
    return " ".join(f"{k}={v if not isinstance(v, list) else '_'.join(map(str, v)) or '-'}" for k, v in p.items())


ROWS = [pytest.param(16, p, id=f"16 px {name_of(p)}") for p in points(20, 14)] + [pytest.param(32, p, id=f"32 px {name_of(p)}") for p in points(10, 41)]


@pytest.mark.slow
@pytest.mark.parametrize("size, p", ROWS)
def test_a_layout_is_one_process(shapes, tmp_path, size, p):
    short = p["sync"] and p["parts"] == 1 and size == 16  # the last batch of an epoch; statistics of fewer images are chaotic as well
    images = 108 if short else 96
    data = shapes(size, images, 20)
    alone = train(data, size, tmp_path / "one", p, 1, p["parts"] if p["sync"] else p["parts"] * p["world"])
    split = ["--model-parallel-size", p["tensor"], "--model-parallel-dim", p["dim"]] if p["tensor"] > 1 else []
    spread = train(data, size, tmp_path / "many", p, p["world"], p["parts"], *split, "--zero", p["zero"])
    losses, weights = distance(spread[0], alone[0]), distance(spread[1], alone[1])
    print(f"{losses:.1e} of losses, {weights:.1e} of weights: {size} px, {name_of(p)}")
    assert len(alone[0]) == STEPS and losses <= BOUND and weights <= BOUND
