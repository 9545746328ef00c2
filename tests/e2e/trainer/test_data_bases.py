"""Training from data bases: the same pictures in the same order give the same losses, wherever they are kept."""
import fcntl
import gzip
import os
import re
import pathlib
import signal
import struct
import subprocess
import tempfile

import numpy as np
import pytest

from metrics_file import losses
from stand import Stand
from support import CRUN, TRAINER, faulty_disk, run, tmpfs

lmdb = pytest.importorskip("lmdb")


def train(data, *args):
    with tempfile.TemporaryDirectory() as out:
        p = run(TRAINER, "--train-data", data, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1,
                "--device", "ref", "--max-steps", 3, "--lr", 0.01, "--checkpoint-dir", out, *args)
        assert p.returncode == 0, p.stderr
        found = losses(pathlib.Path(out))
    assert len(found) == 3, p.stdout
    return found


def make_db(src, dst, *args):
    p = run(TRAINER, "make-db", "--src", src, "--dst", dst, *args)
    assert p.returncode == 0, p.stderr
    return dst


@pytest.fixture(scope="module")
def folder(shapes):
    return shapes(32, 64, 16) / "train"


@pytest.mark.parametrize("kind", ["lmdb", "leveldb"])
@pytest.mark.parametrize("form", ["datum", "tensorprotos"])
def test_a_data_base_trains_as_its_folder_does(folder, tmp_path, kind, form):
    db = make_db(folder, tmp_path / "db", "--db_type", kind, "--format", form)
    assert train(db) == train(folder)


@pytest.mark.parametrize("src,args,told", [("folder", ["--limit", 5], 5), ("folder", ["--limit", 5, "--shuffle"], 5), ("folder", ["--limit", 1000], 64),
                                           ("null", ["--num-labels", 3, "--limit", 4], 4)])
def test_a_data_base_of_the_first_pictures(folder, tmp_path, src, args, told):
    p = run(TRAINER, "make-db", "--src", folder if src == "folder" else src, "--dst", tmp_path / "db", *args)
    assert p.returncode == 0 and f": {told} records, " in p.stdout, p.stdout + p.stderr
    env = lmdb.open(str(tmp_path / "db"), readonly=True)
    assert env.stat()["entries"] == told


def test_long_work_tells_its_progress_where_there_is_no_terminal(tmp_path):
    folder = tmp_path / "set" / "one"
    folder.mkdir(parents=True)
    (folder / "0.pgm").write_bytes(b"P5 1 1 255\n\0")
    for i in range(1, 20001):
        os.link(folder / "0.pgm", folder / f"{i}.pgm")
    p = run(TRAINER, "make-db", "--src", tmp_path / "set", "--dst", tmp_path / "db", "--raw")
    assert p.returncode == 0 and p.stderr == "10000 of 20001 pictures\n20000 of 20001 pictures\n", p.stderr


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def datum(jpeg, label):
    return b"\x22" + varint(len(jpeg)) + jpeg + b"\x28" + varint(label) + b"\x38\x01"


def tensor_protos(jpeg, label):
    """Caffe2's record: a STRING tensor with the encoded picture and an INT32 one with the label."""
    picture = b"\x10\x04\x32" + varint(len(jpeg)) + jpeg
    number = b"\x10\x02\x22" + b"\x01" + varint(label)
    return b"".join(b"\x0a" + varint(len(t)) + t for t in (picture, number))


