"""Programs and libraries made for Redis work on rendezvousd unchanged."""
import re
import shutil
import subprocess

import pytest

from servers import Wire, elements
from support import ROOT


def tool(name):
    path = shutil.which(name)
    if not path:
        pytest.skip(f"no {name}")
    return path


@pytest.fixture
def library(daemon):
    redis = pytest.importorskip("redis")
    r = redis.Redis(port=daemon.port, socket_timeout=20)
    r.flushdb()
    yield redis, r
    r.close()


def cli(daemon, *args, stdin=None):
    p = subprocess.run([tool("redis-cli"), "-p", str(daemon.port), *args], input=stdin, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=60, text=True, check=False)
    return p.stdout


def test_redis_cli(daemon):
    assert cli(daemon, "flushdb") == "OK\n"
    assert cli(daemon, "set", "a", "1", "ex", "100") == "OK\n"
    assert cli(daemon, "incr", "a") == "2\n"
    assert cli(daemon, "mset", "b", "x", "c", "y") == "OK\n"
    assert cli(daemon, "mget", "a", "b", "none") == "2\nx\n\n"
    assert sorted(cli(daemon, "--scan").split()) == ["a", "b", "c"]
    assert cli(daemon, "--scan", "--pattern", "[bc]").split() in (["b", "c"], ["c", "b"])
    assert cli(daemon, stdin="select 0\nping\nget a\n") == "OK\nPONG\n2\n"
    assert "rendezvousd_version" in cli(daemon, "info", "server")
    assert "cmd=client" in cli(daemon, "client", "list")
    assert cli(daemon, "nonsense").startswith("ERR unknown command 'nonsense'")
    assert cli(daemon, "keys", "*").startswith("ERR unknown command 'keys'")
    assert cli(daemon, "--pipe", stdin="SET p 1\r\nINCR p\r\n").endswith("errors: 0, replies: 2\n")


def test_redis_benchmark(daemon):
    tests = "get,set,incr,ping,mset"
    for pipeline in ("1", "16"):
        p = subprocess.run([tool("redis-benchmark"), "-p", str(daemon.port), "-n", "2000", "-c", "20", "-P", pipeline, "-t", tests,
                            "--csv"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, text=True, check=False)
        assert p.returncode == 0, p.stdout
        rows = [line.split(",")[0].strip('"') for line in p.stdout.splitlines() if line.startswith('"')]
        done = " ".join(rows)
        for want in ("PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET"):
            assert want in done, p.stdout
        assert "ERR" not in p.stdout, p.stdout


def test_python_strings_and_pipelines(library):
    redis, r = library
    assert r.ping() and r.set("a", 1, px=100000) and r.get("a") == b"1"
    assert 0 < r.ttl("a") <= 100
    assert r.set("a", 2, nx=True) is None and r.setnx("b", 1) and r.incrby("b", 41) == 42
    assert r.mset({"x": 1, "y": 2}) and r.mget("x", "y", "z") == [b"1", b"2", None]
    assert r.append("x", "0") == 2 and r.strlen("x") == 2 and r.getdel("x") == b"10" and r.delete("x", "y") == 1
    with r.pipeline(transaction=False) as p:
        for i in range(1000):
            p.set(f"k{i}", i)
        assert p.execute() == [True] * 1000
    assert len(list(r.scan_iter("k*", count=50))) == 1000
    assert r.info()["redis_mode"] == "standalone" and r.client_id() > 0 and r.dbsize() == 1002
    assert any(c["id"] == str(r.client_id()) for c in r.client_list())
    with pytest.raises(redis.ResponseError, match="unknown command"):
        r.lpush("l", 1)
    assert r.execute_command("STORE.WAIT", "a", "b", 1000) == 1 and r.flushdb()


def test_python_lock_excludes(library):
    """Taking a lock is SET NX PX; giving it back is a script in Lua, which this server has not: the lock's time frees it, or its key."""
    redis, r = library
    mine, other = r.lock("lock", timeout=100), r.lock("lock", timeout=100)
    assert mine.acquire(blocking=False) and not other.acquire(blocking=False)
    assert mine.owned() and not other.owned()
    with pytest.raises(redis.ResponseError, match="unknown command"):
        mine.release()
    r.delete("lock")
    assert other.acquire(blocking=False)


def test_every_command_is_documented(daemon):
    w = Wire(daemon.port)
    told = {word for page in (ROOT / "docs").rglob("*.md") for word in re.findall(r"[A-Z][A-Z.]+", page.read_text())}
    names = [n.decode().upper() for n in elements(w.ask("COMMAND", "LIST"))]
    missing = [n for n in names if n not in told]
    assert not missing, missing
    w.close()
