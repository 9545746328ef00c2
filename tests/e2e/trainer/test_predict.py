"""trainer predict and --pretrained: what a trained model says, and whose weights a run begins with."""
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from support import CRUN, TRAINER, run
from tensors import load, newest, save

CLASSES = 3


def command(data, *args):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
            "--batch-size", 32, "--device", "cpu", "--amp", "off", *args]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 96, 30, CLASSES)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("predict") / "ck"
    p = run(*command(data, "--num-epochs", 12, "--base-learning-rate", 0.05, "--checkpoint-dir", out))
    assert p.returncode == 0, p.stderr
    return out


@pytest.fixture(scope="module")
def resnet18(data, tmp_path_factory):
    """A checkpoint of one step."""
    out = tmp_path_factory.mktemp("resnet18") / "ck"
    p = run(*command(data, "--arch", "resnet18", "--image-size", 32, "--max-steps", 1, "--checkpoint-dir", out))
    assert p.returncode == 0, p.stderr
    return out


def predict(*args, code=0):
    p = run(TRAINER, "predict", *args)
    assert p.returncode == code, p.stdout + p.stderr
    return p


@pytest.mark.parametrize("which, net", [("trained", []), pytest.param("resnet18", ["--arch", "resnet18", "--image-size", 32], marks=pytest.mark.slow)],
                         ids=["convnet", "resnet18"])
def test_predict_agrees_with_the_evaluation_of_the_same_files(request, data, which, net):
    checkpoint = request.getfixturevalue(which)
    p = predict("--checkpoint", checkpoint, "--json", data / "val")
    rows = [json.loads(line) for line in p.stdout.splitlines()]
    names = sorted(d.name for d in (data / "val").iterdir())
    assert len(rows) == 30
    hits = 0
    for row in rows:
        top = row["top"]
        assert [names[c["index"]] for c in top] == [c["class"] for c in top] and len(top) == CLASSES  # k is cut to the classes
        odds = [c["probability"] for c in top]
        assert odds == sorted(odds, reverse=True) and abs(sum(odds) - 1) < 1e-9
        hits += top[0]["class"] == row["file"].split("/")[-2]
    e = run(*command(data, *net, "--evaluate", "--resume", checkpoint))
    assert f"* Acc@1 {100 * hits / 30:.3f} Acc@5 100.000" in e.stdout, (e.stdout, hits)


@pytest.mark.parametrize("asked,env,taken", [(["--threads", 3], "1", 3), ([], "3", 3), ([], "1", 1)])
def test_predict_takes_as_many_threads_as_it_is_told(data, trained, asked, env, taken):
    picture = next((data / "val").glob("*/*"))
    args = [TRAINER, "predict", "--checkpoint", trained, "--device", "cpu", *asked, *[picture] * 2000]
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": env})
    try:
        p.stdout.read(65536)  # the rest fills the pipe, and it waits there
        assert len(os.listdir(f"/proc/{p.pid}/task")) == taken
    finally:
        p.kill()
        p.communicate()


def names(data, folder):
    file = folder / "names"
    file.write_text("".join(f"{d.name}\n" for d in sorted((data / "val").iterdir())))
    return file


def small(data, *args):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
            "--batch-size", 16, "--device", "ref", "--lr", 0.02, *args]


def last_accuracy(p):
    assert p.returncode == 0, p.stderr
    return re.findall(r"\* Acc@1 ([\d.]+)", p.stdout)[-1]


def predicted(data, checkpoint, *args):
    """Accuracy in percent, and all probabilities."""
    rows = [json.loads(line) for line in predict("--checkpoint", checkpoint, "--json", *args, data / "val").stdout.splitlines()]
    hits = sum(row["top"][0]["class"] == row["file"].split("/")[-2] for row in rows)
    return f"{100 * hits / len(rows):.3f}", [c["probability"] for row in rows for c in sorted(row["top"], key=lambda c: c["index"])]


