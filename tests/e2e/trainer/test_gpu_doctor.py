"""trainer gpu-doctor over a GPU that is not there: its ladder, the rung that fails, and the one file that says all of it."""
import os
import re

import pytest

from support import BUILD, ROOT, TRAINER, run

pytestmark = pytest.mark.gpu_emulated

MODULE = BUILD / "tests" / "worker" / "device" / "cuda" / "fake_cuda.so"
RUNGS = ["device", "plain convolutions", "halves", "fused patterns", "graphs", "autotune", "two ranks", "two ranks on one GPU", "own attention", "attention, epilogues", "tokens", "tokens, graphs"]


def doctor(tmp_path, *args, **env):
    return run(TRAINER, "gpu-doctor", "--out", tmp_path / "out", "--arch", "convnet", "--image-size", 28, "--batch-size", 4, "--steps", 4, *args, timeout=300,
               env={**os.environ, "CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": "2", "XDG_CACHE_HOME": str(tmp_path / "cache"), **env})


def rungs(p):
    """{name: verdict}, of the first time each"""
    return {name.strip(): verdict for name, verdict in reversed(re.findall(r"^\d+ (.{22}) (ok|FAILED|left out)", p.stdout, re.M))}


# gpu-info asks the fake card for properties, which it does not have; the ladder's first rung tells so.
def test_the_first_rung_that_fails_is_named_and_everything_is_in_one_file(tmp_path):
    p = doctor(tmp_path)
    assert p.returncode == 1, p.stdout + p.stderr
    assert "the first rung that fails: device: exit status 69: trainer gpu-info: a fake GPU has no properties" in p.stdout
    text = (tmp_path / "out" / "gpu-doctor.txt").read_text()
    assert "the first rung that fails: device" in text and "rung-1/log" in text


def test_a_gpu_on_which_all_is_well(tmp_path):
    p = doctor(tmp_path, FAKE_PROPERTIES="1")
    assert p.returncode == 0, p.stdout + p.stderr
    assert rungs(p) == {name: "ok" for name in RUNGS}, p.stdout
    text = (tmp_path / "out" / "gpu-doctor.txt").read_text()
    assert "every rung holds" in text and all(f"rung-{n}/log" in text for n in range(1, 13))
    assert "run 1: enqueued in" in text and "fake GPU" in text  # the runs tell of themselves


def test_graphs_that_do_not_run_are_told_from_kernels_that_do(tmp_path):
    p = doctor(tmp_path, FAKE_PROPERTIES="1", FAKE_FAULT="graphs")
    assert p.returncode == 1, p.stdout + p.stderr
    found = rungs(p)
    assert found["fused patterns"] == "ok" and found["graphs"] == "FAILED" and "autotune" not in found, p.stdout
    assert "as the test wants it" in p.stdout and "once more, kernel by kernel:\n5 graphs                 ok" in p.stdout


@pytest.mark.parametrize("args, why", [
    (["--budget", 0], "--budget: 0 is out of range, expected 1 to 86400"), (["--arch", "vgg16"], "unknown architecture 'vgg16' (expected one of resnet18, "),
    (["--arch", "convnet", "--image-size", 32], "convnet")])
def test_what_training_would_refuse_is_no_fault_of_the_gpu(tmp_path, args, why):
    p = doctor(tmp_path, *args, FAKE_PROPERTIES="1")
    assert p.returncode == 2 and p.stderr.startswith("trainer gpu-doctor: ") and why in p.stderr, p.stdout + p.stderr
    assert p.stdout == "" and not (tmp_path / "out").exists()


def test_a_rung_without_time_has_not_failed(tmp_path):
    p = doctor(tmp_path, "--budget", 1, "--steps", 1000, FAKE_PROPERTIES="1")
    assert p.returncode == 124 and "FAILED" not in p.stdout, p.stdout + p.stderr
    assert "--budget 1 ended at: " in p.stdout and "every rung before it holds" in (tmp_path / "out" / "gpu-doctor.txt").read_text()


