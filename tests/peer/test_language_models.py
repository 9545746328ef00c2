"""Beside Hugging Face's transformers: its models load here and ours load there, with the same loss and the same continuation; its tokenizers write our files."""
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from support import ROOT, TRAINER, run
from tensors import newest

T, V, WINDOWS = 32, 256, 12
NONE = dict(bos_token_id=None, eos_token_id=None)


def made(name):
    torch.manual_seed(1)
    if name == "gpt2":
        m = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=T, vocab_size=V, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, **NONE))
    else:
        m = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=T,
                                         vocab_size=V, rms_norm_eps=1e-5, tie_word_embeddings=name == "llama, tied", **NONE))
    with torch.no_grad():
        for p in m.parameters():
            p.add_(0.1 * torch.randn_like(p))  # no run begins with these
    return m


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    out = tmp_path_factory.mktemp("text")
    assert run(TRAINER, "make-data", "text", "--text", ROOT / "docs/guide/data.md", "--out", out, "--val-share", 0.2).returncode == 0
    return out


def loss_of(model, tokens, windows=WINDOWS, length=T):
    tokens = torch.from_numpy(tokens.astype(np.int64))
    x, y = tokens[:windows * length].view(windows, length), tokens[1:windows * length + 1].view(windows, length)
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten()).item()


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama, tied"])
def test_weights_go_both_ways_with_the_same_loss_and_continuation(text, tmp_path, name):
    theirs = made(name)
    theirs.save_pretrained(tmp_path / "theirs")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float64).eval()
    p = run(TRAINER, "--train-data", text, "--test-data", text, "--arch", tmp_path / "theirs/config.json", "--pretrained", tmp_path / "theirs", "--device", "ref", "--lr", 0,
            "--batch-size", 4, "--max-steps", 1, "--eval-steps", WINDOWS // 4, "--checkpoint-dir", tmp_path / "ck")
    assert p.returncode == 0, p.stderr
    val = np.frombuffer((text / "val.bin").read_bytes()[1024:], "<u2")
    assert float(re.search(r"loss (\S+)", p.stdout)[1]) == pytest.approx(loss_of(theirs, val), abs=1e-6)
    back = run(TRAINER, "convert", "--huggingface", newest(tmp_path / "ck"), tmp_path / "back")
    assert back.returncode == 0, back.stderr
    ours, info = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float64, output_loading_info=True)
    assert not any(info.values()), info
    a, b = theirs.state_dict(), ours.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    prompt = [72, 101, 108, 108, 111]
    with torch.no_grad():
        wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=T - len(prompt), do_sample=False, pad_token_id=0)[0, len(prompt):].tolist()
    p = run(TRAINER, "generate", "--checkpoint", tmp_path / "ck", "--device", "ref", "--tokens", ",".join(map(str, prompt)), "--count", T - len(prompt))
    assert p.returncode == 0 and [int(t) for t in p.stdout.split()] == wanted, p.stderr


@pytest.mark.timeout(600)
def test_a_gpt2_of_full_size_begins_where_pytorch_would(tmp_path):
    """On English text: ln V + width * 0.02^2 / 2, as the head is the embedding, whose values are normal; PyTorch says the same of the same weights."""
    pages = [f for f in sorted(pathlib.Path("/usr/share/common-licenses").glob("*")) if f.is_file()] or sorted((ROOT / "docs").rglob("*.md"))
    text = " ".join(" ".join(f.read_text() for f in pages).split())
    (tmp_path / "text.txt").write_text(text)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(tmp_path / "text.txt")], vocab_size=50257, min_frequency=1, show_progress=False)
    tokens = np.array(tokenizer.encode(text).ids[:4 * 1024 + 1], "<u2")
    tokens.tofile(tmp_path / "tokens.bin")
    data = tmp_path / "tokens.bin"
    p = run(TRAINER, "--train-data", data, "--test-data", data, "--token-bytes", 2, "--arch", "gpt2", "--device", "cpu", "--lr", 0, "--batch-size", 1, "--max-steps", 1,
            "--eval-steps", 4, "--checkpoint-dir", tmp_path / "ck", timeout=300)
    assert p.returncode == 0, p.stderr
    loss = float(re.search(r"loss (\S+)", p.stdout)[1])
    assert run(TRAINER, "convert", "--huggingface", newest(tmp_path / "ck"), tmp_path / "there").returncode == 0
    theirs = loss_of(AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval(), tokens, 4, 1024)
    print(f"{len(text)} characters of English, vocabulary of {tokenizer.get_vocab_size()}: loss {loss:.6f}, PyTorch's {theirs:.6f}")
    assert abs(loss - 10.98) <= 0.05 and loss == pytest.approx(theirs, abs=1e-5)


def test_the_lines_of_the_guide_write_what_is_read(tmp_path):
    """A tokenizer that is trained on the spot; the lines are those of docs/guide/data.md."""
    page = (ROOT / "docs/guide/data.md").read_text()
    (tmp_path / "text.txt").write_text(page)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(tmp_path / "text.txt")], vocab_size=600, show_progress=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "lines.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    subprocess.run([sys.executable, "lines.py"], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "m.net").write_text((ROOT / "worker/model/nets/gpt2.net").read_text() + "set width=16 layers=1 heads=2 context=16 vocabulary=600\n")
    p = run(TRAINER, "--train-data", tmp_path / "train.bin", "--arch", tmp_path / "m.net", "--device", "ref", "--batch-size", 4, "--max-steps", 1)
    assert p.returncode == 0 and f"{(len(tokenizer.encode(page).ids) - 1) // 16} training sequences" in p.stderr, p.stderr
