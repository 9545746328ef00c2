"""A list of hosts: nodes of the job host its rendezvous, and the job goes on when any of them is lost."""
import re
import time

import pytest

from cluster import free_port, joined, wait
from daemon import ALICE, write_tokens
from test_detection import LATE, STAMP, stamps, texts  # noqa: F401
from test_hosts import kill_all_of, restarts_of

SILENCE, KILL = 2.1, 1  # seconds: keep_alive_interval=700ms, three times; the bound of a kill
CONF = "last_call_timeout=60,keep_alive_interval=700ms"
REHOST = (2 * SILENCE + KILL) * 1.01  # from the MIN-th JOIN at a host that knows nothing to its first round


def arguments(hosts, nnodes="2:3", conf=CONF, restarts=9):
    return ["--nnodes", nnodes, "--rdzv-endpoint", ",".join(hosts), "--rdzv-id", "j", "--max-restarts", restarts, "--rdzv-conf", conf]


def local_hosts(n):
    return [f"127.0.0.1:{free_port()}" for _ in range(n)]


def start(cluster, args, seat, **kw):
    return cluster.node("--node-rank", seat, *args, **kw)


def three(cluster, args, **kw):
    """Three nodes, of which the first hosts for all."""
    first = joined(start(cluster, args, 0, **kw), 1, 2)
    return [first, *(start(cluster, args, seat, **kw) for seat in (1, 2))]


def test_a_full_job_begins_at_once(cluster):
    """A host that knows nothing would hold the round for three minutes, longer than this waits."""
    args = arguments(local_hosts(3), conf="last_call_timeout=60,keep_alive_interval=30s")
    nodes = [start(cluster, args, seat) for seat in (2, 1, 0)]
    cluster.wait_round(3)
    cluster.finish(*nodes)


def test_a_job_goes_on_when_its_host_is_killed_and_when_the_next_one_is(cluster):
    args = arguments(local_hosts(3))
    nodes = three(cluster, args)
    number, ranks = cluster.wait_round(3)
    assert restarts_of(ranks) == 0
    for lost, used in ((0, 1), (1, 2)):
        kill_all_of(nodes[lost])
        killed = time.monotonic()
        after, ranks = cluster.wait_round(2, after=number)
        took = time.monotonic() - killed
        print(f"host killed to the next round: {took:.2f} s (bound {REHOST + 0.6:.2f} s)")
        assert took < REHOST + 0.6 + LATE and restarts_of(ranks) == used, texts(nodes)
        nodes[lost] = start(cluster, args, lost)
        number, ranks = cluster.wait_round(3, after=after)
        assert restarts_of(ranks) == used, texts(nodes)
        for survivor in nodes[:lost] + nodes[lost + 1:]:
            assert re.search(r"the host \S+ of job '\S+' is lost; it goes on at \S+, in another round; the workers here were ended\n", survivor.text())
            assert "did not know this job" not in survivor.text() and "comes from instance" not in survivor.text(), survivor.text()
    cluster.finish(*nodes)


def test_a_restart_less_than_lost_hosts_ends_the_job(cluster):
    args = arguments(local_hosts(3), restarts=0)
    nodes = three(cluster, args)
    cluster.wait_round(3)
    kill_all_of(nodes[0])
    assert [n.wait() for n in nodes[1:]] == [69, 69]
    assert "no restart is left (--max-restarts 0)" in nodes[1].text(), texts(nodes)


def test_a_node_with_another_secret_ends_at_once_and_ends_nobody_else(cluster):
    args = arguments(local_hosts(3))
    theirs = write_tokens(cluster.tmp / "theirs", ALICE)
    nodes = [joined(start(cluster, args, 0), 1, 2), start(cluster, args, 1)]
    stranger = start(cluster, args, 2, env={"CRUN_TOKEN_FILE": str(theirs)})
    assert stranger.wait() == 2, stranger.text()
    assert stranger.text().count("most hosts of the list and this node do not trust each other") == 1, stranger.text()
    nodes.append(start(cluster, args, 2))
    cluster.wait_round(3)
    cluster.finish(*nodes)


def test_two_hosts_with_two_secrets_say_so(cluster):
    """Once, with one remedy. Neither is more than half of the list, so neither ends: each may be the stranger."""
    args = arguments(local_hosts(2), nnodes="2:2", conf="join_timeout=600")
    nodes = []
    for seat in (0, 1):
        mine = cluster.tmp / f"secret-{seat}"
        mine.write_text(f"team a-secret-of-node-{seat}-of-enough-bytes\n")
        mine.chmod(0o600)
        nodes.append(start(cluster, args, seat, env={"CRUN_TOKEN_FILE": str(mine)}))
    for node in nodes:
        wait("the reason", lambda node=node: "and this node do not trust each other, so they cannot be in one job" in node.text())
        assert "\nStart all nodes with the same --token-file.\n" in node.text() and "audit" not in node.text(), node.text()
    for node in nodes:  # not before: who came first asks the other one only now
        node.process.terminate()


def test_a_seat_that_is_taken_is_waited_for_and_no_job_is_run_twice(cluster):
    args = arguments(local_hosts(3), nnodes="2:2")
    cluster.rendezvousd(port=free_port())  # of somebody else, at no port of the list
    first = joined(start(cluster, args, 0), 1, 2)
    other = start(cluster, args, 0)
    wait("a refusal", lambda: other.text().count("node rank 0 is taken by node") > 1)
    other.process.kill()
    other.wait()
    assert "a rendezvousd of this machine had port" not in other.text(), other.text()
    second = start(cluster, args, 1)
    cluster.wait_round(2)
    again = [start(cluster, args, seat) for seat in (0, 1)]
    for node in again:
        wait("a refusal", lambda node=node: "is taken by node" in node.text())
    cluster.finish(first, second)
    for node in again:
        assert node.wait() == 69 and "job 'j' has succeeded without it: another node had node rank" in node.text(), node.text()


@pytest.mark.serial
@pytest.mark.long
def test_a_host_whose_machine_is_cut_off(cluster, net, stamps):  # noqa: F811
    """Its workers, which are deaf to signals, end before the others go on; when it is back all go on in one round."""
    machines = net.hosts[:3]
    args = arguments([f"{h.addr}:29400" for h in machines])
    first = joined(start(cluster, args, 0, prefix=machines[0].prefix(), program=STAMP, env={"STAMP_DEAF": "1"}), 1, 2)
    nodes = [first, *(start(cluster, args, seat, prefix=machines[seat].prefix(), program=STAMP, env={"STAMP_DEAF": "1"}) for seat in (1, 2))]
    one, _ = stamps.wait_round(3)
    cut = time.monotonic()
    machines[0].cut()
    two, began = stamps.wait_round(2, after=one)
    print(f"link cut to the next round: {began - cut:.2f} s (bound 17 s)")
    assert began - cut < 17, texts(nodes)
    stamps.never_two()
    machines[0].heal()
    stamps.wait_round(3, after=two)
    stamps.never_two()
    cluster.finish(*nodes)
