"""trainer's way to a GPU from the command line to the exit code, over a GPU that is not there (tests/worker/device/cuda/fake_module.c): the real
host code and the real kernels, run by the processor."""
import os
import re
import signal
import subprocess

import numpy as np
import pytest

from metrics_file import loss_curve, steps_of
from support import BUILD, CRUN, ROOT, TRAINER, free_port, run, worker_pid
from tensors import newest

pytestmark = pytest.mark.gpu_emulated
MODULE = BUILD / "tests" / "worker" / "device" / "cuda" / "fake_cuda.so"


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 24, 8, 3)


def env(gpus=1):
    return {**os.environ, "CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": str(gpus)}


def command(data, out, *args, device="cuda", steps=4):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28, "--batch-size", 4,
            "--max-steps", steps, "--num-epochs", 9, "--lr", 1e-4, "--lr-policy", "fixed", "--seed", 3, "--device", device, "--checkpoint-dir", out, *args]


def train(*args, gpus=1, launch=(), **kw):
    p = run(*launch, *command(*args, **kw), env=env(gpus))
    assert p.returncode == 0, p.stdout + p.stderr
    return p


def apart(a, b):
    a, b = loss_curve(a), loss_curve(b)
    assert len(a) == len(b) > 0
    return np.max(np.abs(a - b) / b)


@pytest.mark.parametrize("precision,banner,bound", [("off", "; fp32;", 1e-3), ("bf16", "; bf16 (O2);", 1e-2), ("fp16", "; fp16 (O2);", 1e-3), ("O1", "; fp16 (O1);", 1e-3)])
def test_it_trains_in_each_type(data, tmp_path, precision, banner, bound):
    p = train(data, tmp_path / "cuda", *(["--opt-level", "O1"] if precision == "O1" else ["--amp", precision]), "--loss-scale", 128)
    assert banner in p.stderr, p.stderr  # natively: nothing is emulated
    train(data, tmp_path / "cpu", device="cpu")
    assert apart(tmp_path / "cuda", tmp_path / "cpu") < bound


def test_an_overflow_in_fp16_is_left_out_and_halves_the_scale(data, tmp_path):
    train(data, tmp_path, "--amp", "fp16", "--lr", 0.1, steps=6)
    last = steps_of(tmp_path)[-1]
    assert last["skipped"] > 0 and last["loss_scale"] == 65536 / 2 ** last["skipped"]


def test_a_run_that_goes_on_takes_the_same_steps(data, tmp_path):
    train(data, tmp_path / "whole", "--amp", "fp16")
    train(data, tmp_path / "parts", "--amp", "fp16", steps=2)
    train(data, tmp_path / "parts", "--amp", "fp16", "--resume", "auto")
    assert apart(tmp_path / "parts", tmp_path / "whole") == 0


def test_batch_norm_in_halves_is_refused(data, tmp_path):
    p = run(*command(data, tmp_path, "--opt-level", "O3"), env=env())
    assert p.returncode == 69 and "--keep-batchnorm-fp32 True" in p.stderr.splitlines()[-1], p.stderr
    train(data, tmp_path, "--opt-level", "O3", "--keep-batchnorm-fp32", "True", steps=1)


@pytest.mark.parametrize("comm", ["gloo", "nccl"])
def test_a_plan_for_gpus_is_refused_whatever_carries_gradients(data, tmp_path, comm):
    p = run(*command(data, tmp_path, "--procs", 2, "--auto-parallel", "--comm", comm), env=env(2))
    assert p.returncode == 69 and "is not predicted for the cuda device" in p.stderr and "it needs --device cuda" not in p.stderr, p.stderr


@pytest.mark.daily
def test_two_ranks_with_a_gpu_each_train_as_one(data, tmp_path):
    two = [CRUN, "--standalone", "--nproc_per_node", 2]
    p = train(data, tmp_path / "two", "--comm", "gloo", "--sync-bn", launch=two, gpus=2)
    assert "fake GPU 0 of 2" in p.stderr and "fake GPU 1 of 2" in p.stderr
    train(data, tmp_path / "one", "--sync-bn")
    assert apart(tmp_path / "two", tmp_path / "one") < 1e-5


