"""Training out of tar files: WebDataset's shards, and one tar for each class. Nothing is unpacked."""
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest

from support import CRUN, TRAINER, run


def add(tar, name, data, **pax):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.pax_headers = pax
    tar.addfile(info, io.BytesIO(data))


def pictures(data):
    """[(class number, bytes)]"""
    classes = sorted(d.name for d in data.iterdir())
    return [(classes.index(f.parent.name), f.read_bytes()) for f in sorted(data.glob("*/*.jpg"))]


@pytest.fixture(scope="module")
def folder(shapes):
    return shapes(28, 96, 30, 3) / "train"


@pytest.fixture(scope="module")
def shards(folder, tmp_path_factory):
    """96 pictures in 8 tars of unequal lengths, every name long enough for GNU's or pax's way to hold it."""
    root = tmp_path_factory.mktemp("shards")
    at, all = 0, pictures(folder)
    for i, n in enumerate((20, 4, 12, 13, 0, 17, 9, 21)):
        with tarfile.open(root / f"train-{i:06}.tar", "w", format=[tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT][i % 3]) as tar:
            for k, (label, jpeg) in enumerate(all[at:at + n]):
                name = f"./{'d' * (60 if i % 3 == 0 else 180)}/{at + k:06}"
                add(tar, f"{name}.cls", str(label).encode() + b"\n")
                add(tar, f"{name}.jpg", jpeg)
                add(tar, f"{name}.mask.png", b"a second picture of the same sample")
                add(tar, f"{name}.json", b"{}")
        at += n
    assert at == 96
    return root


def command(data, log, *args, batch=16, epochs=2):
    return [TRAINER, "--train-data", data, "--arch", "convnet", "--image-size", 28, "--batch-size", batch, "--num-epochs", epochs, "--device", "ref",
            "--lr", 0.01, "--amp", "off", "--debug-batch-sha", log, *args]


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def taken(log):
    """[(epoch, step), ids of all ranks in order]"""
    of = {}
    for line in sorted(lines(log), key=lambda v: (v["epoch"], v["step"], v["rank"])):
        of.setdefault((line["epoch"], line["step"]), []).extend(line["ids"])
    return of


def hashes(log):
    return [(v["epoch"], v["step"], v["rank"], v["sha256"]) for v in lines(log)]


def order(log, epoch):
    return [i for (e, _), ids in sorted(taken(log).items()) if e == epoch for i in ids]


def test_shards_mixed_n_at_a_time_are_read_alike_by_any_world_and_threads(shards, tmp_path):
    """The order is a function of (seed, epoch); each sample comes once; the N shards of a mix come before the next N."""
    logs = {}
    for world, threads, seed in (1, 1, 5), (1, 4, 5), (2, 2, 5), (3, 1, 5), (1, 1, 6):
        log = logs[world, threads, seed] = tmp_path / f"{world}-{threads}-{seed}"
        launch = [] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world]
        p = run(*launch, *command(shards, log, "--shuffle", "shards:3", "--loader-threads", threads, "--seed", seed))
        assert p.returncode == 0, p.stderr
    one = logs[1, 1, 5]
    assert hashes(one) == hashes(logs[1, 4, 5])
    assert taken(one) == taken(logs[2, 2, 5]) == taken(logs[3, 1, 5]) != taken(logs[1, 1, 6])
    assert order(one, 0) != order(one, 1)
    ends = [20, 24, 36, 49, 66, 75, 96]  # of the seven that hold something
    for epoch in 0, 1:
        ids = order(one, epoch)
        assert sorted(ids) == list(range(96))
        of = [next(s for s, end in enumerate(ends) if i < end) for i in ids]
        first = []
        [first.append(s) for s in of if s not in first]
        at = 0
        for mix in first[:3], first[3:6], first[6:]:
            n = sum(ends[s] - (ends[s - 1] if s else 0) for s in mix)
            assert set(of[at:at + n]) == set(mix), of
            assert len(mix) == 1 or of[at:at + n] != sorted(of[at:at + n], key=mix.index)  # mixed, not one after the other
            at += n


def test_the_pixels_are_those_of_the_folder(folder, shards, tmp_path):
    for data, log in (folder, tmp_path / "folder"), (shards, tmp_path / "tars"):
        p = run(*command(data, log, "--shuffle", "off", "--max-steps", 6))
        assert p.returncode == 0, p.stderr
    assert hashes(tmp_path / "folder") == hashes(tmp_path / "tars")


