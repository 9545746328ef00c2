"""Number formats in whole runs: levels, loss scaling, halves between ranks, memory formats, and the end of runs that diverge."""

import os

import numpy as np
import pytest

from metrics_file import loss_curve, steps_of
from support import CRUN, TRAINER, run
from tensors import load, newest


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 100, 20)


def command(data, *args, world=1, steps=8):
    launch = [CRUN, "--standalone", "--nproc_per_node", world, TRAINER] if world > 1 else [TRAINER]
    return [*launch, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size",
            32, "--max-steps", steps, "--num-epochs", 100, "--lr", 0.01, "--seed", 3, "--threads", 1, *args]


def train(data, out, *args, **kw):
    p = run(*command(data, "--checkpoint-dir", out, *args, **kw))
    assert p.returncode == 0, p.stdout + p.stderr
    return p


def is_half(x):
    return np.array_equal(x, x.astype(np.float16).astype(x.dtype))


def test_the_levels_compute_in_what_they_say(data, tmp_path):
    """Master weights of O1 and O2 are no halves; at O3 everything is, or all but batch norm."""
    runs = {"O0": [], "O1": [], "O2": [], "O3": [], "O3-bn": ["--keep-batchnorm-fp32", "True"]}
    tensors, seen = {}, {}
    for name, args in runs.items():
        train(data, tmp_path / name, "--opt-level", name[:2], *args)
        tensors[name], seen[name] = load(newest(tmp_path / name) / "model.safetensors"), loss_curve(tmp_path / name)
    for name in ("O0", "O1", "O2"):
        assert not is_half(tensors[name]["layer1.0.weight"]) and not is_half(tensors[name]["layer1.1.weight"])
    for name in ("O3", "O3-bn"):
        assert all(is_half(tensors[name][key]) for key in ("layer1.0.weight", "layer1.0.bias", "fc.weight"))
        assert is_half(tensors[name]["layer2.1.weight"]) == is_half(tensors[name]["layer2.1.running_mean"]) == (name == "O3")
    assert len({tuple(v) for v in seen.values()}) == len(runs)
    for name, v in seen.items():  # eight steps at 0.01: halves have 11 bits, and the sums of a loss ten terms
        assert np.max(np.abs(v - seen["O0"]) / seen["O0"]) < 0.02, name


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_fp16_rounds_on_cpu_as_on_ref(data, tmp_path, level):
    """Sums in another order round other halves the other way, so the curves are not equal: they are as far from fp32's."""
    train(data, tmp_path / "exact", "--opt-level", "O0", "--device", "ref")
    exact, off = loss_curve(tmp_path / "exact"), {}
    for device in ("cpu", "ref"):
        p = train(data, tmp_path / device, "--opt-level", level, "--device", device)
        assert f"fp16 ({level}) (emulated" in p.stderr
        off[device] = np.max(np.abs(loss_curve(tmp_path / device) - exact) / exact)
    assert off["ref"] / 3 < off["cpu"] < off["ref"] * 3, off


def test_a_scale_of_128_is_static_and_takes_nothing_away_in_fp32(data, tmp_path):
    train(data, tmp_path / "plain")
    p = train(data, tmp_path / "scaled", "--loss-scale", 128)
    assert "--loss-scale is of use with fp16 only" in p.stderr
    assert np.array_equal(loss_curve(tmp_path / "plain"), loss_curve(tmp_path / "scaled"))  # a power of two
    train(data, tmp_path / "fp16", "--opt-level", "O2", "--loss-scale", 128)
    assert {(line["loss_scale"], line["skipped"]) for line in steps_of(tmp_path / "fp16")} == {(128, 0)}


def test_the_scale_survives_epochs_and_another_level_begins_anew(data, tmp_path):
    """Epochs have four steps; the first scale is too large at batch 2."""
    args = ["--batch-size", 2, "--checkpoint-every", 4]
    train(data, tmp_path, "--opt-level", "O2", *args)
    scales = [line["loss_scale"] for line in steps_of(tmp_path)]
    assert scales[0] < 65536 and scales == sorted(scales, reverse=True)
    skipped = steps_of(tmp_path)[-1]["skipped"]
    train(data, tmp_path, "--opt-level", "O2", *args, "--resume", "auto", steps=9)
    assert steps_of(tmp_path)[-1]["loss_scale"] <= scales[-1]
    p = train(data, tmp_path, "--opt-level", "O1", *args, "--resume", "auto", steps=10)
    assert "the loss scale begins anew at 65536" in p.stderr
    p = train(data, tmp_path, "--evaluate", "--test-data", data / "val", "--resume", tmp_path)
    assert "loss scale" not in p.stderr
    assert steps_of(tmp_path)[-1]["loss_scale"] >= 32768 and steps_of(tmp_path)[-1]["skipped"] >= skipped


