"""A rendezvous in a shared folder whose disk stops to answer: at the start, while nodes wait, in a round, at the end. Nobody waits for the disk:
workers end with their lease, crun with its join_timeout or a signal, and says why."""
import os
import re
import signal
import subprocess
import time

import pytest

from cluster import joined, wait
from processes import children
from shared_fs import SharedFs
from support import CRUN, needs_tables_of_threads

HELD = re.compile(r"its output process \d+ \(job-output, state D in \w+\) is held by a disk or a shared folder")


@pytest.fixture
def disk(cluster):
    """A folder that all nodes share, and that can hang."""
    needs_tables_of_threads()
    try:
        fs = SharedFs(cluster.tmp / "shared")
    except OSError as e:
        pytest.skip(f"no FUSE here: {e}")
    yield fs
    fs.close()


def node(cluster, *options, **kw):
    """join_timeout: of a node that cannot reach the folder."""
    return cluster.node("--nnodes", 2, "--rdzv_endpoint", f"file://{cluster.tmp}/shared", "--rdzv_id", "job", *options, **kw)


def ends_by_sigterm(n, code, seconds=20):
    """Within that time, with this code, and says what it left."""
    start = time.monotonic()
    n.terminate()
    assert n.wait() == code, n.text()
    took = time.monotonic() - start
    assert took < seconds, f"{took:.1f} s:\n{n.text()}"
    assert HELD.search(n.text()), n.text()


def test_join_timeout_holds_at_the_start(cluster, disk):
    disk.pause()
    start = time.monotonic()
    n = node(cluster, "--rdzv_conf", "join_timeout=4")
    assert n.wait() == 69
    assert time.monotonic() - start < 12, n.text()
    assert "given up after 4 s (join_timeout)" in n.text() and re.search(r"the shared folder '\S+/shared' has not answered for \d+ ms", n.text()), n.text()
    assert HELD.search(n.text()), n.text()


def test_sigterm_ends_it_at_the_start(cluster, disk):
    disk.pause()
    n = node(cluster)
    wait("a word about the disk", lambda: "has not answered for" in n.text())
    ends_by_sigterm(n, 143)


def test_join_timeout_holds_in_the_wait(cluster, disk):
    n = joined(node(cluster, "--rdzv_conf", "join_timeout=8"), 1, 2)
    start = time.monotonic()
    disk.pause()
    assert n.wait() == 69 and time.monotonic() - start < 20, n.text()
    assert "has not answered for" in n.text() and HELD.search(n.text()), n.text()


def test_sigterm_ends_it_in_the_wait(cluster, disk):
    n = joined(node(cluster), 1, 2)
    disk.pause()
    assert disk.asked.wait(30)
    ends_by_sigterm(n, 143)


def test_workers_end_with_their_lease_and_the_job_goes_on_when_the_disk_is_back(cluster, disk):
    nodes = [node(cluster, "--max-restarts", 1, "--node-rank", i) for i in range(2)]
    first, _ = cluster.wait_round(2)
    workers = [n.worker() for n in nodes]
    disk.pause()
    start = time.monotonic()
    for n, w in zip(nodes, workers):
        wait("the end of a worker", lambda w=w: not os.path.exists(f"/proc/{w}"))
    assert time.monotonic() - start < 15  # the lease takes 3; the disk is still away
    disk.resume()
    again, _ = cluster.wait_round(2, after=first)
    assert again > first
    cluster.finish()


@pytest.mark.slow
def test_a_minute_without_the_disk(cluster, disk):
    """Between two workers that were ended and the next ones nothing is lost but time, and one restart."""
    nodes = [node(cluster, "--max-restarts", 1, "--node-rank", i) for i in range(2)]
    first, _ = cluster.wait_round(2)
    disk.pause()
    time.sleep(60)
    assert all(n.process.poll() is None and not children(n.agent()) for n in nodes), "\n".join(n.text() for n in nodes)
    disk.resume()
    again, _ = cluster.wait_round(2, after=first)
    cluster.finish()
    assert sorted(cluster.rounds()) == [first, again]
    assert all(re.search(r"has not answered for \d{5} ms", n.text()) for n in nodes), nodes[0].text()


