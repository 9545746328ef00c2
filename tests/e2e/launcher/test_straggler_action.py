"""Workers tell libcrun what their steps are made of; crun names the one that the others wait for, of whatever node it is, and excludes it if asked
to. What they tell is made up: no rank is slow because the machine is busy."""
import json
import os
import re
import subprocess
import sys

import pytest

from support import CRUN, LIBCRUN, ROOT, free_port

# 40 ms a step: whoever is slow works 40, the others 20 and wait; a slow network makes all wait 20 more.
WORKER = """
import os, sys, time
import crun
slow, why, steps, onset, only = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
me = crun.info()
crun.barrier("begin")
for step in range(1, steps + 1):
    now = step >= onset and (only == "always" or me.restart_count == 0)
    is_slow = now and me.rank == slow
    data = 0.0201 if is_slow and why == "data" else 0.0001
    work = 0.04 if is_slow and why == "compute" else 0.02
    wait = 0.0001 if is_slow and why != "network" else 0.02 if now else 0.001
    crun.spent(data=data, forward=work / 4, backward=work / 2, update=work / 4, wait=wait)
    far = 0.01 + step * 1e-6  # no two tries are alike
    crun.links(far if is_slow and why == "network" else 0.0001, far if now and why == "network" else 0.0002)
    time.sleep(0.04)
    crun.report(step)
"""


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "LIBCRUN": str(LIBCRUN)}


def start(worker, *crun, slow=1, why="compute", steps=60, onset=15, only="always"):
    command = [CRUN, *crun, sys.executable, "-S", worker, slow, why, steps, onset, only]
    return subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())


def finish(p, code=0):
    text, _ = p.communicate(timeout=200)
    assert p.returncode == code, text[-4000:]
    return text


def named(text):
    return [(int(r), why, int(last)) for r, why, last in re.findall(r"straggler: rank (\d+).*? \((\w+)\): .*; steps \d+ to (\d+)", text)]


@pytest.mark.parametrize("why, world", [("data", 2), ("compute", 2), ("compute", 5), ("network", 4)])
def test_a_straggler_is_named_once_with_its_class(worker, tmp_path, why, world):
    log = tmp_path / "events.jsonl"
    text = finish(start(worker, "--nproc_per_node", world, "--event-log", log, why=why))
    (rank, found, last), = named(text)
    assert (rank, found) == (1, why) and 15 < last <= 45, text
    told, = [e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "straggler"]
    assert (told["rank"], told["class"], told["step"]) == (1, why, last)


@pytest.mark.parametrize("slow", [0, 3])
def test_a_straggler_of_any_node_is_named(worker, slow):
    port = free_port()
    nodes = [start(worker, "--nnodes", 2, "--nproc_per_node", 2, "--rdzv-id", "stragglers", "--rdzv-endpoint", f"127.0.0.1:{port}", slow=slow, steps=120)
             for _ in range(2)]
    both = [finish(p) for p in nodes]
    (rank, why, _), = named("".join(both))
    assert (rank, why) == (slow, "compute"), both


def test_a_straggler_is_excluded_once_in_its_place(worker):
    text = finish(start(worker, "--nproc_per_node", 2, "--max-restarts", 3, "--restart-backoff", 0, "--straggler-action", "exclude", steps=80))
    assert text.count("excluded as a straggler (compute)") == 1 and "restart 1/3 (rank 1 excluded as a straggler (compute))" in text, text
    assert "rank 1 stays, though it is slow: in this place a worker was excluded already" in text, text
    assert len(named(text)) == 2, text


def test_a_worker_of_another_node_is_excluded_there(worker):
    port = free_port()
    nodes = [start(worker, "--nnodes", 2, "--nproc_per_node", 1, "--rdzv-id", "exclude", "--rdzv-endpoint", f"127.0.0.1:{port}", "--max-restarts", 3,
                   "--restart-backoff", 0, "--straggler-action", "exclude", slow=1, steps=120, only="once") for _ in range(2)]
    text = "".join(finish(p) for p in nodes)
    assert re.search(r"restart 1/3 \(rank 1 on \S+ excluded as a straggler \(compute\)", text), text


def test_no_restart_is_spent_that_is_not_there(worker):
    text = finish(start(worker, "--nproc_per_node", 2, "--straggler-action", "exclude"))
    assert "--straggler-action" in text and "--max-restarts is 0" in text, text
    assert "rank 1 stays, though it is slow: no restart is left" in text, text
