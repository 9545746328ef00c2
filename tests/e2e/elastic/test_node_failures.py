"""--max-node-failures: a node whose workers fail again and again loses its seat to one that waits, whatever the home."""
import pytest

from cluster import wait
from test_homes import where

FAST = "last_call_timeout=0.2,join_timeout=60"


@pytest.fixture(params=["rendezvousd", "c10d", "redis", "file"])
def job(request, cluster):
    """job(args...) starts a node."""
    place = where(cluster, request.param)
    return lambda *args: cluster.node(*place, "--rdzv_conf", FAST, "--nnodes", 2, "--max-restarts", 9, "--restart-backoff", 0, "--rank-order", "join", *args)


def node_of(ranks, rank):
    return ranks[rank]["CRUN_NODE_ID"]


def test_a_node_that_fails_twice_loses_its_seat(cluster, job):
    nodes = [job("--max-node-failures", 2)]
    wait("the first node", lambda: "joining" in nodes[0].text() or nodes[0].process.poll() is not None)
    nodes.append(job("--max-node-failures", 2))
    one, ranks = cluster.wait_round(2)
    first, bad = node_of(ranks, 0), node_of(ranks, 1)
    nodes.append(job("--max-node-failures", 2, "--spare"))
    wait("the spare", lambda: "waits as a spare" in nodes[2].text())
    cluster.say(f"fail-{one}-1")
    two, ranks = cluster.wait_round(2, after=one)
    assert (node_of(ranks, 0), node_of(ranks, 1)) == (first, bad), "once is not often"
    cluster.say(f"fail-{two}-1")
    three, ranks = cluster.wait_round(2, after=two)
    assert node_of(ranks, 0) == first and node_of(ranks, 1) not in (first, bad)
    said = f"round {three} has another node in this one's place, whose workers failed 2 times (--max-node-failures); this one waits as a spare"
    wait("the words", lambda: sum(said in n.text() for n in nodes) == 1)
    cluster.finish()


def test_without_a_spare_it_keeps_its_seat(cluster, job):
    for _ in range(2):
        job("--max-node-failures", 1)
    one, ranks = cluster.wait_round(2)
    before = [node_of(ranks, r) for r in (0, 1)]
    cluster.say(f"fail-{one}-0")
    _, ranks = cluster.wait_round(2, after=one)
    assert [node_of(ranks, r) for r in (0, 1)] == before
    cluster.finish()
