"""What is trained knows the shapes: ten kinds, of which pictures are kept back to test with. Two ranks of one thread: a small network in seconds,
ResNet-18 at 32 x 32 in minutes."""
import re

import pytest

from support import CRUN, TRAINER, run

SGD = ["--batch-size", 64, "--nesterov", "--lr", 0.05]
LARS = ["--optimizer", "lars", "--batch-size", 512, "--lr", 4, "--lars-eta", 0.005, "--weight-decay", 1e-4, "--warmup-epochs", 2]
RUNS = {  # epochs, options
    "sgd": (4, SGD),
    "bf16": (4, [*SGD, "--opt-level", "O2", "--amp-dtype", "bf16"]),
    "fp16": (4, [*SGD, "--opt-level", "O2", "--amp-dtype", "fp16"]),
    "lars": (16, [*LARS, "--opt-level", "O2", "--amp-dtype", "bf16"]),
}


def accuracy(data, tmp_path, epochs, *args):
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, "--train-data", data / "train", "--test-data", data / "val",
            "--num-epochs", epochs, "--eval-every", 0, "--device",
            "cpu", "--threads", 1, "--loader-threads", 1, "--seed", 3, "--log-dir", tmp_path / "log", *args, timeout=3600)
    assert p.returncode == 0, p.stdout + p.stderr
    return float(re.search(r"Acc@1 ([\d.]+) Acc@5", p.stdout).group(1))


def test_a_small_network_learns_the_shapes(shapes, tmp_path):
    reached = accuracy(shapes(28, 2000, 500), tmp_path, 10, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size", 32, "--nesterov",
                       "--lr", 0.02, "--crop-scale", "0.7,1")
    print(f"{reached} % after 10 epochs")
    assert reached >= 97


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_resnet18_learns_the_shapes(shapes, tmp_path, name):
    epochs, args = RUNS[name]
    reached = accuracy(shapes(32, 4000, 1000), tmp_path, epochs, "--arch", "resnet18", "--image-size", 32, "--crop-scale", "0.5,1", *args)
    print(f"{name}: {reached} % after {epochs} epochs")
    assert reached >= 97
