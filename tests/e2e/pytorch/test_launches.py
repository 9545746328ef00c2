"""The launches that PyTorch's own tests of its launcher make (run_test.py, launch_test.py and api_test.py of test/distributed/launcher, torch 2.15), with
scripts that need no torch. Functions: tests/e2e/packages/test_launch_function.py."""

import os
import subprocess
import sys

import pytest

from crun_run import CRUN, Crun

TOUCH = """
import argparse, os
p = argparse.ArgumentParser()
p.add_argument("--touch-file-dir"), p.add_argument("--fail", action="store_true"), p.add_argument("--out-file"), p.add_argument("--init-method")
p.add_argument("--local-rank", "--local_rank", type=int)
a = p.parse_args()
env = {n: os.environ[n] for n in "RANK WORLD_SIZE LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
       "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID OMP_NUM_THREADS".split() if n != "OMP_NUM_THREADS" or n in os.environ}
assert os.environ["TEST_SENTINEL_PARENT"] == "FOOBAR"
assert a.init_method in (None, "env://", f"tcp://localhost:{env['MASTER_PORT']}"), (a.init_method, env)
if a.fail:
    raise RuntimeError("as asked")
if a.touch_file_dir:
    open(os.path.join(a.touch_file_dir, env["RANK"]), "w").close()
if a.out_file:
    with open(a.out_file, "w") as f:
        f.write(str(os.environ.get("TORCHELASTIC_RUN_ID") is not None))
"""
SHELL = '#!/bin/sh\n[ "$TEST_SENTINEL_PARENT" = FOOBAR ] || exit 1\necho "creating $1/$RANK"\ntouch "$1/$RANK"\n'
USUAL = ["--nnodes=1", "--nproc-per-node=4", "--monitor-interval=1", "--start-method=spawn"]
ELASTIC = ["--nnodes=1:2", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:PORT", "--rdzv-id=ID", "--monitor-interval=1",
           "--start-method=spawn"]


@pytest.fixture(params=["crun", "torchrun"])
def world(request, tmp_path):
    """crun by both names."""
    c = Crun(tmp_path)
    c.env |= {"TEST_SENTINEL_PARENT": "FOOBAR"}
    (tmp_path / "out").mkdir()
    (tmp_path / "script.py").write_text(TOUCH)
    (tmp_path / "script.sh").write_text(SHELL)
    (tmp_path / "script.sh").chmod(0o755)
    c.program = CRUN
    if request.param == "torchrun":
        c.program = tmp_path / "torchrun"
        c.program.symlink_to(CRUN)
    yield c
    c.close()