def test_predict_and_evaluate_take_the_average_that_training_evaluated(data, tmp_path):
    average = ("--ema", 0.9)
    reached = last_accuracy(run(*small(data, *average, "--num-epochs", 3, "--checkpoint-dir", tmp_path)))
    accuracy, odds = predicted(data, tmp_path)
    assert accuracy == reached
    assert last_accuracy(run(*small(data, *average, "--evaluate", "--resume", tmp_path))) == reached
    weights = load(newest(tmp_path) / "train.safetensors")
    file = tmp_path / "averages.safetensors"
    save(file, {k[4:]: v for k, v in weights.items() if k.startswith("ema.")})
    averages = predicted(data, file, "--arch", "convnet", "--image-size", 28, "--class-names", names(data, tmp_path))[1]
    plain = predicted(data, newest(tmp_path) / "model.safetensors", "--arch", "convnet", "--image-size", 28)[1]
    assert odds == averages != plain
    p = run(*small(data, "--evaluate", "--resume", tmp_path))
    assert "keeps an average of its weights, which is evaluated with --ema 0.9 only" in p.stderr, p.stderr


@pytest.mark.parametrize("args, option", [
    (("--input", "caffe2", "--scale", 40), "--input caffe2, this run has torch"),
    (("--input", "plain"), "--input plain, this run has torch"),
    (("--mean", "0.1,0.5,0.9", "--std", "0.5"), "--mean 0.1,0.5,0.9, this run has 0.485,0.456,0.406"),
    (("--std", "0.9"), "--std 0.9,0.9,0.9, this run has 0.229,0.224,0.225"),
    (("--interpolation", "bicubic"), "--interpolation bicubic, this run has bilinear"),
], ids=["caffe2", "plain", "mean", "std", "interpolation"])
def test_predict_and_evaluate_prepare_pictures_as_training_did(data, tmp_path, args, option):
    reached = last_accuracy(run(*small(data, *args, "--num-epochs", 2, "--checkpoint-dir", tmp_path)))
    assert predicted(data, tmp_path)[0] == reached
    assert last_accuracy(run(*small(data, *args, "--evaluate", "--resume", tmp_path))) == reached
    p = run(*small(data, "--evaluate", "--resume", tmp_path))
    assert p.returncode == 78 and f"was trained with {option}" in p.stderr, p.stderr
    p = run(*small(data, "--num-epochs", 3, "--resume", tmp_path))
    told = option.split(" ")[0]
    assert p.returncode == 0 and f"{told} was {option.split(' ')[1].rstrip(',')} and is now" in p.stderr, p.stderr


def test_predict_prints_the_best_classes_of_each_picture(data, trained):
    picture = sorted((data / "val").glob("*/*"))[0]
    lines = predict("--checkpoint", newest(trained), "--topk", 2, picture).stdout.splitlines()
    assert lines[0] == str(picture) and len(lines) == 3
    assert all(re.fullmatch(r" +\d+\.\d\d %  \S.*", line) for line in lines[1:])


def test_a_bad_picture_is_told_and_the_others_are_done(data, trained, tmp_path):
    good = sorted((data / "val").glob("*/*"))[0]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    p = predict("--checkpoint", trained, bad, tmp_path / "nowhere.jpg", good, code=65)
    assert p.stdout.startswith(f"{good}\n")
    told = p.stderr.splitlines()
    assert len(told) == 2 and f"'{bad}' cannot be used" in told[0] and "nowhere.jpg" in told[1]


