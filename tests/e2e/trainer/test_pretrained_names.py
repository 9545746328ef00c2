"""Vision transformers with the names of Hugging Face and timm are taken as they are: --pretrained maps names and packs queries, keys, values."""
import re

import numpy as np
import pytest

from support import ROOT, TRAINER, run
from tensors import load, newest, save

NAMES = [("class_token", "embeddings.cls_token", "cls_token"), ("encoder.pos_embedding", "embeddings.position_embeddings", "pos_embed"),
         ("conv_proj", "embeddings.patch_embeddings.projection", "patch_embed.proj"), ("encoder.ln", "layernorm", "norm"),
         ("ln_1", "layernorm_before", "norm1"), ("ln_2", "layernorm_after", "norm2"), ("self_attention.out_proj", "attention.output.dense", "attn.proj"),
         ("mlp.0", "intermediate.dense", "mlp.fc1"), ("mlp.3", "output.dense", "mlp.fc2"), ("heads.head", "classifier", "head")]


def renamed(tensors, hf, prefix="vit."):
    out = {}
    for name, v in tensors.items():
        layer = re.match(r"encoder\.layers\.encoder_layer_(\d+)\.(.*)", name)
        rest = layer[2] if layer else name
        where = "" if not layer else f"encoder.layer.{layer[1]}." if hf else f"blocks.{layer[1]}."
        packed = re.match(r"self_attention\.in_proj_(\w+)", rest)
        if packed and hf:
            for part, x in zip(("query", "key", "value"), np.split(v, 3)):
                out[f"{prefix}{where}attention.attention.{part}.{packed[1]}"] = x
        elif packed:
            out[f"{where}attn.qkv.{packed[1]}"] = v
        else:
            ours, *theirs = max((n for n in NAMES if rest == n[0] or rest.startswith(n[0] + ".")), key=lambda n: len(n[0]))
            out[("" if rest.startswith("heads") or not hf else prefix) + where + theirs[0 if hf else 1] + rest[len(ours):]] = v
    return out


@pytest.fixture(scope="module")
def command(shapes, tmp_path_factory):
    net = tmp_path_factory.mktemp("net") / "vit.net"
    net.write_text((ROOT / "worker/model/nets/vit.net").read_text() + "set patch=8 width=32 layers=2 heads=2 mlp=64\n")
    return [TRAINER, "--train-data", shapes(24, 72, 20, 3) / "train", "--arch", net, "--image-size", 24, "--batch-size", 24, "--device", "ref",
            "--max-steps", 1]


@pytest.fixture(scope="module")
def ours(command, tmp_path_factory):
    """Weights that no run begins with: biases are not zeros."""
    out = tmp_path_factory.mktemp("ours")
    p = run(*command, "--seed", 5, "--checkpoint-dir", out)
    assert p.returncode == 0, p.stderr
    draw = np.random.default_rng(3)
    return {k: v + 0.01 * draw.standard_normal(v.shape) for k, v in load(newest(out) / "model.safetensors").items()}


def taken(command, tmp_path, tensors):
    save(tmp_path / "theirs.safetensors", tensors)
    p = run(*command, "--pretrained", tmp_path / "theirs.safetensors", "--base-learning-rate", 0, "--checkpoint-dir", tmp_path / "ck")
    return p, load(newest(tmp_path / "ck") / "model.safetensors") if p.returncode == 0 else None


@pytest.mark.parametrize("hf, prefix", [(True, "vit."), (True, ""), (False, "")], ids=["hugging face", "its bare model", "timm"])
def test_names_are_mapped_and_parts_are_packed(command, ours, tmp_path, hf, prefix):
    p, got = taken(command, tmp_path, renamed(ours, hf, prefix))
    assert p.returncode == 0 and "is left out" not in p.stderr, p.stderr
    assert got.keys() == ours.keys() and all((got[k] == ours[k]).all() for k in ours)


def test_a_model_without_a_head_leaves_it_at_its_initial_values(command, ours, tmp_path):
    theirs = {k: v for k, v in renamed(ours, True, "").items() if not k.startswith("classifier")}
    theirs["pooler.dense.weight"] = np.zeros((32, 32))
    p, got = taken(command, tmp_path, theirs)
    assert p.returncode == 0 and "'heads.head.weight' is not there and stays at its initial value" in p.stderr, p.stderr
    assert "'pooler.dense.weight' is no part of this model and is left out" in p.stderr and p.stderr.count("is left out") == 1
    assert (got["heads.head.weight"] == 0).all() and (got["conv_proj.bias"] == ours["conv_proj.bias"]).all()


def test_parts_that_do_not_fit_are_refused(command, ours, tmp_path):
    theirs = renamed(ours, True)
    for change in (lambda v: v[:, 1:], lambda v: v[1:]):
        name = "vit.encoder.layer.1.attention.attention.value.weight"
        p, _ = taken(command, tmp_path, theirs | {name: np.ascontiguousarray(change(theirs[name]))})
        assert p.returncode == 78 and "encoder.layers.encoder_layer_1.self_attention.in_proj_weight'" in p.stderr, p.stderr
