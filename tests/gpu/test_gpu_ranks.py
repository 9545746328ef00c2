"""Several ranks, one GPU: NCCL alone through every store, gloo through host memory, NCCL between two ranks that pass for two hosts."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from hung import COMM_TIMEOUT, run_ranks
from support import CRUN, ROOT, TRAINER, run
from tensors import load, newest

MODEL = ["--arch", "resnet18", "--image-size", 64, "--batch-size", 32, "--lr", 0.02, "--lr-policy", "fixed", "--seed", 5, "--device", "cuda", "--amp", "off",
         "--no-tf32", "--no-autotune"]  # which engines are fastest is no matter here, and finding out takes longer than the runs

ONE_GPU = ["--oversubscribe"]


def losses(folder):
    return np.array([m["loss"] for m in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "lr" in m])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("more, comm", [("", "nccl"), ("--comm gloo", "gloo"), ("--num_gpus 1", "auto")])
def test_nccl_by_caffe2s_name(more, comm):
    p = run(TRAINER, "caffe2", *f"--train_data x --num_gpus 2 --use_nccl {more} --print-config".split())
    assert p.returncode == 0 and re.search(rf"^comm = {comm} ", p.stdout, re.M), p.stdout + p.stderr


@pytest.fixture
def redis(tmp_path):
    at = shutil.which("redis-server")
    if not at:
        pytest.skip("no redis-server")
    port = free_port()
    p = subprocess.Popen([at, "--port", str(port), "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield port
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def world_of_one(shapes, out, *store):
    p = run(TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--max-steps", 3, "--comm", "nccl", "--log-dir", out, *store, timeout=300,
            env={k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")})
    assert p.returncode == 0, p.stdout + p.stderr
    return losses(out)


@pytest.fixture(scope="module")
def alone(shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    p = run(TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--max-steps", 3, "--comm", "local", "--checkpoint-dir", out, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return out


def expect_alone(found, alone):
    np.testing.assert_allclose(found, losses(alone), rtol=1e-4)


def test_nccl_alone_through_a_tcp_store(nccl, shapes, tmp_path, alone):
    expect_alone(world_of_one(shapes, tmp_path, "--procs", 1, "--dist-url", f"tcp://127.0.0.1:{free_port()}"), alone)


def test_nccl_alone_through_a_folder(nccl, shapes, tmp_path, alone):
    expect_alone(world_of_one(shapes, tmp_path, "--procs", 1, "--dist-url", f"file://{tmp_path}/store", "--run-id", "one"), alone)


def test_nccl_alone_through_redis(nccl, shapes, tmp_path, alone, redis):
    expect_alone(world_of_one(shapes, tmp_path, "--procs", 1, "--dist-url", f"redis://127.0.0.1:{redis}", "--run-id", "one"), alone)


def test_nccl_alone_through_cruns_own_store(nccl, shapes, tmp_path, alone):
    p = run(CRUN, "--standalone", "--nproc_per_node", 1, TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--max-steps", 3, "--comm", "nccl",
            "--log-dir", tmp_path, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_alone(losses(tmp_path), alone)


def test_every_collective_of_nccl_alone(nccl):
    p = run(TRAINER, "comm-test", "--device", "cuda", "--comm", "nccl", "--max-bytes", 1 << 20, timeout=200)
    print("\n" + p.stdout)
    assert p.returncode == 0 and re.search(r"^# Out of bounds values : 0 OK", p.stdout, re.M), p.stdout + p.stderr


def test_every_collective_between_two_nccl_ranks_on_one_gpu(nccl):
    p = run_ranks("sh", ROOT / "tests/gpu/nccl_one_gpu.sh", CRUN, TRAINER, seconds=300)  # some ms a call
    print("\n" + p.stdout)
    if p.returncode != 0 and "uplicate GPU" in p.stdout + p.stderr:
        pytest.skip("NCCL sees through it and refuses the GPU twice: " + p.stderr[-400:])
    assert p.returncode == 0, p.stdout + p.stderr


def two_ranks(shapes, out, *args, env=None):
    return run_ranks(CRUN, "--standalone", "--nproc_per_node", 2, *(env or []), TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--sync-bn",
                     "--weight-decay", 0, "--max-steps", 1, "--checkpoint-dir", out, "--check-replicas", 1, "--comm-timeout", COMM_TIMEOUT,
                     "--log-level", "info", "--print-freq", 1, *args)  # how far it came, where it hangs


# One rank sums in another order than two, in fp32, eps = 2^-24. A sum of k products, added up one by one, is off by eps sqrt(k / 6) of its size, 1.7e-6 at most
# (k = 512 * 9), two of them by sqrt(2) as much, and after 18 layers d = 1e-5. No ReLU lies behind the last layer: its gradient is off by d, and ten
# times that is its bound. Elsewhere a ReLU within d of 0 may flip, 0.32 d of all, each of which is 2 / n of a gradient's square: sqrt(17 * 0.64 d) in all.
ROUNDING, FLIPS = 1e-4, 1e-2


def expect_same_gradient(one, two, bounds=(("momentum.fc.", ROUNDING), ("momentum.", FLIPS))):
    a, b = load(newest(one) / "train.safetensors"), load(newest(two) / "train.safetensors")
    assert a.keys() == b.keys()
    for part, bound in bounds:
        x, y = (np.concatenate([t[k].astype(np.float64).ravel() for k in sorted(t) if k.startswith(part)]) for t in (a, b))
        apart = np.linalg.norm(x - y) / np.linalg.norm(y)
        print(f"\nrelative difference of {part}: {apart:.2e}, bound {bound:g}")
        assert apart <= bound


@pytest.fixture(scope="module")
def one_rank(shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    p = run(TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--weight-decay", 0, "--max-steps", 1, "--checkpoint-dir", out, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return out


def test_two_ranks_on_one_gpu_through_host_memory_have_one_ranks_gradient(gpu, shapes, tmp_path, one_rank):
    p = two_ranks(shapes, tmp_path, "--comm", "gloo", *ONE_GPU)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path, one_rank)


def two_nccl_ranks(shapes, out, two_hosts, *args):
    p = two_ranks(shapes, out, "--comm", "nccl", *ONE_GPU, *args, env=two_hosts)
    if p.returncode != 0 and "uplicate GPU" in p.stdout + p.stderr:
        pytest.skip("NCCL sees through it and refuses the GPU twice: " + (p.stdout + p.stderr)[-400:])
    return p


def test_two_nccl_ranks_on_one_gpu_that_pass_for_two_hosts(nccl, shapes, tmp_path, one_rank, two_hosts):
    p = two_nccl_ranks(shapes, tmp_path / "out", two_hosts)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path / "out", one_rank)


@pytest.fixture(scope="module")
def two_parts(shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("parts")
    p = run(TRAINER, "--train-data", shapes(64, 640, 40) / "train", *MODEL, "--weight-decay", 0, "--max-steps", 1, "--accumulate", 2, "--checkpoint-dir", out,
            timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return out


PARTS = [["--stages", 2, "--microbatches", 2], ["--stages", 2, "--microbatches", 2, "--schedule", "interleaved"],
         ["--stages", 2, "--microbatches", 2, "--schedule", "gpipe", "--recompute"]]


def test_parameters_that_come_and_go_through_host_memory(gpu, shapes, tmp_path, one_rank):
    p = two_ranks(shapes, tmp_path, "--comm", "gloo", *ONE_GPU, "--zero", 3)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path, one_rank)


@pytest.mark.parametrize("options", PARTS)
def test_stages_through_host_memory_have_one_ranks_gradient(gpu, shapes, tmp_path, two_parts, options):
    p = two_ranks(shapes, tmp_path, "--comm", "gloo", *ONE_GPU, *options)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path, two_parts)


def test_parameters_that_nccl_gathers(nccl, shapes, tmp_path, one_rank, two_hosts):
    p = two_nccl_ranks(shapes, tmp_path / "out", two_hosts, "--zero", 3)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path / "out", one_rank)
    p = two_nccl_ranks(shapes, tmp_path / "graphs", two_hosts, "--zero", 3, "--max-steps", 6)  # captured, and launched again
    assert p.returncode == 0, p.stdout + p.stderr


def test_collectives_in_a_graph_that_is_launched_again(nccl, shapes, tmp_path, two_hosts):
    p = two_nccl_ranks(shapes, tmp_path / "out", two_hosts, "--max-steps", 6, "--autotune")  # by the engines of rank 0
    assert p.returncode == 0, p.stdout + p.stderr


def test_a_failed_run_ends_although_graphs_hold_the_communicator(nccl, shapes, tmp_path, two_hosts):
    """ncclCommAbort() waits for the graphs; whoever owns them must not wait for it first."""
    p = two_nccl_ranks(shapes, tmp_path / "out", two_hosts, "--max-steps", 50, "--base-learning-rate", 1e9)
    assert p.returncode != 0 and "diverged" in p.stdout + p.stderr, p.stdout + p.stderr


@pytest.mark.parametrize("options", PARTS)
def test_stages_whose_messages_nccl_sends_have_one_ranks_gradient(nccl, shapes, tmp_path, two_parts, two_hosts, options):
    p = two_nccl_ranks(shapes, tmp_path / "out", two_hosts, *options)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same_gradient(tmp_path / "out", two_parts)
    p = two_nccl_ranks(shapes, tmp_path / "graphs", two_hosts, *options, "--max-steps", 6)
    assert p.returncode == 0, p.stdout + p.stderr


# A GPT-2 whose ranks share blocks: 5 heads and 257 tokens, which two do not divide. It has no ReLU.
NET = "set width=240 layers=2 heads=5 context=128 vocabulary=257\n"
SHARED = ["blocks", 1]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Options of a small model on the bytes of a text."""
    out = tmp_path_factory.mktemp("text")
    (out / "small.net").write_text((ROOT / "worker/model/nets/gpt2.net").read_text() + NET)
    (out / "text").write_bytes(b"".join(f.read_bytes() for f in sorted((ROOT / "docs/guide").glob("*.md"))))
    p = run(TRAINER, "make-data", "text", "--text", out / "text", "--out", out / "set")
    assert p.returncode == 0, p.stderr
    return ["--train-data", out / "set", "--arch", out / "small.net", "--batch-size", 8, "--lr", 0.02, "--lr-policy", "fixed", "--seed", 5, "--device", "cuda",
            "--weight-decay", 0]


