"""Files of tokens: a small language model on the bytes of a text, and what is wrong with a file."""
import fcntl
import json
import math
import signal
import subprocess

import numpy as np
import pytest

from metrics_file import losses, records, steps_of
from support import ROOT, TRAINER, run
from tensors import load, newest

LENGTH = 32
MAGIC = {2: (20240520, 1), 4: (20240801, 7)}


def file_of_tokens(path, tokens, width=2, count=None):
    """llm.c's: a header of 256 int32, then the tokens."""
    header = np.zeros(256, "<i4")
    header[:3] = (*MAGIC[width], len(tokens) if count is None else count)
    path.write_bytes(header.tobytes() + np.asarray(tokens, f"<u{width}").tobytes())
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("text")
    (out / "text").write_bytes((ROOT / "README.md").read_bytes() + (ROOT / "docs/guide/data.md").read_bytes())
    p = run(TRAINER, "make-data", "text", "--text", out / "text", "--out", out / "set", "--val-share", 0.2)
    assert p.returncode == 0 and "of a vocabulary of 256" in p.stdout, p.stderr
    return out / "set"


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "tiny.net"
    path.write_text((ROOT / "worker/model/nets/gpt2.net").read_text() + f"set width=16 layers=2 heads=2 context={LENGTH} vocabulary=256\n")
    return path


@pytest.fixture
def train(data, net):
    def it(*args, data=data, device="ref", timeout=120):
        return run(TRAINER, "--train-data", data, "--arch", net, "--device", device, "--amp", "off", "--optimizer", "adamw", "--lr", 0.01, "--lr-policy", "fixed", "--warmup-epochs", 0,
                   "--batch-size", 6, "--epoch-size", 60, "--num-epochs", 1000, "--log-level", "info", *args, timeout=timeout)
    return it


def batches(path):
    """{(epoch, step): ids of all ranks}"""
    out = {}
    for line in path.read_text().splitlines():
        b = json.loads(line)
        out.setdefault((b["epoch"], b["step"]), []).extend(b["ids"])
    return {k: sorted(v) for k, v in out.items()}


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_a_small_model_learns_bytes_and_says_its_perplexity(train, data, net, tmp_path, device):
    p = train("--max-steps", 60, "--test-data", data, "--eval-steps", 4, "--log-dir", tmp_path, "--checkpoint-dir", tmp_path / "ck", device=device)
    assert p.returncode == 0, p.stderr
    loss = losses(tmp_path)
    assert abs(loss[0] - math.log(256)) < 0.1 and sum(loss[-5:]) / 5 < loss[0] - 1.5
    for s in steps_of(tmp_path):
        assert s["perplexity"] == pytest.approx(math.exp(s["loss"]), rel=1e-6) and s["tokens_per_sec"] > 0 and "images_per_sec" not in s
    test = [r for r in records(tmp_path) if "test_loss" in r][-1]
    assert test["test_tokens"] == 4 * 6 * LENGTH and test["test_perplexity"] == pytest.approx(math.exp(test["test_loss"]), rel=1e-6)
    assert p.stdout == f" * loss {test['test_loss']:.6f} perplexity {math.exp(test['test_loss']):.4f}\n"
    n = (data / "train.bin").stat().st_size // 2 - 512
    assert f"{(n - 1) // LENGTH} training sequences" in p.stderr and f"sequences of {LENGTH} tokens" in p.stderr and " tok/s" in p.stderr
    left = (n - 1) % LENGTH
    assert (f"--train-data: the last {left} of {n} tokens are left out: a sample has {LENGTH}" in p.stderr) == (left > 0)
    assert "perplexity" in p.stderr and f" tokens/s over " in p.stderr
    again = run(TRAINER, "-e", tmp_path / "ck", "--test-data", data, "--device", device, "--amp", "off", "--batch-size", 6, "--eval-steps", 4, timeout=60)
    assert again.returncode == 0 and again.stdout == p.stdout, again.stderr
    assert "--train-data" not in again.stderr
    bare = run(TRAINER, "-e", "--pretrained", tmp_path / "ck", "--arch", net, "--test-data", data, "--device", device, "--amp", "off", "--batch-size", 6, "--eval-steps", 4, timeout=60)
    assert bare.returncode == 0 and bare.stdout == p.stdout, bare.stderr


