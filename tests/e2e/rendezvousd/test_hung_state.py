"""rendezvousd whose state directory is on a disk that stops to answer."""
import contextlib
import os
import re
import signal
import time

import pytest

from daemon import ALICE, Client, Daemon, until
from runner import procs
from shared_fs import FLUSH, SharedFs


@pytest.fixture
def disk(tmp_path):
    try:
        fs = SharedFs(tmp_path / "disk")
    except OSError as e:
        pytest.skip(f"no FUSE here: {e}")
    yield fs
    fs.close()


def test_it_delays_news_but_no_heartbeat_and_no_end(tokens, tmp_path, disk):
    state = tmp_path / "disk" / "state"
    with Daemon("--token-file", tokens, "--state-dir", state) as d, Client(d.port) as a, Client(d.port) as b:
        for c in (a, b):
            c.authenticate(*ALICE)
        for c, node in ((a, "a"), (b, "b")):
            c("RDZV.JOIN", "job", node, "v=1 nnodes=2 slots=1")
        seq = re.search(r"seq=(\d+)", a("RDZV.NEXT", "job", "a", "0", "20000"))[1]
        disk.pause()
        b("RDZV.FAIL", "job", "b", "1", "exit_code=7 rank=1")
        assert disk.asked.wait(30)
        assert a("RDZV.NEXT", "job", "a", seq, "100") is None  # alive, and no news that is not on disk
        start = time.monotonic()
        assert d.stop() == 0
        assert time.monotonic() - start < 8
    told = re.search(r"state directory '\S+' has not answered for 2000 ms: .* process (\d+) goes on writing when it answers", d.err)
    assert told, d.err
    assert os.path.exists(f"/proc/{told[1]}")
    disk.resume()
    until(lambda: not os.path.exists(f"/proc/{told[1]}"), "the end of the writer")
    with Daemon("--token-file", tokens, "--state-dir", state) as d, Client(d.port) as a:
        a.authenticate(*ALICE)
        assert "kind=end" in a("RDZV.NEXT", "job", "a", seq, "20000")  # what was decided meanwhile is there
        assert d.stop() == 0


def writer_of(d):
    """The one process that writes for this daemon; another begins when one is gone."""
    return until(lambda: [p for p in procs.children(d.p.pid) if procs.Stat(p).state != "Z"], "a process that writes")[0]


def sockets_of(pid):
    folder = f"/proc/{pid}/fd"
    found = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found += [fd] if os.readlink(f"{folder}/{fd}").startswith("socket:") else []
    return found


def test_a_writer_that_its_disk_holds_keeps_nothing_of_the_daemon_open(tokens, tmp_path, disk):
    disk.hold = lambda opcode, pid: opcode == FLUSH and procs.Stat(procs.Stat(pid).parent).parent == os.getpid()  # a close of the daemon's child
    with Daemon("--token-file", tokens, "--state-dir", tmp_path / "disk" / "state") as d, Client(d.port) as c:
        c.authenticate(*ALICE)
        c("RDZV.JOIN", "job", "a", "v=1 nnodes=2 slots=1")
        assert disk.asked.wait(30)
        assert d.stop() == 0  # its standard error is at its end then


def test_a_writer_that_is_replaced_has_no_connection_of_the_daemon(tokens, tmp_path):
    """One process for logs and records, also when it was killed: its clients' ends are seen by others when they come."""
    with Daemon("--token-file", tokens, "--state-dir", tmp_path / "state") as d, Client(d.port) as c:
        c.authenticate(*ALICE)
        c("RDZV.JOIN", "job", "a", "v=1 nnodes=1 slots=1 max_restarts=3 silence=600000")
        assert "kind=round" in c("RDZV.NEXT", "job", "a", "0", "20000")
        first = writer_of(d)
        os.kill(first, signal.SIGKILL)
        c("RDZV.FAIL", "job", "a", "1", "exit_code=7 rank=1")
        assert "kind=stop" in c("RDZV.NEXT", "job", "a", "1", "20000")
        until(lambda: writer_of(d) != first, "another process that writes")
        second = writer_of(d)
        until(lambda: len(sockets_of(second)) == 1, "one socket alone, where the daemon asks: doors are its threads'")
        until(lambda: list((tmp_path / "state" / "jobs").glob("*.log")), "its log is written anew")
        assert d.stop() == 0
    assert f"the process that writes the state directory (pid {first}) has ended" in d.err
