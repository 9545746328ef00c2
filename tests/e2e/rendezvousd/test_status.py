"""crun status: what a rendezvous knows, in a terminal."""
import json
import re
import signal
import subprocess

import pytest

from daemon import ALICE, BOB, Client, Daemon, until, write_tokens
from support import CRUN, free_port, run

JOIN = ("slots=4", "v=1", "nnodes=2:2", "max_restarts=3", "silence=600000")  # nobody beats


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CRUN_RDZV_ENDPOINT", raising=False)
    return tmp_path


def status(port, *args):
    return run(CRUN, "status", "--rdzv-endpoint", f"127.0.0.1:{port}", *args, timeout=30)


def fill(c, run_id="resnet"):
    c("RDZV.JOIN", run_id, "node1", *JOIN)
    c("RDZV.REPORT", run_id, "node1", "step=12", "images_per_s=31.5", "loss=2.25")


def test_of_a_list_of_hosts_the_one_that_knows_the_job_answers(home):
    with Daemon() as idle, Daemon() as d, Client(d.port) as c:
        fill(c)
        dead = free_port()
        ask = (CRUN, "status", "--rdzv-endpoint", ",".join(f"127.0.0.1:{port}" for port in (dead, idle.port, d.port)))
        assert "resnet joining" in " ".join(run(*ask, timeout=30).stdout.split())
        p = run(*ask, "resnet", timeout=30)
        assert p.returncode == 0 and "node1" in p.stdout, p.stderr
        p = run(*ask, "other", timeout=30)
        assert p.returncode == 1 and p.stderr.startswith("crun status: 127.0.0.1 port ") and "run 'other' is unknown" in p.stderr, p.stderr
    p = run(*ask, timeout=30)
    assert p.returncode == 69 and f"127.0.0.1 port {d.port}" in p.stderr, p.stderr


def test_jobs_and_one_job_are_printed(home):
    with Daemon() as d, Client(d.port) as c:
        assert status(d.port).stdout.split() == "RUN STATE ROUND NODES RANKS RESTARTS STEP THROUGHPUT LOSS AGE".split()
        fill(c)
        head, row, empty, waits = status(d.port).stdout.splitlines()
        assert empty == "" and re.fullmatch(r"resnet waits for 1 more of 2 nodes: for \d+ s, given up in \d+ s", waits)
        assert row.split()[:3] == ["resnet", "joining", "0"] and "1 of 2:2" in row and "0 of 3" in row and "31.5" in row and "2.25" in row
        assert head.index("STATE") == row.index("joining")
        p = status(d.port, "resnet")
        assert p.returncode == 0 and "NODE" in p.stdout and "node1" in p.stdout and "127.0.0.1" in p.stdout and "EVENT" in p.stdout
        assert json.loads(status(d.port, "--json", "resnet").stdout)["run"] == "resnet" and " RAS" not in p.stdout
        c("RDZV.REPORT", "resnet", "node1", "step=12", "ras=127.71.12.1-8:28028")
        assert re.search(r"HEARD +RAS\n.* ago +127\.71\.12\.1-8:28028\n", status(d.port, "resnet").stdout)
        p = status(d.port, "nobody's")
        assert p.returncode == 1 and p.stderr.startswith("crun status: 127.0.0.1 port ") and "run 'nobody's' is unknown" in p.stderr and "NOJOB" not in p.stderr


def test_a_job_that_the_rendezvous_has_forgotten_is_still_told(home):
    """The record of the status page has it; without a job of that name it is unknown."""
    with Daemon("--state-dir", home / "state") as d, Client(d.port) as c:
        c("RDZV.JOIN", "gone", "node1", *(word.replace("2:2", "1:1") for word in JOIN))
        assert "kind=round" in c("RDZV.NEXT", "gone", "node1", "0", "20000")
        c("RDZV.REPORT", "gone", "node1", "step=70", "base=0", "steps=70,70,70,70", "loss=0.125")
        assert c("RDZV.FAIL", "gone", "node1", "1", "code=7", "rank=0", "fatal=1", "text=rank%200%20broke") == "OK"
        until(lambda: "failed" in status(d.port, "gone").stdout, "it has ended")
        assert status(d.port).stdout.count("gone") == 1, "in both, and shown once"
    for log in (home / "state" / "jobs").iterdir():
        log.unlink()  # as when it forgets a job, a minute after its end
    with Daemon("--state-dir", home / "state") as d, Client(d.port) as c:
        fill(c, "here")
        head, over, here, *_ = status(d.port).stdout.splitlines()
        assert over.split()[:6] == ["gone", "failed", "1", "1", "of", "1:1"] and "70" in over.split() and "0.125" in over.split(), over
        assert here.split()[:2] == ["here", "joining"]
        p = status(d.port, "gone")
        assert p.returncode == 0 and "70" in p.stdout and "rank 0 broke" in p.stdout and re.search(r"^\d+s ago +7 +0 +rank 0 broke$", p.stdout, re.M), p.stdout
        p = status(d.port, "nobody's")
        assert p.returncode == 1 and "run 'nobody's' is unknown" in p.stderr


