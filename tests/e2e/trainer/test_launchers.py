"""trainer under others' launchers: rank 0 hosts the store. Slurm's part is its environment: slurmd and a controller are not started for it."""
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from metrics_file import losses
from support import BUILD, TRAINER, free_port


def training(data, out):
    return [str(a) for a in (TRAINER, "--train-data", data / "train", "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device",
                             "ref", "--amp", "off", "--sync-bn", "--batch-size", 16, "--max-steps", 3, "--checkpoint-dir", out)]


def clean(**more):
    prefixes = ("SLURM_", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_", "CRUN_STORE", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    return dict(env, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)


@pytest.fixture(scope="module")
def alone(shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out"
    subprocess.run(training(shapes(28, 64, 20), out), env=clean(), check=True, timeout=120, capture_output=True)
    return losses(out)


def expect_same(out, alone):
    got = losses(out)
    assert len(got) == 3 and all(abs(a - b) <= 1e-8 * abs(b) for a, b in zip(got, alone)), f"{got}, alone {alone}"


def run_ranks(command, environments):
    """All ranks at once, as one launcher starts them; what they said."""
    ranks = [subprocess.Popen(command, env=e, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for e in environments]
    said = [p.communicate(timeout=120)[0] for p in ranks]
    assert [p.returncode for p in ranks] == [0] * len(ranks), said
    return said


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.mpich"])
def test_under_mpirun(shapes, tmp_path, alone, launcher):
    if not shutil.which(launcher):
        pytest.skip(f"no {launcher} (Debian's packages: openmpi-bin, mpich)")
    more = ["--oversubscribe"] if launcher.endswith("openmpi") else []
    p = subprocess.run([launcher, *more, "-n", "2", *training(shapes(28, 64, 20), tmp_path / "out")], env=clean(), timeout=120,
                       capture_output=True, text=True, check=False)
    assert p.returncode == 0, p.stdout + p.stderr
    expect_same(tmp_path / "out", alone)


def test_with_rank_and_world_by_hand(shapes, tmp_path, alone):
    by_hand = [clean(RANK=str(r), WORLD_SIZE="3", LOCAL_RANK=str(r), LOCAL_WORLD_SIZE="3") for r in range(3)]
    run_ranks(training(shapes(28, 64, 20), tmp_path / "out"), by_hand)
    expect_same(tmp_path / "out", alone)


def test_a_rank_that_waits_for_others_obeys_sigterm(shapes, tmp_path):
    port = free_port()
    env = clean(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with subprocess.Popen(training(shapes(28, 64, 20), tmp_path / "out"), env=env, stderr=subprocess.PIPE, text=True) as p:
        deadline = time.monotonic() + 60
        while True:  # until it hosts the store, where it then waits for rank 1: 300 s
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and p.poll() is None
        try:
            p.send_signal(signal.SIGTERM)
            _, err = p.communicate(timeout=60)
        finally:
            p.kill()
    assert p.returncode == 75 and "not all ranks have come" in err, err


def test_at_a_master_port(shapes, tmp_path, alone):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    run_ranks(training(shapes(28, 64, 20), tmp_path / "out"), [clean(RANK=str(r), GROUP_RANK=str(r), GROUP_WORLD_SIZE="2", **place) for r in range(2)])
    expect_same(tmp_path / "out", alone)


def slurm_step(rank, nodes):
    return clean(SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0", SLURM_PROCID=str(rank), SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2",
                 SLURM_LOCALID=str(rank if nodes == 1 else 0), SLURM_NODEID=str(0 if nodes == 1 else rank), SLURM_NNODES=str(nodes),
                 SLURM_STEP_NUM_NODES=str(nodes), SLURM_STEP_TASKS_PER_NODE="2" if nodes == 1 else "1(x2)",
                 SLURM_STEP_NODELIST="localhost")


@pytest.mark.parametrize("nodes", [1, 2])
def test_in_a_slurm_step(shapes, tmp_path, alone, nodes):
    run_ranks(training(shapes(28, 64, 20), tmp_path / "out"), [slurm_step(r, nodes) for r in range(2)])
    expect_same(tmp_path / "out", alone)


@pytest.mark.parametrize("tasks_per_node", [1, 2])
def test_slurm_shows_each_task_a_gpu_of_its_own(tasks_per_node):
    """--gpus-per-task, --gpu-bind=single: each task sees one GPU, whose number is 0 for it."""
    command = [TRAINER, "comm-test", "--device", "cuda", "--comm", "gloo", "--call", "all_reduce", "--max-bytes", "64"]
    gpus = {"CRUN_CUDA_MODULE": str(BUILD / "tests/worker/device/cuda/fake_cuda.so"), "FAKE_GPUS": "2"}
    said = run_ranks(command, [dict(slurm_step(r, 2 // tasks_per_node), **gpus, CUDA_VISIBLE_DEVICES=str(r)) for r in range(2)])
    assert [f"fake GPU {r} of 2" in text for r, text in enumerate(said)] == [True, True], said


def test_several_nodes_without_a_place_are_refused(shapes, tmp_path):
    p = subprocess.run(training(shapes(28, 64, 20), tmp_path / "out"), env=clean(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"),
                       timeout=60, capture_output=True, text=True, check=False)
    assert p.returncode == 2 and "MASTER_ADDR" in p.stderr and "crun" in p.stderr, p.stderr
