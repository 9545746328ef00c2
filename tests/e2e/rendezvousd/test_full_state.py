"""rendezvousd whose state directory is on a disk that is full for a while."""
import json
import os
import re
import signal
import urllib.request

import pytest

from daemon import Client, Daemon, until
from support import CRUN, run, tmpfs

JOIN = ("slots=1", "v=1", "nnodes=2:2", "max_restarts=99", "silence=600000", "backoff=0")


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with tmpfs(tmp_path / "disk", 1) as folder:
        yield folder


def fill(disk):
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)


def jobs_without_log(d):
    with urllib.request.urlopen(d.http + "/metrics", timeout=30) as r:
        return float(re.search(r"^rendezvousd_jobs_without_log (\S+)$", r.read().decode(), re.M)[1])


def news(c, node, seq):
    told = c("RDZV.NEXT", "r", node, str(seq), "20000")
    return int(re.search(r"\bseq=(\d+)", told)[1]), told


def next_round(a, b, seq, number):
    """One worker breaks, and both nodes begin another round: what both were told last."""
    b("RDZV.FAIL", "r", "b", str(number), "code=7", "rank=1", "text=rank%201%20broke")
    seq = [news(c, node, s)[0] for c, node, s in ((a, "a", seq[0]), (b, "b", seq[1]))]
    for c, node in ((a, "a"), (b, "b")):
        c("RDZV.JOIN", "r", node, f"round={number}", *JOIN)
    told = [news(c, node, s) for c, node, s in ((a, "a", seq[0]), (b, "b", seq[1]))]
    assert all(f"round={number + 1}" in text for _, text in told)
    return [s for s, _ in told]


def test_jobs_go_on_and_have_their_logs_again_once_there_is_room(disk):
    state = ("--state-dir", disk / "state", "--http-port", "0")
    logs = disk / "state" / "jobs"
    with Daemon(*state) as d, Client(d.port) as a, Client(d.port) as b:
        for c, node in ((a, "a"), (b, "b")):
            c("RDZV.JOIN", "r", node, *JOIN)
        seq = [news(a, "a", 0)[0], news(b, "b", 0)[0]]
        assert json.loads(a("RDZV.STATUS", "r"))["durable"] is True and jobs_without_log(d) == 0
        number = 1
        while jobs_without_log(d) == 0:  # the last block of its log has some room, and a log that is removed leaves some
            fill(disk)
            seq = next_round(a, b, seq, number)
            number += 1
            fill(disk)
            assert number < 60
        seq = next_round(a, b, seq, number)
        number += 1
        assert json.loads(a("RDZV.STATUS", "r"))["durable"] is False and not list(logs.glob("*.log"))
        told = run(CRUN, "status", "--rdzv-endpoint", d.address, timeout=30).stdout
        assert "r would be lost if rendezvousd ended: its log cannot be written" in told
        (disk / "filler").unlink()
        until(lambda: jobs_without_log(d) == 0, "its log is written")
        assert json.loads(a("RDZV.STATUS", "r"))["durable"] is True and len(list(logs.glob("*.log"))) == 1
        assert "would be lost" not in run(CRUN, "status", "--rdzv-endpoint", d.address, timeout=30).stdout
        seq = next_round(a, b, seq, number)
        number += 1
        before = json.loads(a("RDZV.STATUS", "r"))
        d.stop(signal.SIGKILL)
    assert re.search(r"the log of job \w+ cannot be written: No space left on device; the job goes on", d.err), d.err
    assert "is written again: the job outlives this daemon" in d.err
    with Daemon(*state) as d, Client(d.port) as a, Client(d.port) as b:
        for c, node, s in ((a, "a", seq[0]), (b, "b", seq[1])):
            assert c("RDZV.NEXT", "r", node, str(s), "0") is None  # nothing has happened
        after = json.loads(a("RDZV.STATUS", "r"))
        for key in ("instance", "round", "restart_count", "state", "world_size", "durable"):
            assert after[key] == before[key], key
        assert after["round"] == number and after["restart_count"] == number - 1
        assert d.stop() == 0


def test_the_record_of_a_job_that_ended_meanwhile_is_kept(disk):
    state = ("--state-dir", disk / "state", "--http-port", "0")
    with Daemon(*state) as d, Client(d.port) as a, Client(d.port) as b:
        for c, node in ((a, "a"), (b, "b")):
            c("RDZV.JOIN", "r", node, *JOIN)
        seq, _ = news(a, "a", 0)
        fill(disk)
        b("RDZV.FAIL", "r", "b", "1", "code=7", "rank=1", "fatal=1", "text=rank%201%20broke")
        assert "kind=end" in news(a, "a", seq)[1]
        (disk / "filler").unlink()
        until(lambda: any(b'"number":1' in f.read_bytes() for f in (disk / "state" / "history" / "jobs").glob("*.log")), "its record is written")
        d.stop(signal.SIGKILL)
    with Daemon(*state) as d:
        with urllib.request.urlopen(d.http + "/api/history", timeout=30) as r:
            over, = json.loads(r.read())["jobs"]
        assert (over["run"], over["state"], over["exit_code"]) == ("r", "failed", 7)
        assert d.stop() == 0