def test_names_do_not_move_the_cursor(home):
    with Daemon() as d, Client(d.port) as c:
        fill(c, "a\x1b[2Jb")
        out = status(d.port).stdout
        assert "a?[2Jb" in out and "\x1b" not in out


def test_it_authenticates_where_it_must_and_sees_its_own_jobs(home, tokens):
    mine = write_tokens(home / "mine", ALICE)
    theirs = write_tokens(home / "theirs", BOB)
    with Daemon("--token-file", tokens) as d, Client(d.port) as c:
        fill(c.authenticate(*ALICE))
        assert "resnet" in status(d.port, "--token-file", mine).stdout
        assert "resnet" not in status(d.port, "--token-file", theirs).stdout
        p = status(d.port, "--token-file", theirs, "resnet")
        assert p.returncode == 1 and "run 'resnet' is unknown" in p.stderr
        p = status(d.port)  # with the token made for us, which this daemon does not know
        assert p.returncode == 1 and "the server does not hold the secret that we hold for principal" in p.stderr
        assert (home / ".config/crun/token").stat().st_mode & 0o777 == 0o600


def test_watch_looks_again_until_interrupted(home):
    with Daemon() as d, Client(d.port) as c:
        fill(c)
        p = subprocess.Popen([CRUN, "status", "--watch", "--json", "--rdzv-endpoint", f"127.0.0.1:{d.port}"], stdout=subprocess.PIPE, text=True)
        first, second = p.stdout.readline(), p.stdout.readline()
        assert json.loads(second)["now_ms"] > json.loads(first)["now_ms"]
        p.send_signal(signal.SIGINT)
        assert p.wait(30) == -signal.SIGINT
        p.stdout.close()


@pytest.mark.parametrize("args, code, says", [
    (["--rdzv-endpoint", "127.0.0.1:1"], 69, "127.0.0.1 port 1: "),
    (["--rdzv-endpoint", "redis://h"], 2, "a Redis, an etcd or a directory has no list of jobs: name the RUN"),
    (["--rdzv-endpoint", "file:///nonexistent", "j"], 69, "'/nonexistent': No such file or directory"),
    (["--rdzv-endpoint", "h:x"], 2, "h:x"),
    (["a", "b"], 2, "'b': expected one RUN at most"),
    (["--wach"], 2, "did you mean"),
])
def test_what_cannot_be_is_one_sentence(home, args, code, says):
    p = run(CRUN, "status", *args, timeout=30)
    assert p.returncode == code and says in p.stderr and p.stderr.count("\n") == 1, p


def test_a_job_in_a_directory_is_read_from_its_log(home):
    crun = subprocess.Popen([CRUN, "--nnodes", "1:2", "--rdzv-endpoint", f"file://{home}", "--rdzv-id", "j1", "--rdzv-conf", "last_call_timeout=0.2", "sleep", "60"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        out = until(lambda: (lambda p: p.stdout if p.returncode == 0 and "running" in p.stdout else None)(
            run(CRUN, "status", "--rdzv-endpoint", f"file://{home}", "j1", timeout=30)), "the job runs")
        assert "j1" in out and "0-0" in out
        p = run(CRUN, "status", "--rdzv-endpoint", f"file://{home}", "--token-file", write_tokens(home / "theirs", BOB), "j1", timeout=30)
        assert p.returncode == 0 and "the leader of job 'j1' cannot be asked: name the secret that this job or server has" in p.stderr, p.stderr
    finally:
        crun.terminate()
        crun.communicate(timeout=60)
    p = run(CRUN, "status", "--rdzv-endpoint", f"file://{home}", "j2", timeout=30)
    assert p.returncode == 1 and "run 'j2': " in p.stderr