@pytest.mark.parametrize("launch", [["--virtual-local-rank"], ["sh", "-c", 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK exec "$@"', "sh"]])
def test_ranks_that_see_one_gpu_each_train_as_one(data, tmp_path, launch):
    """Of their own: as with --virtual-local-rank (LOCAL_RANK is 0 for all), with a container for each, or as Slurm binds them."""
    p = train(data, tmp_path / "two", "--comm", "gloo", "--sync-bn", launch=[CRUN, "--standalone", "--nproc_per_node", 2, *launch], gpus=2)
    assert "fake GPU 0 of 2" in p.stderr and "fake GPU 1 of 2" in p.stderr
    train(data, tmp_path / "one", "--sync-bn")
    assert apart(tmp_path / "two", tmp_path / "one") < 1e-5


@pytest.mark.parametrize("see,options,gpus", [("0", [], 1), ("0,1", ["--gpus", 1], 2), ("$LOCAL_RANK,$((1-LOCAL_RANK))", [], 2)])
@pytest.mark.parametrize("shares", [False, True])
def test_two_ranks_on_one_gpu_are_refused(data, tmp_path, see, options, gpus, shares):
    """However each came to it and however many each sees; not where they may share it."""
    job = command(data, tmp_path, "--comm", "gloo", *options, *(["--oversubscribe"] if shares else []), steps=1)
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, "sh", "-c", f'CUDA_VISIBLE_DEVICES={see} exec "$@"', "sh", *job, env=env(gpus))
    if shares:
        assert p.returncode == 0, p.stdout + p.stderr
    else:
        assert p.returncode == 69 and re.search(r"ranks 0 and 1 are on the same GPU \(UUID fake-\d\): start fewer.*--oversubscribe", p.stderr), p.stderr


def test_nodes_of_one_machine_do_not_share_a_gpu():
    """As two containers would: each has one rank and sees one GPU, the same."""
    crun = [str(a) for a in (CRUN, "--nnodes", 2, "--nproc_per_node", 1, "--rdzv_endpoint", f"127.0.0.1:{free_port()}", TRAINER, "comm-test", "--device", "cuda", "--comm", "gloo",
                             "--call", "all_reduce", "--max-bytes", 64)]
    nodes = [subprocess.Popen(crun, env=env(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [p.communicate(timeout=120)[0] for p in nodes]
    assert [p.returncode for p in nodes] == [69, 69] and "ranks 0 and 1 are on the same GPU (UUID fake-0)" in said[0] + said[1], said


@pytest.mark.parametrize("options", [["--zero", 1], ["--zero", 2, "--accumulate", 2], ["--zero", 3, "--accumulate", 2], ["--enable-model-parallel", "--model-parallel-dim", 1],
                                     ["--enable-model-parallel", "--model-parallel-dim", 0, "--zero", 1]])
def test_ranks_that_share_state_or_a_layer_train_as_one(data, tmp_path, options):
    options = [*options, "--arch", "mlp"]  # whose last layer reads features, not maps
    two = [CRUN, "--standalone", "--nproc_per_node", 2]
    train(data, tmp_path / "two", "--comm", "gloo", "--sync-bn", "--ema", 0.9, "--clip-grad-norm", 0.5, *options, launch=two, gpus=2)
    train(data, tmp_path / "one", "--sync-bn", "--ema", 0.9, "--clip-grad-norm", 0.5, *(options[2:] if "--accumulate" in options else options[-2:]))
    assert apart(tmp_path / "two", tmp_path / "one") < 1e-5


@pytest.mark.parametrize("options", [["--model-parallel-dim", "blocks"], ["--model-parallel-dim", 1, "--zero", 1], ["--model-parallel-dim", 1, "--amp", "bf16"]])
def test_blocks_that_ranks_share_train_as_one(tmp_path, options):
    """3 heads and 101 tokens, which two ranks do not divide."""
    net, tokens = tmp_path / "small.net", tmp_path / "tokens.bin"
    net.write_text((ROOT / "worker/model/nets/gpt2.net").read_text() + "set width=24 layers=2 heads=3 context=16 vocabulary=101 dropout=0.1\n")
    tokens.write_bytes(np.random.default_rng(1).integers(0, 101, 16 * 40 + 1).astype("<u2").tobytes())
    half = options[2:] if "--amp" in options else []

    def go(out, *args, launch=()):
        p = run(*launch, TRAINER, "--train-data", tokens, "--test-data", tokens, "--token-bytes", 2, "--arch", net, "--batch-size", 4, "--max-steps", 4, "--lr", 1e-2,
                "--lr-policy", "fixed", "--seed", 3, "--device", "cuda", "--log-dir", tmp_path / out, *half, *args, env=env(2))
        assert p.returncode == 0, p.stdout + p.stderr
        return float(re.search(r"\* loss ([\d.]+)", p.stdout)[1])

    tested = go("two", "--comm", "gloo", "--model-parallel-size", 2, *(options if not half else options[:2]), launch=[CRUN, "--standalone", "--nproc_per_node", 2])
    bound = 1e-3 if half else 1e-5
    assert abs(go("one") - tested) < bound and apart(tmp_path / "two", tmp_path / "one") < bound


@pytest.mark.parametrize("options", [["--schedule", "gpipe", "--recompute"], ["--schedule", "interleaved", "--amp", "fp16", "--loss-scale", 128]])
def test_stages_train_as_one(data, tmp_path, options):
    two = [CRUN, "--standalone", "--nproc_per_node", 2]
    half = options[2:] if "--amp" in options else []
    p = train(data, tmp_path / "two", "--comm", "gloo", "--stages", 2, "--microbatches", 2, *options, launch=two, gpus=2)
    assert "pipeline: 2 stages of 1 rank, 2 micro-batches" in p.stderr, p.stderr
    train(data, tmp_path / "one", "--accumulate", 2, *half)
    assert apart(tmp_path / "two", tmp_path / "one") < (1e-3 if half else 1e-5)


def test_replicas_are_compared_where_only_rank_0_saves(data, tmp_path):
    train(data, tmp_path, "--comm", "gloo", "--sync-bn", "--check-replicas", 2, "--checkpoint-every", 2, "--checkpoint-keep", 0, "--checkpoint-sync",
          "--comm-timeout", 45, launch=[CRUN, "--standalone", "--nproc_per_node", 2], gpus=2, steps=5)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-00000002", "step-00000004", "step-00000005"]


def test_evaluation_and_predictions_agree(data, tmp_path):
    train(data, tmp_path)
    p = run(*command(data, tmp_path, "--evaluate", "--resume", tmp_path), env=env())
    accuracy = re.search(r"\* Acc@1 ([\d.]+)", p.stdout)[1]
    p = run(TRAINER, "predict", "--checkpoint", tmp_path, "--device", "cuda", "--topk", 1, data / "val", env=env())
    assert p.returncode == 0, p.stderr
    said = re.findall(r"val/(\w+)/\S+\n\s+[\d.]+ %  (\w+)", p.stdout)
    assert len(said) == 8 and f"{100 * sum(a == b for a, b in said) / 8:.3f}" == accuracy


def test_collectives_are_measured_between_gpus_and_not_on_one(tmp_path):
    args = ["comm-test", "--device", "cuda", "--comm", "gloo", "--call", "all_reduce", "--type", "float", "--max-bytes", 64]
    p = run(CRUN, "--standalone", "--nproc_per_node", 3, TRAINER, *args, env=env(3))
    assert p.returncode == 0, p.stdout + p.stderr
    assert sorted(re.findall(r"fake GPU (\d) of 3", p.stderr)) == ["0", "1", "2"]
    two = [CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, *args]
    p = run(*two, env=env(1))
    assert p.returncode != 0 and "ranks 0 and 1 are on the same GPU (UUID fake-0): start fewer" in p.stderr
    p = run(*two, "--oversubscribe", env=env(1))
    assert p.returncode == 0 and p.stderr.count("fake GPU 0 of 1") == 2, p.stderr
    p = run(*two, "--gpus", "2,1", env=env(3))
    assert p.returncode == 0 and sorted(re.findall(r"fake GPU (\d) of 3", p.stderr)) == ["1", "2"], p.stderr


@pytest.mark.parametrize("groups", [[], ["--group-size", 2, "--group-by", "stride"], ["--group-size", 1]])
def test_every_call_on_gpus_is_staged_through_host_memory(groups):
    p = run(CRUN, "--standalone", "--nproc_per_node", 4, TRAINER, "comm-test", "--device", "cuda", "--comm", "gloo", "--type", "half", "--max-bytes", 4096, *groups,
            env=env(4))
    assert p.returncode == 0 and "# Out of bounds values : 0 OK" in p.stdout, p.stdout + p.stderr
    assert len(set(re.findall(r"^\[default0\]: (\w+) +\d", p.stdout, re.M))) == 12, p.stdout


def test_a_process_that_starts_again_goes_on_from_memory(data, tmp_path):
    """Also where the host runs ahead of the device: a step is kept once it is done."""
    more = ["--print-freq", 1, "--memory-checkpoints", 50]
    train(data, tmp_path / "one", steps=12)
    lines, killed = [], False
    job = [str(a) for a in [CRUN, "--max-restarts", 1, "--run-id", f"fake-{os.getpid()}", *command(data, tmp_path / "two", *more, steps=12)]]
    with subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env()) as p:
        for line in p.stdout:
            lines.append(line)
            if not killed and re.search(r"\[ *6/6\]", line):
                os.kill(worker_pid(f"fake-{os.getpid()}", 0), signal.SIGKILL)
                killed = True
    text = "".join(lines)
    assert p.returncode == 0 and re.search(r"resumed from memory, step \d", text) and "resumed from step" not in text, text[-4000:]
    one, two = ((newest(tmp_path / d) / "model.safetensors").read_bytes() for d in ("one", "two"))
    assert one == two


def test_parts_of_a_state_are_not_kept_in_memory(data, tmp_path):
    p = run(CRUN, "--nproc_per_node", 2, *command(data, tmp_path, "--comm", "gloo", "--zero", 1, "--memory-checkpoints", 2), env=env(2))
    assert p.returncode == 2 and "--memory-checkpoints 2: on a GPU only where every rank has the whole state" in p.stdout + p.stderr


@pytest.mark.parametrize("world, most", [(1, 600), (2, 20)])
def test_others_wait_for_one_that_tunes_no_longer_than_for_any_answer(data, tmp_path, world, most):
    launch = [] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world]
    p = run(*launch, *command(data, tmp_path, "--tune-seconds", "10m", "--comm-timeout", 40, "--comm", "gloo" if world > 1 else "auto", steps=1), env={**env(world), "FAKE_TELLS": "1"})
    assert p.returncode == 0, p.stdout + p.stderr
    assert set(re.findall(r"tuning takes (\S+) s at most", p.stdout + p.stderr)) == {str(most)}, p.stdout + p.stderr
