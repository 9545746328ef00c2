"""Models as text: a user's file trains, goes on, is evaluated and predicts; what is wrong with a text is told with its line; a checkpoint may be a
stranger's."""
import json
import pathlib
import re
import shutil

import pytest

from support import CRUN, ROOT, TRAINER, crc32c, has_sanitizer, run
from tensors import load, newest

TEXT = """block unit width
    conv out={width} kernel=3 pad=1 bias=no
    bn
    relu
end
input size=24
unit stem width=6
unit body width=6
add sum with=stem.relu1
maxpool kernel=2 stride=2
classifier head
"""


def command(data, *args):
    return [TRAINER, "--train-data", data / "train", "--batch-size", 24, "--device", "ref", "--seed", 1, *args]


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(24, 72, 20, 3)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "small.net"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(data, net, tmp_path_factory):
    """Of two epochs, three steps each: its checkpoints after 2, 4 and 6 steps."""
    out = tmp_path_factory.mktemp("models") / "ck"
    p = run(*command(data, "--arch", net, "--num-epochs", 2, "--checkpoint-every", 2, "--checkpoint-keep", 0, "--test-data", data / "val",
                     "--checkpoint-dir", out))
    assert p.returncode == 0 and "small: " in p.stderr and "24 x 24 images" in p.stderr, p.stderr
    return out


def test_weights_have_the_names_of_the_text(trained):
    names = {n for n in load(newest(trained) / "model.safetensors")}
    assert {"stem.conv1.weight", "stem.bn1.running_var", "body.bn1.bias", "head.weight", "head.bias"} <= names and len(names) == 14, names


@pytest.mark.parametrize("world", [1, 2])
def test_a_resume_needs_neither_the_file_nor_a_size(data, trained, tmp_path, world):
    p = run(CRUN, "--standalone", "--nproc-per-node", world,
            *command(data, "--num-epochs", 2, "--resume", trained / "step-00000002", "--checkpoint-dir", tmp_path))
    assert p.returncode == 0 and "resumed from step 2" in p.stderr, p.stderr
    if world == 1:
        assert (newest(tmp_path) / "model.safetensors").read_bytes() == (newest(trained) / "model.safetensors").read_bytes()


def test_an_evaluation_needs_the_checkpoint_and_pictures_alone(data, trained, tmp_path):
    def accuracy(p):
        assert p.returncode == 0, p.stderr
        return re.search(r"\* Acc@1 .*", p.stdout).group()

    bare = ["--test-data", data / "val", "--device", "ref", "--batch-size", 24]
    alone = accuracy(run(TRAINER, "-e", trained, *bare))
    assert alone == accuracy(run(TRAINER, "-e", "--resume", trained, *bare))
    assert alone == accuracy(run(*command(data, "-e", "--resume", trained, "--test-data", data / "val")))
    shutil.copytree(data / "val", tmp_path / "val")
    shutil.rmtree(sorted((tmp_path / "val").iterdir())[0])  # the classes are the checkpoint's, not those that are here
    accuracy(run(TRAINER, "-e", "--resume", trained, "--test-data", tmp_path / "val", "--device", "ref"))
    for args in ((trained, "--resume", trained), (trained, trained)):
        p = run(TRAINER, "-e", *args, "--test-data", data / "val")
        assert p.returncode == 2 and "unexpected argument" in p.stderr, p.stderr
    p = run(TRAINER, "-e", "--test-data", data / "val")
    assert p.returncode == 2 and "--resume leads to none" in p.stderr, p.stderr


def test_predict_needs_the_checkpoint_alone(data, trained, net):
    whole = run(TRAINER, "predict", "--checkpoint", trained, "--device", "ref", "--topk", 3, data / "val")
    assert whole.returncode == 0, whole.stderr
    bare = run(TRAINER, "predict", "--checkpoint", newest(trained) / "model.safetensors", "--arch", net, "--device", "ref", "--topk", 3, data / "val")
    assert bare.returncode == 0, bare.stderr
    figures = [re.findall(r"\d+\.\d\d %", p.stdout) for p in (whole, bare)]
    assert figures[0] == figures[1] and len(figures[0]) == 60


