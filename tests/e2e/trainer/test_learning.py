"""ResNet-18 learns the shapes at 32 x 32: 4000 pictures of ten kinds, 1000 to test with. Minutes each."""
import re

import pytest

from support import TRAINER, run

pytestmark = pytest.mark.slow

SGD = ["--batch-size", 64, "--nesterov", "--lr", 0.05]
RUNS = {  # 8 epochs each
    "sgd": SGD,
    "bf16": [*SGD, "--opt-level", "O2", "--amp-dtype", "bf16"],
    "fp16": [*SGD, "--opt-level", "O2", "--amp-dtype", "fp16"],
}


def accuracy(shapes, tmp_path, epochs, *args):
    data = shapes(32, 4000, 1000)
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "resnet18", "--image-size", 32,
            "--crop-scale", "0.5,1", "--num-epochs", epochs, "--eval-every", 0, "--device", "cpu", "--seed", 3,
            "--log-dir", tmp_path / "log", *args, timeout=3600)
    assert p.returncode == 0, p.stdout + p.stderr
    return float(re.search(r"Acc@1 ([\d.]+) Acc@5", p.stdout).group(1))


@pytest.mark.parametrize("name", RUNS)
def test_resnet18_learns_the_shapes_in_8_epochs(shapes, tmp_path, name):
    reached = accuracy(shapes, tmp_path, 8, *RUNS[name])
    print(f"{name}: {reached} % after 8 epochs")
    assert reached >= 97
