"""crun admin: operators of a rendezvousd, and everybody else."""
import json
import subprocess

import pytest

from daemon import ALICE, BOB, Client, Daemon, until, write_tokens
from support import CRUN

OPS = ("ops", "ops-0123456789abcdefgh")


@pytest.fixture
def files(tmp_path):
    """{name: token file of that principal alone, "all": of the daemon}"""
    return {"all": write_tokens(tmp_path / "tokens", ALICE, BOB, OPS), **{t[0]: write_tokens(tmp_path / t[0], t) for t in (ALICE, BOB, OPS)}}


def admin(d, *args, token=None):
    return subprocess.run([CRUN, "admin", "--rdzv-endpoint", f"127.0.0.1:{d.port}", *(["--token-file", token] if token else []), *args],
                          capture_output=True, text=True, timeout=60)


def begin(d, token, run, log):
    """A crun whose worker runs."""
    with open(log, "wb") as f:
        p = subprocess.Popen([CRUN, "--nnodes", "1", "--rdzv-id", run, "--rdzv-endpoint", f"127.0.0.1:{d.port}", "--rdzv-backend", "rendezvousd", "--token-file", token,
                              "--no-log-prefix", "sh", "-c", "echo running; exec sleep 600"], stdout=f, stderr=f, stdin=subprocess.DEVNULL)
    until(lambda: "running" in log.read_text(), "the worker runs")
    return p


def test_an_operator_lists_drains_and_evicts_the_jobs_of_all(files, tmp_path):
    with Daemon("--token-file", files["all"], "--operators", "root,ops") as d:
        alices, bobs = begin(d, files["alice"], "r", tmp_path / "a"), begin(d, files["bob"], "r", tmp_path / "b")
        try:
            for words in (["list"], ["drain", "r"], ["evict", "r"]):
                p = admin(d, *words, token=files["alice"])
                assert p.returncode == 1 and "principal 'alice' is no operator of this rendezvous (--operators)" in p.stderr
            p = admin(d, "list", token=files["ops"])
            assert p.returncode == 0 and p.stdout.split()[:2] == ["PRINCIPAL", "RUN"], p.stderr
            assert {tuple(line.split()[:3]) for line in p.stdout.splitlines()[1:]} == {("alice", "r", "running"), ("bob", "r", "running")}
            assert len(json.loads(admin(d, "list", "--json", token=files["ops"]).stdout)["jobs"]) == 2
            p = admin(d, "evict", "r", token=files["ops"])
            assert p.returncode == 1 and "several principals have a run 'r'" in p.stderr and "name one (crun admin --principal" in p.stderr
            assert admin(d, "evict", "nosuch", token=files["ops"]).returncode == 1
            p = admin(d, "evict", "r", "--principal", "alice", token=files["ops"])
            assert p.returncode == 0 and p.stdout == p.stderr == ""
            assert alices.wait(60) == 69 and "an operator of the rendezvous (ops) evicted the job" in (tmp_path / "a").read_text()
            assert bobs.poll() is None
            p = admin(d, "drain", "r", "--principal", "bob", token=files["ops"])
            assert p.returncode == 0 and bobs.wait(60) == 75
        finally:
            for p in (alices, bobs):
                p.kill()
                p.wait()
        assert d.stop() == 0
    assert "run=r is evicted by 'ops'" in d.err and "asked for 'evict' of jobs, and is no operator" in d.err


def test_a_job_that_waits_for_years_is_evicted(files):
    """Its nodes are gone, and it has a silence of ten minutes and a week to gather."""
    with Daemon("--token-file", files["all"], "--operators", "ops") as d:
        with Client(d.port) as c:
            c.authenticate(*BOB)
            c("RDZV.JOIN", "r", "n1", "slots=1", "v=1", "nnodes=2", "silence=600000", "join_timeout=604800000")
            c.s.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: a reset, which proves nothing
        until(lambda: "joining" in admin(d, "list", token=files["ops"]).stdout, "it waits")
        assert admin(d, "evict", "r", token=files["ops"]).returncode == 0
        assert "failed" in admin(d, "list", token=files["ops"]).stdout
        with Client(d.port) as c:
            c.authenticate(*BOB)
            assert "an operator of the rendezvous (ops) evicted" in c("RDZV.STATUS", "r")
            assert "text=an%20operator%20of%20the%20rendezvous%20(ops)%20evicted%20the%20job" in c("RDZV.NEXT", "r", "n1", "0", "1000")


def test_without_tokens_the_daemons_user_is_its_operator():
    with Daemon() as d, Client(d.port) as c:
        c("RDZV.JOIN", "r", "n1", "slots=1", "v=1", "nnodes=2")
        p = admin(d, "list")
        assert p.returncode == 0 and "joining" in p.stdout
        assert admin(d, "drain", "r").returncode == 0 and "kind=end" in c("RDZV.NEXT", "r", "n1", "0", "1000")


@pytest.mark.parametrize("args, why", [
    ([], "no command: expected list, drain RUN or evict RUN"), (["stop", "r"], "'stop': expected list, drain RUN or evict RUN"), (["evict"], "evict: expected one RUN"),
    (["list", "r"], "list: expected nothing after it"), (["list", "--principal", "x"], "--principal has no effect on list"), (["drain", "--json", "r"], "--json has no effect on drain")])
def test_what_is_wrong_is_named(args, why):
    p = subprocess.run([CRUN, "admin", *args], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and p.stderr.startswith("crun admin: " + why), p.stderr
