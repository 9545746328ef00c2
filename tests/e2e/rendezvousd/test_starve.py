"""Whatever clients ask of the keys, jobs on the same daemon go on. How long a turn of its loop takes is measured in tests/rendezvousd/net/test_turn_cost.c, in time of its
own processor, and how long heartbeats take in tests/bench/bench_starve.py."""
import flood
import pytest
from cluster import Cluster
from daemon import Client, until
from processes import children, state

KEYS = 200_000


@pytest.fixture
def cluster(tmp_path):
    c = Cluster(tmp_path)
    yield c
    c.close()


@pytest.mark.long
def test_no_command_starves_a_job(cluster):
    """Agents that hear nothing for 15 seconds (torchrun's own bound) kill their workers, and a silent node ends the round. A member's heartbeats are answered beside every flood."""
    d = cluster.rendezvousd()
    agents = [cluster.node("--nnodes", 2, "--nproc-per-node", 8, "--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--rdzv-id", "j1",
                           "--max-restarts", 0, "--rdzv-conf", "keep_alive_interval=5", program=("sh", "-c", "echo running; exec sleep 600")) for _ in range(2)]
    until(lambda: sum(a.text().count("running") for a in agents) == 16, "all workers run")
    workers = [pid for a in agents for pid in children(a.agent())]
    assert len(workers) == 16
    flood.fill(d.port, KEYS)
    attacks = {name: lambda name=name: flood.flood_tcpstore(d.port, name, seconds=2) for name in flood.TCPSTORE}
    attacks |= {name: lambda text=text: flood.send(d.port, text) for name, text in flood.largest().items()}
    attacks |= {name: lambda name=name: flood.flood(d.port, name) for name in flood.commands(d.port)}
    with flood.Heart(d.port) as heart, flood.Walker(d.port):
        for name, attack in attacks.items():
            heart.beats()
            took, beats = attack(), heart.beats()
            until(lambda beats=beats: beats or heart.beats(), f"a heartbeat is answered beside {name}")
            print(f"{name}: answered in {took:.2f} s, the longest heartbeat beside it took {max(beats, default=0):.1f} ms")
    assert all(state(pid) == "S" for pid in workers) and [a.process.poll() for a in agents] == [None, None]
    with Client(d.port) as c:
        assert '"round":1,' in c("RDZV.STATUS", "j1")