def test_another_world_reads_the_same_windows(train, tmp_path):
    """15 steps of one rank, then of three, begin and end in the middle of a pass."""
    for world in (1, 3):
        p = train("--max-steps", 15, "--procs", world, "--debug-batch-sha", tmp_path / f"sha{world}", "--log-dir", tmp_path / str(world))
        assert p.returncode == 0, p.stderr
    one, three = batches(tmp_path / "sha1"), batches(tmp_path / "sha3")
    assert one == three and len(one) == 15 and all(len(v) == 6 for v in one.values())
    assert np.abs(np.array(losses(tmp_path / "1")) - losses(tmp_path / "3")).max() < 1e-9


def test_the_run_goes_on_exactly_after_kill_9_and_in_another_world(train, tmp_path):
    saves = ["--checkpoint-every", 12, "--checkpoint-keep", 0, "--checkpoint-sync", "--max-steps", 72]
    straight = train(*saves, "--checkpoint-dir", tmp_path / "straight", "--debug-batch-sha", tmp_path / "sha")
    assert straight.returncode == 0, straight.stderr
    args = [a.replace("straight", "killed").replace("/sha", "/sha-killed") for a in straight.args]
    with subprocess.Popen([*args, "--print-freq", "1"], stderr=subprocess.PIPE, text=True) as p:
        fcntl.fcntl(p.stderr, fcntl.F_SETPIPE_SZ, 4096)  # it gets some forty lines ahead, no more
        for line in p.stderr:
            if "Epoch 2/1000 [ 5/10]" in line:
                p.send_signal(signal.SIGKILL)
                break
        p.stderr.read()
    assert p.returncode == -signal.SIGKILL
    done = int(newest(tmp_path / "killed").name[5:])
    on = train(*saves, "--checkpoint-dir", tmp_path / "killed", "--resume", "auto", "--debug-batch-sha", tmp_path / "sha-on")
    assert on.returncode == 0 and 12 <= done < 72, on.stderr
    read = batches(tmp_path / "sha")
    assert batches(tmp_path / "sha-on") == {k: v for k, v in read.items() if k >= divmod(done, 10)}
    for file in ("model", "train"):
        assert (newest(tmp_path / "killed") / f"{file}.safetensors").read_bytes() == (newest(tmp_path / "straight") / f"{file}.safetensors").read_bytes()
    two = train("--max-steps", 36, "--procs", 2, "--resume", tmp_path / "straight/step-00000012", "--checkpoint-dir", tmp_path / "two", "--debug-batch-sha", tmp_path / "sha-two")
    assert two.returncode == 0, two.stderr
    assert batches(tmp_path / "sha-two") == {k: v for k, v in read.items() if (1, 2) <= k < (3, 6)}
    a, b = load(newest(tmp_path / "two") / "model.safetensors"), load(tmp_path / "straight/step-00000036/model.safetensors")
    assert all(np.abs(a[k] - b[k]).max() < 1e-9 for k in b)