@pytest.mark.parametrize("record", [datum, tensor_protos])
def test_an_lmdb_written_in_python_trains_as_its_folder_does(folder, tmp_path, record):
    names = sorted(d.name for d in folder.iterdir())
    env = lmdb.open(str(tmp_path / "db"), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i, path in enumerate(sorted(folder.glob("*/*.jpg"))):
            txn.put(b"%08d" % i, record(path.read_bytes(), names.index(path.parent.name)))
    env.close()
    assert train(tmp_path / "db", "--num-labels", len(names)) == train(folder)


def test_damaged_records_weigh_nothing_and_are_named(folder, tmp_path):
    env = lmdb.open(str(tmp_path / "db"), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i, path in enumerate(sorted(folder.glob("*/*.jpg"))[:48]):
            record = datum(path.read_bytes(), 99 if i == 7 else i % 10)
            txn.put(b"%08d" % i, record[:200] if i == 3 else record)
    env.close()
    p = run(TRAINER, "--train-data", tmp_path / "db", "--num-labels", 10, "--arch", "convnet", "--image-size", 28,
            "--batch-size", 16, "--num-epochs", 1, "--device", "ref")
    assert p.returncode == 0, p.stderr
    assert "record '00000003' is left out" in p.stderr or "record '00000003'' is left out" in p.stderr
    assert "label 99 of a set of 10 classes" in p.stderr


def test_labels_beyond_the_classes_are_told_once_and_counted(folder, tmp_path):
    db = make_db(folder, tmp_path / "db")
    (db / "classes.txt").unlink()
    p = run(TRAINER, "--train-data", db, "--num-labels", 4, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1, "--device", "ref")
    assert p.returncode == 0 and p.stderr.count("left out") == 1 and " of a set of 4 classes (--num-labels" in p.stderr, p.stderr
    told = int(re.search(r"(\d+) training images could not be read or decoded, or are of no class, and weighed nothing", p.stderr)[1])
    assert 30 < told < 64, p.stderr


EPOCHS, STEPS = 6, 4


def losses_while(db, out, change):
    """Of the first epochs of a run that stands at its first step for as long as change() takes; most of them are read after it."""
    command = [TRAINER, "--train-data", db, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 100000, "--device", "ref", "--lr", 0.01,
               "--lr-policy", "fixed", "--print-freq", 1, "--checkpoint-dir", out]
    stand = Stand(out.with_suffix(".stand"))
    p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **stand.env()})
    try:
        seen = [next(line for line in p.stdout if "Epoch 1/" in line)]
        change()
        stand.go()
        seen.append(next(line for line in p.stdout if f"Epoch {EPOCHS + 1}/" in line))
    finally:
        stand.go()
        p.send_signal(signal.SIGTERM)
        text = "".join(seen) + p.communicate(timeout=120)[0]
    assert p.returncode == 75 and "left out" not in text, text
    found = losses(out)[:EPOCHS * STEPS]
    assert len(found) == EPOCHS * STEPS
    return found


def test_a_run_reads_an_lmdb_as_it_stood_whoever_writes_meanwhile(folder, tmp_path):
    db = make_db(folder, tmp_path / "db")
    undisturbed = losses_while(db, tmp_path / "alone", lambda: None)

    def write():
        env = lmdb.open(str(db), map_size=1 << 30)
        for turn in range(3):  # each over the pages that the one before gave up, if nobody reads them
            with env.begin(write=True) as txn:
                for key, value in list(txn.cursor()):
                    txn.put(key, datum(b"no picture" * 3000, turn))
        env.set_mapsize(1 << 31)
        with env.begin(write=True) as txn:
            txn.put(b"new", bytes(1 << 20))
            txn.delete(next(txn.cursor().iternext(values=False)))
        env.close()

    assert losses_while(db, tmp_path / "out", write) == undisturbed


def test_nobody_opens_a_leveldb_while_a_run_reads_it(folder, tmp_path):
    db = make_db(folder, tmp_path / "db", "--db_type", "leveldb")

    def open_it():
        with open(db / "LOCK", "w") as f, pytest.raises(BlockingIOError):
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)  # LevelDB's own

    losses_while(db, tmp_path / "out", open_it)
    with open(db / "LOCK", "w") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        p = run(TRAINER, "--train-data", db, "--max-steps", 1)
        assert p.returncode == 65 and f"is open in process {os.getpid()}, which holds the lock on {db}/LOCK" in p.stderr, p.stderr


def test_an_lmdb_on_a_full_disk_is_told(folder, tmp_path):
    with tmpfs(tmp_path / "disk", 1) as disk:
        db = make_db(folder, disk / "db", "--limit", 16)
        (db / "lock.mdb").unlink()
        with open(disk / "rest", "wb") as f, pytest.raises(OSError):
            while True:
                os.write(f.fileno(), bytes(4096))
        args = TRAINER, "--train-data", db, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1, "--device", "ref"
        p = run(*args)
        assert p.returncode == 73 and f"no room for '{db}/lock.mdb': No space left on device" in p.stderr, (p.returncode, p.stderr)
        (disk / "rest").unlink()
        assert run(*args).returncode == 0


