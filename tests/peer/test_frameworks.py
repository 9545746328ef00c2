"""Programs of PyTorch's world, unmodified, under torchrun and under crun: the same output and exit code."""
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import environment
import pytest
from support import CRUN, LIBCRUN, ROOT, free_port

HERE = pathlib.Path(__file__).parent / "frameworks"
TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")
LAUNCHERS = {"torchrun": [TORCHRUN], "crun": [CRUN, "--no-log-prefix"]}
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("CRUN_", "PET_"))} | {
    "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}


def launch(name, *args, n=2, timeout=240):
    """-> exit code, lines of results on standard output"""
    p = subprocess.run([*LAUNCHERS[name], "--nproc_per_node", str(n), *map(str, args)], env=ENV, capture_output=True, text=True, timeout=timeout)
    lines = [line for line in p.stdout.splitlines() if re.match(r"[\[\d]|first", line)]
    return p.returncode, lines, p.stdout + p.stderr


@pytest.mark.parametrize("script, needs, more", [
    ("fsdp_dcp.py", "torch", ["checkpoint"]), ("pipelining.py", "torch", []), ("accelerated.py", "accelerate", []),
    ("lightened.py", "lightning", ["out"]), ("hf_trainer.py", "transformers", ["out"])])
def test_the_same_under_both(tmp_path, script, needs, more):
    if not importlib.util.find_spec(needs):
        pytest.skip(f"no {needs} here")
    got = {name: launch(name, HERE / script, *(tmp_path / f"{name}-{m}" for m in more)) for name in LAUNCHERS}
    assert got["torchrun"][0] == 0 and got["torchrun"][1], got["torchrun"][2]
    assert got["crun"][:2] == got["torchrun"][:2], got["crun"][2]


def weights(lines):
    return lines[-1].partition("[")[2]


def test_the_elastic_toy_is_the_same_under_both(tmp_path):
    got = {name: launch(name, HERE / "elastic_toy.py", tmp_path / name, 30) for name in LAUNCHERS}
    assert got["torchrun"][0] == 0 and got["torchrun"][1], got["torchrun"][2]
    assert got["crun"][:2] == got["torchrun"][:2], got["crun"][2]


def test_a_worker_that_fails_is_restarted_and_resumes(tmp_path):
    whole = launch("crun", HERE / "elastic_toy.py", tmp_path / "whole", 30)
    rc, lines, text = launch("crun", "--max-restarts", 3, HERE / "elastic_toy.py", tmp_path / "failing", 30, 12)
    assert rc == 0 and lines[-1].startswith("first later"), text
    assert weights(lines) == weights(whole[1]), "the same numbers as without the failure"


@pytest.mark.parametrize("victim", ["agent", "host"])
def test_a_node_that_dies_while_it_trains_is_taken_back(tmp_path, victim):
    """Two agents; one is killed, alone or with all of its node, and started again."""
    from crun_run import Crun
    crun = Crun(tmp_path)
    whole = launch("crun", HERE / "elastic_toy.py", tmp_path / "whole", 200)
    snapshot, where = tmp_path / "snapshot", f"127.0.0.1:{crun.port()}"
    def node(host):
        return subprocess.Popen([CRUN, "--no-log-prefix", "--nnodes", "2", "--rdzv-endpoint", where, "--run-id", "toy", "--insecure", "--max-restarts", "5",
                                 "--rdzv-conf", f"is_host={host}", HERE / "elastic_toy.py", snapshot, "200"],
                                env=ENV | dict([crun.mark.split("=")]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        a, b = node(1), node(0)
        end = time.monotonic() + 120
        while not snapshot.exists():
            assert time.monotonic() < end and a.poll() is None and b.poll() is None
            time.sleep(0.05)
        agent = crun.agent_of(b.pid)
        for pid in [agent] if victim == "agent" else [b.pid, agent]:
            os.kill(pid, signal.SIGKILL)
        b.communicate(timeout=60)
        b = node(0)
        texts = [p.communicate(timeout=200)[0] for p in (a, b)]
        assert [a.returncode, b.returncode] == [0, 0], texts
        line, = [line for text in texts for line in text.splitlines() if line.startswith("first")]
        assert line.startswith("first later") and weights([line]) == weights(whole[1]), texts
    finally:
        for p in (a, b):
            if p.poll() is None:
                p.kill()
        crun.close()


def test_the_recorded_environment_is_torchruns(tmp_path):
    assert environment.ask([TORCHRUN], tmp_path) == environment.recorded()


FUNCTION = """
import os, sys
import torch, torch.distributed as dist
import crun

def total():
    dist.init_process_group("gloo")
    t = torch.tensor(int(os.environ["RANK"]))
    dist.all_reduce(t)
    dist.destroy_process_group()
    return t.item()

if __name__ == "__main__":
    print(crun.launch(total, nproc=4, nnodes="1:1", rdzv_backend="static", rdzv_endpoint="127.0.0.1:" + sys.argv[1], rdzv_conf="rank=0", program=sys.argv[2]))
"""


def test_a_function_that_sums_over_the_ranks_under_a_static_rendezvous(tmp_path):
    """The last launch of PyTorch's api_test.py."""
    script = tmp_path / "total.py"
    script.write_text(FUNCTION)
    env = ENV | {"PYTHONPATH": str(ROOT / "python"), "LIBCRUN": str(LIBCRUN)}
    p = subprocess.run([sys.executable, script, str(free_port()), CRUN], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (p.returncode, p.stdout) == (0, "{0: 6, 1: 6, 2: 6, 3: 6}\n"), p.stderr
