"""Data as people have them: the layouts that are read, and what is said of those that are not."""
import gzip
import io
import os
import pickle
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from support import TRAINER, run


def make_db(src, tmp_path, *args):
    """Reads a set through, whatever it is: the pictures of the data base that comes of it, as (label, pixels)."""
    lmdb = pytest.importorskip("lmdb")
    db = tmp_path / "db"
    p = run(TRAINER, "make-db", "--src", src, "--dst", db, *args)
    assert p.returncode == 0, p.stderr
    env = lmdb.open(str(db), readonly=True)
    with env.begin() as txn:
        return (db / "classes.txt").read_text().split("\n")[:-1], [value for _, value in txn.cursor()]


def refused(src, tmp_path, *args):
    p = run(TRAINER, "make-db", "--src", src, "--dst", tmp_path / "refused", *args, timeout=20)
    assert p.returncode == 65 and p.stderr.count("\n") == 1, p.stderr
    return p.stderr[len("trainer make-db: "):-1]


def idx(folder, names, n, top=10, first=0, gz=False):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(n)
    pictures, labels = rng.integers(0, 256, (n, 28, 28), np.uint8), first + np.arange(n, dtype=np.uint8) % (top - first)
    for name, data in zip(names, (struct.pack(">IIII", 0x803, n, 28, 28) + pictures.tobytes(), struct.pack(">II", 0x801, n) + labels.tobytes())):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(data) if gz else data)


DOTS = ("train-images.idx3-ubyte", "train-labels.idx1-ubyte")
HYPHENS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
NESTED = tuple(f"{name}/{name}" for name in HYPHENS)  # Kaggle's newest archive


@pytest.mark.parametrize("below, names", [(".", DOTS), (".", NESTED), ("MNIST/raw", HYPHENS), ("raw", HYPHENS)])
def test_mnist_as_kaggle_names_it_and_where_torchvision_puts_it(tmp_path, below, names):
    idx(tmp_path / "m" / below, names, 20)
    if names == DOTS:  # Kaggle's archive has both
        (tmp_path / "m" / HYPHENS[0]).mkdir()
    classes, records = make_db(tmp_path / "m", tmp_path)
    assert len(records) == 20 and classes == [str(i) for i in range(10)]


def emnist(folder, kind, labels, first=0):
    idx(folder, (f"emnist-{kind}-train-images-idx3-ubyte", f"emnist-{kind}-train-labels-idx1-ubyte"), 60, first + len(labels), first, gz=True)
    (folder / f"emnist-{kind}-mapping.txt").write_text("".join(f"{first + i} {c}\n" for i, c in enumerate(labels)))


def test_emnist_has_the_classes_of_its_mapping(tmp_path):
    raw = tmp_path / "raw"
    emnist(raw, "letters", [f"{65 + i} {97 + i}" for i in range(26)], first=1)
    classes, records = make_db(raw, tmp_path)
    assert len(records) == 60 and classes == ["none (0)"] + [chr(65 + i) + chr(97 + i) for i in range(26)]
    emnist(raw, "digits", [str(48 + i) for i in range(10)])
    assert refused(raw, tmp_path) == f"'{raw}' holds 2 sets of EMNIST (digits, letters): give one, as {raw}/emnist-letters"
    (tmp_path / "two").mkdir()
    classes, records = make_db(raw / "emnist-digits", tmp_path / "two")
    assert classes == list("0123456789")


def test_emnist_without_mappings_as_torchvision_keeps_it(tmp_path):
    root = tmp_path / "root"
    raw = root / "EMNIST/raw"
    for kind, n, first in (("letters", 26, 1), ("balanced", 47, 0), ("byclass", 62, 0), ("digits", 10, 0)):
        emnist(raw, kind, [str(65)] * n, first)
        (raw / f"emnist-{kind}-mapping.txt").unlink()
    assert refused(root, tmp_path) == f"'{root}' holds 4 sets of EMNIST (balanced, byclass, digits, letters): give one, as {raw}/emnist-letters"
    upper = [chr(65 + i) for i in range(26)]
    for kind, names in (("letters", ["none (0)"] + [c + c.lower() for c in upper]), ("balanced", list("0123456789") + upper + list("abdefghnqrt")),
                        ("byclass", list("0123456789") + upper + [c.lower() for c in upper]), ("digits", list("0123456789"))):
        (tmp_path / kind).mkdir()
        assert make_db(raw / f"emnist-{kind}", tmp_path / kind)[0] == names


@pytest.mark.parametrize("root", ["FashionMNIST", "KMNIST"])
def test_torchvisions_roots(tmp_path, root):
    idx(tmp_path / "root" / root / "raw", HYPHENS, 20)
    assert len(make_db(tmp_path / "root", tmp_path)[1]) == 20
    idx(tmp_path / "root/MNIST/raw", HYPHENS, 20)
    assert refused(tmp_path / "root", tmp_path) == f"'{tmp_path}/root' holds several sets (MNIST, {root}): give one, as {tmp_path}/root/MNIST"