def test_a_disk_that_is_back_within_the_lease_costs_nothing(cluster, disk):
    nodes = [node(cluster, "--rdzv_conf", "keep_alive_interval=5", "--node-rank", i) for i in range(2)]
    number, _ = cluster.wait_round(2)
    for _ in range(3):
        disk.pause()
        assert disk.asked.wait(30)
        time.sleep(1)  # of the 15 s that nobody need be heard
        disk.resume()
    cluster.finish()
    assert list(cluster.rounds()) == [number], "\n".join(n.text() for n in nodes)


@pytest.mark.parametrize("stopped", ["a signal", "a failure"])
def test_it_ends_in_a_round(cluster, disk, stopped):
    nodes = [node(cluster, "--node-rank", i, "--rdzv_conf", "join_timeout=8") for i in range(2)]
    cluster.wait_round(2)
    disk.pause()
    assert disk.asked.wait(30)
    if stopped == "a signal":
        for n in nodes:
            ends_by_sigterm(n, 75)
        return
    start = time.monotonic()
    os.kill(nodes[0].worker(), signal.SIGKILL)
    assert [n.wait() for n in nodes] == [69, 69]
    assert time.monotonic() - start < 60
    for n in nodes:
        assert "has not answered for" in n.text() and HELD.search(n.text()), n.text()


@pytest.mark.parametrize("stopped", ["a signal", "the time"])
def test_it_ends_at_the_end(cluster, disk, stopped):
    """All workers are done, and nobody can be told."""
    conf = "join_timeout=8" if stopped == "the time" else "join_timeout=600"
    nodes = [node(cluster, "--node-rank", i, "--rdzv_conf", conf) for i in range(2)]
    cluster.wait_round(2)
    disk.pause()
    assert disk.asked.wait(30)
    cluster.say("finish")
    for n in nodes:
        wait("the end of its worker", lambda n=n: not children(n.agent()))
    if stopped == "a signal":
        for n in nodes:
            ends_by_sigterm(n, 75)
    else:
        assert [n.wait() for n in nodes] == [69, 69], "\n".join(n.text() for n in nodes)
    for n in nodes:
        assert "this node's workers had finished; whether the job has, is unknown" in n.text(), n.text()
        assert "stopped in good order" not in n.text() and HELD.search(n.text()), n.text()


def test_a_process_with_a_home_that_is_killed_is_replaced(cluster):
    (cluster.tmp / "shared").mkdir()
    nodes = [node(cluster, "--node-rank", i) for i in range(2)]
    number, _ = cluster.wait_round(2)
    for n in nodes:
        home, = [p for p in children(n.pid) if open(f"/proc/{p}/comm").read() == "job-output\n"]
        os.kill(home, signal.SIGKILL)
        wait("another one", lambda n=n, home=home: [p for p in children(n.pid) if p != home and open(f"/proc/{p}/comm").read() == "job-output\n"])
    cluster.finish()
    assert list(cluster.rounds()) == [number], "\n".join(n.text() for n in nodes)


def test_status_waits_no_longer_than_it_was_told(cluster, disk):
    nodes = [node(cluster, "--node-rank", i) for i in range(2)]
    cluster.wait_round(2)
    command = [CRUN, "status", "--rdzv-endpoint", f"file://{cluster.tmp}/shared", "job"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "running" in shown.stdout, shown
    disk.pause()
    start = time.monotonic()
    shown = subprocess.run([*command[:-1], "--timeout", "1", "job"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 69 and time.monotonic() - start < 10, shown
    assert re.search(r"crun status: run 'job': .*has not answered", shown.stderr), shown.stderr
    disk.resume()
    for n in nodes:
        n.terminate()
