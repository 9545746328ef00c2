"""PyTorch under crun, and trainer under PyTorch's launcher. The torch is that of CRUN_TORCH_PYTHON, Debian's by default; tests/peer runs the same with PyPI's."""
import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # tests/peer has these tests too
from daemon import Daemon  # noqa: E402
from replay import compare  # noqa: E402
from support import CRUN, TRAINER, free_port, run  # noqa: E402

pytestmark = pytest.mark.slow
PYTHON = os.environ.get("CRUN_TORCH_PYTHON", "/usr/bin/python3")
DDP = [PYTHON, HERE / "ddp.py"]


@functools.lru_cache
def torch_version():
    try:
        p = run(PYTHON, "-c", "import torch; print(torch.__version__)")
    except OSError:
        return None
    return tuple(map(int, p.stdout.split(".")[:2])) if p.returncode == 0 else None


@pytest.fixture(autouse=True)
def torch():
    if torch_version() is None:
        pytest.skip(f"no torch in {PYTHON} (Debian's package: python3-torch)")


def generation():
    return 1 if torch_version() < (2, 2) else 2


@pytest.fixture
def processes():
    started = []
    yield started
    for p in started:
        if p.poll() is None:
            p.kill()
        p.wait()


def environment(tmp_path, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "CRUN_RDZV", "SLURM_", "TORCHELASTIC_"))}
    return dict(env, HOME=str(tmp_path), TMPDIR=str(tmp_path), OMP_NUM_THREADS="1", **more)


def told(text, restart, world):
    """What the ranks printed at the end: each of them once, all with the same sum and loss."""
    lines = [line.split("rank ", 1)[1].split() for line in text.splitlines() if " sum " in line]
    assert sorted(int(w[0]) for w in lines) == list(range(world)), text
    assert {int(w[w.index("restart") + 1]) for w in lines} == {restart}, text
    assert {w[w.index("sum") + 1] for w in lines} == {str(sum(range(world)))}, text
    assert len({w[w.index("loss") + 1] for w in lines}) == 1, text