def test_another_model_is_refused_and_another_way_to_write_it_is_not(data, trained, tmp_path):
    other, same = tmp_path / "small.net", tmp_path / "same.net"
    other.write_text(TEXT.replace("kernel=3 pad=1", "kernel=5 pad=2"))
    same.write_text("# the same\n" + TEXT.replace("width=6", "width={2 * 3}").replace("conv out", "conv conv1 init=ones out"))
    p = run(*command(data, "--arch", other, "--resume", trained))
    assert p.returncode == 78, p.stderr
    assert ("the checkpoint's model small is another than this run's: 'conv stem.conv1 from=input out=6 kernel=3 stride=1 pad=1 groups=1 bias=0' is "
            "'conv stem.conv1 from=input out=6 kernel=5 stride=1 pad=2 groups=1 bias=0' here") in p.stderr
    assert run(*command(data, "--arch", same, "--resume", trained, "--num-epochs", 3)).returncode == 0


VIT = """input
conv patch out=12 kernel=8 stride=8
prepend token
position table
linear qkv out=36 each=yes
attention heads=3
linear proj out=12 each=yes
add with=table
norm
gelu
drop rate=0.1
pick
classifier head
"""


@pytest.fixture(scope="module")
def vit(data, tmp_path_factory):
    """A small transformer after three steps: 3 x 3 positions and a token."""
    folder = tmp_path_factory.mktemp("vit")
    (folder / "vit.net").write_text(VIT)
    p = run(*command(data, "--arch", folder / "vit.net", "--image-size", 24, "--max-steps", 3, "--optimizer", "adamw", "--ema", 0.9,
                     "--checkpoint-dir", folder / "ck"))
    assert p.returncode == 0, p.stderr
    return folder / "ck"


@pytest.mark.parametrize("world, layout", [(1, []), (2, ["--zero", 3])], ids=["alone", "zero"])
def test_positions_are_resampled_for_another_picture_size(data, vit, tmp_path, world, layout):
    p = run(CRUN, "--standalone", "--nproc-per-node", world,
            *command(data, "--image-size", 40, "--resume", vit, "--optimizer", "adamw", "--ema", 0.9, "--base-learning-rate", 0, "--max-steps", 4,
                     "--checkpoint-dir", tmp_path, *layout))
    assert p.returncode == 0 and "'table' is resampled from 3 x 3 to 5 x 5 positions" in p.stderr and "image_size was 24 and is now 40" in p.stderr, p.stderr
    old, new = (load(newest(d) / "model.safetensors") for d in (vit, tmp_path))
    assert old["table"].shape == (1, 10, 12) and new["table"].shape == (1, 26, 12)
    assert (old["table"][0, 0] == new["table"][0, 0]).all()  # the token's
    both = old["table"][0, 1:].reshape(3, 3, 12), new["table"][0, 1:].reshape(5, 5, 12)[::2, ::2]  # where both grids have a place
    assert abs(both[0] - both[1]).max() <= 1e-14 and abs(new["table"] - new["table"][0, 2]).max() > 1e-3
    assert all((old[k] == new[k]).all() for k in old if k != "table")
    second = load(newest(tmp_path) / "train.safetensors")["second.table"]
    assert second.shape == (1, 26, 12) and (second >= 0).all() and second.any()
    p = run(TRAINER, "-e", vit, "--image-size", 32, "--test-data", data / "val", "--device", "ref")
    assert p.returncode == 0 and "from 3 x 3 to 4 x 4" in p.stderr and "Acc@1" in p.stdout, p.stderr


def test_another_picture_size_that_a_layer_does_not_bear_is_refused(data, tmp_path):
    p = run(*command(data, "--arch", "mlp", "--image-size", 24, "--max-steps", 1, "--checkpoint-dir", tmp_path))
    assert p.returncode == 0, p.stderr
    p = run(*command(data, "--image-size", 32, "--resume", tmp_path, "--max-steps", 2))
    assert p.returncode == 78 and "tensor 'fc1.weight' in" in p.stderr and "instead of F64 [512, 3072]" in p.stderr, p.stderr