def test_a_tied_head_is_one_parameter_of_two_stages(train, tmp_path):
    """The first stage and the last one have a copy each: losses and a clipped norm are those of one process, a checkpoint that is loaded in stages is saved as it was."""
    args = ["--max-steps", 8, "--clip-grad-norm", 0.3, "--accumulate", 2]
    for name, layout in (("one", []), ("stages", ["--procs", 4, "--stages", 2, "--zero", 2])):
        p = train(*args, *layout, "--log-dir", tmp_path / f"log-{name}", "--checkpoint-dir", tmp_path / name)
        assert p.returncode == 0, p.stderr
    assert np.abs(np.array(losses(tmp_path / "log-one")) - losses(tmp_path / "log-stages")).max() < 1e-9
    a, b = (load(newest(tmp_path / name) / "model.safetensors") for name in ("one", "stages"))
    assert a.keys() == b.keys() and all(np.abs(a[k] - b[k]).max() < 1e-9 for k in a)
    again = train(*args, "--procs", 3, "--stages", 3, "--resume", newest(tmp_path / "stages"), "--checkpoint-dir", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    for file in ("model", "train"):
        assert (newest(tmp_path / "stages") / f"{file}.safetensors").read_bytes() == (newest(tmp_path / "again") / f"{file}.safetensors").read_bytes()


BLOCKS, VOCABULARY = (["--model-parallel-dim", dim, "--model-parallel-size"] for dim in ("blocks", 1))
CHAIN = [["--procs", 4, *VOCABULARY, 2, "--stages", 2, "--microbatches", 2], ["--procs", 3, *VOCABULARY, 3, "--zero", 1], ["--procs", 6, *BLOCKS, 2, "--zero", 3],
         ["--procs", 4, "--stages", 2, "--zero", 2]]


def test_a_checkpoint_goes_through_layouts_that_share_blocks(data, tmp_path):
    """Three heads of keys over two ranks, and over three, 256 tokens over three: what is loaded is saved as it was."""
    net = tmp_path / "grouped.net"
    net.write_text((ROOT / "worker/model/nets/llama.net").read_text() + f"set width=24 layers=2 heads=6 kv_heads=3 mlp=25 context={LENGTH} vocabulary=256\n")
    args = [TRAINER, "--train-data", data, "--arch", net, "--device", "ref", "--amp", "off", "--optimizer", "adamw", "--lr", 0.01, "--batch-size", 12, "--max-steps", 4]
    logs = []
    for name, layout in (("one", []), ("first", CHAIN[0])):
        p = run(*args, *layout, "--log-dir", tmp_path / f"log-{name}", "--checkpoint-dir", tmp_path / name)
        assert p.returncode == 0, p.stderr
        logs.append(np.array(losses(tmp_path / f"log-{name}")))
    assert "groups of 2 ranks that share blocks and the vocabulary: 1" in p.stderr and np.abs(logs[0] - logs[1]).max() < 1e-9
    for i, layout in enumerate(CHAIN[1:] + CHAIN[:1]):
        p = run(*args, *layout, "--resume", newest(tmp_path / (f"{i - 1}" if i else "first")), "--checkpoint-dir", tmp_path / str(i))
        assert p.returncode == 0, p.stderr
        for file in ("model", "train"):
            assert (newest(tmp_path / str(i)) / f"{file}.safetensors").read_bytes() == (newest(tmp_path / "first") / f"{file}.safetensors").read_bytes()


def test_what_a_shared_vocabulary_sends_is_as_planned(train, tmp_path):
    """256 tokens over three ranks, of 1,152 rows: two blocks of logits. On the cpu device losses are those of one process."""
    args = ["--batch-size", 36, "--max-steps", 2, "--threads", 1]
    for name, layout in (("one", []), ("three", ["--procs", 3, *VOCABULARY, 3, "--mem-report"])):
        p = train(*args, *layout, "--log-dir", tmp_path / name, device="cpu")
        assert p.returncode == 0, p.stderr
    assert "that share blocks and the vocabulary" in p.stderr
    assert np.abs(np.array(losses(tmp_path / "one")) - losses(tmp_path / "three")).max() < 1e-5
    planned = run(p.args[0], "plan", *p.args[1:p.args.index("--procs")], *VOCABULARY, 3, "--world-size", 3, "--json")
    assert planned.returncode == 0, planned.stderr
    there = [r["ranks"] for r in records(tmp_path / "three") if r.get("event") == "mem-report"][-1]
    for k, rank in zip(json.loads(planned.stdout)["ranks"], there, strict=True):
        assert rank["sends"] == k["sends"] and {name: rank["memory"][name] for name in k["memory"]} == k["memory"]


def test_shared_blocks_go_on_exactly_after_kill_9(train, tmp_path):
    """Two ranks a group in two stages: what is left of the run has the bits of one that nobody killed."""
    saves = [*CHAIN[0], "--checkpoint-every", 8, "--checkpoint-sync", "--max-steps", 24]
    straight = train(*saves, "--checkpoint-dir", tmp_path / "straight")
    assert straight.returncode == 0, straight.stderr
    args = [a.replace("straight", "killed") for a in straight.args]
    with subprocess.Popen([*args, "--print-freq", "1"], stderr=subprocess.PIPE, text=True) as p:
        fcntl.fcntl(p.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for line in p.stderr:
            if "Epoch 2/1000 [ 3/10]" in line:
                p.send_signal(signal.SIGKILL)
                break
        p.stderr.read()
    assert p.returncode == -signal.SIGKILL and 8 <= int(newest(tmp_path / "killed").name[5:]) < 24
    on = train(*saves, "--checkpoint-dir", tmp_path / "killed", "--resume", "auto")
    assert on.returncode == 0, on.stderr
    for file in ("model", "train"):
        assert (newest(tmp_path / "killed") / f"{file}.safetensors").read_bytes() == (newest(tmp_path / "straight") / f"{file}.safetensors").read_bytes()


def wrong(tmp_path, what):
    """A path, more options, and what is said of them."""
    if what == "header":
        (tmp_path / "f.bin").write_bytes(b"\1\2" * 600)
        return tmp_path / "f.bin", [], "has no header of llm.c's (20240520 or 20240801): of tokens without one --token-bytes is 2 or 4"
    if what == "width":
        return file_of_tokens(tmp_path / "f.bin", [1] * 100), ["--token-bytes", 4], "has llm.c's header, of tokens of 2 bytes (expected 4, --token-bytes)"
    if what == "odd":
        (tmp_path / "f.bin").write_bytes(b"\1\0" * 600 + b"\1")
        return tmp_path / "f.bin", ["--token-bytes", 2], "has 1201 bytes (expected a multiple of 2, --token-bytes)"
    if what == "cut shard":
        for name, n in (("a.bin", 100), ("b.bin", 101)):
            file_of_tokens(tmp_path / name, [1] * 100, count=n)
        return tmp_path, [], "b.bin' has 1224 bytes, and its header tells of 101 tokens of 2 (expected 1226 bytes)"
    if what == "empty folder":
        return tmp_path, [], "holds no file of tokens (expected some with names NAME.bin)"
    if what == "short":
        return file_of_tokens(tmp_path / "f.bin", [1] * LENGTH), [], f"holds {LENGTH} tokens (expected at least {LENGTH + 1}"
    if what == "token":
        return file_of_tokens(tmp_path / "f.bin", [1] * 50 + [256] + [1] * 50), [], "token 256 at byte 1124 of '"
    if what == "wide token":
        return file_of_tokens(tmp_path / "f.bin", [1] * 50 + [2 ** 32 - 1] + [1] * 50, 4), [], "token 4294967295 at byte 1224 of '"
    return tmp_path / "nowhere", [], "does not exist"


@pytest.mark.parametrize("what", ["header", "width", "odd", "cut shard", "empty folder", "short", "token", "wide token", "nowhere"])
def test_a_wrong_file_is_told_in_one_sentence(train, tmp_path, what):
    path, args, sentence = wrong(tmp_path, what)
    p = train(*args, "--max-steps", 20, data=path)
    last = p.stderr.splitlines()[-1]
    assert p.returncode == 65 and last.startswith("trainer: ") and sentence in last, p.stderr


@pytest.mark.parametrize("args, sentence", [
    (["--image-size", 28], "--image-size is of no use with tiny, which reads tokens"), (["--ignore-index", 3], "--ignore-index is of no use with tiny, which reads tokens"),
    (["--arch", "convnet", "--token-bytes", 2], "--token-bytes is of no use with convnet, which reads pictures"), (["--token-bytes", 3], "--token-bytes 3: must be 2 or 4"),
    (["--data-format", "lmdb"], "--data-format lmdb are pictures, and tiny reads tokens"), (["--num-labels", 100], "--num-labels 100: the vocabulary of tiny is 256"),
    (["--arch", "convnet", "--data-format", "tokens"], "such a set is for a model that reads tokens"), (["--sequence-length", 64], "sequences of 64 tokens (expected at most 32")])
def test_options_that_do_not_fit_are_refused(train, args, sentence):
    p = train(*args, "--max-steps", 1)
    assert p.returncode == 2 and sentence in p.stderr, p.stderr


def test_a_vocabulary_of_one_token_is_refused(train, tmp_path):
    net = tmp_path / "one.net"
    net.write_text(f"tokens length={LENGTH} vocabulary=1\nembed e out=4\nhead h\n")
    p = train("--arch", net, "--max-steps", 1)
    assert p.returncode == 2 and p.stderr == "trainer: --arch one: a vocabulary of 1 (expected at least 2 tokens)\n"


def test_widths_and_shards_give_the_same_windows(train, data, tmp_path):
    """The same tokens as one file of u16, as raw u32, and cut into shards of both widths."""
    tokens = np.frombuffer((data / "train.bin").read_bytes()[1024:], "<u2")
    tokens.astype("<u4").tofile(tmp_path / "raw")
    (tmp_path / "shards").mkdir()
    for i, (part, width) in enumerate(zip(np.split(tokens, [7, 1000, 1000, 5001]), (2, 4, 2, 2, 4))):
        file_of_tokens(tmp_path / "shards" / f"{i}.bin", part, width)
    hashes = []
    for name, path, args in (("u16", data, []), ("raw", tmp_path / "raw", ["--token-bytes", 4]), ("shards", tmp_path / "shards", [])):
        p = train(*args, "--max-steps", 12, "--debug-batch-sha", tmp_path / f"sha-{name}", data=path)
        assert p.returncode == 0, p.stderr
        hashes.append((tmp_path / f"sha-{name}").read_text())
    assert hashes[0] == hashes[1] == hashes[2] != ""


def test_made_up_tokens_need_no_file(train):
    p = train("--max-steps", 2, "--null-images", 30, data="null")
    assert p.returncode == 0 and "(synthetic)" in train("--max-steps", 10, "--null-images", 300, data="null").stderr, p.stderr
