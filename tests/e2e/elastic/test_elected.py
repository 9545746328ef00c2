"""Nodes over a Redis, an etcd or a shared folder that elect their leader and dial it."""
import json
import re
import socket
import subprocess
import time

import pytest

from cluster import joined, kill_and_wait, wait
from support import CRUN

CONF = "last_call_timeout=500ms"


def folder(cluster):
    shared = cluster.tmp / "shared"
    shared.mkdir(exist_ok=True)
    return ["--rdzv-endpoint", f"file://{shared}", "--rdzv-id", "job"]


def where(cluster, home):
    return folder(cluster) if home == "file" else ["--rdzv-endpoint", getattr(cluster, home)().url, "--rdzv-id", "job"]


def leader_of(nodes):
    return next(n for n in reversed(nodes) if "leading job 'job'" in n.text())


@pytest.mark.parametrize("home", ["redis", "etcd", "file"])
def test_another_node_leads_when_the_leader_is_killed(cluster, home):
    args = [*where(cluster, home), "--nnodes", "2:3", "--max-restarts", 3, "--rdzv-conf", CONF, "--log-level", "info"]
    nodes = [cluster.node(*args) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    leader = leader_of(nodes)
    rest = [n for n in nodes if n is not leader]
    start = time.monotonic()
    kill_and_wait(leader)
    wait("another leader", lambda: any("leading job 'job'" in n.text() for n in rest))
    assert time.monotonic() - start < 4  # 0.2 s where nothing else runs; D alone takes 1.5 s
    again, ranks = cluster.wait_round(2, after=first)
    assert again == first + 1 and time.monotonic() - start > 4
    cluster.finish(*rest)


@pytest.mark.parametrize("home", ["redis", "etcd", "file"])
def test_a_killed_node_is_dead_at_once(cluster, home):
    args = [*where(cluster, home), "--nnodes", "2:3", "--max-restarts", 3, "--rdzv-conf", CONF, "--log-level", "info"]
    nodes = [cluster.node(*args) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    victim = next(n for n in nodes if n is not leader_of(nodes))
    victim.kill_agent()
    cluster.wait_round(2, after=first)
    stopped = [re.search(r"node '\S+' is gone: its agent and all its processes ended", n.text()) for n in nodes if n is not victim]
    assert all(stopped), nodes[0].text()
    cluster.finish(*(n for n in nodes if n is not victim))


def test_a_node_of_other_settings_ends_the_leader_that_waits_for_it(cluster):
    first = joined(cluster.node(*folder(cluster), "--nnodes", 2), 1, 2)
    other = cluster.node(*folder(cluster), "--nnodes", 2, "--max-restarts", 3)
    assert (first.wait(), other.wait()) == (78, 78), first.text() + other.text()
    assert "left: the job was started with --max-restarts 0, not 3 (exit code 78)" in first.text(), first.text()


def test_a_node_that_was_killed_while_it_waited_is_in_no_round(cluster):
    args = [*folder(cluster), "--nnodes", 2, "--rdzv-conf", CONF]
    waits = joined(cluster.node(*args), 1, 2)
    kill_and_wait(waits)
    nodes = [cluster.node(*args, program=["true"]) for _ in range(2)]
    assert [n.wait() for n in nodes] == [0, 0], "\n".join(n.text() for n in nodes)


def test_a_node_that_may_not_lead_waits_for_one_that_may(cluster):
    args = [*folder(cluster), "--nnodes", 2]
    shy = cluster.node(*args, "--rdzv-conf", "is_host=0", program=["true"])
    wait("what is missing", lambda: "nobody leads job 'job' at file://" in shy.text())
    assert "is_host=0" in shy.text()
    other = cluster.node(*args, "--log-level", "info", program=["true"])
    assert [shy.wait(), other.wait()] == [0, 0], shy.text() + other.text()
    assert "leading job 'job'" in other.text()


def test_the_port_of_a_leader_may_be_given(cluster):
    port = 29571
    node = cluster.node(*folder(cluster), "--nnodes", 1, "--rdzv-conf", f"port={port}", "--log-level", "info", program=["true"])
    assert node.wait() == 0 and f"leading job 'job' at port {port}" in node.text(), node.text()


@pytest.mark.parametrize("home", ["redis", "etcd", "file"])
def test_the_status_is_that_of_the_leader(cluster, home):
    args = where(cluster, home)
    nodes = [cluster.node(*args, "--nnodes", 2) for _ in range(2)]
    cluster.wait_round(2)
    p = subprocess.run([CRUN, "status", *args[:2], "--json", "job"], capture_output=True, text=True, check=False, timeout=60, env=cluster.env)
    assert p.returncode == 0, p.stderr
    status = json.loads(p.stdout)
    assert status["state"] == "running" and len(status["nodes"]) == 2 and "events" in status
    cluster.finish(*nodes)


@pytest.mark.serial
@pytest.mark.long
def test_a_node_that_cannot_reach_its_leader_names_the_address_and_the_remedy(cluster, net):
    """Two machines share a folder, and no network."""
    first, second = net.hosts[:2]
    args = [*folder(cluster), "--nnodes", 2, "--rdzv-conf", "join_timeout=30"]
    leader = joined(cluster.node(*args, prefix=first.prefix()), 1, 2)
    first.cut()
    other = cluster.node(*args, prefix=second.prefix())
    wait("what is wrong", lambda: "all others must reach it" in other.text(), 60)
    assert first.addr in other.text() and "--local-addr, --iface" in other.text(), other.text()
    for n in (leader, other):
        n.terminate()
        n.wait()


def test_at_rest_a_redis_sees_one_writer_and_no_reader(cluster):
    """The leader renews its claim; the others have read it once, while they had no leader, and ask no more."""
    redis = cluster.redis()
    args = ["--rdzv-endpoint", redis.url, "--rdzv-id", "job", "--nnodes", 3, "--log-level", "info"]
    nodes = [cluster.node(*args) for _ in range(3)]
    cluster.wait_round(3)
    with socket.create_connection((redis.bind, redis.port)) as s:
        s.sendall(b"MONITOR\r\n")
        seen = s.makefile("rb")
        assert seen.readline() == b"+OK\r\n"
        for _ in range(2):  # what the round had still to write
            while b'"EXEC"' not in seen.readline():
                pass
        began, lines = time.monotonic(), []
        while sum(b'"EXEC"' in line for line in lines) < 8:
            lines.append(seen.readline())
        took = time.monotonic() - began
        clients = [dict(f.split("=", 1) for f in c.split()) for c in redis.cli("CLIENT", "LIST").splitlines()]
    commands = [re.search(rb"\[0 (\S+)\] \"(\w+)\"", line).groups() for line in lines]
    print(f"{len(nodes)} nodes at rest: {len(commands) / took:.1f} commands a second, {len(commands) / 8:.0f} a renewal, of {len({a for a, _ in commands})} client")
    assert len({address for address, _ in commands}) == 1, lines
    assert {c for _, c in commands} <= {b"WATCH", b"GET", b"MULTI", b"SET", b"PEXPIRE", b"EXEC"}, lines
    assert not [c for c in clients if "b" in c["flags"] or c["cmd"].startswith(("xread", "subscribe", "wait"))], clients
    cluster.finish(*nodes)
