"""A rate of 0 freezes parameters: they keep their bytes, nothing is kept of their gradients, and a run goes on with them or without."""
import re

import pytest

from support import CRUN, TRAINER, run
from tensors import load, newest

TEXT = """input size=24
conv stem out=8 kernel=3 pad=1 bias=no
bn norm
relu
conv body out=8 kernel=3 stride=2 pad=1
bn body.norm
relu
classifier head
"""
HEAD = ["--lr-mul", "*=0,head.*=1"]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(24, 72, 20, 3)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "tiny.net"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def command(data, net):
    return [TRAINER, "--train-data", data / "train", "--arch", net, "--batch-size", 24, "--device", "cpu", "--seed", 1, "--num-epochs", 4]


@pytest.fixture(scope="module")
def pretrained(command, tmp_path_factory):
    out = tmp_path_factory.mktemp("frozen") / "before"
    p = run(*command, "--max-steps", 4, "--checkpoint-dir", out)
    assert p.returncode == 0, p.stderr
    return newest(out) / "model.safetensors"


def is_trained(name):
    return name.startswith("head.")


def assert_frozen(folder, before, trained=is_trained):
    """Its frozen tensors are those of before, bit for bit, and only what is trained has moments."""
    after, state = load(newest(folder) / "model.safetensors"), load(newest(folder) / "train.safetensors")
    for k, v in load(before).items():
        if "num_batches" not in k:
            assert (after[k].tobytes() == v.tobytes()) != trained(k), k
    moments = {k.split(".", 1)[1] for k in state if k.startswith(("momentum.", "second."))}
    assert moments == {k for k in after if trained(k)}
    averages = {k[4:]: v for k, v in state.items() if k.startswith("ema.")}
    assert all(averages[k].tobytes() == load(before)[k].tobytes() for k in averages if not trained(k)), averages.keys()


def test_what_is_frozen_keeps_its_bytes(command, pretrained, tmp_path):
    p = run(*command, *HEAD, "--pretrained", pretrained, "--max-steps", 5, "--ema", 0.9, "--optimizer", "adamw", "--checkpoint-dir", tmp_path)
    assert p.returncode == 0 and re.search(r"tiny: 4\d\d\d parameters, 3459 of them trained", p.stderr), p.stderr
    assert_frozen(tmp_path, pretrained)


@pytest.mark.parametrize("layout", [["--zero", 3], ["--stages", 2], ["--enable-model-parallel", "--model-parallel-dim", -1]],
                         ids=["zero", "stages", "tensor"])
def test_layouts_freeze_the_same(command, pretrained, tmp_path, layout):
    many = ["--optimizer", "adam", "--ema", 0.9, "--clip-grad-norm", 1, "--pretrained", pretrained, "--max-steps", 5, "--device", "ref"]
    weights = {}
    for name, args in (("one", [TRAINER]), ("many", [CRUN, "--standalone", "--nproc-per-node", 2, TRAINER])):
        p = run(*args, *command[1:], *HEAD, *many, *(layout if name == "many" else []), "--checkpoint-dir", tmp_path / name)
        assert p.returncode == 0, p.stderr
        weights[name] = load(newest(tmp_path / name) / "model.safetensors")
    for k, v in weights["one"].items():
        assert abs(weights["many"][k] - v).max() <= (1e-9 if is_trained(k) else 0), k


def test_gradients_and_moments_of_what_is_frozen_take_nothing(data):
    def parts(*args):
        p = run(TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", 24, "--batch-size", 24, "--device", "cpu",
                "--max-steps", 1, *args)
        assert p.returncode == 0, p.stderr
        line = re.search(r"memory a rank: (.*)", p.stderr)[1]
        return {k: float(v) for k, v in re.findall(r"([a-z]+) ([0-9.]+) MiB", line)}

    whole, frozen = parts(), parts("--lr-mul", "*=0,fc.*=1")
    assert frozen["parameters"] == whole["parameters"] > 40
    assert whole["gradients"] > 40 and frozen["gradients"] < 1 and whole["optimizer"] > 40 and frozen.get("optimizer", 0) < 1, frozen
    assert frozen["activations"] < 0.7 * whole["activations"], (whole, frozen)


def test_a_run_goes_on_frozen_as_if_it_had_not_stopped(command, pretrained, tmp_path):
    p = run(*command, *HEAD, "--pretrained", pretrained, "--checkpoint-every", 4, "--checkpoint-keep", 0, "--checkpoint-dir", tmp_path / "whole")
    assert p.returncode == 0, p.stderr
    p = run(*command, *HEAD, "--checkpoint-dir", tmp_path / "cut", "--resume", tmp_path / "whole" / "step-00000004")
    assert p.returncode == 0 and "resumed from step 4" in p.stderr, p.stderr
    for file in ("model.safetensors", "train.safetensors"):
        assert (newest(tmp_path / "whole") / file).read_bytes() == (newest(tmp_path / "cut") / file).read_bytes()
    assert_frozen(tmp_path / "cut", pretrained)


def test_what_is_trained_again_begins_without_momentum(command, pretrained, tmp_path):
    p = run(*command, *HEAD, "--pretrained", pretrained, "--max-steps", 4, "--checkpoint-dir", tmp_path)
    assert p.returncode == 0, p.stderr
    more = run(*command, "--max-steps", 6, "--checkpoint-dir", tmp_path, "--resume", "auto")
    assert more.returncode == 0 and "trained now that were frozen: the optimizer begins without momentum" in more.stderr, more.stderr
    assert "momentum.stem.weight" in load(newest(tmp_path) / "train.safetensors")
    less = run(*command, *HEAD, "--max-steps", 8, "--checkpoint-dir", tmp_path, "--resume", "auto")
    assert less.returncode == 0 and "without momentum" not in less.stderr, less.stderr


def test_all_cannot_be_frozen(command):
    p = run(*command, "--lr-mul", "*=0")
    assert p.returncode == 2 and p.stderr.splitlines()[-1].endswith("all parameters of tiny are frozen, so there is nothing to train"), p.stderr
