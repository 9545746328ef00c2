"""Hundreds of restarts of one job: nothing grows, and the last restart is as quick as the first. Figures are printed (pytest -s)."""

import os
import random
import select
import signal
import statistics
import struct
import time

import pytest

from crun_run import BUILD

pytestmark = pytest.mark.serial
RANKS = 8
STAMP = struct.Struct("qq")  # of tests/bench/launch.h: monotonic ns of the first instruction, pid


class Stamps:
    """What tests/bench/launch_worker says of itself."""

    def __init__(self, path):
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR)

    def read(self, seconds=60):
        """-> [(time, pid)] of the next RANKS workers"""
        got, end = [], time.monotonic() + seconds
        while len(got) < RANKS:
            assert select.select([self.fd], [], [], max(0, end - time.monotonic()))[0], f"{len(got)} of {RANKS} workers started"
            got.append(STAMP.unpack(os.read(self.fd, STAMP.size)))
        return got


def status(pid, name):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name + ":"))


def held(pid):
    """-> (descriptors, threads)"""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def rested(pids, seconds=2):
    """What both halves hold at the least within this time: what they do once a round runs."""
    looks, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        looks.append([held(p) for p in pids])
        time.sleep(0.01)
    return [tuple(map(min, zip(*look))) for look in zip(*looks)]


def settled(pids, want, seconds=30):
    """What both halves hold, as soon as it is `want`: a round that has just begun has a few descriptors more for some milliseconds."""
    end = time.monotonic() + seconds
    while (now := [held(p) for p in pids]) != want and time.monotonic() < end:
        time.sleep(0.01)
    return now


def restarts(crun, rounds, *options):
    """-> ms of each restart, kB of guardian, agent and output process after each, their (descriptors, threads) early and late"""
    stamps = Stamps(crun.tmp / "stamps")
    p = crun.start("--nproc_per_node", RANKS, "--max-restarts", rounds, "--restart-backoff", 0, *options,
                   os.path.join(BUILD, "tests", "bench", "launch_worker"), "stay",
                   extra_env={"BENCH_FIFO": str(crun.tmp / "stamps")}, stdout=open(os.devnull, "w"), stderr=open(crun.tmp / "console", "w"))
    rng, took, memory, early = random.Random(1), [], [], None
    workers = stamps.read()
    pids = [p.pid, crun.agent_of(p.pid), crun.output_of(p.pid)]
    for i in range(rounds):
        if i == 3:
            early = rested(pids)
        begun = time.monotonic_ns()
        os.kill(rng.choice(workers)[1], signal.SIGKILL)
        workers = stamps.read()
        took.append((max(at for at, _ in workers) - begun) / 1e6)
        memory.append(sum(status(pid, "VmRSS") for pid in pids))
    late = settled(pids, early)
    p.terminate()
    assert p.wait(60) in (75, 143)
    crun.wait_processes_gone(30)
    return took, memory, early, late


def test_thirty_restarts_leave_no_descriptor_and_no_thread(crun):
    took, memory, early, late = restarts(crun, 30, "--log-dir", crun.tmp / "logs", "--run-id", "soak", "--redirects", "3")
    print(f"\n30 restarts: p50 {statistics.median(took):.1f} ms, RSS {memory[3]} to {memory[-1]} kB")
    assert late == early, "descriptors and threads of guardian, agent and output process"
    assert len(list((crun.tmp / "logs" / "soak").glob("round-*"))) == 31


def test_a_node_alone_may_restart_as_often_as_it_was_told_to(crun):
    rc, _, err = crun.run("--max-restarts", 120, "--restart-backoff", 0, "false")
    assert rc == 1 and "120 of 120 restarts used" in err, err


@pytest.mark.slow
def test_a_thousand_restarts_leave_everything_as_it_was(crun):
    rounds = 1000
    took, memory, early, late = restarts(crun, rounds)
    tenth = rounds // 10
    first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
    was, now = statistics.median(memory[tenth:2 * tenth]), statistics.median(memory[-tenth:])
    print(f"\n{rounds} restarts of {RANKS} workers: p50 of the first tenth {first:.1f} ms, of the last {last:.1f} ms, worst {max(took):.1f} ms; RSS of all three "
          f"{was:.0f} kB in the second tenth, {now:.0f} kB in the last; descriptors and threads of guardian, agent, output process: {early}, then {late}")
    assert late == early, "descriptors and threads of guardian, agent and output process"
    assert now < was + 256, "kB"
    assert last < 2 * first + 5, "ms"
