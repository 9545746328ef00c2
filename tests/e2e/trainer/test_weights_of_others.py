"""Files of weights as other trainers leave them, made by hand without torch: what is not needed of one is passed over,
what could be meant in two ways is refused, and no size is believed. (Against the libraries themselves:
tests/peer/test_kinds_of_weights.py.)"""
import argparse
import collections
import json
import os
import pathlib
import pickle
import re
import struct
import zipfile

import numpy as np
import pytest

from support import TRAINER, has_sanitizer, run
from tensors import load, newest, save
from test_convert import tensor

LAST = "fc."
W, V = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32)


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def a_dict(members):
    """Opcodes of a dict; a value that is no bytes is pickled by Python."""
    return b"}(" + b"".join(text(k) + (v if isinstance(v, bytes) else pickle.dumps(v, 2)[2:-1]) for k, v in members.items()) + b"u"


def floats(a):
    """Opcodes of a tensor, a view of the beginning of storage 0."""
    return tensor(a.shape, [s // 4 for s in a.strides], 6)


def model(**more):
    return {"w": floats(W), "v": floats(V), **more}


def pth(path, members, protocol=2):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", bytes([0x80, protocol]) + (members if isinstance(members, bytes) else a_dict(members)) + b".")
        z.writestr("archive/data/0", W.tobytes())
    return path


def old_pth(path, members, storage=W.tobytes(), count=6, keys=("0",), version=1001, little=True):
    """The format of torch before 1.6. Its storages have one member more: the view that they are of, None."""
    body = a_dict(members).replace(b"cpuK\x06tQ", b"cpuK\x06NtQ")
    path.write_bytes(b"".join(pickle.dumps(x, 2) for x in (0x1950a86a20f9469cfc6c, version, {"little_endian": little})) + b"\x80\x02" + body + b"."
                     + pickle.dumps(list(keys), 2) + struct.pack("<q", count) + storage)
    return path


def convert(src, tmp_path, *options, code=0):
    out = tmp_path / "out.safetensors"
    out.unlink(missing_ok=True)
    limit = "unlimited" if has_sanitizer("asan") else 64 << 10  # KiB: no file makes it take more
    p = run("sh", "-c", 'ulimit -d $0; exec "$@"', limit, TRAINER, "convert", *options, src, out)
    assert p.returncode == code and (code == 0 or (p.stderr.count("\n") == 1 and not out.exists())), (p.returncode, p.stderr)
    return p.stderr if code else load(out)


def is_model(got):
    return got.keys() == {"w", "v"} and np.array_equal(got["w"], W) and np.array_equal(got["v"], W.ravel()[:4])


BESIDE = {"args": argparse.Namespace(lr=0.1, where=pathlib.Path("x")), "best": np.float64(71.5), "curve": np.arange(300.), "seen": {1, 2}, "few": frozenset("ab"),
          "log": collections.defaultdict(list, {"loss": [1.0]}), "seed": 2**70, "raw": b"bytes", "array": bytearray(b"b"), "complex": 1j, "range": range(3),
          "milestones": collections.Counter([3]), "none": None, "exception": ValueError("x"), "negative": -2**200, "text": "a\nb"}


@pytest.mark.parametrize("protocol", range(6))
def test_what_lies_beside_the_weights_is_not_made(tmp_path, protocol):
    beside = pickle.dumps(BESIDE, protocol)[2 if protocol >= 2 else 0:-1]
    assert is_model(convert(pth(tmp_path / "a.pth", {"beside": beside, "state_dict": a_dict(model())}, protocol), tmp_path))
    assert is_model(convert(pth(tmp_path / "a.pth", {**BESIDE, "raw": 0, "state_dict": a_dict(model())}), tmp_path))


def test_the_one_dict_of_tensors_is_taken_and_of_two_the_one_that_is_named(tmp_path):
    src, other = tmp_path / "a.pth", {"u": floats(V)}
    assert is_model(convert(pth(src, {"net": a_dict(model()), "epoch": 3, "loss": floats(V), "optimizer": a_dict({"state": a_dict({"0": a_dict(other)})})}), tmp_path))
    assert is_model(convert(pth(src, {"state_dict": a_dict(model()), "state_dict_ema": a_dict(other)}), tmp_path))
    said = run(TRAINER, "convert", src, tmp_path / "out.safetensors").stderr
    assert "the file has several models: 'state_dict' is taken, and not 'state_dict_ema' (--part NAME takes the other)" in said, said
    assert "several" not in run(TRAINER, "convert", "--part", "state_dict", src, tmp_path / "out.safetensors").stderr
    said = convert(src, tmp_path, "--part", "nope", code=2)
    assert "no member of its dict is called 'nope' (without a part, 'state_dict' is taken, and not 'state_dict_ema'), and no name of a tensor begins so; the first is 'w'" in said, said
    assert convert(src, tmp_path, "--part", "state_dict_ema").keys() == {"u"}
    pth(src, {"student": a_dict(model()), "teacher": a_dict(other)})
    said = convert(src, tmp_path, code=65)
    assert "both 'student' and 'teacher' in it are dicts of tensors" in said and "of predict, generate and convert --part NAME" in said
    said = convert(src, tmp_path, "--part", "nope", code=65)
    assert "it has no member 'nope': both 'student' and 'teacher' in it are dicts of tensors" in said, said
    assert convert(src, tmp_path, "--part", "teacher").keys() == {"u"}
    assert "no member of its dict is called 'nobody', and no name of a tensor begins so; the first is 'w'" in convert(pth(src, model()), tmp_path, "--part", "nobody", code=2)
    p = run(TRAINER, "convert", pth(src, {"a": {"b": 1}, **model(n=3, mask=None)}), tmp_path / "out.safetensors")
    assert p.returncode == 0 and is_model(load(tmp_path / "out.safetensors")) and "3 members of the file are no tensors that can be taken: 'a', a dict" in p.stderr, p.stderr


@pytest.mark.parametrize("nested", [{"model": {"state_dict": 0, "epoch": 3}}, {"checkpoint": {"model": 0}}, {"a": {"state_dict": 0, "ema": None}}, {"state_dict": {"model": 0}, "optimizer": {"state": {"0": 1}}},
                                    {"state": {"net": 0}, "optimizer": {"state": {"0": {"step": 1}}}}], ids=str)
def test_dicts_in_dicts_are_opened_until_the_tensors_come(nested, tmp_path):
    def opcodes(v):
        return v if not isinstance(v, dict) and v not in (0, 1) or v is None else a_dict(model()) if v == 0 else a_dict({"momentum": floats(V)}) if v == 1 else a_dict({k: opcodes(x) for k, x in v.items()})
    assert is_model(convert(pth(tmp_path / "a.pth", opcodes(nested)), tmp_path))


def test_types_that_are_no_weights(tmp_path):
    header = json.dumps({"mask": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * 4 + W.tobytes())
    p = run(TRAINER, "convert", tmp_path / "a.safetensors", tmp_path / "out.safetensors")
    assert p.returncode == 0 and "1 members of the file are no tensors that can be taken: 'mask', of type BOOL" in p.stderr and load(tmp_path / "out.safetensors").keys() == {"w"}, p.stderr
    header = header.replace(b"BOOL", b"F8_E5M2")
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * 4 + W.tobytes())
    assert "tensor 'mask' is of type 'F8_E5M2', which is not read: save it as F32, F16 or BF16" in convert(tmp_path / "a.safetensors", tmp_path, code=65)


@pytest.mark.parametrize("made, says", [
    (floats(W), "it holds a tensor of torch.FloatStorage instead of a dict of tensors"),
    ({"w": pickle.dumps(W, 2)[2:-1]}, "make a tensor of each array (torch.from_numpy)"),
    (model(q=b"ctorch._utils\n_rebuild_qtensor\n)R"), "'q' is what torch._utils._rebuild_qtensor makes, not a tensor: it is quantized: save the model of floating-point numbers"),
    (model(q=b"ctorch._utils\n_rebuild_sparse_tensor\n)R"), "it is sparse: save its .to_dense()"),
    ({"w": b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n)R"}, "it has no values (device meta)"),
    ({"w": floats(W).replace(b"FloatStorage", b"ComplexFloatStorage")}, "'w' in it is a tensor of torch.ComplexFloatStorage; save it as floating-point numbers")],
    ids=["tensor", "numpy", "quantized", "sparse", "meta", "complex"])
def test_what_is_no_tensor_that_is_taken_is_told_with_what_would_help(tmp_path, made, says):
    said = convert(pth(tmp_path / "a.pth", made), tmp_path, code=65)
    assert says in said and "state_dict alone" not in said, said


def test_a_pth_file_that_is_cut_short_says_so(tmp_path):
    whole = pth(tmp_path / "a.pth", model()).read_bytes()
    (tmp_path / "a.pth").write_bytes(whole[:len(whole) // 2])
    assert f"{tmp_path}/a.pth is cut short: it begins as a zip and lacks its end; get it again" in convert(tmp_path / "a.pth", tmp_path, code=65)


def test_pickles_that_are_longer_than_what_is_read_say_how_long_they_may_be(tmp_path):
    src, most = tmp_path / "a.pth", 256 << 20
    raw = bytearray(pth(src, model()).read_bytes())
    entry = raw.index(b"PK\1\2")  # of data.pkl, in the list at the end: two sizes from its byte 20 on
    raw[entry + 20:entry + 28] = (most + 1).to_bytes(4, "little") * 2
    src.write_bytes(raw)
    assert f"entry 'archive/data.pkl' has {most + 1} bytes (expected at most {most})" in convert(src, tmp_path, code=65)
    begun = old_pth(src, {"text": b"B" + struct.pack("<I", most), **model()}).read_bytes()
    src.write_bytes(begun[:begun.index(struct.pack("<I", most)) + 4])
    os.truncate(src, most + (1 << 20))  # a text of zeros that goes on behind what is read
    p = run(TRAINER, "convert", src, tmp_path / "out.safetensors")
    assert p.returncode == 65 and f"it ends early, in its first {most} bytes (expected all that is no weights there)" in p.stderr, p.stderr


def test_what_wrappers_put_before_names_is_dropped(tmp_path):
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        assert is_model(convert(pth(tmp_path / "a.pth", {prefix + k: v for k, v in model().items()}), tmp_path))
        save(tmp_path / "a.safetensors", {prefix + "w": W, prefix + "v": W.ravel()[:4]})
        assert is_model(convert(tmp_path / "a.safetensors", tmp_path))
    said = convert(pth(tmp_path / "a.pth", {"module.w": floats(W), "w": floats(W)}), tmp_path, code=78)
    assert "two tensors would be called 'w'" in said
    assert is_model(convert(pth(tmp_path / "a.pth", {"encoder_q.w": floats(W), "encoder_q.v": floats(V), "encoder_k.w": floats(W)}), tmp_path, "--part", "encoder_q"))


def test_files_of_torch_before_1_6(tmp_path):
    src = tmp_path / "a.pth"
    assert is_model(convert(old_pth(src, model()), tmp_path))
    assert is_model(convert(old_pth(src, {"state_dict": a_dict(model()), "args": argparse.Namespace()}), tmp_path))
    whole = old_pth(src, model()).read_bytes()
    for cut in range(0, len(whole), 29):
        src.write_bytes(whole[:cut])
        said = convert(src, tmp_path, code=65)
        assert cut < 29 or "is cut short: its storage '" in said or "is cut short: it ends at byte" in said or "if it is cut short, get it again" in said, said
    for more, code, says in (({"count": 7}, 65, "has 7 elements instead of 6"), ({"storage": b""}, 65, "goes beyond its end, byte "),
                             ({"keys": ["1"]}, 69, "'1' has elements of a type that is not known"), ({"keys": []}, 65, "is not in the file"),
                             ({"version": 1002}, 69, "another version"), ({"little": False}, 69, "big-endian")):
        assert says in convert(old_pth(src, model(), **more), tmp_path, code=code)


def test_hostile_pickles_get_a_sentence(tmp_path):
    src = tmp_path / "a.pth"
    itself = b"}q\x00(" + text("model") + b"h\x00" + text("state_dict") + b"h\x00" + text("x") + b"h\x00u"
    for made, code, says in ((itself, 65, "it holds no tensors"), (b"]q\x00h\x00a", 65, "it holds a list instead of a dict of tensors"), (b"(" * 2_000_000, 65, "too many values"),
                             (b"}(" + b"]]" * 600_000 + b"u", 65, "too many values"), (b"]q\x00(" + b"h\x00" * 600_000 + b"e" + b"h\x00(" + b"h\x00" * 600_000 + b"e", 65, "it holds a list"), (b"]q\x00" + b"2" * 1_100_000, 65, "too many values"), (b"\x82\x01", 65, "opcode 0x82"),
                             ({"a\x1b[2J\nb": floats(W)}, 65, "a tensor's name has a control byte"), ({**model(), "x\x1b[2J": pickle.dumps(argparse.Namespace(), 2)[2:-1]}, 65, "'x?[2J' is what argparse.Namespace makes"),
                             ({"w": tensor((2, 3), (3, 1), 2**62)}, 65, "is too large"), ({"w": tensor((2**40, 2**40), (1, 1), 6)}, 65, "reaches beyond its storage"),
                             ({"w": floats(W), "W": b"\x8b\xff\xff\xff\x7f"}, 65, "it ends early")):
        pth(src, made)
        said = convert(src, tmp_path, code=code)
        assert says in said and "\x1b" not in said, said


def test_a_header_takes_no_more_memory_than_it_has_bytes(tmp_path):
    header = b'{"a":[' + b"0," * (4 << 20) + b"0]}"
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "tensor 'a' has no dtype" in convert(tmp_path / "a.safetensors", tmp_path, code=65)


def test_words_that_point_elsewhere(tmp_path):
    pth(tmp_path / "checkpoint.pth.tar", model())
    p = run(TRAINER, "--evaluate", tmp_path / "checkpoint.pth.tar", "--test-data", tmp_path)
    assert p.returncode == 2 and "neither a step-N folder nor a folder of them; --pretrained takes files of weights" in p.stderr, p.stderr
    zero = re.search(r"--zero N(.*?)--", run(TRAINER, "--help").stdout, re.S)[1]
    assert "of parameters" in zero and "(cpu, ref)" not in zero  # cuda, too: docs/design/decisions/0027


def shards(folder, weight_map, **files):
    folder.mkdir(exist_ok=True)
    for name, tensors in files.items():
        save(folder / f"{name}.safetensors", tensors)
    (folder / "config.json").write_text("{}")
    index = folder / "model.safetensors.index.json"
    index.write_text(weight_map if isinstance(weight_map, str) else json.dumps({"metadata": {"total_size": 40, "x": [1, {"y": "]}"}]}, "weight_map": weight_map}))
    return index


def test_an_index_names_files_beside_it_and_each_tensor_once(tmp_path):
    d, first, second = tmp_path / "m", {"w": W}, {"v": W.ravel()[:4]}
    index = shards(d, {"w": "a.safetensors", "v": "b.safetensors"}, a=first, b=second)
    assert is_model(convert(index, tmp_path)) and is_model(convert(d, tmp_path))
    save(tmp_path / "out of it.safetensors", first)
    for weight_map, says in (({"w": "../out of it.safetensors"}, "'../out of it.safetensors', which is no plain name"), ({"w": str(tmp_path / "out of it.safetensors")}, "which is no plain name"),
                             ({"w": "model.npz"}, "which is no plain name"), ({"w": ".safetensors"}, "which is no plain name"), ({"w": "gone.safetensors"}, "'gone.safetensors', which is not there"),
                             ({"w": "b.safetensors"}, "'w' is in 'b.safetensors', which has no such tensor"), ('{"weight_map": {"w": "a.safetensors", "w": "c.safetensors"}}', "'w' twice"),
                             ('{"weight_map": {"w": "a.safetensors", "w": "a.safetensors"}}', "'w' twice"), ({}, "no index of weights"), ("{}", "no index of weights"), ("{" * 1000, "no index of weights"),
                             ('{"weight_map": [' + "[]," * 1000 + "[]]}", "no index of weights"), ('{"weight_map": {"w": 3}}', "no index of weights"), ({"w": "a.safetensors", "x\x1b": "a.safetensors"}, "no such tensor")):
        said = convert(shards(d, weight_map, c=first), tmp_path, code=65)
        assert says in said and "\x1b" not in said, said
    (d / "a.safetensors").write_bytes((d / "a.safetensors").read_bytes()[:-1])
    assert "a.safetensors" in convert(shards(d, {"w": "a.safetensors"}), tmp_path, code=65)
    os.mkfifo(d / "p.safetensors")
    assert "not a regular file" in convert(shards(d, {"w": "p.safetensors"}), tmp_path, code=65)


def test_an_index_of_files_of_torchs(tmp_path):
    d = tmp_path / "m"
    d.mkdir()
    pth(d / "pytorch_model-00001-of-00002.bin", {"w": floats(W)})
    old_pth(d / "pytorch_model-00002-of-00002.bin", {"v": floats(V)})
    (d / "config.json").write_text("{}")
    index = d / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "pytorch_model-00001-of-00002.bin", "v": "pytorch_model-00002-of-00002.bin"}}))
    assert is_model(convert(index, tmp_path)) and is_model(convert(d, tmp_path))
    (d / "pytorch_model-00002-of-00002.bin").write_bytes(index.read_bytes())  # no index of indexes
    assert "is no file of weights" in convert(index, tmp_path, code=65)


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    command = [TRAINER, "--train-data", shapes(28, 64, 40, 4) / "train", "--arch", "convnet", "--image-size", 28, "--batch-size", 16, "--device", "ref", "--max-steps", 1]
    p = run(*command, "--checkpoint-dir", out)
    assert p.returncode == 0, p.stderr
    return command, load(newest(out) / "model.safetensors")


def begun(trained, tmp_path, tensors, *more, code=0):
    save(tmp_path / "w.safetensors", {k: v for k, v in tensors.items() if v.dtype != np.int64})
    p = run(*trained[0], "--base-learning-rate", 0, "--pretrained", tmp_path / "w.safetensors", "--checkpoint-dir", tmp_path / "ck", *more)
    assert p.returncode == code, p.stderr
    return p.stderr


def test_what_stands_before_most_of_the_models_names_is_left_out(trained, tmp_path):
    command, weights = trained
    for prefix in ("model.", "backbone.", "module.encoder_q."):
        where = tmp_path / prefix
        where.mkdir()
        said = begun(trained, where, {prefix + k: v for k, v in weights.items()} | {"queue": W, "model_head.x": W})
        assert f"the tensors under '{prefix}' are taken; no part of this model and left out: 2, the first is 'queue'" in said, said
        got = load(newest(where / "ck") / "model.safetensors")
        assert all(np.array_equal(got[k], weights[k]) for k in weights if "running" not in k and "num_batches" not in k)
    two = {who + k: v for who in ("student.", "teacher.") for k, v in weights.items()}
    said = begun(trained, tmp_path, two, code=78)
    assert "names behind 'student.' and names behind 'teacher.' fit this model equally: say which to take (--pretrained-part" in said, said
    said = begun(trained, tmp_path, {"other." + str(i): W for i in range(3)}, code=78)
    assert "it has none of the" in said and "its first is 'other.0': is it of another --arch?" in said, said
    begun(trained, tmp_path, two, "--pretrained-part", "teacher")


@pytest.mark.parametrize("names, says", [
    (lambda k: [k + "_orig", k + "_mask"] if k.endswith("weight") else [k], "of pruning"), (lambda k: [k[:-6] + "weight_g", k[:-6] + "weight_v"] if k == "fc.weight" else [k], "of weight_norm: torch.nn.utils.remove_weight_norm() first"),
    (lambda k: [k[:-6] + "parametrizations.weight.original0"] if k.endswith("weight") else [k], "of a parametrization"), (lambda k: ["base_model.model." + k[:-6] + "lora_A.weight"] if k.endswith("weight") else [], "of an adapter (LoRA): merge_and_unload() first"),
    (lambda k: [k[:-6] + "_packed_params"] if k == "fc.weight" else [k], "of a quantized model")], ids=["prune", "weight_norm", "parametrize", "lora", "quantized"])
def test_tensors_that_stand_for_others_are_called_what_they_are(trained, tmp_path, names, says):
    said = begun(trained, tmp_path, {n: v for k, v in trained[1].items() for n in names(k)}, code=78)
    assert says in said and "--arch?" not in said, said


def test_counters_of_batches_are_never_told(trained, tmp_path):
    """Each ResNet of Hugging Face has them under its own names."""
    said = begun(trained, tmp_path, {**trained[1], "resnet.embedder.normalization.num_batches_tracked": np.float32(3)})
    assert "left out" not in said, said


def test_a_random_last_layer_is_not_evaluated(trained, shapes, tmp_path):
    last = {k: v for k, v in trained[1].items() if k.startswith(LAST)}
    assert len(last) == 2
    rest = {k: v for k, v in trained[1].items() if k not in last}
    command = [a for a in trained[0] if a not in ("--max-steps", 1)]
    for tensors, says in ((rest | {k: np.concatenate([v, v]) for k, v in last.items()}, "it is of 8 classes ('" + LAST), (rest, "it has no last layer ('" + LAST)):
        save(tmp_path / "w.safetensors", {k: v for k, v in tensors.items() if v.dtype != np.int64})
        p = run(*command, "--evaluate", "--test-data", command[command.index("--train-data") + 1], "--pretrained", tmp_path / "w.safetensors")
        assert p.returncode == 78 and says in p.stderr and "4 classes are asked for here: a random layer would answer" in p.stderr and "another --arch" not in p.stderr, p.stderr


def test_a_tensor_of_a_type_that_is_not_read_is_not_taken_for_a_missing_one(trained, tmp_path):
    path, weights = tmp_path / "w.safetensors", {k: v for k, v in trained[1].items() if v.dtype != np.int64}
    save(path, weights)
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header[LAST + "weight"]["dtype"] = "BOOL"
    header[LAST + "weight"]["shape"][1] *= weights[LAST + "weight"].itemsize
    header = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + n:])
    for more in [], ["--evaluate", "--test-data", trained[0][trained[0].index("--train-data") + 1]]:
        p = run(*[a for a in trained[0] if not more or a not in ("--max-steps", 1)], "--pretrained", path, *more)
        assert p.returncode == 78 and f"its '{LAST}weight', of type BOOL, is of a type that is not read: save it as" in p.stderr and "no last layer" not in p.stderr, p.stderr


def test_predict_takes_a_part_and_says_what_it_did_not_take(trained, shapes, tmp_path):
    picture = next((shapes(28, 64, 40, 4) / "val").glob("*/*"))
    def of(*options):
        p = run(TRAINER, "predict", "--checkpoint", tmp_path / "w.safetensors", "--arch", "convnet", "--device", "ref", *options, picture)
        return p.returncode, p.stderr, p.stdout
    save(tmp_path / "w.safetensors", {who + k: v * scale for who, scale in (("student.", 1), ("teacher.", 2)) for k, v in trained[1].items() if v.dtype != np.int64})
    code, said, _ = of()
    assert code == 78 and "say which to take (--pretrained-part NAME; of predict, generate and convert --part NAME)" in said and said.count("\n") == 1 and "--arch?" not in said, said
    student, teacher = of("--part", "student"), of("--part", "teacher")
    assert student[0] == teacher[0] == 0 and student[2] != teacher[2]
    code, said, _ = of("--part", "nobody")
    assert code == 2 and "no name of a tensor begins with 'nobody'; the first is 'student." in said and "its dict" not in said, said