def test_a_folder_without_a_picture_is_told(trained, tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    p = predict("--checkpoint", trained, tmp_path, code=65)
    assert p.stdout == "" and p.stderr == f"trainer predict: '{tmp_path}' holds no picture\n"


def test_of_a_folder_the_same_files_are_pictures_as_in_training(data, trained, tmp_path):
    good = sorted((data / "val").glob("*/*"))[0]
    for name in ("0.jpg", "._0.jpg", ".cache/1.jpg", "deep/2.jpg", "3.avif", "4.Gif", "._5.gif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(good, tmp_path / name)
    p = predict("--checkpoint", trained, "--json", tmp_path)
    assert sorted(json.loads(line)["file"] for line in p.stdout.splitlines()) == [str(tmp_path / n) for n in ("0.jpg", "deep/2.jpg")]
    assert p.stderr.startswith(f"trainer predict: '{tmp_path}': 2 pictures of other formats are left out: 1 .gif, 1 .avif; readable are .jpg, ")
    assert len(p.stderr.splitlines()) == 1
    p = predict("--checkpoint", trained, "--json", tmp_path / "._0.jpg", tmp_path / "3.avif")  # by name: what it is decides its content
    assert len(p.stdout.splitlines()) == 2 and p.stderr == ""


def test_options_of_bare_weights_are_told_to_be_of_no_use_for_a_checkpoint(data, trained):
    picture = sorted((data / "val").glob("*/*"))[0]
    told = predict("--checkpoint", trained, "--arch", "resnet50", "--image-size", 64, picture).stderr.splitlines()
    assert len(told) == 2 and "--arch resnet50 is of no use: the checkpoint is of arch convnet" in told[0] and "--image-size 64" in told[1], told
    assert predict("--checkpoint", trained, "--arch", "convnet", "--image-size", 28, picture).stderr == ""
    p = predict("--checkpoint", newest(trained) / "model.safetensors", "--image-size", 28, picture, code=78)
    assert "taken as resnet50 unless --arch says" in p.stderr, p.stderr


def test_a_fifo_in_a_folder_is_no_picture(data, trained, tmp_path):
    good = sorted((data / "val").glob("*/*"))[0]
    (tmp_path / good.name).symlink_to(good)
    os.mkfifo(tmp_path / "z.jpg")
    assert predict("--checkpoint", trained, tmp_path).stdout.startswith(f"{tmp_path / good.name}\n")


@pytest.mark.parametrize("args, code", [
    ("predict --checkpoint CK FIFO", 65), ("predict --checkpoint FIFO PICTURE", 65), ("predict --checkpoint CK --class-names FIFO PICTURE", 65), ("convert FIFO out.pth", 65),
    ("plot FIFO --out out.png", 65), ("--train-data MNIST --arch mlp", 65), ("--train-data CIFAR --arch wrn_16_4", 65),
    ("--train-data SHAPES --arch resnet18 --pretrained FIFO", 65)])
def test_a_fifo_that_a_user_names_is_refused_and_not_waited_for(data, trained, tmp_path, args, code):
    """Nobody writes to it: opening it would wait for ever."""
    for fifo in ("fifo", "mnist/train-images-idx3-ubyte", "cifar/data_batch_1.bin"):
        (tmp_path / fifo).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / fifo)
    words = {"CK": trained, "FIFO": tmp_path / "fifo", "MNIST": tmp_path / "mnist", "CIFAR": tmp_path / "cifar", "SHAPES": data / "train",
             "PICTURE": sorted((data / "val").glob("*/*"))[0], "out.pth": tmp_path / "out.pth", "out.png": tmp_path / "out.png"}
    p = run(TRAINER, *(words.get(a, a) for a in args.split()), timeout=60)
    assert p.returncode == code and "is not a regular file, but a named pipe" in p.stderr.splitlines()[-1], (p.returncode, p.stderr)


def test_output_that_cannot_be_written_is_no_success(data, trained):
    with open("/dev/full", "w") as full:
        p = subprocess.run([str(TRAINER), "predict", "--checkpoint", str(trained), str(sorted((data / "val").glob("*/*"))[0])], stdout=full,
                           stderr=subprocess.PIPE, text=True, timeout=120)
    assert p.returncode == 73 and "standard output" in p.stderr, p.stderr


def test_bare_weights_take_options_and_names_from_a_file(data, trained, tmp_path):
    picture = sorted((data / "val").glob("*/*"))[0]
    (tmp_path / "names").write_text("red\ngreen\nblue\n")
    args = ("--arch", "convnet", "--image-size", 28, "--json", picture)
    want = json.loads(predict("--checkpoint", trained, "--json", picture).stdout)["top"]
    got = json.loads(predict("--checkpoint", newest(trained) / "model.safetensors", "--class-names", tmp_path / "names",
                             *args).stdout)["top"]
    assert [(c["index"], c["probability"]) for c in got] == [(c["index"], c["probability"]) for c in want]
    assert [c["class"] for c in got] == [["red", "green", "blue"][c["index"]] for c in want]
    (tmp_path / "names").write_text("red\ngreen\n")
    p = predict("--checkpoint", trained, "--class-names", tmp_path / "names", picture, code=2)
    assert "has 2 names, the model 3 classes" in p.stderr
    p = predict("--checkpoint", newest(trained) / "model.safetensors", "--arch", "resnet34", picture, code=78)
    assert "it has no tensor" in p.stderr
    assert "no weights found" in predict("--checkpoint", tmp_path / "none", picture, code=2).stderr


@pytest.mark.parametrize("world", [1, 2])
def test_pretrained_weights_are_where_a_run_begins(data, trained, world):
    file = newest(trained) / "model.safetensors"
    want = run(*command(data, "--evaluate", "--resume", trained))
    p = run(CRUN, "--standalone", "--nproc_per_node", world, *command(data, "--evaluate", "--pretrained", file))
    assert p.returncode == 0, p.stderr
    assert re.search(r"\* Acc@1 .*", p.stdout).group() == re.search(r"\* Acc@1 .*", want.stdout).group()


def test_a_last_layer_of_other_classes_keeps_its_initial_value(shapes, trained, tmp_path):
    other = shapes(28, 96, 30, 5)
    args = ("--num-epochs", 1, "--max-steps", 1, "--base-learning-rate", 0, "--weight-decay", 0, "--checkpoint-dir")
    p = run(*command(other, *args, tmp_path / "a", "--pretrained", newest(trained) / "model.safetensors"))
    assert p.returncode == 0, p.stderr
    assert p.stderr.count("stays at its initial value") == 2 and "'fc.weight' is F32 [3, " in p.stderr
    q = run(*command(other, *args, tmp_path / "b"))
    assert q.returncode == 0, q.stderr
    a, b, t = (load(newest(f) / "model.safetensors") for f in (tmp_path / "a", tmp_path / "b", trained))
    assert np.array_equal(a["fc.weight"], b["fc.weight"]) and np.array_equal(a["fc.bias"], b["fc.bias"])
    first = next(name for name in t if name.endswith(".weight") and not name.startswith("fc."))
    assert np.array_equal(a[first], t[first]) and not np.array_equal(a[first], b[first])


def test_weights_that_do_not_fit_are_named(data, trained, resnet18, tmp_path):
    p = run(*command(data, "--evaluate", "--pretrained", newest(resnet18) / "model.safetensors", "--arch", "resnet34"))
    assert p.returncode == 78 and re.search(r"it has no tensor 'layer1.2.\S+'; it has 102 of the 182 tensors of resnet34: is it of another --arch\?", p.stderr), p.stderr
    p = run(*command(data, "--evaluate", "--pretrained", resnet18, "--arch", "resnet34"))
    assert p.returncode == 78 and re.search(r"it has no tensor '\S+'; it is of resnet18, this model is resnet34 \(--arch\)", p.stderr), p.stderr
    for text, end in (b"", "it is empty"), (b"hello, world", "it begins with the bytes 68 65 6c 6c"), (b"\x89PNG\r\n\x1a\n....", "it is a PNG image"), \
            (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS: git lfs pull gets the file itself"), (b"\n<!DOCTYPE html><html>", "it is HTML: the download went wrong, this is a page that a server sent instead"), \
            (b"\x1f\x8b\x08\x00....", "it is a gzip file: unpack it (gunzip)"), (bytes(257) + b"ustar", "it is a tar file: unpack it (tar xf)"), (b"\x80\4\x95...", "it is a pickled object: load it in Python and torch.save() the state_dict"):
        (tmp_path / "file.pth").write_bytes(text)
        p = run(*command(data, "--evaluate", "--pretrained", tmp_path / "file.pth"))
        assert p.returncode == 65 and f"{tmp_path}/file.pth is no file of weights: expected .safetensors, a .pth or .pt that torch.save() wrote, or llm.c's .bin; " in p.stderr, p.stderr
        assert p.stderr.rstrip().endswith(end), p.stderr
    for name in "b.index.json", "a.index.json":
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_text("{}")
        p = run(TRAINER, "predict", "--checkpoint", tmp_path / "folder", "--arch", "convnet", tmp_path)
        assert p.returncode == 2 and f"; it holds '{name}': give that file, {tmp_path}/folder/{name}\n" in p.stderr, p.stderr
    p = run(*command(data, "--evaluate", "--pretrained", tmp_path / "none"))
    assert p.returncode == 2 and "no weights found" in p.stderr
    shutil.copytree(newest(trained), tmp_path / "step-00000010")  # not its step
    p = run(*command(data, "--evaluate", "--pretrained", tmp_path / "step-00000010"))
    assert p.returncode == 65, p.stderr


def test_weights_of_a_larger_model_are_no_smaller_ones(data, resnet18, tmp_path):
    small = {k: v for k, v in load(newest(resnet18) / "model.safetensors").items() if v.dtype != np.int64}
    large = small | {re.sub(r"(?<=layer\d\.)1", str(b), k): v for layer, blocks in enumerate((3, 4, 6, 3), 1) for b in range(2, blocks) for k, v in small.items() if k.startswith(f"layer{layer}.1.")}
    picture = next((data / "val").glob("*/*"))
    for tensors, says in ((large, "; most likely --arch resnet34"), ({"expert_12." + k: v for k, v in large.items()}, "; most likely --arch resnet34"), (small | {"layer1.2.conv1.weight": small["layer1.1.conv1.weight"]}, ", of another --arch")):
        save(tmp_path / "w.safetensors", tensors)
        for p in (run(*command(data, "--evaluate", "--pretrained", tmp_path / "w.safetensors", "--arch", "resnet18")), run(*command(data, "--pretrained", tmp_path / "w.safetensors", "--arch", "resnet18")),
                  run(TRAINER, "predict", "--checkpoint", tmp_path / "w.safetensors", "--arch", "resnet18", "--image-size", 32, "--device", "ref", picture)):
            assert p.returncode == 78 and re.search(r"its tensor '\S*layer1.2.\S+' is of a layer that resnet18 has not: the weights are of a larger model", p.stderr) and says in p.stderr, p.stderr
    save(tmp_path / "w.safetensors", small | {"fc2.weight": small["fc.weight"], "head.3.weight": small["fc.weight"], "ema.decay": np.ones(1, np.float32)})
    p = run(TRAINER, "predict", "--checkpoint", tmp_path / "w.safetensors", "--arch", "resnet18", "--image-size", 32, "--device", "ref", picture)
    assert p.returncode == 0 and "no part of this model and left out: 3" in p.stderr, p.stderr


def test_weights_that_are_not_finite_are_named_before_anything_is_computed(data, trained, tmp_path):
    tensors = {k: v for k, v in load(newest(trained) / "model.safetensors").items() if v.dtype != np.int64}
    for value in np.nan, -np.inf:
        bad = tensors["fc.weight"].copy()
        bad.flat[5] = value
        save(tmp_path / "w.safetensors", tensors | {"fc.weight": bad})
        for more in [], ["--evaluate"]:
            p = run(*command(data, *more, "--pretrained", tmp_path / "w.safetensors"))
            assert p.returncode == 65 and "w.safetensors: the weights are not finite: element 5 of 'fc.weight' is nan or inf" in p.stderr and "learning-rate" not in p.stderr, p.stderr


def test_names_that_are_no_utf8_are_replaced_in_json_and_still_tell_classes_apart(shapes, tmp_path):
    def renamed(name):
        mine = shutil.copytree(shapes(28, 64, 40, 4), tmp_path / os.fsdecode(b"set\xff" + name)) / "train"
        first = min(p.name for p in mine.iterdir())
        (mine / first).rename(mine / os.fsdecode(b"A" + name + b"t" + name))
        return mine

    def go(mine, *args):
        return run(TRAINER, "--train-data", mine, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size", 16,
                   "--device", "ref", "--num-epochs", 2, "--checkpoint-dir", out, *args, errors="replace")

    out, acute, grave = tmp_path / "out", renamed(b"\xe9"), renamed(b"\xe8")
    p = go(acute, "--max-steps", 1)
    assert p.returncode == 0, p.stderr
    manifest = json.loads((newest(out) / "manifest.json").read_text("utf-8"))
    assert manifest["meta"]["classes"].split("\n")[0] == "A\ufffdt\ufffd"
    assert "set\ufffd" in (out / "metrics.jsonl").read_text("utf-8")
    picture = shutil.copy(next(acute.glob("*/*.jpg")), tmp_path / os.fsdecode(b"p\xff.jpg"))
    told = json.loads(run(TRAINER, "predict", "--json", "--checkpoint", out, picture).stdout)
    assert told["file"].endswith("/p\ufffd.jpg") and "A\ufffdt\ufffd" in [c["class"] for c in told["top"]]
    p = go(grave, "--resume", "auto")
    assert p.returncode == 78, p.stderr
    p = go(acute, "--resume", "auto", "--max-steps", 2)
    assert p.returncode == 0 and "resumed" in p.stderr, p.stderr
