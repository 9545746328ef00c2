"""trainer convert without torch: there and back, and files that mean harm. (Against torch itself: tests/peer/test_convert.py.)"""
import os
import pickle
import zipfile

import numpy as np
import pytest

from support import TRAINER, run
from tensors import load, newest


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    data, out = shapes(28, 64, 40, 4), tmp_path_factory.mktemp("convert")
    p = run(TRAINER, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--num-channels", 1,
            "--batch-size", 16, "--num-epochs", 1, "--device", "ref", "--checkpoint-dir", out)
    assert p.returncode == 0, p.stderr
    return out


def convert(src, dst, code=0):
    p = run(TRAINER, "convert", src, dst)
    assert p.returncode == code, p.stderr
    return p


def test_a_checkpoint_comes_back_from_a_pth_file_unchanged(trained, tmp_path):
    convert(trained, tmp_path / "a.pth")
    p = convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    want = load(newest(trained) / "model.safetensors")
    assert p.stdout == f"{tmp_path / 'a.safetensors'}: {len(want)} tensors\n"
    assert (tmp_path / "a.safetensors").read_bytes() == (newest(trained) / "model.safetensors").read_bytes()
    convert(newest(trained), tmp_path / "b.pth")
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "b.pth").read_bytes()


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_a_pickle_is_executed(tmp_path, protocol):
    mark, bad = tmp_path / "executed", tmp_path / "bad.pth"
    with zipfile.ZipFile(bad, "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps({"w": Evil(mark)}, protocol))
    p = convert(bad, tmp_path / "out.safetensors", code=65)
    assert "posix.system" in p.stderr, p.stderr
    assert not mark.exists() and not (tmp_path / "out.safetensors").exists()


def test_bad_input_gets_one_clear_sentence_and_the_right_code(trained, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zip.pth").write_bytes(b"PK\3\4 and no more")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as z:
        z.writestr("readme", "hello")
    os.mkfifo(tmp_path / "fifo")  # nobody writes: opening it would wait for ever
    out = tmp_path / "o.safetensors"
    for src, dst, code, says in (
            (tmp_path / "fifo", out, 65, "not a regular file"),
            (tmp_path / "nowhere", out, 2, f"no weights found at '{tmp_path / 'nowhere'}'"),
            (trained, tmp_path / "o.bin", 2, "ends neither in .safetensors nor in .pth or .pt"),
            (tmp_path / "empty", out, 65, "not a sound safetensors file"),
            (tmp_path / "zip.pth", out, 65, "is no sound zip"),
            (tmp_path / "other.zip", out, 65, "none of torch.save()"),
            (trained, tmp_path / "no" / "o.pth", 73, "No such file"),
            (trained, tmp_path / "no" / "o.safetensors", 73, "No such file")):
        p = convert(src, dst, code)
        assert len(p.stderr.splitlines()) == 1 and says in p.stderr, p.stderr
    assert run(TRAINER, "convert", trained).returncode == 2
    assert np.all([not q.name.endswith(".tmp") for q in tmp_path.iterdir()])
