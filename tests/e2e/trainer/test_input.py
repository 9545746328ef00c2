"""--input and what goes with it, through the real program."""
import json
import pathlib
import shutil
import tempfile

import pytest

from support import CRUN, TRAINER, run


@pytest.fixture(scope="module")
def folder(shapes):
    return shapes(32, 50, 10) / "train"


def train(data, *args, size=28, code=0):
    with tempfile.TemporaryDirectory() as out:
        log = pathlib.Path(out) / "batches"
        p = run(TRAINER, "--train-data", data, "--arch", "convnet", "--image-size", size, "--batch-size", 12, "--device", "ref",
                "--lr", 0.01, "--max-steps", 2, "--log-dir", out, "--debug-batch-sha", log, *args)
        assert p.returncode == code, p.stderr
        if code:
            return p.stderr
        lines = [json.loads(line) for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]
        batches = [json.loads(line) for line in log.read_text().splitlines()]
    return [m["loss"] for m in lines if "lr" in m], [b["sha256"] for b in batches]


def test_each_input_prepares_pictures_its_own_way(folder):
    seen = {kind: train(folder, "--input", kind) for kind in ("torch", "caffe2", "plain", "cifar")}
    for at in (0, 1):
        assert len({str(result[at]) for result in seen.values()}) == 4


def test_mean_and_std_change_what_the_model_sees_and_not_the_pictures(folder):
    plain = train(folder, "--input", "plain")
    assert train(folder, "--input", "plain", "--mean", "0", "--std", "1,1,1") == plain
    other = train(folder, "--input", "plain", "--mean", "0.4,0.5,0.6", "--std", "0.2")
    assert other[1] == plain[1] and other[0] != plain[0]


def test_scale_sets_the_picture_that_crops_are_cut_from(folder):
    assert train(folder, "--input", "caffe2", "--scale", 40)[1] != train(folder, "--input", "caffe2", "--scale", 48)[1]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [32, 64, 227])
def test_any_size_and_one_or_three_channels_train(folder, size, channels):
    losses, _ = train(folder, "--num-channels", channels, "--batch-size", 2, "--arch", "resnet18", "--device", "auto",
                      "--max-steps", 1, size=size)
    assert len(losses) == 1 and 0 < losses[0] < 20


@pytest.mark.parametrize("args, words", [
    (["--input", "caffe2", "--image-size", 299], ["--image-size 299", "--scale 256"]),
    (["--scale", 24], ["--image-size 28", "--scale 24"]),
    (["--input", "plain", "--scale", 40], ["--scale 40", "plain"]),
    (["--input", "cifar", "--crop-scale", "0.5,1"], ["--crop-scale", "torch"]),
    (["--input", "caffe2", "--interpolation", "bicubic"], ["--interpolation: --input caffe2 scales by area"]),
    (["--mean", "1,2"], ["--mean", "3 channels"]),
    (["--std", "0"], ["--std: '0': expected shares of 255, 1e-06 to 10, got 0\n"]),
    (["--mean", "123.7,116.3,103.5"], ["--mean: '123.7,116.3,103.5': expected shares of 255, -2 to 2: 123.7 of 255 is 0.485\n"]),
    (["--mean", "-3"], ["--mean: '-3': expected shares of 255, -2 to 2: -3 of 255 is -0.012\n"]),
    (["--std", "0.2,58,0.2"], ["--std: '0.2,58,0.2': expected shares of 255, 1e-06 to 10: 58 of 255 is 0.227\n"]),
    (["--mean", "nan"], ["--mean", "is not a finite number"]),
])
def test_what_does_not_fit_the_input_is_refused(folder, shapes, args, words):
    test = ["--test-data", shapes(32, 50, 10) / "val"] if args == ["--scale", 24] else []
    told = train(folder, *args, *test, code=2)
    for word in words:
        assert word in told


def test_pictures_of_other_formats_are_told_once(shapes, tmp_path):
    data = tmp_path / "set"
    shutil.copytree(shapes(32, 50, 10), data)
    one = sorted((data / "train").iterdir())[0]
    for name in ("a.avif", "b.avif", "c.BMP", "._d.avif", "notes.txt"):
        (one / name).write_bytes(b"x")
    (sorted((data / "val").iterdir())[0] / "e.gif").write_bytes(b"x")
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet",
            "--image-size", 28, "--batch-size", 12, "--device", "ref", "--max-steps", 1, "--checkpoint-dir", tmp_path / "out")
    assert p.returncode == 0, p.stderr
    told = [line for line in p.stderr.splitlines() if "left out" in line]
    assert len(told) == 2, p.stderr
    assert f"--train-data {data / 'train'}: 3 pictures of other formats are left out: 1 .bmp, 2 .avif; readable are .jpg, " in told[0]
    assert f"--test-data {data / 'val'}: 1 picture of another format is left out: 1 .gif; readable are .jpg, " in told[1]
