"""What somebody gets who types one option and leaves the rest alone."""
import re
import resource

import numpy as np
import pytest

from support import TRAINER, has_sanitizer, run
from tensors import load


@pytest.mark.parametrize("options, rate, decay", [
    ([], "0.1", "0.0001"), (["--optimizer", "lars"], "0.1", "0.0001"), (["--optimizer", "adam"], "0.001", "0"),
    (["--optimizer", "adamw"], "0.001", "0.01"), (["--optimizer", "adamw", "--lr", 0.1, "--wd", "1e-4"], "0.1", "0.0001")])
def test_rate_and_weight_decay_are_the_optimizers(options, rate, decay):
    p = run(TRAINER, "--train-data", ".", *options, "--print-config")
    values = dict(re.findall(r"^(\S+) = (\S+)", p.stdout, re.M))
    assert (float(values["base-learning-rate"]), float(values["weight-decay"])) == (float(rate), float(decay)), p.stdout


def test_an_average_of_few_steps_is_not_that_of_the_first_weights(shapes, tmp_path):
    """Step n keeps min(--ema, (1 + n) / (10 + n)); a run that is resumed counts on."""
    data = shapes(28, 32, 10) / "train"
    args = [TRAINER, "--train-data", data, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size", 8, "--device", "ref", "--lr", 0.05,
            "--lr-policy", "fixed", "--warmup-epochs", 0, "--ema", 0.9999, "--num-epochs", 1, "--checkpoint-every", 1, "--checkpoint-keep", 0,
            "--checkpoint-sync"]
    for name, steps in ("whole", [4]), ("parts", [2, 4]):
        for stop in steps:
            p = run(*args, "--checkpoint-dir", tmp_path / name, "--resume", "auto", "--max-steps", stop)
            assert p.returncode == 0, p.stderr
    last = "step-00000004/train.safetensors"
    assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "parts" / last).read_bytes()
    model, state = ([load(tmp_path / "whole" / f"step-{n:08}" / f"{file}.safetensors") for n in range(1, 5)] for file in ("model", "train"))
    for name in (name for name in model[0] if f"ema.{name}" in state[0]):
        average = state[0][f"ema.{name}"].astype(float)
        for n in range(2, 5):
            kept = (1 + n) / (10 + n)
            average = kept * average + (1 - kept) * model[n - 1][name]
            assert np.allclose(average, state[n - 1][f"ema.{name}"], rtol=1e-6, atol=1e-7), (name, n)


def test_what_does_not_fit_is_refused_before_it_is_taken(shapes, tmp_path):
    if has_sanitizer("asan") or has_sanitizer("tsan"):
        pytest.skip("the address sanitizer needs address space of its own")
    data = shapes(28, 32, 10) / "train"
    limit = 2 << 30

    def small():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    args = [TRAINER, "--train-data", data, "--arch", "resnet18", "--image-size", 448, "--batch-size", 32, "--device", "ref", "--threads", 1,
            "--loader-threads", 1, "--max-steps", 1]
    p = run(*args, preexec_fn=small)
    assert p.returncode == 2, p.stderr
    assert re.search(r"the plan of training needs \d\.\d GiB, 2\.0 GiB are allowed here \(its address space: ulimit -v\)", p.stderr), p.stderr
    assert "a smaller --batch-size or --image-size" in p.stderr
    # Its state alone: 304 million parameters, with gradients and moments, in double precision.
    args[args.index("resnet18")] = "vit_l_16"
    args[args.index(448)] = 224
    p = run(*args, preexec_fn=small)
    assert p.returncode == 2, p.stderr
    assert re.search(r"the state of the model \(parameters, gradients, moments\) needs \d\.\d GiB, 2\.0 GiB are allowed here", p.stderr), p.stderr
    assert "a smaller --arch, or more ranks with --zero 3" in p.stderr
