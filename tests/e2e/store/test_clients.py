"""Programs and libraries made for Redis work on rendezvousd unchanged."""
import re
import shutil
import subprocess
import threading

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
    r.flushall()
    yield redis, r
    r.close()


def cli(daemon, *args, stdin=None):
    p = subprocess.run([tool("redis-cli"), "-p", str(daemon.port), *args], input=stdin, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=60, text=True, check=False)
    return p.stdout


def test_redis_cli(daemon):
    assert cli(daemon, "flushall") == "OK\n"
    assert cli(daemon, "set", "a", "1", "ex", "100") == "OK\n"
    assert cli(daemon, "incr", "a") == "2\n"
    assert cli(daemon, "rpush", "l", "x", "y") == "2\n"
    assert cli(daemon, "lrange", "l", "0", "-1") == "x\ny\n"
    assert cli(daemon, "blpop", "l", "0") == "l\nx\n"
    assert sorted(cli(daemon, "--scan").split()) == ["a", "l"]
    assert cli(daemon, stdin="multi\nincr a\nexec\n") == "OK\nQUEUED\n3\n"
    assert cli(daemon, stdin="select 0\nping\nget a\n") == "OK\nPONG\n3\n"
    assert "rendezvousd_version" in cli(daemon, "info", "server")
    assert "cmd=client" in cli(daemon, "client", "list")
    assert cli(daemon, "nonsense").startswith("ERR unknown command 'nonsense'")
    assert cli(daemon, "--pipe", stdin="SET p 1\r\nINCR p\r\n").endswith("errors: 0, replies: 2\n")


def test_redis_benchmark(daemon):
    tests = "ping_inline,ping_mbulk,set,get,incr,lpush,rpush,lpop,rpop,lrange_100,mset"
    for pipeline in ("1", "16"):
        p = subprocess.run([tool("redis-benchmark"), "-p", str(daemon.port), "-n", "2000", "-c", "20", "-P", pipeline, "-t", tests,
                            "--csv"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, text=True, check=False)
        assert p.returncode == 0, p.stdout
        rows = [line.split(",")[0].strip('"') for line in p.stdout.splitlines() if line.startswith('"')]
        done = " ".join(rows)
        for want in ("PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "LPUSH", "RPUSH", "LPOP", "RPOP", "LRANGE_100", "MSET"):
            assert want in done, p.stdout
        assert "ERR" not in p.stdout, p.stdout


def test_python_strings_and_pipelines(library):
    redis, r = library
    assert r.ping() and r.set("a", 1, px=100000) and r.get("a") == b"1"
    assert 0 < r.pttl("a") <= 100000
    with r.pipeline(transaction=True) as p:
        assert p.incr("n").incr("n").get("n").execute() == [1, 2, b"2"]
    with r.pipeline(transaction=False) as p:
        for i in range(1000):
            p.set(f"k{i}", i)
        assert p.execute() == [True] * 1000
    assert len(list(r.scan_iter("k*", count=50))) == 1000
    with r.pipeline() as p:
        p.watch("n")
        r.incr("n")
        p.multi()
        p.incr("n")
        with pytest.raises(redis.WatchError):
            p.execute()
    r.rpush("l", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        r.incr("l")
    assert r.info()["redis_mode"] == "standalone" and r.client_id() > 0
    assert r.config_get("maxclients")["maxclients"] == "10000"
    assert any(c["id"] == str(r.client_id()) for c in r.client_list())


def test_python_transaction_helper(library):
    _, r = library

    def add(p):
        now = int(p.get("sum") or 0)
        p.multi()
        p.set("sum", now + 1)

    def work():
        for _ in range(50):
            r.transaction(add, "sum")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert r.get("sum") == b"200"


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


def test_python_publish_and_subscribe(library):
    _, r = library
    p = r.pubsub()
    p.subscribe("news")
    p.psubscribe("n*")
    assert [p.get_message(timeout=20)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]
    assert r.publish("news", "hello") == 2
    assert sorted(p.get_message(timeout=20)["type"] for _ in range(2)) == ["message", "pmessage"]
    assert r.pubsub_numsub("news") == [(b"news", 1)]
    p.ping()
    assert p.get_message(timeout=20)["type"] == "pong"
    p.close()


def test_python_blocking_pop(library):
    redis, r = library
    got = []
    t = threading.Thread(target=lambda: got.append(redis.Redis(port=r.connection_pool.connection_kwargs["port"]).blpop("q", 20)))
    t.start()
    while r.info("clients")["blocked_clients"] == 0:
        assert t.is_alive()
    r.rpush("q", "x")
    t.join(20)
    assert got == [(b"q", b"x")]


def test_client_kill_ends_another_connection(daemon):
    a, b = Wire(daemon.port), Wire(daemon.port)
    number = b.ask("CLIENT", "ID")[1:-2]
    assert a.ask("CLIENT", "KILL", "ID", number) == b":1\r\n"
    with pytest.raises((EOFError, ConnectionError)):
        b.ask("PING")
    a.send("CLIENT", "KILL", "ID", a.ask("CLIENT", "ID")[1:-2], "SKIPME", "no")
    assert a.read() == b":1\r\n"
    with pytest.raises((EOFError, ConnectionError)):
        a.read()
    a.close(), b.close()


def test_every_command_is_documented(daemon):
    w = Wire(daemon.port)
    told = {word for page in (ROOT / "docs").glob("*.md") for word in re.findall(r"[A-Z][A-Z.]+", page.read_text())}
    names = [n.decode().upper() for n in elements(w.ask("COMMAND", "LIST"))]
    missing = [n for n in names if n not in told]
    assert not missing, missing
    w.close()