def test_mnist_files_train(tmp_path):
    pixels = bytes(i * 37 % 256 for i in range(40 * 28 * 28))
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as f:
        f.write(struct.pack(">IIII", 0x803, 40, 28, 28) + pixels)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 40) + bytes(i % 10 for i in range(40)))
    assert train(tmp_path, "--num-channels", 1)


# Five dots wide and seven high.
FONT = """ ### #   # # # # # # # # #   # ### |  #   ##    #    #    #    #   ### | ### #   #    #   #   #   #   ##### | ### #   #    #  ##     ##   # ### |   #  ##   # #  #  # #####   #    # |##### #    ####     #    ##   # ### | ### #     #    #### #   ##   # ### |#####    #   #   #    #    #    #  | ### #   ##   # ### #   ##   # ### | ### #   ##   # ####    #    # ### """


def write_digits(folder, part, n, seed):
    """Digits three pixels a dot, somewhere in the picture, in the dark of some noise, in MNIST's format."""
    rng = np.random.default_rng(seed)
    dots = [np.array([c == "#" for c in d.ljust(35)[:35]]).reshape(7, 5).repeat(3, 0).repeat(3, 1) for d in FONT.split("|")]
    labels = rng.integers(0, 10, n)
    pictures = rng.integers(0, 60, (n, 28, 28))
    for picture, label in zip(pictures, labels):
        y, x = rng.integers(0, 8), rng.integers(0, 14)
        picture[y:y + 21, x:x + 15] += 180 * dots[label]
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, n, 28, 28) + pictures.astype(np.uint8).tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, n) + labels.astype(np.uint8).tobytes())


@pytest.mark.slow
def test_the_small_network_learns_digits_in_two_epochs(tmp_path):
    for part, n in ("train", 6000), ("t10k", 1000):
        write_digits(tmp_path, part, n, seed=n)
    p = run(TRAINER, "--train-data", tmp_path, "--test-data", tmp_path, "--num-channels", 1, "--arch", "convnet", "--image-size", 28, "--input", "plain",
            "--batch-size", 50, "--num-epochs", 2, "--base-learning-rate", 0.05, "--device", "cpu")
    assert p.returncode == 0, p.stderr
    best = [float(v) for v in re.findall(r"Acc@1 +([\d.]+)", p.stdout + p.stderr)]
    print(best)
    assert best and best[-1] > 95, p.stdout + p.stderr


def test_null_needs_no_data():
    assert train("null", "--null-images", 64, "--num-labels", 10)


def refused(*args):
    p = run(*args)
    assert p.returncode != 0
    return p


def test_refusals_are_one_sentence(folder, tmp_path):
    p = refused(TRAINER, "make-db", "--src", tmp_path / "no", "--dst", tmp_path / "db")
    assert p.stderr == f"trainer make-db: '{tmp_path}/no' does not exist\n" and p.returncode == 65
    p = refused(TRAINER, "make-db", "--src", folder, "--dst", tmp_path)
    assert p.stderr == f"trainer make-db: '{tmp_path}' exists already\n"
    p = refused(TRAINER, "make-db", "--src", folder, "--dst", "/proc/db")
    assert p.stderr.startswith("trainer make-db: cannot make '/proc/db': cannot write the LMDB")
    db = make_db(folder, tmp_path / "db")
    (db / "classes.txt").unlink()
    p = refused(TRAINER, "--train-data", db, "--max-steps", 1)
    assert "give --num-labels" in p.stderr and p.returncode == 65


def test_a_flipped_bit_in_a_leveldbs_log_is_told(folder, tmp_path):
    db = make_db(folder, tmp_path / "db", "--db_type", "leveldb")
    log = max(db.glob("*.log"), key=lambda p: p.stat().st_size)
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    log.write_bytes(damaged)
    p = run(TRAINER, "--train-data", db, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1, "--device", "ref")
    assert p.returncode == 65 and str(db) in p.stderr and "orruption" in p.stderr, p.stderr


def test_both_data_bases_give_several_ranks_the_same_batches(folder, tmp_path):
    seen = {}
    for kind in ("lmdb", "leveldb"):
        db = make_db(folder, tmp_path / kind, "--db_type", kind)
        log = tmp_path / (kind + ".log")
        p = run(CRUN, "--standalone", "--nproc_per_node", 2, "trainer", "--train-data", db, "--test-data", db, "--arch", "convnet",
                "--image-size", 28, "--batch-size", 16, "--num-epochs", 1, "--device", "ref", "--debug-batch-sha", log)
        assert p.returncode == 0, p.stderr
        seen[kind] = sorted(log.read_text().splitlines())
    assert seen["lmdb"] == seen["leveldb"] and len(seen["lmdb"]) == 2 * 4