@pytest.mark.parametrize("text, sentence", [
    (TEXT.replace("relu\n", "rulu\n"), "wrong.net, line 4: unknown word 'rulu'"),
    (TEXT.replace("out={width}", "out={wide}"), "wrong.net, line 2: there is no value 'wide' here"),
    (TEXT.replace("kernel=2", "kernel=25"), "model wrong of 24 x 24 images, line 10: 'maxpool1': a 25 x 25 window does not fit"),
    ("input\nrepeat i times=1000000000\nrelu\nend\nclassifier c\n", "wrong.net, line 2: times=1000000000"),
    ("input size=20\nclassifier c\n", "image size 24 (expected 20, the only one that wrong takes)"), ("", "wrong.net is empty"), (None, "No such file")])
def test_a_wrong_file_is_told_with_its_line(data, tmp_path, text, sentence):
    path = tmp_path / "wrong.net"
    if text is not None:
        path.write_text(text)
    p = run(*command(data, "--arch", path, "--image-size", 24, "--max-steps", 1))
    assert p.returncode == 2 and sentence in p.stderr, p.stderr
    assert len(p.stderr.splitlines()) == 1, p.stderr


def test_rates_and_decay_go_by_names(data, net, tmp_path):
    def step(name, rate, *args):
        p = run(*command(data, "--arch", net, "--max-steps", 1, "--lr-policy", "fixed", "--warmup-epochs", 0, "--momentum", 0, "--weight-decay", 0.1,
                         "--base-learning-rate", rate, "--checkpoint-dir", tmp_path / name, *args))
        assert p.returncode == 0, p.stderr
        return load(newest(tmp_path / name) / "model.safetensors")

    first, plain = step("first", 0), step("plain", 0.01)
    faster, spared = step("faster", 0.01, "--lr-mul", "*.bias=1,head.*=2"), step("spared", 0.01, "--no-decay", "head.w*")
    for k in plain:
        assert abs(faster[k] - (2 * plain[k] - first[k] if k.startswith("head") else plain[k])).max() <= 1e-15, k
        assert abs(spared[k] - (plain[k] + 0.01 * 0.1 * first[k] if k == "head.weight" else plain[k])).max() <= 1e-15, k
    assert (plain["head.weight"] != first["head.weight"]).all()
    for option, value, sentence in (("--no-decay", "haed.*", "'haed.*' is the name of no parameter of small"), ("--lr-mul", "head.*=-1", "expected PATTERN=FACTOR")):
        p = run(*command(data, "--arch", net, option, value))
        assert p.returncode == 2 and sentence in p.stderr, p.stderr


# --- checkpoints of strangers

class Number(str):
    """As it was written."""


def compact(v):
    if isinstance(v, Number) or v is None or isinstance(v, bool):
        return v if isinstance(v, Number) else json.dumps(v)
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)
    if isinstance(v, list):
        return "[" + ",".join(map(compact, v)) + "]"
    return "{" + ",".join(f"{json.dumps(k)}:{compact(x)}" for k, x in v.items()) + "}"


def forge(source, to, change):
    """A copy of a checkpoint folder's newest, whose manifest's meta went through change(), with the right sums."""
    shutil.copytree(newest(source), to / newest(source).name)
    path = newest(to) / "manifest.json"
    m = json.loads(path.read_text(), parse_float=Number, parse_int=Number)
    change(m["meta"])
    if "model" in m["meta"]:
        m["meta"]["model"]["crc32c"] = f"{crc32c(m['meta']['model']['text'].encode()):08x}"
    del m["crc32c"]
    m["crc32c"] = f"{crc32c(compact(m).encode()):08x}"
    path.write_text(compact(m))
    return to


def test_an_older_checkpoint_goes_on_by_its_arch(data, tmp_path):
    def as_it_was(meta):
        del meta["model"]

    p = run(*command(data, "--arch", "mlp", "--image-size", 24, "--max-steps", 2, "--checkpoint-dir", tmp_path / "ck"))
    assert p.returncode == 0, p.stderr
    old = forge(tmp_path / "ck", tmp_path / "old", as_it_was)
    p = run(*command(data, "--resume", old, "--max-steps", 3))
    assert p.returncode == 0 and "resumed from step 2" in p.stderr, p.stderr
    assert run(TRAINER, "predict", "--checkpoint", old, "--device", "ref", data / "val").returncode == 0
    p = run(*command(data, "--arch", "convnet", "--image-size", 28, "--resume", old))
    assert p.returncode == 78 and "is of arch mlp, this run of convnet" in p.stderr, p.stderr