@pytest.mark.parametrize("kill", [None, 1])
def test_a_ddp_script_runs_under_one_crun(tmp_path, kill):
    env = environment(tmp_path, **({"KILL_RANK": str(kill)} if kill else {}))
    p = run(CRUN, "--nproc_per_node", 2, "--max_restarts", 1, *DDP, env=env, timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    told(p.stdout, 1 if kill else 0, 2)


@pytest.mark.parametrize("does", ["sleeps", "stops", "computes"])
def test_a_ddp_script_that_hangs_is_restarted_and_one_that_computes_is_not(tmp_path, does):
    p = run(CRUN, "--nproc_per_node", 3, "--max_restarts", 1, "--hang-timeout", 5, PYTHON, HERE / "hanging.py", does, 1, env=environment(tmp_path), timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stdout.count(f"restart {int(does != 'computes')} went on") == 3, p.stdout
    said = {"sleeps": r"rank 1 waits in \S*nanosleep\b", "stops": "rank 1 stopped by a signal"}.get(does)
    assert bool(said) == ("no worker has given a sign of life for 5." in p.stderr), p.stderr
    if said:
        assert re.search(f"life for .* s: ranks 0,2 wait in .*; {said}", p.stderr), p.stderr
        assert re.search(r"restart 1/1 \(rank 1 hung .*\): detect .*, ranks met \d+ ms", p.stderr), p.stderr


def test_the_rank_that_calls_something_else_is_named_by_the_flight_recorder(tmp_path):
    if torch_version() < (2, 15):
        pytest.skip("its debug socket answers for Gloo from 2.15 on")
    env = {**environment(tmp_path), "TORCH_FR_BUFFER_SIZE": "100", "TMP": str(tmp_path)}
    script = f"TORCH_WORKER_SERVER_SOCKET=$TMP/$RANK exec {PYTHON} {HERE / 'flight.py'}"
    p = run(CRUN, "--nproc_per_node", 3, "--hang-timeout", 4, "--log-dir", tmp_path, "--run-id", "f", "--no-python", "sh", "-c", script, env=env, timeout=120)
    assert p.returncode == 124, p.stderr
    assert re.search(r'rank 1 calls gloo:all_gather 4 of group default_pg with \["Float"\] \S+; 2 ranks call gloo:all_reduce with ', p.stderr), p.stderr
    assert f"Flight Recorder, by the debug sockets of 3 workers: {tmp_path}/f/round-1/flight-rank-0.json" in p.stderr


def test_a_ddp_script_runs_under_two_cruns_and_survives_the_death_of_a_worker(tmp_path, processes):
    command = [CRUN, "--nnodes", 2, "--nproc_per_node", 2, "--max_restarts", 1, "--rdzv_backend", "c10d", "--rdzv_endpoint",
               f"127.0.0.1:{free_port()}", "--rdzv_id", "ddp", *DDP]
    for i in range(2):
        with open(tmp_path / f"node-{i}", "wb") as log:
            processes.append(subprocess.Popen([str(a) for a in command], stdout=log, stderr=log,
                                              env=environment(tmp_path, KILL_RANK="3")))
    codes = [p.wait(timeout=500) for p in processes]
    text = "".join((tmp_path / f"node-{i}").read_text() for i in range(2))
    assert codes == [0, 0], text
    told(text, 1, 4)


def test_a_ddp_script_runs_as_a_module(tmp_path):
    p = run(CRUN, "--nproc_per_node", 2, "-m", "ddp", env=environment(tmp_path, PYTHON_EXEC=PYTHON), cwd=HERE, timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    told(p.stdout, 0, 2)


@pytest.mark.parametrize("how", [(), ("--run-path",)])
def test_a_script_under_record_has_its_exception_in_the_report(tmp_path, how):
    p = run(CRUN, "--nproc_per_node", 2, *how, HERE / "recorded.py", env=environment(tmp_path, PYTHON_EXEC=PYTHON), timeout=400)
    assert p.returncode == 1, p.stdout + p.stderr
    report = p.stderr[p.stderr.index(" failed: rank 1 exited with code 1"):]
    assert any("ValueError: no luck on local rank 1" in line and "error.json" in line for line in report.splitlines()), report


def test_our_server_answers_as_pytorchs_does(tmp_path, processes):
    theirs = free_port()
    env = environment(tmp_path)
    server = subprocess.Popen([PYTHON, str(HERE / "server.py"), str(theirs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    processes.append(server)
    assert server.stdout.readline() == b"ready\n"
    with Daemon(log=subprocess.DEVNULL) as ours:
        answers = sum(compare(ours.port, theirs, generation(), seed, 1500) for seed in range(1, 4))
    print(f"{answers} answers are those of torch {torch_version()}")


def training(data, out):
    return [TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", 32, "--device", "ref", "--amp", "off",
            "--batch-size", 16, "--max-steps", 3, "--checkpoint-dir", out]


def torchrun(*args):
    if generation() == 1:
        return [PYTHON, HERE / "elastic_1_13.py", 2, 1, *args]
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", 2, "--max-restarts", 1, *args]


def test_trainer_runs_under_pytorchs_launcher(tmp_path, shapes):
    p = run(*torchrun(*training(shapes(32, 64, 20), tmp_path / "out")), env=environment(tmp_path), timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "2 ranks" in p.stderr and (tmp_path / "out" / "latest").exists()


def test_trainer_is_restarted_by_pytorchs_launcher(tmp_path, shapes):
    # rank 1 of the first attempt has met the others when it dies: what it left in the store must not be taken for the second's
    script = tmp_path / "once.sh"
    script.write_text('if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = 10 ]; then\n"$@" &\nwhile kill -0 $! && [ ! -e "$OUT" ]; do sleep 0.1; done\n'
                      "kill -9 $!\nexit 1\nfi\nexec \"$@\"\n")
    out = tmp_path / "out"
    env = environment(tmp_path, OUT=str(out / "metrics.jsonl"))
    p = run(*torchrun("/bin/sh", script, *training(shapes(32, 64, 20), out)), env=env, timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    assert (out / "latest").exists()
