"""ResNet-18 learns the shapes at 32 x 32: 4000 pictures of ten kinds, 1000 to test with. Two ranks of one thread; minutes each."""
import re

import pytest

from support import CRUN, TRAINER, run

pytestmark = pytest.mark.slow

SGD = ["--batch-size", 64, "--nesterov", "--lr", 0.05]
LARS = ["--optimizer", "lars", "--batch-size", 512, "--lr", 4, "--lars-eta", 0.005, "--weight-decay", 1e-4, "--warmup-epochs", 2]
RUNS = {  # epochs, options
    "sgd": (4, SGD),
    "bf16": (4, [*SGD, "--opt-level", "O2", "--amp-dtype", "bf16"]),
    "fp16": (4, [*SGD, "--opt-level", "O2", "--amp-dtype", "fp16"]),
    "lars": (16, [*LARS, "--opt-level", "O2", "--amp-dtype", "bf16"]),
}


def accuracy(shapes, tmp_path, epochs, *args):
    data = shapes(32, 4000, 1000)
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, "--train-data", data / "train", "--test-data", data / "val",
            "--arch", "resnet18", "--image-size", 32, "--crop-scale", "0.5,1", "--num-epochs", epochs, "--eval-every", 0, "--device",
            "cpu", "--threads", 1, "--loader-threads", 1, "--seed", 3, "--log-dir", tmp_path / "log", *args, timeout=3600)
    assert p.returncode == 0, p.stdout + p.stderr
    return float(re.search(r"Acc@1 ([\d.]+) Acc@5", p.stdout).group(1))


@pytest.mark.parametrize("name", RUNS)
def test_resnet18_learns_the_shapes(shapes, tmp_path, name):
    epochs, args = RUNS[name]
    reached = accuracy(shapes, tmp_path, epochs, *args)
    print(f"{name}: {reached} % after {epochs} epochs")
    assert reached >= 97