BOMB = "input\nrepeat i times=9999\nrepeat j times=9999\nrepeat k times=9999\nend\nend\nend\nclassifier head\n"
HUGE = "input\nconv out=16777216\navgpool\nclassifier head\n"
WIDE = TEXT.replace("maxpool", "conv wide out=1000 kernel=24\nmaxpool").replace("kernel=2 stride=2", "kernel=1")


@pytest.mark.parametrize("text, sentence", [
    (BOMB, "the checkpoint's model, line 4: the model is longer than 8192 lines with its repetitions"), (HUGE, "and only 3129 are stored"),
    (WIDE, "and only 3129 are stored"), ("", "the checkpoint's model is empty"), ("x" * 70000, "has 70000 bytes (expected at most 65536)")],
    ids=["bomb", "huge", "wide", "empty", "long"])
def test_a_strangers_model_takes_nothing(data, trained, tmp_path, text, sentence):
    def hostile(meta):
        meta["model"]["text"] = text

    forged = forge(trained, tmp_path / "ck", hostile)
    limited = [] if has_sanitizer("asan") else ["sh", "-c", 'ulimit -v 2000000; exec "$@"', "sh"]
    for args in (["predict", "--checkpoint", forged, data / "val"], ["-e", "--resume", forged, "--test-data", data / "val", "--device", "ref"]):
        p = run(*limited, TRAINER, *args)
        assert p.returncode in (65, 78) and sentence in p.stderr, p.stderr
        assert len(p.stderr.splitlines()) == 1, p.stderr


def test_a_strangers_pictures_are_not_larger_than_this_machine(data, tmp_path):
    """400 GB of activations, from weights that are stored as they should be."""
    def hostile(meta):
        meta["image_size"] = Number("4096")

    path = tmp_path / "wide.net"
    path.write_text("input\nconv out=3000\navgpool\nclassifier head\n")
    p = run(*command(data, "--arch", path, "--image-size", 8, "--max-steps", 1, "--checkpoint-dir", tmp_path / "ck"))
    assert p.returncode == 0, p.stderr
    forged = forge(tmp_path / "ck", tmp_path / "forged", hostile)
    p = run(TRAINER, "predict", "--checkpoint", forged, "--device", "ref", data / "val")
    assert p.returncode == 78 and re.search(r"model wide takes \d+\.\d GiB for one sample, and \d+\.\d GiB are allowed here", p.stderr), p.stderr
    p = run(TRAINER, "-e", forged, "--test-data", data / "val", "--device", "ref", "--batch-size", 1)
    assert p.returncode == 2 and "GiB are allowed here" in p.stderr, p.stderr


# --- the page

def test_the_page_has_every_word_and_key_of_the_language():
    page = pathlib.Path(ROOT, "docs/guide/models.md").read_text()
    source = pathlib.Path(ROOT, "worker/model/net_words.c").read_text()
    table = re.findall(r'^    \{(NULL|"\w+"), OP_(\w+), "([^"]*)", \w+\},$', source, re.M)
    assert len(table) > 8
    for word, kind, keys in table:
        word = kind.lower() if word == "NULL" else word.strip('"')
        row = re.search(rf"^\| `{word}` \|.*$", page, re.M)
        assert row, f"no row for {word}"
        for key in keys.split():
            assert f"`{key.split('=')[0]}`" in row.group(), (key, row.group())
    for key in re.findall(r'X\(KEY_\w+, "(\w+)"', pathlib.Path(ROOT, "worker/model/net_words.h").read_text()):
        assert f"`{key}" in page, key


def test_every_shipped_model_is_on_the_page():
    page = pathlib.Path(ROOT, "docs/guide/models.md").read_text()
    names = run(TRAINER, "--train-data", "null", "--num-labels", 2, "--arch", "none").stderr
    listed = re.search(r"expected one of (.*), or a file", names).group(1).split(", ")
    assert len(listed) == 28 and all(f"`{n}`" in page for n in listed), listed