def cifar(folder, n=7):
    """As Python 2 wrote it: protocol 2, byte strings, an array that is made by calls."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        data, labels = rng.integers(0, 256, (n, 3072), np.uint8), [int(v) for v in rng.integers(0, 10, n)]
        array = (b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03(K\x01K" + bytes([n]) + b"M\x00\x0c\x86"
                 b"cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
                 + struct.pack("<I", data.nbytes) + data.tobytes() + b"tb")
        (folder / name).write_bytes(b"\x80\x02}q\x00(U\x0bbatch_labelq\x06U\x15training batch 1 of 5U\x06labels]q\x07(" +
                                    b"".join(b"K" + bytes([v]) for v in labels) + b"eU\x04data" + array + b"u.")
        loaded = pickle.loads((folder / name).read_bytes(), encoding="bytes")
        assert (loaded[b"data"] == data).all() and loaded[b"labels"] == labels  # a pickle it is


def as_binary(py, folder):
    folder.mkdir()
    for f in py.iterdir():
        d = pickle.loads(f.read_bytes(), encoding="bytes")
        (folder / f"{f.name}.bin").write_bytes(b"".join(bytes([label]) + row.tobytes() for label, row in zip(d[b"labels"], d[b"data"])))


def test_cifar_10_for_python_is_cifar_10(tmp_path):
    cifar(tmp_path / "cifar-10-batches-py")
    as_binary(tmp_path / "cifar-10-batches-py", tmp_path / "bin")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert make_db(tmp_path, tmp_path / "a") == make_db(tmp_path / "bin", tmp_path / "b")
    file = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    whole = file.read_bytes()
    for data, why in ((whole[:-100], "it is cut short"), (b"\x80\x02i" + whole, "it is no pickle of CIFAR's (opcode 69)"), (b"\x80\x02}.", "it holds 0 pictures of 3072 bytes and 0 labels")):
        file.write_bytes(data)
        assert refused(tmp_path, tmp_path) == f"'{file.parent.parent}/cifar-10-batches-py/data_batch_3': {why}"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("encoding", ["bytes", "latin1"])
def test_cifar_10_that_python_3_wrote_again(tmp_path, protocol, encoding):
    py = tmp_path / "cifar-10-batches-py"
    cifar(py)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    was = make_db(tmp_path, tmp_path / "a")
    for f in py.iterdir():
        f.write_bytes(pickle.dumps(pickle.loads(f.read_bytes(), encoding=encoding), protocol))
    assert make_db(tmp_path, tmp_path / "b") == was


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_cifar_100_as_torchvision_keeps_it(tmp_path, protocol):
    """Made by pickle itself; 0: the binary version."""
    rng = np.random.default_rng(2)
    py = tmp_path / ("cifar-100-python" if protocol else "cifar-100-binary")
    py.mkdir()
    (py / ("meta" if protocol else "fine_label_names.txt")).write_bytes(b"x")
    for name, n in (("train", 300), ("test", 5)):
        data, fine, coarse = rng.integers(0, 256, (n, 3072), np.uint8), [i % 100 for i in range(n)], [i % 20 for i in range(n)]
        if protocol:
            (py / name).write_bytes(pickle.dumps({"filenames": ["x.png"] * n, "batch_label": name, "fine_labels": fine, "coarse_labels": coarse, "data": data}, protocol))
        else:
            (py / f"{name}.bin").write_bytes(b"".join(bytes([c, f]) + row.tobytes() for c, f, row in zip(coarse, fine, data)))
    classes, records = make_db(tmp_path, tmp_path)
    assert len(records) == 300 and (len(classes), classes[:3], classes[90], classes[99]) == (100, ["apple", "aquarium_fish", "baby"], "train", "worm") and classes == sorted(classes)
    (tmp_path / "t").mkdir()
    assert len(make_db(py, tmp_path / "t", "--test")[1]) == 5


@pytest.mark.parametrize("layout, meant", [(["train/cat", "val/cat", "devkit"], "train"), (["flowers/rose", "flowers/lily"], "flowers"), (["train/cat", "val/cat"], "train"), (["train/cat", "val/cat", "sample/cat"], "train")], ids=str)
def test_the_folder_above_the_one_that_is_meant(shapes, tmp_path, layout, meant):
    pictures = list((shapes(28, 96, 30, 3) / "val").glob("*/*"))
    for folder in layout:
        (tmp_path / "d" / folder).mkdir(parents=True)
        if "/" in folder:
            (tmp_path / "d" / folder / "a.jpg").write_bytes(pictures.pop().read_bytes())
    for verb in [], ["summary"]:
        p = run(TRAINER, *verb, "--train-data", tmp_path / "d", "--arch", "convnet", "--device", "ref", "--max-steps", 1, "--batch-size", 2)
        assert re.search(rf"is (--train-data )?'?{tmp_path}/d/{meant}'? meant\?$", p.stderr, re.M), p.stderr


def test_of_16_bits_a_channel_the_upper_8_are_taken(tmp_path):
    values = np.arange(0, 65536, 257 * 4, np.uint16).reshape(8, 8) + 200
    chunks = (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))), (b"IEND", b"")
    png = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    for kind in "a", "b":
        (tmp_path / "d" / kind).mkdir(parents=True)
        (tmp_path / "d" / kind / "1.png").write_bytes(png)
    _, records = make_db(tmp_path / "d", tmp_path, "--raw", "--grey")
    assert len(records) == 2 and all((values >> 8).astype(np.uint8).tobytes() in r for r in records)


def test_an_lmdb_of_one_file_is_read(shapes, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    make_db(shapes(32, 64, 16) / "train", tmp_path)
    old = lmdb.open(str(tmp_path / "db"), readonly=True)
    new = lmdb.open(str(tmp_path / "one.lmdb"), subdir=False, map_size=1 << 26)
    with old.begin() as a, new.begin(write=True) as b:
        for k, v in a.cursor():
            b.put(k, v)
    new.close()
    (tmp_path / "classes.txt").write_bytes((tmp_path / "db/classes.txt").read_bytes())
    (tmp_path / "again").mkdir()
    classes, records = make_db(tmp_path / "one.lmdb", tmp_path / "again")
    assert len(records) == 64 and len(classes) == 10
    os.truncate(tmp_path / "one.lmdb", 8192)
    assert "one.lmdb' is cut short" in refused(tmp_path / "one.lmdb", tmp_path)


def test_what_is_no_data_set_is_named_with_its_remedy(tmp_path):
    def of(name, head):
        (tmp_path / name).write_bytes(head + bytes(600))
        return refused(tmp_path / name, tmp_path)
    assert of("a.zip", b"PK\3\4") == f"'{tmp_path}/a.zip' is a zip file, and no data set: unpack it and give the folder; an .npz of arrays: write its pictures as files"
    assert of("a.parquet", b"PAR1") == f"'{tmp_path}/a.parquet' is a Parquet file, and no data set: write its pictures as files: DIR/<class>/<image>"
    assert "is a gzip file, and no data set: unpack it (tar xzf, gunzip)" in of("a.tar.gz", b"\x1f\x8b")
    assert "is a gzip file: samples are read out of plain tar files; unpack it" in of("b.tar", b"\x1f\x8b")
    flat = tmp_path / "val"
    flat.mkdir()
    for i in range(3):
        (flat / f"ILSVRC2012_val_{i:08}.JPEG").write_bytes(b"\xff\xd8\xff")
    assert refused(flat, tmp_path).startswith(f"'{flat}' holds 3 pictures itself, and no class folders (expected: {flat}/<class>/<image>): put them into a folder for each class")
    assert "trainer make-data imagenet-val" in refused(flat, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.zip").write_bytes(b"PK\3\4")
    assert refused(other, tmp_path).endswith("its file 'train.zip' is a zip file: unpack it and give the folder; an .npz of arrays: write its pictures as files")


def test_a_named_pipe_is_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", tmp_path) == f"'{tmp_path}/pipe' is neither a folder nor a file: give a folder, DIR/<class>/<image>"
    for name in ("data.mdb", "CURRENT"):
        (tmp_path / name[0]).mkdir()
        os.mkfifo(tmp_path / name[0] / name)
        assert refused(tmp_path / name[0], tmp_path) == f"{tmp_path}/{name[0]}/{name} is not a regular file, but a named pipe"


def test_webp_is_read_as_pillow_reads_it(tmp_path):
    rng = np.random.default_rng(3)
    smooth = np.clip(rng.normal(128, 60, (5, 7, 3)), 0, 255).astype(np.uint8)
    for i, (mode, how) in enumerate([("RGB", {"lossless": True}), ("RGB", {"quality": 80}), ("RGBA", {"lossless": True})]):
        folder = tmp_path / "set" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth).resize((40 + i, 30)).convert(mode).save(folder / f"{i}.webp", **how)
    _, records = make_db(tmp_path / "set", tmp_path, "--raw")
    expected = [np.asarray(Image.open(f).convert("RGB")) for f in sorted((tmp_path / "set").glob("*/*"))]
    assert len(records) == 3
    for record, pixels in zip(records, expected):
        assert pixels[:, :, ::-1].transpose(2, 0, 1).tobytes() in record or pixels[:, :, ::-1].tobytes() in record
    frames = io.BytesIO()
    Image.fromarray(smooth).save(frames, "WEBP", save_all=True, append_images=[Image.fromarray(255 - smooth)])
    for name, data, why in (("m", frames.getvalue(), "an animated WebP image: only still ones are read"),
                            ("c", (folder / "2.webp").read_bytes()[:-30], "a damaged WebP image, or one that is cut short")):
        bad = tmp_path / f"{name}.webp"
        bad.write_bytes(data)
        p = run(TRAINER, "make-db", "--src", tmp_path / "set", "--dst", tmp_path / name)
        assert p.returncode == 0
        os.replace(bad, tmp_path / "set/a/0.webp")
        p = run(TRAINER, "make-db", "--src", tmp_path / "set", "--dst", tmp_path / f"{name}2", "--raw")
        assert why in p.stderr, p.stderr
