"""Jobs of so many nodes with so many addresses that no single reply could hold them."""
import re
import signal

import pytest

from crun_run import Crun
from daemon import Client, Daemon, until

ADDRS_MAX = 511  # common/rdzv/machine/rdzv.h


def addrs(node):
    return f"fd00::{node:x},fd01::1234:5678:9abc:def0:1:2:3".ljust(ADDRS_MAX, "0")


def nodes_join(d, first, end, *fields):
    """A connection for each."""
    clients = []
    for i in range(first, end):
        clients.append(Client(d.port))
        clients[-1].send("RDZV.JOIN", "big", f"n{i}", *fields, f"node_rank={i}", f"addrs={addrs(i)}")
    for c in clients:
        c.receive()
    return clients


def test_news_bring_the_addresses_in_pages():
    fields = ("slots=1", "v=1", "nnodes=1001", "order=node-rank", "silence=600000")
    with Daemon() as d:
        clients = nodes_join(d, 0, 1001, *fields)
        c, at, listed = clients[0], 0, []
        while True:
            told = c("RDZV.NEXT", "big", "n0", "0", "20000", *(("FROM", at) if at else ()))
            assert "kind=round" in told and "group_rank=0" in told and len(told) < 1 << 20
            listed += [int(n, 16) for n in re.findall(r"[=,]fd00::([0-9a-f]+)", told)]
            more = re.search(r"\bmore=(\d+)", told)
            if not more:
                break
            assert int(more[1]) == at + 500
            at = int(more[1])
        assert at == 1000 and sorted(listed) == list(range(1001))
        assert c.error("RDZV.NEXT", "big", "n0", "0", "0", "FROM").startswith("ERR expected RDZV.NEXT")
        assert c.error("RDZV.NEXT", "big", "n0", "0", "0", "FROM", "x").startswith("ERR group rank 'x': ")
        for c in clients:
            c.close()
        assert d.stop() == 0


@pytest.fixture
def crun(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return Crun(tmp_path)


def test_the_node_of_rank_0_starts_its_workers(crun):
    """2,100 others with 511 bytes each are more than its connection takes as one reply."""
    nodes, out = 2101, crun.tmp / "out"
    with Daemon() as d:
        p = crun.start("--nnodes", nodes, "--node_rank", 0, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "big",
                       "--rdzv_conf", "keep_alive_interval=60", "sh", "-c", f"echo $WORLD_SIZE >{out}; sleep 600")
        with Client(d.port) as c:
            until(lambda: '"run":"big"' in c("RDZV.STATUS"), "crun has joined")
        clients = nodes_join(d, 1, nodes, "slots=1", "v=1", f"nnodes={nodes}", "order=node-rank", "silence=180000", "backoff=1000")
        until(lambda: out.exists() and out.read_text(), "its worker has started")
        assert out.read_text() == f"{nodes}\n"
        p.send_signal(signal.SIGKILL)  # the deputy ends the rest
        p.communicate(timeout=60)
        crun.wait_processes_gone()
        for c in clients:
            c.close()
        assert d.stop() == 0