def test_a_killed_run_goes_on_with_the_very_next_sample(shards, tmp_path):
    options = ["--shuffle", "shards:2", "--loader-threads", 3]
    saves = [*options, "--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 1]
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    assert run(*command(shards, whole, *options)).returncode == 0
    p = subprocess.Popen([str(a) for a in command(shards, "-", *saves)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not list((tmp_path / "ck").glob("step-[0-9]*[0-9]")):
        assert p.stdout.readline()
    p.kill()
    p.communicate()
    p = run(*command(shards, rest, *saves, "--resume", "auto"))
    assert p.returncode == 0, p.stderr
    again = hashes(rest)
    assert 1 <= len(again) < 12 and again == hashes(whole)[-len(again):]


def test_another_mix_is_refused_in_the_middle_of_an_epoch(shards, tmp_path):
    saves = ["--checkpoint-dir", tmp_path / "ck", "--max-steps", 5]
    assert run(*command(shards, tmp_path / "log", "--shuffle", "shards:2", *saves)).returncode == 0
    p = run(*command(shards, tmp_path / "log", "--shuffle", "shards:3", *saves[:2], "--resume", "auto"))
    assert p.returncode == 78 and "in the middle of an epoch with --sampler global --shuffle shards:2" in p.stderr, p.stderr


def test_a_tar_for_each_class_is_a_data_set_as_it_comes(folder, tmp_path):
    """As ImageNet's: n01440764.tar with n01440764_1.JPEG; and a tar of the whole folder."""
    (tmp_path / "each").mkdir()
    for kind in folder.iterdir():
        with tarfile.open(tmp_path / "each" / f"{kind.name}.tar", "w") as tar:
            for f in sorted(kind.iterdir()):
                tar.add(f, f"{kind.name}_{f.stem}.JPEG")
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        tar.add(folder, "train", filter=lambda m: m)
    said = set()
    for i, data in enumerate((folder, tmp_path / "each", tmp_path / "whole.tar")):
        p = run(*command(data, tmp_path / str(i), "--shuffle", "off", "--max-steps", 3))
        assert p.returncode == 0, p.stderr
        said.add(re.search(r"\S+ classes", p.stderr)[0])
    assert hashes(tmp_path / "0") == hashes(tmp_path / "1") and len(said) == 1
    assert sorted(h[-1] for h in hashes(tmp_path / "2")) and len(lines(tmp_path / "2")) == 3


def refused(data, *args, code=65):
    p = run(TRAINER, "--train-data", data, "--arch", "convnet", "--image-size", 28, "--max-steps", 1, "--device", "ref", *args)
    assert p.returncode == code and p.stderr.count("\n") == 1, p.stderr
    return p.stderr


def ustar(name, size, kind=b"0", right=True):
    h = bytearray(512)
    h[:len(name)], h[124:136], h[156:157], h[257:265] = name, size, kind, b"ustar\x0000"
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h) if right else b"000000\0 "
    return bytes(h)


def padded(data):
    return data + bytes(-len(data) % 512)


def test_a_size_of_pax_is_that_of_the_member_and_not_of_headers_between(folder, tmp_path):
    """pax's size, then GNU's long name and long link, then the file."""
    name, jpeg = b"d" * 120 + b"/n1/0.jpg\0", pictures(folder)[0][1]
    record = b"%d size=%d\n" % (len(b"00 size=%d\n" % len(jpeg)), len(jpeg))
    between = b"".join(ustar(b"././@LongLink", b"%011o\0" % len(name), kind) + padded(name) for kind in (b"L", b"K"))
    (tmp_path / "x.tar").write_bytes(ustar(b"././@PaxHeader", b"%011o\0" % len(record), b"x") + padded(record) + between + ustar(b"short", b"00000000000\0") + padded(jpeg)
                                    + ustar(b"n2/0.jpg", b"%011o\0" % len(jpeg)) + padded(jpeg) + bytes(1024))
    p = run(TRAINER, "summary", "--train-data", tmp_path / "x.tar", "--arch", "convnet")
    assert p.returncode == 0 and ": tar, 2 images, 2 classes" in p.stdout and re.search(r"1  n1\n +1  n2\n", p.stdout), p.stdout + p.stderr


@pytest.mark.parametrize("data, why", [
    (ustar(b"a.jpg", b"00000002000\0") + bytes(512), "is cut short: a member at byte 0 claims 1024 bytes, and it has 1024 bytes; get it again"),
    (ustar(b"a.jpg", b"00000000010\0") + bytes(512), "is cut short: the two empty blocks are missing that end a tar"),
    (ustar(b"a.jpg", b"77777777777\0") + bytes(1024), "claims 8589934591 bytes"),
    (ustar(b"a.jpg", b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7) + bytes(1024), "claims 9223372036854775807 bytes"),
    (ustar(b"a.jpg", b"\x80" + b"\xff" * 11) + bytes(1024), "is damaged: a size that is no number at byte 0"),
    (ustar(b"a.jpg", b"0000000001x\0") + bytes(1024), "is damaged: a size that is no number at byte 0"),
    (ustar(b"a.jpg", b"00000000000\0", right=False) + bytes(1024), "is damaged: a header with a wrong sum at byte 0"),
    (ustar(b"././@LongLink", b"00000020000\0", b"L") + bytes(9216), "is damaged: a name that is too long at byte 0"),
    (ustar(b"././@PaxHeader", b"00004000001\0", b"x") + bytes(1 << 21), "is damaged: a pax header of more than 1 MiB at byte 0"),
    (ustar(b"././@PaxHeader", b"00000000036\0", b"x") + b"999999 path=x\n".ljust(512, b"\0") + bytes(1024), "is damaged: a pax header that is none"),
    (ustar(b"././@PaxHeader", b"00000000032\0", b"x") + (b" " * 12 + b"\n13 path==zzz\n").ljust(512, b"\0") + bytes(1024), "is damaged: a pax header that is none"),
    (ustar(b"././@PaxHeader", b"00000000031\0", b"x") + b"25 size=9999999999999999\n".ljust(512, b"\0") + ustar(b"a.jpg", b"00000000000\0") + bytes(1024),
     "is cut short: a member claims more bytes than there are"),
    (ustar(b"a.jpg", b"00000000000\0", b"S") + bytes(1024), "is damaged: a sparse file, which is not read"),
    (ustar(b"a.tar", b"00000000000\0") + bytes(1024), "holds 1 .tar files and no picture: unpack it (tar xf) and give the folder"),
    (bytes(1024), "holds no image ("),
    (b"tiny", "is no tar file: it has less than 512 bytes"),
], ids=str.split("cut no-end octal binary negative no-number sum long-name long-pax bad-pax blank-pax pax-size sparse nested empty tiny"))
def test_a_cut_or_hostile_tar_is_one_sentence(tmp_path, data, why):
    (tmp_path / "x.tar").write_bytes(data)
    said = refused(tmp_path / "x.tar")
    assert f"'{tmp_path}/x.tar'" in said and why in said


def test_labels_that_cannot_be_known_are_refused(folder, tmp_path):
    jpeg = pictures(folder)[0][1]
    for name, members, why in (("json", {"0.jpg": jpeg, "0.json": b"{}"}, "has 1 .json beside its pictures, and no .cls"),
                               ("cls", {"0.jpg": jpeg, "0.cls": b"cat"}, "'0.cls' in "), ("big", {"0.jpg": jpeg, "0.cls": b"99999999999"}, "'0.cls' in ")):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for member, data in members.items():
                add(tar, member, data)
        assert why in refused(tmp_path / f"{name}.tar")
    assert "--shuffle shards:4 is for tar files" in refused(folder, "--shuffle", "shards:4", code=2)
    assert "shards" in refused(folder, "--shuffle", "shards:0", code=2)


def test_folders_beside_tars_are_told(shards, tmp_path):
    for name in ("cat", "dog", ".hidden"):
        (tmp_path / name).mkdir()
    for shard in shards.glob("*.tar"):
        (tmp_path / shard.name).symlink_to(shard)
    p = run(TRAINER, "summary", "--train-data", tmp_path, "--arch", "convnet", "--image-size", 28)
    assert p.returncode == 0 and "\n  2 folders beside the tar files are left out" in p.stdout, (p.stdout, p.stderr)


def test_numbers_of_a_test_set_that_are_taken_for_names_are_told(folder, shards, tmp_path):
    p = run(TRAINER, "--train-data", folder, "--test-data", shards, "--arch", "convnet", "--image-size", 28, "--device", "ref", "--max-steps", 1)
    names = sorted(d.name for d in folder.iterdir())
    assert p.returncode == 0 and p.stderr.count(f"--test-data is matched by number, as its classes have other names than training's, or none: 0 is taken for '{names[0]}', 2 for '{names[2]}'; a classes.txt") == 1, p.stderr
    for shard in shards.glob("*.tar"):
        (tmp_path / shard.name).symlink_to(shard)
    (tmp_path / "classes.txt").write_text("".join(f"{n}\n" for n in names))
    p = run(TRAINER, "--train-data", folder, "--test-data", tmp_path, "--arch", "convnet", "--image-size", 28, "--device", "ref", "--max-steps", 1)
    assert p.returncode == 0 and "matched by number" not in p.stderr, p.stderr


def test_a_picture_without_its_cls_weighs_nothing_and_is_named(folder, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i, (label, jpeg) in enumerate(pictures(folder)[::6]):
            add(tar, f"{i}.jpg", jpeg)
            if i != 2:
                add(tar, f"{i}.cls", str(label).encode())
    p = run(*command(tmp_path, tmp_path / "log", "--max-steps", 1))
    assert p.returncode == 0 and f"'{tmp_path}/a.tar/2.jpg' is left out: no .cls says what its class is" in p.stderr, p.stderr
    assert lines(tmp_path / "log")[0]["bad"] == 1


def test_summary_accounts_for_what_weighs_nothing(folder, tmp_path):
    (tmp_path / "d").mkdir()
    with tarfile.open(tmp_path / "d/a.tar", "w") as tar:
        for i, (label, jpeg) in enumerate(pictures(folder)[::6]):
            add(tar, f"{i}.jpg", jpeg)
            if i > 1:
                add(tar, f"{i}.cls", str(7 if i == 2 else i % 2).encode())
    (tmp_path / "d/classes.txt").write_text("a\nb\n")
    p = run(TRAINER, "summary", "--train-data", tmp_path / "d", "--arch", "convnet", "--device", "ref")
    assert p.returncode == 0 and "2 pictures have no .cls and weigh nothing; 1 picture has a .cls beyond the classes and weighs nothing\n" in p.stdout, (p.stdout, p.stderr)


def test_the_bench_of_tars_leaves_nothing_when_it_is_ended(tmp_path):
    (tmp_path / "bench_tars-99999999-left").mkdir()  # of one that was killed: no such process can be
    bench = pathlib.Path(__file__).parents[2] / "bench/bench_tars.py"
    with subprocess.Popen([sys.executable, bench, TRAINER, "--tars", "1000000", "--pictures", "10", "--dir", tmp_path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as p:
        assert p.stderr.readline().startswith("made 50 of ")
        assert [d.name.split("-")[1] for d in tmp_path.iterdir()] == [str(p.pid)]
        p.terminate()
        p.stderr.read()
    assert p.returncode == 143 and not list(tmp_path.iterdir())
    p = run(sys.executable, bench, TRAINER, "--tars", 3, "--pictures", 10**12, "--dir", tmp_path)
    assert p.returncode == 1 and "has no room for a tar of" in p.stderr, p.stderr


def test_a_tar_of_several_parts_and_a_label_out_of_all_bounds_are_refused(folder, tmp_path):
    jpeg = pictures(folder)[0][1]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for part in "train", "val":
            for kind in "cat", "dog":
                add(tar, f"data/{part}/{kind}/{part}.jpg", jpeg)
    assert f"'{tmp_path}/a.tar' holds the parts 'train' and 'val' of a data set: give a tar of each" in refused(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        for i, label in enumerate((0, 1, 16000000)):
            add(tar, f"{i}.jpg", jpeg)
            add(tar, f"{i}.cls", str(label).encode())
    assert f"'{tmp_path}/b.tar' has a .cls that says 16000000, and 3 images: if there are so many classes, say so with --num-labels or a classes.txt" in refused(tmp_path / "b.tar")


def test_few_descriptors_suffice(shards, tmp_path):
    p = run("bash", "-c", f"ulimit -n 12; exec {' '.join(str(a) for a in command(shards, tmp_path / 'log', '--max-steps', 2))}")
    assert p.returncode == 0 and len(lines(tmp_path / "log")) == 2, p.stderr