def test_bf16_is_not_scaled(data, tmp_path):
    train(data, tmp_path, "--opt-level", "O1", "--amp-dtype", "bf16")
    assert all("loss_scale" not in line for line in steps_of(tmp_path))


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_gradients_travel_as_halves(data, tmp_path, wire):
    flag = ["--fp16-allreduce"] if wire == "fp16" else ["--allreduce-dtype", "bf16"]
    train(data, tmp_path / "wide", "--sync-bn", "--device", "ref", world=2)
    train(data, tmp_path / "half", "--sync-bn", "--device", "ref", *flag, world=2)
    wide, half = loss_curve(tmp_path / "wide"), loss_curve(tmp_path / "half")
    assert half[0] == wide[0] and not np.array_equal(half, wide)  # the loss itself stays wide
    assert np.max(np.abs(half - wide) / wide) < (1e-3 if wire == "fp16" else 1e-2)


def test_fp32_is_asked_for_as_fp32(data):
    """Whatever the environment or a later oneDNN prefers. Its trace names the arithmetic of each primitive whose is not strict."""
    p = run(*command(data, "--device", "cpu", "--amp", "off", steps=1),
            env={**os.environ, "ONEDNN_VERBOSE": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "ANY"})
    assert p.returncode == 0, p.stderr
    ran = [line for line in p.stdout.splitlines() if line.startswith("onednn_verbose,") and ",exec,cpu," in line]
    for kind in ("convolution", "matmul", "reorder", "forward_training", "backward_data", "backward_weights"):
        assert any(f",{kind}," in line for line in ran), kind
    assert not [line for line in ran if "fpmath" in line]


def test_memory_formats_give_the_same_losses(data, tmp_path):
    for name, args in {"auto": [], "nchw": ["--memory-format", "nchw"], "nhwc": ["--channels-last"]}.items():
        train(data, tmp_path / name, *args)
    for name in ("nchw", "nhwc"):  # sums in another order
        assert np.max(np.abs(loss_curve(tmp_path / name) - loss_curve(tmp_path / "auto")) / loss_curve(tmp_path / "auto")) < 1e-4


def test_a_run_that_explodes_ends_and_names_the_tensor(data, tmp_path):
    p = run(*command(data, "--lr", 1e6, "--checkpoint-dir", tmp_path, steps=100))
    assert p.returncode == 1
    assert "training diverged: the loss is" in p.stderr and "is not finite" in p.stderr
    assert any(name in p.stderr for name in ("layer1.", "layer2.", "fc."))


def test_weights_that_explode_in_the_last_step_end_the_run_too(data):
    """The loss of a step is that before its update: the evaluation is the first to see what the last one did."""
    for steps in range(2, 7):
        p = run(*command(data, "--lr", 1e9, "--test-data", data / "val", steps=steps))
        assert p.returncode == 1 and "Acc@1" not in p.stdout, p.stdout + p.stderr
        if "diverged: the test loss is" in p.stderr:
            break
    else:
        pytest.fail(f"a training step ended every run, and no evaluation: {p.stderr}")


def test_an_epoch_above_max_loss_is_the_last(data, tmp_path):
    p = run(*command(data, "--max-loss", 1, "--checkpoint-dir", tmp_path, steps=100))
    assert p.returncode == 1
    assert "training diverged: the mean loss of epoch 1 is" in p.stderr and "--max-loss is 1" in p.stderr
    assert len(steps_of(tmp_path)) == 4
    train(data, tmp_path / "calm", "--max-loss", 40)


@pytest.mark.parametrize("args, words", [
    (["--opt-level", "00"], ["--opt-level", "letter O"]),
    (["--opt-level", "O1", "--keep-batchnorm-fp32", "True"], ["--keep-batchnorm-fp32", "--opt-level O1"]),
    (["--amp", "off", "--opt-level", "O2"], ["--amp off", "--opt-level O2"]),
    (["--enable-amp-mode", "--opt-level", "O2"], ["--enable-amp-mode", "--opt-level O2"]),
    (["--loss-scale", "large"], ["--loss-scale", "dynamic"]),
    (["--loss-scale", "1e13"], ["1e13", "2^-24 to 2^40"]),
    (["--channels-last", "--memory-format", "nchw"], ["--channels-last", "--memory-format nchw"]),
    (["--device", "ref", "--channels-last"], ["--memory-format nhwc", "ref"]),
    (["--fp16-allreduce", "--allreduce-dtype", "bf16"], ["--fp16-allreduce", "--allreduce-dtype bf16"]),
])
def test_contradictions_are_refused(data, args, words):
    p = run(*command(data, *args))
    assert p.returncode == 2
    assert all(word in p.stderr for word in words), p.stderr