@pytest.mark.parametrize("kind", ["lmdb", "leveldb"])
def test_a_full_disk_is_named_by_make_db(folder, tmp_path, kind):
    full = tmp_path / "full"
    full.touch()
    p = run(TRAINER, "make-db", "--src", folder, "--dst", tmp_path / "db", "--db-type", kind, env=faulty_disk(full=full))
    assert p.returncode == 73 and f"'{tmp_path}/db'" in p.stderr and "No space left on device" in p.stderr, p.stderr
    assert list(tmp_path.iterdir()) == [full]


def test_what_a_killed_make_db_left_is_removed_by_the_next(folder, tmp_path):
    gone = run("sh", "-c", "echo $$").stdout.strip()
    for name in (f"db.{gone}.part", f"db.{os.getpid()}.part", f"db.{gone}.parts", f"other.{gone}.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(b"half")
    p = run(TRAINER, "make-db", "--src", folder, "--dst", tmp_path / "db")
    assert p.returncode == 0 and f"db.{gone}.part' was left by a make-db that was killed" in p.stderr, p.stderr
    left = {q.name for q in tmp_path.iterdir()}
    assert left == {"db", f"db.{os.getpid()}.part", f"db.{gone}.parts", f"other.{gone}.part"}


def test_a_record_that_reaches_beyond_its_lmdb_is_left_out(folder, tmp_path):
    pictures = sorted(folder.glob("*/*.jpg"))[:16]
    records = [datum(p.read_bytes(), i % 10) + b"\x7a" + varint(9000) + bytes(9000) for i, p in enumerate(pictures)]
    env = lmdb.open(str(tmp_path / "db"), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i, record in enumerate(records):
            txn.put(b"%08d" % i, record)
    env.close()
    file = tmp_path / "db" / "data.mdb"
    data = file.read_bytes()
    node = struct.pack("<I", len(records[5])) + struct.pack("<HH", 1, 8) + b"00000005"  # size, F_BIGDATA, length of the key
    assert data.count(node) == 1
    file.write_bytes(data.replace(node, struct.pack("<I", 0x7fffffff) + node[4:]))
    p = run(TRAINER, "--train-data", tmp_path / "db", "--num-labels", 10, "--arch", "convnet", "--image-size", 28,
            "--batch-size", 16, "--num-epochs", 1, "--device", "ref")
    assert p.returncode == 0 and "reach beyond the end of the LMDB" in p.stderr, (p.returncode, p.stderr)


def test_a_slash_behind_the_folder_to_make_says_nothing(folder, tmp_path):
    make_db(folder, f"{tmp_path}/db//", "--limit", 3)
    assert [f.name for f in tmp_path.iterdir()] == ["db"] and (tmp_path / "db" / "data.mdb").exists()


def test_records_without_a_class_are_told_once(folder, tmp_path):
    pictures = sorted(folder.glob("*/*.jpg"))[:48]
    env = lmdb.open(str(tmp_path / "db"), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i, path in enumerate(pictures):
            txn.put(b"%08d" % i, datum(path.read_bytes(), (1 << 64) - 1 if i % 2 else i % 10))  # -1, as protobuf writes it
    env.close()
    p = run(TRAINER, "--train-data", tmp_path / "db", "--num-labels", 10, "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--num-epochs", 1,
            "--device", "ref")
    assert p.returncode == 0 and p.stderr.count("left out") == 1 and "label -1 of a set of 10 classes" in p.stderr, p.stderr


def test_a_leveldbs_log_needs_room_in_the_temporary_folder(folder, tmp_path):
    db = make_db(folder, tmp_path / "db", "--db_type", "leveldb")
    with tmpfs(tmp_path / "small", 1) as small:
        with open(small / "rest", "wb") as f:
            f.write(bytes((1 << 20) - 20000))
        p = run(TRAINER, "--train-data", db, "--max-steps", 1, env={**os.environ, "TMPDIR": str(small)})
        assert p.returncode == 73 and f"no room to open the LevelDB '{db}'" in p.stderr and "$TMPDIR" in p.stderr, (p.returncode, p.stderr)
        assert [f.name for f in small.iterdir()] == ["rest"]
