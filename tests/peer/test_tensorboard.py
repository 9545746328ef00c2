"""TensorBoard's own reader shows our event files' curves."""
import json
import os
import subprocess

import pytest
import tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stand import Stand
from support import TRAINER, run


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(32, 160, 41)


def convnet(data, folder, *args, epochs=2):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28, "--batch-size", 32,
            "--num-epochs", epochs, "--device", "cpu", "--clip-grad-norm", 1, "--tensorboard", folder / "tb", "--log-dir", folder, *args]


def shown(folder):
    """{tag: {step: value}}: each step once, but that an evaluation done again after a kill may stand there twice with one value."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    out = {}
    for tag in reader.Tags()["scalars"]:
        events = reader.Scalars(tag)
        assert len({(e.step, e.value if tag.startswith("test/") else e.wall_time) for e in events}) == len({e.step for e in events}), tag
        out[tag] = {e.step: e.value for e in events}
    return out


def expected(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = {"train/loss": "loss", "train/acc1": "acc1", "train/lr": "lr", "train/grad_norm": "grad_norm", "test/loss": "test_loss",
            "test/acc1": "test_acc1", "speed/images_per_sec": "images_per_sec"}
    return {tag: {m["step"]: m[key] for m in lines if key in m} for tag, key in keys.items()}


def same(folder, steps):
    got, want = shown(folder / "tb"), expected(folder)
    print(f"tensorboard {tensorboard.__version__} shows {', '.join(sorted(got))}")
    assert sorted(want["train/loss"]) == list(range(1, steps + 1))
    for tag, curve in want.items():
        assert got[tag] == pytest.approx(curve, rel=1e-6), tag


def killed_at(step, args, stand, words):
    env = {**os.environ, **Stand(stand, step).env()}
    p = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, text=True, env=env)
    for line in p.stderr:
        if words in line:
            p.kill()
            break
    p.stderr.close()
    p.wait(timeout=60)


def test_a_runs_curves_are_those_of_its_metrics(data, tmp_path):
    p = run(*convnet(data, tmp_path))
    assert p.returncode == 0, p.stderr
    same(tmp_path, 10)


def test_what_is_done_again_after_a_kill_is_shown_once(data, tmp_path):
    args = ["--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 4, "--print-freq", 1, "--resume", "auto"]
    killed_at(3, convnet(data, tmp_path, *args, epochs=3), tmp_path / "stand", "Epoch 1/3 [3/5]")  # nothing is saved
    killed_at(7, convnet(data, tmp_path, *args, epochs=3), tmp_path / "stand", "Epoch 2/3 [2/5]")  # saved at 4 or 5
    p = run(*convnet(data, tmp_path, *args, epochs=3))
    assert p.returncode == 0, p.stderr
    same(tmp_path, 15)