def start(world, args, **env):
    port = getattr(world, "told_port", None) or world.port()
    world.told_port = port
    words = [str(a).replace("PORT", str(port)).replace("ID", "job-7").replace("DIR", str(world.tmp / "out")) for a in args]
    p = subprocess.Popen([world.program, *words], env=world.env | env, cwd=world.tmp, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    world.started.append(p)
    return p


def launch(world, args, **env):
    p = start(world, args, **env)
    out, err = p.communicate(timeout=90)
    return p.returncode, out, err


def touched(world):
    return set(os.listdir(world.tmp / "out"))


PY, SH = ["script.py", "--touch-file-dir=DIR"], ["./script.sh", "DIR"]
RANKS = [
    (USUAL + ["--rdzv-id=ID"] + PY, 4), (USUAL + ["--master-addr=localhost", "--master-port=PORT", "--node-rank=0"] + PY, 4),
    (USUAL + ["--rdzv-id=ID", "--no-python"] + SH, 4), (["--nnodes=1", "--rdzv-id=ID", "--monitor-interval=1", "--start-method=spawn", "--no-python"] + SH, 1),
    (ELASTIC + ["--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'"] + PY, 4), (USUAL + ["--standalone"] + PY, 4),
    (["--run-path"] + USUAL + PY, 4),
]


@pytest.mark.parametrize("args, ranks", RANKS)
def test_all_workers_run(world, args, ranks):
    rc, _, err = launch(world, args)
    assert rc == 0 and touched(world) == {str(r) for r in range(ranks)}, err


def test_settings_of_the_environment(world):
    env = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_RDZV_ID": "7", "PET_MONITOR_INTERVAL": "1", "PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1"}
    assert launch(world, SH, **env, PET_MODULE="1")[0] == 2 and not touched(world)
    assert launch(world, SH, **env, PET_MODULE="0")[0] == 0 and touched(world) == set("0123")


@pytest.mark.parametrize("args", [USUAL + ["--no-python", "--module"] + SH, ["--nproc-per-node=unknown"] + PY, ["--nnodes=2:20:30"] + PY,
                                  ["--run-path", "--nnodes=1", "--logs_specs=DOESNOT_EXIST"] + PY])
def test_what_is_refused_there_is_refused_here(world, args):
    assert launch(world, args)[0] == 2 and not touched(world)


@pytest.mark.parametrize("word", ["auto", "cpu"])
def test_as_many_as_there_are_cores(world, word):
    rc, _, err = launch(world, ["--nnodes=1", f"--nproc-per-node={word}", "--no-python"] + SH, CUDA_VISIBLE_DEVICES="")
    assert rc == 0 and len(touched(world)) == len(os.sched_getaffinity(0)), err


def test_a_worker_that_raises_fails_the_job(world):
    rc, _, err = launch(world, ELASTIC + ["--rdzv_conf=timeout=5,last_call_timeout=1", "--max-restarts=0", "script.py", "--fail"])
    assert rc == 1 and "RuntimeError: as asked" in err


def test_two_agents_of_one_endpoint(world):
    nodes = [start(world, ELASTIC + ["--rdzv_conf=timeout=30"] + PY) for _ in range(2)]
    errors = [p.communicate(timeout=90)[1] for p in nodes]
    assert [p.returncode for p in nodes] == [0, 0] and touched(world) == {str(r) for r in range(8)}, errors


@pytest.mark.parametrize("more", [[], ["--logs_specs=default"]])
def test_workers_know_that_they_are_launched(world, more):
    rc, _, err = launch(world, ["--run-path", "--nnodes=1", "--nproc-per-node=1", "--monitor-interval=1", *more, "script.py", "--out-file=DIR/out"])
    assert rc == 0 and (world.tmp / "out" / "out").read_text() == "True", err


@pytest.mark.parametrize("method", ["tcp://localhost:PORT", "env://"])
def test_the_port_that_was_told_is_the_workers(world, method):
    rc, _, err = launch(world, ["--run-path", "--nnodes=1", "--nproc-per-node=4", "--master-addr=localhost", "--master-port=PORT", "--monitor-interval=1",
                                "script.py", f"--init-method={method}"])
    assert rc == 0, err


def test_output_is_captured_behind_a_prefix_of_the_environment(world):
    rc, out, err = launch(world, USUAL + ["--rdzv-id=ID", "--redirect=3", "--tee=3", "--no-python"] + SH, TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[rank${rank}]: ")
    assert rc == 0 and all(f"[rank{r}]: creating " in out for r in range(4)), (out, err)


@pytest.fixture
def old_front_end(world):
    """torch.distributed.launch."""
    world.program = world.tmp / "crun-launch"
    world.program.symlink_to(CRUN)
    return world


def test_the_old_front_end_adds_the_local_rank(old_front_end):
    for more in ([], ["--use-env"]):
        rc, _, err = launch(old_front_end, USUAL + more + PY)
        assert rc == 0 and touched(old_front_end) == set("0123"), err


@pytest.mark.parametrize("more, said", [([], "--local-rank={}"), (["--use-env"], "")])
def test_the_old_front_end_with_an_address(old_front_end, more, said):
    (old_front_end.tmp / "words.py").write_text("import os, sys\nprint(os.environ['LOCAL_RANK'], *sys.argv[1:], flush=True)\n")
    rc, out, err = launch(old_front_end, USUAL + ["--master-addr=localhost", "--master-port=PORT", "--node-rank=0", "--no-log-prefix", *more, "words.py"])
    assert rc == 0 and sorted(out.splitlines()) == [f"{r} {said.format(r)}".rstrip() for r in range(4)], err


# What elastic_launch(LaunchConfig(...), program)(arguments) of its API tests is on a command line. Their home is etcd; c10d stands for it here.
API = ["--nproc-per-node=4", "--monitor-interval=0.1", "--start-method=spawn", "--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:PORT"]
STATIC = ["--nnodes=1:1", "--nproc-per-node=4", "--monitor-interval=0.1", "--start-method=spawn", "--max-restarts=0", "--rdzv-backend=static",
          "--rdzv-endpoint=127.0.0.1:PORT", "--rdzv-conf=rank=0"]


@pytest.mark.parametrize("args", [["--nnodes=1:1", *API, "--no-python", sys.executable, "-u", *PY], ["--nnodes=1:1", *API, "--no-python", *SH],
                                  ["--nnodes=1:2", *API, "--rdzv-conf=last_call_timeout=1", "--no-python", sys.executable, "-u", *PY],
                                  [*STATIC, "--no-python", sys.executable, "-u", *PY]])
def test_what_its_api_starts(world, args):
    rc, _, err = launch(world, args)
    assert rc == 0 and touched(world) == set("0123"), err


def test_a_worker_of_its_api_that_raises(world):
    rc, _, err = launch(world, ["--nnodes=1:2", *API, "--rdzv-conf=last_call_timeout=1", "--no-python", sys.executable, "-u", "script.py", "--fail"])
    assert rc == 1 and "RuntimeError: as asked" in err


def test_two_agents_of_its_api(world):
    nodes = [start(world, ["--nnodes=1:2", "--rdzv-id=ID", *API, "--no-python", sys.executable, "-u", *PY]) for _ in range(2)]
    errors = [p.communicate(timeout=90)[1] for p in nodes]
    assert [p.returncode for p in nodes] == [0, 0] and touched(world) == {str(r) for r in range(8)}, errors
