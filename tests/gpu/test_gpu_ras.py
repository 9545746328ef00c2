"""NCCL's RAS as a witness on a card: PyTorch over NCCL, two ranks that share the GPU, each of which passes for a host of its own.

CRUN_TORCH_PYTHON: a Python with PyTorch for CUDA (NCCL 2.29.2 or later for the questions); that of the tests by default."""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import pytest

from ras_stand_in import ask
from test_gpu_recovery_torch import crun, torch  # noqa: F401

PYTHON = os.environ.get("CRUN_TORCH_PYTHON", sys.executable)
NAMED_S, QUESTIONS, QUESTIONS_OF_GROUPS = 80, 10000, 1000
PROGRAM = """
import os, sys, threading, time
import torch
import torch.distributed as dist
what, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(0)
dist.init_process_group("nccl")
rank, x = dist.get_rank(), torch.ones(1 << 20, device="cuda")

def step(size=None):
    y = x[:size] if size else x
    dist.all_reduce(y)
    y.div_(dist.get_world_size())

step()
torch.cuda.synchronize()
open(f"{folder}/ras-{rank}", "w").write(os.environ["NCCL_RAS_ADDR"])
times = []
for n in range(steps):
    if what == "skips" and rank == 1 and n == 50:
        threading.Event().wait()  # as a lock that nobody lets go of
    if what == "polls" and rank == 1 and n == 50:
        while True:
            pass
    if what == "groups" and n % 10 == 0:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(16, device="cuda"), group=group)
        torch.cuda.synchronize()
        dist.destroy_process_group(group)
    begun = time.perf_counter()
    step(1024 + rank if what == "sizes" and n == 50 else None)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begun)
    if os.path.exists(f"{folder}/enough"):
        enough = torch.ones(1, device="cuda")
    else:
        enough = torch.zeros(1, device="cuda")
    if what in ("asked", "groups"):
        dist.all_reduce(enough)
        if enough.item() > 0:
            break
open(f"{folder}/done-{rank}", "w").write(f"{x.sum().item()} {n} {sorted(times)[len(times) // 2]}")
dist.destroy_process_group()
"""


@pytest.fixture
def job(torch, crun, tmp_path, two_hosts):  # noqa: F811
    if torch[1] != "nccl":
        pytest.skip("this torch sees no GPU")
    (tmp_path / "job.py").write_text(PROGRAM)

    def start(what, steps, *options):
        return crun.start("--nproc_per_node", 2, "--log-dir", tmp_path / "logs", "--run-id", what, *options, "--no-python", *two_hosts, PYTHON,
                          tmp_path / "job.py", what, steps, tmp_path)
    return start


def read(p, pattern, seconds):
    """-> seconds until a line of stderr has it, and that line"""
    os.set_blocking(p.stderr.fileno(), False)
    begun, text = time.monotonic(), ""
    while time.monotonic() - begun < seconds:
        text += (p.stderr.read() or b"").decode(errors="replace")
        if m := re.search(pattern + ".*", text):
            return time.monotonic() - begun, m[0]
        assert p.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"no {pattern}: {text}")


def address(tmp_path, rank=0, seconds=120):
    path, end = pathlib.Path(tmp_path, f"ras-{rank}"), time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    return path.read_text()


def test_a_rank_that_skips_an_all_reduce_is_named(job, tmp_path, keep):
    p = job("skips", 1000, "--hang-witness", "ras")
    address(tmp_path)
    took, line = read(p, r"rank 1 has not launched all-reduce \d+ of communicator [0-9a-f]+; 1 rank waits in it", NAMED_S + 20)
    keep("RAS names a rank after, s", round(took, 1))
    print(f"{took:.1f} s: {line}")
    p.terminate()
    p.wait(60)
    assert took < NAMED_S


def test_a_rank_that_is_late_and_busy_is_not(job, tmp_path):
    p = job("polls", 1000, "--hang-witness", "ras:5", "--log-level", "info")
    address(tmp_path)
    _, line = read(p, r"rank 1 has not launched all-reduce \d+ of communicator [0-9a-f]+; 1 rank waits in it, and is busy", 60)
    p.terminate()
    p.wait(60)


@pytest.mark.parametrize("what, questions", [("asked", QUESTIONS), ("groups", QUESTIONS_OF_GROUPS)])
def test_questions_do_no_harm(job, tmp_path, keep, what, questions):
    p = job(what, 10 ** 9)
    where, took = [address(tmp_path, r) for r in range(2)], []
    for n in range(questions):
        begun = time.monotonic()
        answer = ask(where[n % 2])
        took.append(time.monotonic() - begun)
        assert answer["nccl_version"] and p.poll() is None, f"question {n}: {answer}"
    (tmp_path / "enough").touch()
    assert p.wait(120) == 0
    sums = [pathlib.Path(tmp_path, f"done-{r}").read_text().split()[0] for r in range(2)]
    assert sums == [str(float(1 << 20))] * 2
    keep(f"RAS, {what}: median and longest of {questions} answers, ms", [round(1000 * t, 2) for t in (statistics.median(took), max(took))])


def test_it_costs_no_time(job, tmp_path, keep):
    """Addresses, and the watch; no question is asked while a job prints or takes less than a minute."""
    def median(*options, steps=3000):
        for r in range(2):
            pathlib.Path(tmp_path, f"done-{r}").unlink(missing_ok=True)
        assert job("plain", steps, *options).wait(300) == 0
        return float(pathlib.Path(tmp_path, "done-0").read_text().split()[2])

    median()  # warm
    pairs = [(median("--hang-witness", "ras"), median()) for _ in range(5)]
    ratio = statistics.median(a / b for a, b in pairs)
    keep("step time with --hang-witness ras / without", round(ratio, 4))
    assert ratio <= 1.01, pairs


def test_sizes_that_differ_are_named_by_the_flight_recorder(job, tmp_path):
    """By a debug socket, where PyTorch has one for its NCCL back end; RAS cannot tell."""
    (tmp_path / "job.py").write_text("from torch.distributed.elastic.control_plane import worker_main\nwith worker_main():\n"
                                     + "".join("    " + line + "\n" for line in PROGRAM.splitlines()))
    rank = tmp_path / "rank"
    rank.write_text(rank.read_text().replace("exec ", f"TORCH_WORKER_SERVER_SOCKET={tmp_path}/s$RANK exec "))
    p = job("sizes", 1000, "--hang-witness", "ras", "--hang-timeout", "30")
    address(tmp_path)
    _, err = p.communicate(timeout=300)
    print(err.decode(errors="replace"))
    assert re.search(r"rank [01] calls nccl\S*:all_reduce \d+ of group default_pg with ", err.decode(errors="replace"))
