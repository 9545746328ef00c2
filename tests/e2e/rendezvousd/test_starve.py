"""Whatever clients ask of the keys, jobs on the same daemon go on."""
import flood
import pytest
from cluster import Cluster
from daemon import Client, until
from processes import children, state

KEYS = 200_000
BUDGET_MS = 3000  # silence: after it a node is given up


@pytest.fixture
def cluster(tmp_path):
    c = Cluster(tmp_path)
    yield c
    c.close()


@pytest.mark.long
def test_no_command_starves_a_job(cluster):
    d = cluster.rendezvousd()
    agents = [cluster.node("--nnodes", 2, "--nproc-per-node", 8, "--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--rdzv-id", "j1",
                           "--max-restarts", 0, program=("sh", "-c", "echo running; exec sleep 600")) for _ in range(2)]
    until(lambda: sum(a.text().count("running") for a in agents) == 16, "all workers run")
    workers = [pid for a in agents for pid in children(a.agent())]
    assert len(workers) == 16
    flood.fill(d.port, KEYS)
    worst = {}
    with flood.Heart(d.port) as heart, flood.Walker(d.port):
        for name in flood.TCPSTORE:
            took = flood.flood_tcpstore(d.port, name, seconds=2)
            worst[name] = (max(heart.beats(), default=0), took)
        for name in flood.commands(d.port):
            took = flood.flood(d.port, name)
            worst[name] = (max(heart.beats(), default=0), took)
    for name, (ms, took) in sorted(worst.items(), key=lambda row: -row[1][0])[:8]:
        print(f"64 KiB of {name}: answered in {took:.2f} s, the longest heartbeat beside it took {ms:.1f} ms")
    assert max(ms for ms, _ in worst.values()) < BUDGET_MS
    assert all(state(pid) == "S" for pid in workers) and [a.process.poll() for a in agents] == [None, None]
    with Client(d.port) as c:
        assert '"round":1,' in c("RDZV.STATUS", "j1")
