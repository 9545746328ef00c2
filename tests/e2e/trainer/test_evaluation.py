"""What tells more than an accuracy: --report, trainer summary, predict's input options; and ImageNet's validation set sorted."""
import csv
import json
import os
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from support import CRUN, TRAINER, run
from tensors import load, save


def command(data, *args):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28, "--batch-size", 16,
            "--device", "ref", *args]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 96, 30, 3)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation") / "ck"
    p = run(*command(data, "--num-epochs", 3, "--lr", 0.02, "--checkpoint-dir", out))
    assert p.returncode == 0, p.stderr
    return out


def rows(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def snapshot(folder):
    return sorted((str(f), f.stat().st_mtime_ns) for f in folder.rglob("*"))


@pytest.mark.parametrize("world", [1, 2])
def test_the_report_of_an_evaluation_adds_up_to_its_accuracy(data, trained, tmp_path, world):
    out, before = tmp_path / "report", snapshot(trained)
    args = command(data, "--evaluate", "--resume", trained, "--report", out)
    p = run(*args) if world == 1 else run(CRUN, "--standalone", "--nproc_per_node", world, *args)
    assert p.returncode == 0 and snapshot(trained) == before, p.stderr
    acc1, acc5 = map(float, re.search(r"\* Acc@1 ([\d.]+) Acc@5 ([\d.]+)", p.stdout).groups())
    names = sorted(d.name for d in (data / "val").iterdir())
    said = {r["file"]: r for r in rows(out / "predictions.csv")}
    assert sorted(said) == sorted(map(str, (data / "val").glob("*/*.jpg")))
    assert all(r["class"] == f.split("/")[-2] for f, r in said.items())
    right = sum(r["class"] == r["predicted"] for r in said.values())
    assert f"{100 * right / 30:.3f}" == f"{acc1:.3f}" and acc5 == 100
    assert all((r["place_of_class"] == "1") == (r["class"] == r["predicted"]) and float(r["probability"]) >= float(r["probability_of_class"])
               for r in said.values())
    classes = rows(out / "classes.csv")
    assert [c["class"] for c in classes] == names and sum(int(c["right"]) for c in classes) == right
    with open(out / "confusion.csv", newline="") as f:
        head, *table = csv.reader(f)
    assert head == ["class", *names] and [r[0] for r in table] == names
    counts = np.array([[int(v) for v in r[1:]] for r in table])
    for i, c in enumerate(classes):
        others = counts[i].copy()
        others[i] = 0
        assert counts[i].sum() == int(c["images"]) == 10 and counts[i][i] == int(c["right"])
        assert int(c["images_taken_for_it"]) == others.max() and (not others.max() or others[names.index(c["mostly_taken_for"])] == others.max())
    for r in said.values():
        counts[names.index(r["class"])][names.index(r["predicted"])] -= 1
    assert not counts.any()
    weakest = min(classes, key=lambda c: float(c["acc1"]))
    assert f"the weakest classes: {weakest['class']} {float(weakest['acc1']):.1f} %" in p.stderr
    top = json.loads(run(TRAINER, "predict", "--checkpoint", trained, "--json", "--device", "ref", next(iter(said))).stdout)["top"][0]
    assert top["class"] == said[next(iter(said))]["predicted"] and abs(top["probability"] - float(said[next(iter(said))]["probability"])) < 1e-5


def test_the_confusion_picture_shows_the_shares(data, trained, tmp_path):
    """Of classes whose names would end a string of gnuplot's, and have fields of their own in CSV."""
    odd = tmp_path / "data"
    names = ["a'b", 'c",d', "e\nf"]
    for part in "train", "val":
        for kind, name in zip(sorted((data / part).iterdir()), names):
            (odd / part).mkdir(parents=True, exist_ok=True)
            os.symlink(kind, odd / part / name)
    p = run(*command(odd, "--evaluate", "--pretrained", trained, "--report", tmp_path / "r"))
    assert p.returncode == 0, p.stderr
    assert [r["class"] for r in rows(tmp_path / "r/classes.csv")] == [names[0], names[1], "e?f"]
    if "no picture" in p.stderr:
        pytest.skip("no gnuplot")
    picture = np.asarray(Image.open(tmp_path / "r/confusion.png").convert("RGB")).astype(int)
    with open(tmp_path / "r/confusion.csv", newline="") as f:
        counts = np.array([[int(v) for v in r[1:]] for r in list(csv.reader(f))[1:]])
    frame = np.argwhere((picture == 0).all(2))  # the border is black: the widest black lines are its sides
    ys, xs = (np.bincount(frame[:, i]) for i in (0, 1))
    top, bottom = np.flatnonzero(ys > 600)[[0, -1]]
    left, right = np.flatnonzero(xs > 600)[[0, 1]] if np.flatnonzero(xs > 600)[1] - np.flatnonzero(xs > 600)[0] > 300 else np.flatnonzero(xs > 600)[[0, 2]]
    for i in range(3):
        for j in range(3):
            y, x = top + (bottom - top) * (i + 0.2) / 3, left + (right - left) * (j + 0.2) / 3
            dark = 255 - picture[int(y), int(x)].sum() / 3
            assert (dark < 1) == (counts[i][j] == 0) and (dark > 100) == (counts[i][j] >= 4), (counts, i, j, dark)


def test_a_report_that_cannot_be_is_refused(data, trained, tmp_path):
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped/predictions.csv")
    for args, why, code in ((["--report", tmp_path / "r"], "--report goes with --evaluate", 2),
                            (["--evaluate", "--resume", trained, "--report", "/proc/r"], "--report: cannot make the folder '/proc/r'", 73),
                            (["--evaluate", "--resume", trained, "--report", tmp_path / "piped"], f"--report: cannot write '{tmp_path}/piped/predictions.csv'", 73)):
        p = run(*command(data, *args))
        assert p.returncode == code and why in p.stderr, p.stderr


def test_summary_counts_what_a_run_would_train_and_writes_nothing(data, tmp_path):
    odd = tmp_path / "data"
    for kind in (data / "train").iterdir():
        (odd / kind.name).mkdir(parents=True)
        for f in list(kind.iterdir())[:5 if kind.name == "circle" else 9]:
            (odd / kind.name / f.name).write_bytes(f.read_bytes())
    (odd / "circle/x.gif").write_bytes(b"GIF89a")
    before = snapshot(tmp_path)
    p = run(TRAINER, "summary", "--train-data", odd, "--test-data", data / "val", "--arch", "resnet18", "--image-size", 224, "--batch-size", 8,
            "--num-epochs", 10, "--num-labels", 1000, "--device", "ref", "--checkpoint-dir", tmp_path / "ck", "--log-dir", tmp_path / "log")
    assert p.returncode == 0 and snapshot(tmp_path) == before, p.stderr
    assert "in sum: 11689512 parameters, 3.628 GFLOP for a sample forward" in p.stdout  # torchvision's count, fvcore's 1.814 GMAC
    assert re.search(r"^layer2\.0\.conv1 +conv +128 x 28 x 28 +73728 +115\.61$", p.stdout, re.M)
    assert "  of a class: 5 (circle) to 9 (" in p.stdout and re.search(r"^ +5  circle$", p.stdout, re.M) and "1 picture of another format is left out: 1 .gif" in p.stdout
    assert "schedule: 30 steps, 3 an epoch of 23 samples in batches of 8; 2 steps of warm-up; cosine" in p.stdout
    plan = json.loads(run(TRAINER, "plan", "--json", "--train-data", odd, "--arch", "resnet18", "--image-size", 224, "--batch-size", 8, "--num-labels", 1000,
                          "--test-data", data / "val", "--device", "ref").stdout)
    assert f"{plan['ranks'][0]['memory']['sum'] / 2**20:.2f}" in p.stdout
    p = run(TRAINER, "summary", "--train-data", tmp_path / "none")
    assert p.returncode == 65 and p.stderr == f"trainer summary: --train-data: '{tmp_path}/none' does not exist\n"


def test_predict_takes_scale_mean_std_and_input(data, trained, tmp_path):
    """As training with the same options would evaluate: told of a bare file of weights, or against what a checkpoint says."""
    weights = next(trained.glob("step-*")) / "model.safetensors"
    names = tmp_path / "names"
    names.write_text("".join(f"{d.name}\n" for d in sorted((data / "val").iterdir())))
    odd = ["--input", "plain", "--mean", "0.3,0.4,0.5", "--std", 0.3], ["--scale", 40], ["--input", "caffe2", "--scale", 30], ["--interpolation", "bicubic"]
    bare = ["--arch", "convnet", "--image-size", 28]
    for options in odd:
        p = run(*command(data, *options, "--evaluate", "--pretrained", weights, "--report", tmp_path / "r"))
        assert p.returncode == 0, p.stderr
        want = {r["file"]: (r["predicted"], float(r["probability"])) for r in rows(tmp_path / "r/predictions.csv")}
        p = run(TRAINER, "predict", "--checkpoint", weights, *bare, *options, "--class-names", names, "--json", "--device", "ref", data / "val")
        assert p.returncode == 0, p.stderr
        for line in p.stdout.splitlines():
            top = json.loads(line)
            assert (top["top"][0]["class"], pytest.approx(want[top["file"]][1], abs=1e-5)) == (want[top["file"]][0], top["top"][0]["probability"])
    said = [run(TRAINER, "predict", "--checkpoint", trained, "--json", "--device", "ref", *o, next((data / "val").glob("*/*"))).stdout for o in ([], *odd)]
    assert len(set(said)) == 5
    p = run(TRAINER, "predict", "--checkpoint", trained, "--mean", "0.1,0.2", names)
    assert p.returncode == 2 and "--mean and --std take one value or one for each of the 3 channels" in p.stderr


def test_names_are_printed_without_control_bytes(data, trained, tmp_path):
    picture = tmp_path / "\x1b[31mred\nnew.jpg"
    picture.write_bytes(next((data / "val").glob("*/*")).read_bytes())
    p = run(TRAINER, "predict", "--checkpoint", trained, picture)
    assert p.returncode == 0 and p.stdout.startswith(f"{tmp_path}/?[31mred?new.jpg\n")
    picture.write_bytes(b"no picture")
    p = run(TRAINER, "predict", "--checkpoint", trained, picture)
    assert p.returncode == 65 and f"'{tmp_path}/?[31mred?new.jpg' cannot be used" in p.stderr and "\x1b" not in p.stderr
    p = run(*command(data, "--train-data", tmp_path / "\x1b[2Jgone"))
    assert p.returncode == 65 and f"'{tmp_path}/?[2Jgone' does not exist" in p.stderr and "\x1b" not in p.stderr


def test_no_command_prints_a_control_byte_of_a_name(data, trained, tmp_path):
    odd, weights = tmp_path / "a\x1b[31m\tb", next(trained.glob("step-*")) / "model.safetensors"
    for part in "train", "val":
        for i, kind in enumerate(sorted((data / part).iterdir())):
            (odd / part).mkdir(parents=True, exist_ok=True)
            os.symlink(kind, odd / part / f"{i}\x1b]0;x\x07")
    (tmp_path / "names").write_text("a\x1b[2J\nb\tc\nd\n")
    picture = next((data / "val").glob("*/*"))
    (odd / "n.net").write_text(run(TRAINER, "--print-model", "--arch", "convnet").stdout)
    few = [TRAINER, "--train-data", odd / "train", "--test-data", odd / "val", "--arch", "convnet", "--batch-size", 48, "--device", "ref"]
    for args in ([TRAINER, "summary", *few[1:]], [TRAINER, "plan", *few[1:]], [*few, "--num-epochs", 1, "--checkpoint-dir", odd / "ck"], [*few, "--num-epochs", 1, "--checkpoint-dir", odd / "ck", "--if-checkpoint", "aside"],
                 [*few, "--evaluate", "--pretrained", weights, "--report", odd / "r"], [TRAINER, "predict", "--checkpoint", weights, "--arch", "convnet", "--device", "ref", "--class-names", tmp_path / "names", picture],
                 [TRAINER, "predict", "--checkpoint", odd / "ck", "--device", "ref", odd / "val"], [TRAINER, "convert", weights, odd / "w.pth"], [TRAINER, "make-db", "--src", odd / "val", "--dst", odd / "db"],
                 [TRAINER, "make-data", "text", "--text", odd / "val/none", "--out", odd / "t"], [TRAINER, "plot", odd / "none"], [TRAINER, "odd\x1b"], [TRAINER, "predict", "--checkpoint", weights, "--arch", "convnet", "--device", "ref", odd / "ck"]):
        p = run(*args)
        assert not (found := re.findall(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", (p.stdout + p.stderr).replace("\x1b[K", ""))), (args, found, p.stdout, p.stderr)
        assert ("?" in p.stdout + p.stderr or args[1] == "plan") and p.returncode in (0, 2, 65), (args, p.returncode, p.stderr)


def test_a_model_that_makes_no_number_of_a_picture_is_told(data, trained, tmp_path):
    tensors = load(next(trained.glob("step-*")) / "model.safetensors")
    save(tmp_path / "w.safetensors", {k: np.full_like(v, 3e38) if k.endswith("weight") else v for k, v in tensors.items() if v.dtype != np.int64})
    p = run(TRAINER, "predict", "--checkpoint", tmp_path / "w.safetensors", "--arch", "convnet", "--device", "cpu", next((data / "val").glob("*/*")))
    assert p.returncode == 65 and "the model's answer for class 0 is " in p.stderr and "%" not in p.stdout, (p.stdout, p.stderr)


def test_classes_without_a_mistake_are_not_the_weakest(data, tmp_path):
    out = tmp_path / "ck"
    p = run(*command(data, "--test-data", data / "train", "--num-epochs", 12, "--lr", 0.05, "--checkpoint-dir", out))
    assert p.returncode == 0, p.stderr
    p = run(*command(data, "--test-data", data / "train", "--evaluate", "--resume", out, "--report", tmp_path / "r"))
    wrong = [r["class"] for r in rows(tmp_path / "r/classes.csv") if r["right"] != r["images"]]
    said = re.search(r"; (the weakest classes: .*|every image is right)$", p.stderr, re.M)[1]
    assert "100.0 %" not in said and said.count(" %") == len(wrong) and (wrong or said == "every image is right"), said
    assert "evaluates the model of step 72\n" in p.stderr and "resumed from" not in p.stderr


def test_predict_looks_at_pictures_of_the_size_that_is_asked_for(data, shapes, tmp_path):
    small = shapes(28, 96, 30, 3)
    p = run(TRAINER, "--train-data", small / "train", "--arch", "resnet18", "--image-size", 32, "--batch-size", 32, "--max-steps", 1, "--device", "cpu", "--checkpoint-dir", tmp_path)
    assert p.returncode == 0, p.stderr
    picture = next((small / "val").glob("*/*"))
    of = {n: run(TRAINER, "predict", "--checkpoint", tmp_path, "--device", "cpu", *(["--image-size", n] if n else []), picture) for n in (0, 32, 64)}
    assert of[0].stdout == of[32].stdout != of[64].stdout and all(not p.stderr and p.returncode == 0 for p in of.values()), of


@pytest.mark.parametrize("make", [lambda root: root / "db", lambda root: root / "one.lmdb"], ids=["folder", "file"])
def test_summary_makes_no_lock_beside_an_lmdb(data, tmp_path, make):
    lmdb = pytest.importorskip("lmdb")
    run(TRAINER, "make-db", "--src", data / "train", "--dst", tmp_path / "db")
    path = make(tmp_path)
    if path.suffix:
        with lmdb.open(str(tmp_path / "db"), readonly=True).begin() as a, lmdb.open(str(path), subdir=False, map_size=1 << 26).begin(write=True) as b:
            for k, v in a.cursor():
                b.put(k, v)
        (tmp_path / "classes.txt").write_bytes((tmp_path / "db/classes.txt").read_bytes())
    for lock in [*tmp_path.rglob("lock.mdb"), *tmp_path.rglob("*-lock")]:
        lock.unlink()
    before = snapshot(tmp_path)
    for verb in "summary", "plan":
        p = run(TRAINER, verb, "--train-data", path, "--arch", "convnet", "--device", "ref")
        assert p.returncode == 0 and snapshot(tmp_path) == before, (p.stderr, before, snapshot(tmp_path))


WNIDS = [f"n{(i * 7919 + 1440764) % 90000000 + 1000000:08}" for i in range(1000)]


def devkit(root, width=1):
    """meta.mat as MATLAB lays it out, as far as it is read: a compressed element with each synset's fields in turn."""
    (root / "data").mkdir(parents=True)
    body = b"".join(struct.pack("<II", 16, 9 * width) + "".join(w).encode("utf-16-le" if width == 2 else "ascii").ljust(24, b"\0") + b"words, gloss"
                    for w in WNIDS + ["n99999999"])
    packed = zlib.compress(body)
    (root / "data/meta.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed)
    (root / "data/ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{(i * 37) % 1000 + 1}\n" for i in range(60)))
    return root


def flat(folder):
    folder.mkdir()
    for i in range(60):
        (folder / f"ILSVRC2012_val_{i + 1:08}.JPEG").write_bytes(b"%d" % i)
    return folder


@pytest.mark.parametrize("kind", ["devkit", "devkit-utf16", "ground-truth", "kaggle", "lines", "pairs"])
def test_imagenets_validation_pictures_are_sorted(tmp_path, kind):
    val, labels = flat(tmp_path / "val"), tmp_path / "labels"
    expected = [WNIDS[i * 37 % 1000] for i in range(60)]
    if "-" in kind or kind == "devkit":
        devkit(labels, 2 if "utf16" in kind else 1)
        labels = labels / "data/ILSVRC2012_validation_ground_truth.txt" if kind == "ground-truth" else labels
    elif kind == "lines":
        labels.write_text("".join(f"{w}\n" for w in expected))
    else:
        lines = [f"ILSVRC2012_val_{i + 1:08},{w} 85 1 499 272 {w} 1 2 3 4" if kind == "kaggle" else f"ILSVRC2012_val_{i + 1:08}.JPEG {w}" for i, w in enumerate(expected)]
        labels.write_text("\n".join(["ImageId,PredictionString"] * (kind == "kaggle") + lines[::-1]) + "\r\n")
    os.makedirs(val / expected[5])  # of a call that was cut off
    os.rename(val / "ILSVRC2012_val_00000006.JPEG", val / expected[5] / "ILSVRC2012_val_00000006.JPEG")
    p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", val)
    assert p.returncode == 0 and p.stdout == f"{val}: 59 pictures moved, {len(set(expected)) - 1} class folders made\n", p.stderr
    found = {f.relative_to(val).as_posix(): f.read_bytes() for f in val.glob("*/*")}
    assert found == {f"{w}/ILSVRC2012_val_{i + 1:08}.JPEG": b"%d" % i for i, w in enumerate(expected)}
    p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", val)
    assert p.returncode == 0 and p.stdout == f"{val}: sorted already: all 60 pictures are in the folders of their classes\n", p.stderr
    one = val / expected[0] / "ILSVRC2012_val_00000001.JPEG"
    one.rename(val / expected[1] / one.name)
    p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", val)
    assert p.returncode == 65 and f"{expected[1]}/{one.name}' is of class {expected[0]}: it was sorted by other labels" in p.stderr, p.stderr
    (val / expected[1] / one.name).unlink()
    p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", val)
    assert p.returncode == 65 and "holds no picture itself" in p.stderr and "are 59 of the 60 that have a label" in p.stderr, p.stderr


def test_nothing_is_moved_before_all_have_a_class(tmp_path):
    val, labels = flat(tmp_path / "val"), tmp_path / "labels"
    for text, why in (("".join(f"ILSVRC2012_val_{i + 1:08} {WNIDS[i]}\n" for i in range(58)), "has no class for 2 of 60 pictures, as 'ILSVRC2012_val_00000059.JPEG': nothing was moved"),
                      ("a n01440764\n" + "".join(f"ILSVRC2012_val_{i + 1:08},{WNIDS[i]}\n" for i in range(60)) + f"ILSVRC2012_val_00000007.JPEG,{WNIDS[8]}\n",
                       f"has two classes for the picture 'ILSVRC2012_val_00000007': {WNIDS[6]} in line 8, {WNIDS[8]} in line 62; nothing was moved"),
                      ("0\n", "meta.mat"), ("cat\n", "line 1 of"), ("n01440764\ncat\n", "line 2 of")):
        labels.write_text(text)
        p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", tmp_path / "out")
        assert p.returncode == 65 and why in p.stderr and p.stderr.count("\n") == 1 and not (tmp_path / "out").exists(), p.stderr
    assert len(list(val.iterdir())) == 60
    (tmp_path / "meta.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(136, b"\0") + b"n00000001 n00000002" + bytes(18))
    labels.write_text("1\n")
    p = run(TRAINER, "make-data", "imagenet-val", "--pictures", val, "--labels", labels, "--out", tmp_path / "out")
    assert p.returncode == 65 and p.stderr == f"trainer make-data: {tmp_path}/meta.mat: it names 2 classes (expected 1000)\n", p.stderr
    p = run(TRAINER, "make-data", "imagenet-val", "--out", val)
    assert p.returncode == 2 and "imagenet-val needs --pictures DIR" in p.stderr
