"""Weights of language models by the names and layouts of Hugging Face's transformers, nanoGPT and llm.c, config.json, and what is generated from them."""
import json
import re

import numpy as np
import pytest

from support import ROOT, TRAINER, run
from tensors import load, newest, save

C, V, T = 16, 256, 32
MATRICES = r"\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight$"  # (in, out) in Hugging Face's GPT-2
GPT2 = {"model_type": "gpt2", "n_embd": C, "n_layer": 2, "n_head": 2, "n_positions": T, "vocab_size": V, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
LLAMA = {"model_type": "llama", "hidden_size": C, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
         "max_position_embeddings": T, "vocab_size": V, "rms_norm_eps": 1e-5, "rope_theta": 10000}
LLAMA_NET = f"set width={C} layers=2 heads=4 kv_heads=2 mlp=24 context={T} vocabulary={V}\n"
GPT2_NET = f"set width={C} layers=2 heads=2 context={T} vocabulary={V}\n"


def shipped(name, more):
    return (ROOT / f"worker/model/nets/{name}.net").read_text() + more


def trained(tmp, name, *args):
    """Tensors of a checkpoint after a step from given weights at a rate of 0; the run, and its folder."""
    p = run(TRAINER, "--train-data", "null", "--null-images", 8, "--arch", tmp / name, "--device", "ref", "--batch-size", 4, "--max-steps", 1, "--lr", 0, "--checkpoint-dir", tmp / "ck",
            "--if-checkpoint", "aside", *args)
    return p, load(newest(tmp / "ck") / "model.safetensors") if p.returncode == 0 else None


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """{net: tensors as they are here}, that no run begins with."""
    out = {}
    for name, more in (("gpt2", GPT2_NET), ("llama", LLAMA_NET)):
        tmp = tmp_path_factory.mktemp(name)
        (tmp / "m.net").write_text(shipped(name, more))
        p, t = trained(tmp, "m.net")
        assert p.returncode == 0, p.stderr
        draw = np.random.default_rng(3)
        out[name] = {k: v + 0.05 * draw.standard_normal(v.shape) for k, v in t.items()}
    return out


def hugging_face(tensors, conv1d=True):
    out = {}
    for name, v in tensors.items():
        if ".qkv_proj." in name:
            for part, x in zip("qkv", np.split(v, [C, C + (len(v) - C) // 2])):
                out[name.replace("qkv_proj", f"{part}_proj")] = x
        else:
            out[name] = np.ascontiguousarray(v.T) if conv1d and re.search(MATRICES, name) else v
    return out


def without(prefix, tensors):
    return {k.removeprefix(prefix): v for k, v in tensors.items()}


VARIANTS = {"head": lambda t: hugging_face(t), "bare": lambda t: without("transformer.", without("model.", hugging_face(t))), "nanoGPT's": lambda t: hugging_face(t, conv1d=False)}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("net, more", [("gpt2", GPT2_NET), ("llama", LLAMA_NET)])
def test_names_and_layouts_are_mapped(ours, tmp_path, net, more, variant):
    (tmp_path / "m.net").write_text(shipped(net, more))
    theirs = VARIANTS[variant](ours[net])
    if net == "gpt2":  # what older files and heads have beside the weights is no reason to warn
        prefix = "" if variant == "bare" else "transformer."
        theirs |= {f"{prefix}h.{i}.attn.bias": np.ones((1, 1, T, T), "f4") for i in range(2)} | {f"{prefix}h.1.attn.masked_bias": np.float32(-1e4)}
        theirs["lm_head.weight"] = theirs[f"{prefix}wte.weight"]
    save(tmp_path / "w.safetensors", theirs)
    p, got = trained(tmp_path, "m.net", "--pretrained", tmp_path / "w.safetensors")
    assert p.returncode == 0 and "warn" not in p.stderr, p.stderr
    assert got.keys() == ours[net].keys() and all(np.array_equal(got[k], ours[net][k]) for k in got)


def test_a_head_that_is_not_the_embedding_is_refused(ours, tmp_path):
    (tmp_path / "m.net").write_text(shipped("gpt2", GPT2_NET))
    theirs = hugging_face(ours["gpt2"])
    save(tmp_path / "w.safetensors", theirs | {"lm_head.weight": theirs["transformer.wte.weight"] + np.eye(V, C) * 1e-3})
    p, _ = trained(tmp_path, "m.net", "--pretrained", tmp_path / "w.safetensors")
    assert p.returncode == 78 and "its 'lm_head.weight' is another than its 'transformer.wte.weight', to which the head of m is tied" in p.stderr, p.stderr


@pytest.mark.parametrize("net, more, config", [("gpt2", GPT2_NET, GPT2), ("llama", LLAMA_NET, LLAMA)])
def test_a_folder_of_hugging_face_is_read_and_written(ours, tmp_path, net, more, config):
    """config.json gives the model that the text makes; convert --huggingface writes both files so that they are read again, with Hugging Face's layouts."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(config))
    save(theirs / "model.safetensors", hugging_face(ours[net]))
    p, got = trained(tmp_path, "theirs/config.json", "--pretrained", theirs)
    assert p.returncode == 0 and "theirs: " in p.stderr and all(np.array_equal(got[k], ours[net][k]) for k in ours[net]), p.stderr
    (tmp_path / "m.net").write_text(shipped(net, more))
    p = run(TRAINER, "-e", tmp_path / "ck", "--arch", tmp_path / "m.net", "--test-data", "null", "--eval-steps", 1, "--batch-size", 4, "--device", "ref")
    assert p.returncode == 0 and " perplexity " in p.stdout, p.stderr
    p = run(TRAINER, "convert", "--huggingface", newest(tmp_path / "ck"), tmp_path / "back")
    assert p.returncode == 0, p.stderr
    back, wanted = load(tmp_path / "back/model.safetensors"), hugging_face(ours[net])
    assert back.keys() == wanted.keys() and all(np.array_equal(back[k], wanted[k]) for k in back)
    written = json.loads((tmp_path / "back/config.json").read_text())
    assert {k: written[k] for k in config} == config
    raw = (tmp_path / "back/model.safetensors").read_bytes()
    assert json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"] == {"format": "pt"}


@pytest.mark.parametrize("config, change, sentence", [
    (GPT2, {"activation_function": "relu"}, 'activation_function is "relu" (expected "gelu_new")'), (GPT2, {"model_type": "bert"}, "model_type is 'bert' (expected gpt2 or llama)"),
    (GPT2, {"n_inner": 40}, "n_inner is 40 (expected 4 n_embd, 64)"), (GPT2, {"n_head": "two"}, "n_head is no number"), (GPT2, {"vocab_size": "32"}, "vocab_size is no number"), (LLAMA, {"num_key_value_heads": [1]}, "num_key_value_heads is no number"), (GPT2, {"n_embd": 1.5}, "n_embd is 1.5 (expected a whole number)"),
    (GPT2, {"resid_pdrop": 0.1}, "resid_pdrop is 0.1 and embd_pdrop 0"), (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, 'config.json: rope_scaling: rope_type is "llama3" (expected "default")'),
    (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2}}, 'rope_scaling: type is "linear" (expected "default")'), (LLAMA, {"rope_parameters": {"rope_type": "yarn"}}, 'rope_parameters: rope_type is "yarn" (expected "default")'),
    (LLAMA, {"rope_parameters": {"rope_theta": "5e5"}}, "rope_theta of rope_parameters is no number"), (LLAMA, {"rope_parameters": "default"}, "rope_parameters is no object"), (LLAMA, {"rope_theta": -1}, "rope_theta is -1 (expected 1 or more)"),
    (LLAMA, {"attention_bias": True}, "attention_bias is true (expected false)"),
    (LLAMA, {"head_dim": 5}, "head_dim is 5")])
def test_another_model_is_refused(tmp_path, config, change, sentence):
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    p, _ = trained(tmp_path, "config.json")
    assert p.returncode == 2 and p.stderr.count("\n") == 1 and sentence in p.stderr, p.stderr


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_the_base_of_the_rotary_embedding_is_read_from_where_newer_files_have_it(ours, tmp_path, place):
    """The file is written again with the base at both places that transformers reads."""
    config = {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {place: {"rope_type": "default", "rope_theta": 500000.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    p, _ = trained(tmp_path, "config.json")
    assert p.returncode == 0, p.stderr
    p = run(TRAINER, "convert", "--huggingface", newest(tmp_path / "ck"), tmp_path / "back")
    written = json.loads((tmp_path / "back/config.json").read_text())
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 500000, p.stderr


def test_dropout_of_attention_is_told_as_not_done(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GPT2 | {"attn_pdrop": 0.1}))
    p, _ = trained(tmp_path, "config.json")
    told = "attn_pdrop is 0.1: dropout on attention probabilities is not done here"
    assert p.returncode == 0 and told in p.stderr, p.stderr
    p, _ = trained(tmp_path, "config.json", "--procs", 2)
    assert p.returncode == 0 and p.stderr.count(told) == 1, p.stderr
    p = generate("--checkpoint", newest(tmp_path / "ck") / "model.safetensors", "--arch", tmp_path / "config.json", "--tokens", 1, "--count", 1)
    assert p.returncode == 0 and p.stderr == "", p.stderr  # nothing is trained


def llmc(path, tensors, version=3, rows=384):
    """llm.c's file: the tensors of all layers one behind the other, the embedding padded."""
    header = np.zeros(256, "<i4")
    header[:8] = 20240326, version, T, V, 2, 2, C, rows
    order = ["wte.weight", "wpe.weight", *(f"h.{i}.{n}" for n in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",
                                                                 "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias") for i in range(2)), "ln_f.weight", "ln_f.bias"]
    data = [np.vstack([tensors["transformer.wte.weight"], np.zeros((rows - V, C))]) if n == "wte.weight" else tensors[f"transformer.{n}"] for n in order]
    flat = np.concatenate([x.ravel() for x in data]).astype("<f4")
    path.write_bytes(header.tobytes() + (flat.tobytes() if version == 3 else (flat.view("<u4") >> 16).astype("<u2").tobytes()))


@pytest.mark.parametrize("version", [3, 5])
def test_llm_c_s_weights_are_read(ours, tmp_path, version):
    (tmp_path / "m.net").write_text(shipped("gpt2", GPT2_NET))
    llmc(tmp_path / "w.bin", ours["gpt2"], version)
    p, got = trained(tmp_path, "m.net", "--pretrained", tmp_path / "w.bin")
    assert p.returncode == 0 and "warn" not in p.stderr, p.stderr
    wanted = {k: v.astype("f4") for k, v in ours["gpt2"].items()}
    if version == 5:
        wanted = {k: (v.view("u4") & 0xffff0000).view("f4") for k, v in wanted.items()}
    assert all(np.array_equal(got[k], wanted[k]) for k in got)


@pytest.mark.parametrize("change, sentence", [(lambda b: b[:-1], "bytes (expected"), (lambda b: b[:4] + b"\4" + b[5:], "has version 4 of llm.c's weights (expected 3, fp32, or 5, bf16)"),
                                              (lambda b: b[:16] + b"\0" * 4 + b[20:], "tells of 0 layers of 16"), (lambda b: b[:20], "is cut short")])
def test_a_damaged_file_of_llm_c_is_refused(ours, tmp_path, change, sentence):
    (tmp_path / "m.net").write_text(shipped("gpt2", GPT2_NET))
    llmc(tmp_path / "w.bin", ours["gpt2"])
    (tmp_path / "w.bin").write_bytes(change((tmp_path / "w.bin").read_bytes()))
    p, _ = trained(tmp_path, "m.net", "--pretrained", tmp_path / "w.bin")
    assert p.returncode == 65 and sentence in p.stderr, p.stderr


# --- trainer generate

def generate(*args):
    return run(TRAINER, "generate", "--device", "ref", *args)


@pytest.fixture
def checkpoint(ours, tmp_path):
    (tmp_path / "m.net").write_text(shipped("gpt2", GPT2_NET))
    save(tmp_path / "w.safetensors", hugging_face({k: 4 * v for k, v in ours["gpt2"].items()}))
    p, _ = trained(tmp_path, "m.net", "--pretrained", tmp_path / "w.safetensors")
    assert p.returncode == 0, p.stderr
    return tmp_path / "ck"


def test_greedy_continues_by_itself_and_past_the_window(checkpoint, tmp_path):
    """40 tokens at once are those of 40 calls that add one each, also once the window of 32 has moved on; a bare file gives the same."""
    p = generate("--checkpoint", checkpoint, "--tokens", "1, 2 3", "--count", 40)
    assert p.returncode == 0, p.stderr
    tokens = [int(t) for t in p.stdout.split()]
    assert len(tokens) == 40 and len(set(tokens)) > 1
    for done in (0, 1, 20, 39):
        one = generate("--checkpoint", checkpoint, "--tokens", ",".join(map(str, [1, 2, 3, *tokens[:done]])), "--count", 1)
        assert int(one.stdout) == tokens[done]
    bare = generate("--checkpoint", tmp_path / "w.safetensors", "--arch", tmp_path / "m.net", "--tokens", "1,2,3", "--count", 40)
    assert bare.stdout == p.stdout, bare.stderr


def test_draws_follow_the_seed(checkpoint):
    p = [generate("--checkpoint", checkpoint, "--tokens", "5", "--count", 30, "--topk", 20, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert p[0] == p[1] != p[2] and len(p[0].split()) == 30


def test_text_goes_in_and_comes_out_as_bytes(checkpoint):
    text = run(TRAINER, "generate", "--device", "ref", "--checkpoint", checkpoint, "--prompt", "ab", "--count", 20, encoding="latin-1")
    tokens = generate("--checkpoint", checkpoint, "--tokens", "97,98", "--count", 20)
    assert text.returncode == 0 and [ord(c) for c in text.stdout[:-1]] == [int(t) for t in tokens.stdout.split()], text.stderr


@pytest.mark.parametrize("args, code, sentence", [(["--tokens", "1,256"], 2, "--tokens: 256 (expected 0 to 255, the vocabulary of m)"), (["--tokens", "x"], 2, "--tokens: 'x': expected a number"), ([], 2, "either --prompt TEXT or --tokens"),
                                                  (["--prompt", "a", "--tokens", "1"], 2, "either --prompt TEXT or --tokens"), (["--prompt", ""], 2, "there is no token to continue"), (["--tokens", "1,,2"], 2, "--tokens: ',2': expected a number"),
                                                  (["--tokens", "1,2,"], 2, "expected a number behind the last comma"), (["--tokens", "1.5"], 2, "--tokens: '1.5': expected a number")])
def test_what_cannot_be_continued_is_told(checkpoint, args, code, sentence):
    p = generate("--checkpoint", checkpoint, *args)
    assert p.returncode == code and sentence in p.stderr and p.stdout == "", p.stderr


def test_a_bare_file_needs_its_model(checkpoint, tmp_path):
    p = generate("--checkpoint", tmp_path / "w.safetensors", "--tokens", "1")
    assert p.returncode == 2 and "w.safetensors is a bare file of weights, without the config.json that says of which model: give that as --arch" in p.stderr, p.stderr
    p = generate("--checkpoint", tmp_path / "w.safetensors", "--arch", "resnet18", "--tokens", "1")
    assert p.returncode == 2 and "resnet18 reads pictures: trainer predict is for such models" in p.stderr, p.stderr


def test_weights_whose_config_json_lacks_say_so(ours, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "m.net").write_text(shipped("gpt2", GPT2_NET))
    save(folder / "model.safetensors", hugging_face(ours["gpt2"]))
    lacks = f"'{folder}' lacks config.json, which says of which model its model.safetensors is: add it, or give that file, {folder}/model.safetensors, with --arch"
    for p in generate("--checkpoint", folder, "--tokens", 1), trained(tmp_path, "m.net", "--pretrained", folder)[0]:
        assert p.returncode == 2 and p.stderr.splitlines()[-1].endswith(lacks), p.stderr
    p, _ = trained(tmp_path, "m.net", "--arch", "mlp", "--pretrained", folder / "model.safetensors")
    assert p.returncode == 78 and "is it of another --arch? A file of weights does not say which; a config.json that came with it does" in p.stderr, p.stderr
    (folder / "config.json").write_text(json.dumps(GPT2))
    for path in folder, folder / "model.safetensors":
        p = generate("--checkpoint", path, "--tokens", 1)
        assert p.returncode == 2 and f"{path} are weights alone: --arch {folder}/config.json says of which model" in p.stderr, p.stderr


def test_predict_is_for_pictures(checkpoint):
    p = run(TRAINER, "predict", "--checkpoint", checkpoint, ROOT / "README.md")
    assert p.returncode == 2 and "reads tokens: trainer generate" in p.stderr, p.stderr
