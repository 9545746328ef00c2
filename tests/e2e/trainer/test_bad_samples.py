"""Data sets that cannot be read: as a whole they end the run at once; of others each bad file is named once."""
import re
import shutil

import pytest

from support import CRUN, TRAINER, run

GIF = b"GIF89a" + bytes(30)
WHY = "neither a JPEG nor a PNG, WebP, PPM or PGM image, but a GIF image (36 bytes)"


@pytest.fixture(scope="module")
def gifs(tmp_path_factory):
    root = tmp_path_factory.mktemp("gifs")
    for i in range(160):
        path = root / "ab"[i % 2] / f"{i:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(GIF)
    return root


def train(data, *args, world=1, batch=32, epochs=90):
    program = [TRAINER] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world, "trainer"]
    return run(*program, "--train-data", data, "--arch", "convnet", "--image-size", 28, "--batch-size", batch, "--num-epochs", epochs,
               "--device", "ref", "--lr", 0.01, *args)


def listed(folder):
    return [line.split("\t") for line in (folder / "bad-samples.txt").read_text().splitlines()]


def test_a_set_of_another_format_ends_the_run_after_two_batches(gifs, tmp_path):
    p = train(gifs, "--log-dir", tmp_path)
    assert p.returncode == 65, p.stderr
    assert f"not one of the first 64 images of {gifs} could be used: {WHY}; such are " in p.stderr.replace("'...", "'"), p.stderr
    assert len(re.findall(r"\d{3}\.jpg'", p.stderr.splitlines()[-1])) == 3
    assert p.stderr.count("is left out") == 20 and p.stderr.count("more of them are counted") == 1
    names = listed(tmp_path)
    assert len(names) == len({name for name, _ in names}) == 64 and {why for _, why in names} == {WHY}


def test_a_set_that_is_over_before_leaves_no_checkpoint(gifs, tmp_path):
    """The corrected run would be refused: it would find a checkpoint there."""
    p = train(gifs, "--checkpoint-dir", tmp_path / "ck", batch=160)
    assert p.returncode == 65, p.stderr
    assert list((tmp_path / "ck").glob("step-*")) == []


def test_ranks_find_it_together(gifs):
    p = train(gifs, world=2, batch=64)
    assert p.returncode == 65, p.stderr
    assert "not one of the first 128 images of " in p.stderr


def test_so_it_is_with_a_test_set(gifs, shapes, tmp_path):
    data = shapes(32, 64, 16) / "train"
    test = tmp_path / "test"
    for i, kind in enumerate(sorted(d.name for d in data.iterdir())):
        shutil.copytree(gifs / "a", test / kind)
    p = train(data, "--test-data", test, "--log-dir", tmp_path, epochs=1)
    assert p.returncode == 65, p.stderr
    assert f"could be used: {WHY}" in p.stderr
    assert len(listed(tmp_path)) < 160  # of 800


def test_each_bad_file_is_named_once_over_ranks_and_epochs(shapes, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(shapes(32, 64, 16) / "train", data)
    bad = sorted(str(path) for path in data.glob("*/*"))[::6]
    for path in bad:
        with open(path, "wb") as f:
            f.write(GIF)
    p = train(data, "--log-dir", tmp_path, world=3, batch=12, epochs=4)
    assert p.returncode == 0, p.stderr
    named = re.findall(r"'(\S+)' is left out: neither", p.stderr)
    assert sorted(named) == bad
    assert sorted(name for name, _ in listed(tmp_path)) == bad


def test_names_that_find_no_room_in_the_file_are_told(shapes, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(shapes(32, 64, 16) / "train", data)
    next(data.glob("*/*")).write_bytes(GIF)
    args = ["--checkpoint-dir", tmp_path / "run", "--resume", "auto"]
    assert train(data, *args, epochs=1).returncode == 0 and len(listed(tmp_path / "run")) == 1
    with open(tmp_path / "run" / "bad-samples.txt", "r+b") as f:
        f.truncate((64 << 20) + 1)
    p = train(data, *args, epochs=2)
    assert p.returncode == 0 and f"names of 1 samples that were left out cannot be written to {tmp_path}/run/bad-samples.txt: File too large" in p.stderr, p.stderr