def test_a_folder_of_any_name_is_in_the_one_file(tmp_path):
    p = doctor(tmp_path, "--out", tmp_path / "a [b] *")
    assert p.returncode == 1, p.stdout + p.stderr
    assert "rung-1/log" in (tmp_path / "a [b] *" / "gpu-doctor.txt").read_text()


def test_without_a_gpu_it_says_why(tmp_path):
    p = run(TRAINER, "gpu-doctor", "--out", tmp_path, env={**os.environ, "CRUN_CUDA_MODULE": str(tmp_path / "none.so")})
    assert p.returncode == 69 and p.stderr.startswith("trainer gpu-doctor: "), p.stdout + p.stderr


@pytest.mark.skipif(not (BUILD / "worker" / "device" / "cuda" / "trainer-cuda.so").exists(), reason="cuDNN is not built in")
def test_ranks_take_up_what_the_first_of_them_chose(tmp_path, shapes):
    data = shapes(28, 24, 8, 3)
    env = {**os.environ, "CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": "2", "FAKE_CARD": str(ROOT / "tests/worker/device/cuda/h200.json"),
           "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [TRAINER, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--batch-size", 4, "--max-steps", 2, "--lr", 1e-4, "--device", "cuda",
               "--log-dir", tmp_path / "log", "--log-level", "info"]
    p = run(*command, "--gpus", "0", "--plan-cache", "none", env={**env, "FAKE_FAULT": "wrong"}, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    engine = re.search(r"cudnn: (\S+) is wrong and never taken again", p.stderr)[1]
    p = run(*command, "--gpus", "0,1", "--comm", "gloo", env={**env, "FAKE_WRONG": engine}, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr
    tuned = re.findall(r"rank=(\d) cudnn: tuned", p.stderr)
    assert sorted(set(tuned)) == ["0", "1"], p.stderr
    assert len(re.findall(r"rank=0 cudnn: .*is wrong and never taken again", p.stderr)) >= 1, p.stderr
    assert not re.findall(r"rank=1 cudnn: .*is wrong", p.stderr), p.stderr  # it was told which engines to leave alone
    kept = list((tmp_path / "cache" / "crun" / "plans").glob("*/*.json"))
    assert kept and any('"barred"' in k.read_text() for k in kept)


def plan_lines(p):
    return re.findall(r"rank=(\d) cudnn: the plan runs (\d+ graphs, by engines \w+)", p.stderr)


@pytest.mark.skipif(not (BUILD / "worker" / "device" / "cuda" / "trainer-cuda.so").exists(), reason="cuDNN is not built in")
def test_ranks_and_resumed_runs_take_the_same_products(tmp_path, shapes):
    data = shapes(28, 24, 8, 3)
    env = {**os.environ, "CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": "2", "FAKE_CARD": str(ROOT / "tests/worker/device/cuda/h200.json"), "FAKE_WRONG": "fake0"}

    def train(steps, *more):
        p = run(TRAINER, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--batch-size", 4, "--max-steps", steps, "--num-epochs", 9, "--lr", 1e-4, "--device",
                "cuda", "--log-level", "info", "--plan-cache", "none", "--checkpoint-dir", tmp_path / "out", "--gpus", "0,1", "--comm", "gloo", *more, env=env, timeout=300)
        assert p.returncode == 0, p.stdout + p.stderr
        return p

    first = train(2)
    assert len(re.findall(r"rank=0 cudnn: fake0 is wrong and never taken again: product", first.stderr)) >= 3, first.stderr  # a layer's three
    assert not re.findall(r"rank=1 cudnn: .*fake0 is wrong", first.stderr), first.stderr  # it was told
    assert "rank=0 cublaslt: product " in first.stderr and "rank=1 cublaslt: product " not in first.stderr, first.stderr
    second = train(4, "--resume", "auto")
    assert "fake0" not in second.stderr and "cublaslt: product " not in second.stderr, second.stderr  # nothing is tried that was barred, nor timed
    assert {line for _, line in plan_lines(first)} == {line for _, line in plan_lines(second)}
    assert {rank for rank, _ in plan_lines(second)} == {"0", "1"}, second.stderr
