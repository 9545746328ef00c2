"""trainer convert without torch: there and back, and files that mean harm. (Against torch itself: tests/peer/test_weights_of_torch.py.)"""
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


def test_the_average_is_copied_where_it_is_asked_for(shapes, trained, tmp_path):
    data = shapes(28, 64, 40, 4)
    here = [TRAINER, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1]
    assert run(*here, "--device", "cpu", "--ema", 0.9, "--checkpoint-dir", tmp_path / "ck").returncode == 0
    plain, average = tmp_path / "plain.safetensors", tmp_path / "average.safetensors"
    assert "the checkpoint keeps an average of its weights, which --ema takes" in convert(tmp_path / "ck", plain).stderr
    assert plain.read_bytes() == (newest(tmp_path / "ck") / "model.safetensors").read_bytes()
    p = run(TRAINER, "convert", "--ema", tmp_path / "ck", average)
    assert p.returncode == 0 and p.stderr == ""
    got, kept = load(average), load(newest(tmp_path / "ck") / "train.safetensors")
    averaged = [k for k in got if "num_batches" not in k]
    assert len(averaged) == 14 and set(got) == set(load(plain))
    assert all(np.array_equal(got[k], kept["ema." + k]) and not np.array_equal(got[k], load(plain)[k]) for k in averaged)
    p = run(*here, "--device", "cpu", "--pretrained", tmp_path / "ck", "--max-steps", 1)
    assert p.returncode == 0 and "keeps an average of its weights, which is not what is taken" in p.stderr, p.stderr
    for bare in (plain, trained):
        p = run(TRAINER, "convert", "--ema", bare, tmp_path / "x.pth")
        assert p.returncode == 2 and p.stderr == f"trainer convert: --ema needs a checkpoint of a run with --ema; {bare} keeps no average\n"


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
            (tmp_path / "empty", out, 65, "is no file of weights: expected"),
            (tmp_path / "zip.pth", out, 65, "is cut short: it begins as a zip"),
            (tmp_path / "other.zip", out, 65, "none of torch.save()"),
            (trained, tmp_path / "no" / "o.pth", 73, "No such file"),
            (trained, tmp_path / "no" / "o.safetensors", 73, "No such file")):
        p = convert(src, dst, code)
        assert len(p.stderr.splitlines()) == 1 and says in p.stderr, p.stderr
    assert run(TRAINER, "convert", trained).returncode == 2
    p = run(TRAINER, "convert", "--huggingface", trained, tmp_path / "hf")
    assert p.returncode == 2 and "--huggingface: the model is neither a GPT-2 nor a Llama" in p.stderr and not (tmp_path / "hf").exists(), p.stderr
    assert np.all([not q.name.endswith(".tmp") for q in tmp_path.iterdir()])


@pytest.mark.parametrize("entries, says", [
    (",".join(f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(262145)), "holds more than 262144 tensors"),
    ('"a":{"dtype":"U8","shape":[0,1,1,1,1],"data_offsets":[0,0]}', "more than 4 dimensions"), (f'"{"n" * 200}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "a tensor's name")],
    ids=["tensors", "dimensions", "name"])
def test_a_file_beyond_what_is_read_is_bad_data(tmp_path, entries, says):
    (tmp_path / "m.safetensors").write_bytes(len(entries + "{}").to_bytes(8, "little") + f"{{{entries}}}".encode())
    p = convert(tmp_path / "m.safetensors", tmp_path / "o.pth", code=65)
    assert len(p.stderr.splitlines()) == 1 and says in p.stderr, p.stderr


def binary_int(n):
    return pickle.dumps(n, 2)[2:-1]


def tensor(shape, strides, count):
    """A pickle of {'w': tensor} whose storage "0" holds `count` floats."""
    def ints(v):
        return b"(" + b"".join(binary_int(i) for i in v) + b"t"

    return (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
            + binary_int(count) + b"tQ" + binary_int(0) + ints(shape) + ints(strides) + b"\x89ccollections\nOrderedDict\n)RtR")


def write_pth(path, tensors, count):
    body = b"".join(b"X" + len(k).to_bytes(4, "little") + k.encode() + v for k, v in tensors.items())
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", b"\x80\x02}(" + body + b"u.")
        z.writestr("archive/data/0", np.arange(count, dtype=np.float32).tobytes())


def test_a_small_file_does_not_become_gigabytes(tmp_path):
    src, out = tmp_path / "a.pth", tmp_path / "a.safetensors"
    write_pth(src, {"w": tensor((1 << 20, 1 << 10), (0, 0), 1)}, 1)
    p = convert(src, out, 65)
    assert "tensor 'w'" in p.stderr and "64 times as large as its storage of 1 elements" in p.stderr, p.stderr
    write_pth(src, {f"w{i}": tensor((64, 1000), (0, 1), 1000) for i in range(200)}, 1000)
    p = convert(src, out, 65)
    assert "64 times as large as the file" in p.stderr and not out.exists(), p.stderr
    write_pth(src, {"w": tensor((1000, 2), (0, 1), 2)}, 2)  # what expand() makes
    convert(src, out)
    assert np.array_equal(load(out)["w"], np.tile(np.float32([0, 1]), (1000, 1)))


def test_no_entry_of_a_file_is_larger_than_the_file(tmp_path):
    src = tmp_path / "a.pth"
    write_pth(src, {"w": tensor((4,), (1,), 4)}, 4)
    raw = bytearray(src.read_bytes())
    entry = raw.rindex(b"PK\1\2")  # of the storage, in the list at the end: two sizes from its byte 20 on
    raw[entry + 20:entry + 28] = (2**31).to_bytes(4, "little") * 2
    src.write_bytes(raw)
    p = convert(src, tmp_path / "a.safetensors", 65)
    assert p.stderr.endswith(f"entry 'archive/data/0' claims 2147483648 bytes, more than the file has, {len(raw)}; get it again\n"), p.stderr


def test_each_of_two_tensors_on_a_storage_must_lie_within_it(tmp_path):
    src, out = tmp_path / "a.pth", tmp_path / "a.safetensors"
    write_pth(src, {"v": tensor((4,), (1,), 4), "w": tensor((250_000,), (1,), 250_000)}, 4)
    p = convert(src, out, 65)
    assert p.stderr.endswith("storage '0' of tensor 'w' has 16 bytes instead of 1000000\n") and not out.exists(), p.stderr
    write_pth(src, {"v": tensor((4,), (1,), 4), "w": tensor((2, 2), (2, 1), 4)}, 4)
    convert(src, out)
    assert np.array_equal(load(out)["w"], [[0, 1], [2, 3]])
