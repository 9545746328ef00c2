"""torchrun --rdzv-backend crun: nodes of PyTorch's own launcher meet over a rendezvousd."""
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from daemon import ALICE, Daemon, write_tokens
from processes import end_all, wait
from support import ROOT

sys.path.insert(0, str(ROOT / "packaging"))
import wheel  # noqa: E402

TOY = """
import os, pathlib, sys, time
import torch, torch.distributed as dist

folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
assert "CRUN_TOKEN" not in os.environ
dist.init_process_group("gloo")
path = folder / "snapshot"
start, value = torch.load(path) if path.exists() else (0, 0.0)
print(f"world {dist.get_world_size()} begins at {start}", flush=True)
for step in range(start, steps):
    if dist.get_world_size() == 2:
        time.sleep(0.05)  # until the test has killed a node
    one = torch.tensor([1.0 / dist.get_world_size()])
    dist.all_reduce(one)
    value += one.item()
    if dist.get_rank() == 0:
        torch.save((step + 1, value), str(path) + ".new")
        os.replace(str(path) + ".new", path)
print(f"value {value}", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """start(address, *options, program…, **env) -> a torchrun"""
    info = tmp_path / "site" / "crun_launcher-0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(wheel.ENTRY_POINTS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crun-launcher\nVersion: 0\n")
    mark, started = f"{os.getpid()}-{tmp_path.name}", []

    def run(address, *words, **env):
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "crun", "--rdzv-endpoint", address, "--rdzv-id", "toy", *map(str, words)]
        out = open(tmp_path / f"out-{len(started)}", "wb")
        p = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env={
            **os.environ, "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT / 'python'}:{info.parent}", "CRUN_TEST_MARK": mark, "OMP_NUM_THREADS": "1", **env})
        p.said = lambda: (tmp_path / f"out-{started.index(p)}").read_text()
        started.append(p)
        return p
    yield run
    end_all(f"CRUN_TEST_MARK={mark}", seconds=10)
    for p in started:
        p.wait()


def test_the_toy_trains_through_a_killed_node(start, tmp_path):
    toy = tmp_path / "toy.py"
    toy.write_text(TOY)
    tokens = write_tokens(tmp_path / "tokens", ALICE)
    with Daemon("--token-file", tokens) as d:
        def node():
            return start(d.address, "--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 3, "--rdzv-conf", "last_call_timeout=2,keep_alive_interval=1", toy,
                         tmp_path, 200, CRUN_TOKEN=" ".join(ALICE))
        first, second = node(), node()
        wait("steps of two", lambda: all("world 2 begins" in p.said() for p in (first, second)) and (tmp_path / "snapshot").exists(), 200)
        for pid in [second.pid, *(pathlib.Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split())]:  # torchrun leaves its workers
            os.kill(int(pid), signal.SIGKILL)
        assert first.wait(200) == 0, first.said()
        assert re.search(r"^world 1 begins at ([1-9]\d*)$", first.said(), re.M) and "value 200.0" in first.said().replace("199.99", "200.0"), first.said()


def test_a_token_of_somebody_else_is_refused_with_the_sentence_of_crun(start, tmp_path):
    tokens, other = write_tokens(tmp_path / "tokens", ALICE), write_tokens(tmp_path / "other", ("alice", "another-0123456789abcdef"))
    with Daemon("--token-file", tokens) as d:
        p = start(d.address, "--nnodes", 1, "--rdzv-conf", f"token_file={other}", "--no-python", "true")
        assert p.wait(120) != 0
        assert f"the rendezvous at {d.address} and this node do not trust each other: the server does not hold the secret that we hold for principal 'alice'" in p.said()
        other.chmod(0o644)
        p = start(d.address, "--nnodes", 1, "--rdzv-conf", f"token_file={other}", "--no-python", "true")
        assert p.wait(120) != 0 and f"the token file {other}: mode 644: expected 0600" in p.said()