PLAIN = ["--amp", "off", "--no-tf32", "--no-autotune", "--max-steps", 1]


@pytest.fixture(scope="module")
def one_rank_of_text(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    p = run(TRAINER, *text, *PLAIN, "--checkpoint-dir", out, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    return out


def shared(text, dim, *args, env=()):
    p = run_ranks(CRUN, "--standalone", "--nproc_per_node", 2, *env, TRAINER, *text, "--model-parallel-size", 2, "--model-parallel-dim", dim, *ONE_GPU, "--print-freq", 1,
                  "--comm-timeout", COMM_TIMEOUT, "--log-level", "info", *args)
    if p.returncode != 0 and "uplicate GPU" in p.stdout + p.stderr:
        pytest.skip("NCCL sees through it and refuses the GPU twice: " + (p.stdout + p.stderr)[-400:])
    assert p.returncode == 0, p.stdout + p.stderr


@pytest.mark.parametrize("dim", SHARED)
def test_blocks_that_two_ranks_share_through_host_memory_have_one_ranks_gradient(gpu, text, tmp_path, one_rank_of_text, dim):
    shared(text, dim, "--comm", "gloo", *PLAIN, "--checkpoint-dir", tmp_path)
    expect_same_gradient(tmp_path, one_rank_of_text, [("momentum.", ROUNDING)])


@pytest.mark.parametrize("dim", SHARED)
def test_blocks_that_two_nccl_ranks_share_have_one_ranks_gradient(nccl, text, tmp_path, one_rank_of_text, two_hosts, dim):
    shared(text, dim, "--comm", "nccl", *PLAIN, "--checkpoint-dir", tmp_path / "out", env=two_hosts)
    expect_same_gradient(tmp_path / "out", one_rank_of_text, [("momentum.", ROUNDING)])
    shared(text, dim, "--comm", "nccl", "--max-steps", 8, "--log-dir", tmp_path / "halves", env=two_hosts)  # captured, and launched again
    assert np.isfinite(losses(tmp_path / "halves")).all()
