"""A job outlives the node that hosts its rendezvous: whoever hosts in its place is told by the others what the job has been through."""
import subprocess
import time

import pytest

from cluster import free_port, wait
from processes import children, kill

CONF = "last_call_timeout=300ms,keep_alive_interval=700ms"


def tree(pid):
    return [pid] + [p for child in children(pid) for p in tree(child)]


def kill_all_of(node):
    """kill -9 of crun and everything below it, as an out-of-memory killer or a lost machine leaves it."""
    kill(*tree(node.pid))
    node.wait()


def c10d(port, *more, conf=CONF, restarts=5):
    return ["--nnodes", 2, "--max-restarts", restarts, "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "j", "--rdzv_conf", conf, *more]


def restarts_of(ranks):
    count, = {int(e["TORCHELASTIC_RESTART_COUNT"]) for e in ranks.values()}
    return count


def hosting(cluster, port, *args, **kw):
    node = cluster.node(*c10d(port, *args, **kw))
    wait("a host", lambda: f"nobody listens at 127.0.0.1:{port}: this crun hosts" in node.text())
    return node


def test_a_host_comes_back_empty_and_comes_back_twice(cluster):
    port = free_port()
    host = hosting(cluster, port)
    other = cluster.node(*c10d(port, conf=f"is_host=0,{CONF}"))
    number, ranks = cluster.wait_round(2)
    assert restarts_of(ranks) == 0
    used = 0
    for _ in range(2):
        kill_all_of(host)
        host = hosting(cluster, port)
        again, ranks = cluster.wait_round(2, after=number)
        assert again > number and restarts_of(ranks) > used, other.text()
        number, used = again, restarts_of(ranks)
    assert "did not know this job (instance" in other.text() and "comes from instance" in host.text()
    cluster.finish(host, other)


def test_the_loss_of_a_host_is_one_of_the_restarts_that_a_job_has(cluster):
    port = free_port()
    host = hosting(cluster, port, restarts=0)
    other = cluster.node(*c10d(port, conf=f"is_host=0,{CONF}", restarts=0))
    cluster.wait_round(2)
    kill_all_of(host)
    host = hosting(cluster, port, restarts=0)
    assert other.wait() == 69 and "no restart is left (--max-restarts 0)" in other.text(), other.text()
    host.terminate()
    host.wait()


@pytest.mark.serial
@pytest.mark.long
def test_a_machine_that_hosts_is_lost_and_started_again(cluster, net):
    """Two machines; on the one that hosts all is killed at once, and its crun is started again a second later."""
    first, second = net.hosts[:2]
    args = ["--nnodes", 2, "--max-restarts", 5, "--rdzv_endpoint", f"{first.addr}:29400", "--rdzv_id", "x"]
    host = cluster.node(*args, prefix=first.prefix())
    other = cluster.node(*args, prefix=second.prefix())
    number, _ = cluster.wait_round(2)
    pids = subprocess.run(["ip", "netns", "pids", first.ns], capture_output=True, text=True, check=True, timeout=30).stdout.split()
    kill(*map(int, pids))
    host.wait()
    time.sleep(1)
    host = cluster.node(*args, prefix=first.prefix())
    again, ranks = cluster.wait_round(2, after=number)
    assert (again, restarts_of(ranks)) == (number + 1, 1), other.text()
    cluster.finish(host, other)
