"""Two nodes, and the agent of one of them is stopped, spins, or is in the hands of a debugger: the job's end by the user's wish comes as soon as on
one node, whichever of them hosts the rendezvous."""
import signal
import time

import pytest

from cluster import free_port
from held import HOW, stuck
from processes import marked, wait

GRACE = 1
PATIENT = "keep_alive_max_attempt=20"  # gdb takes seconds until it holds an agent, on a busy machine: no silence
WORKER = ["sh", "-c", "setsid sleep 1000 & touch $OUT/up-$RANK; exec sleep 1000"]


def two_nodes(cluster, stuck_one):
    """-> (the node whose agent is to be stuck, the other)"""
    args = ["--nnodes", 2, "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job", "--rdzv_conf", PATIENT, "--insecure", "--drain-timeout", GRACE,
            "--shutdown-timeout", GRACE, "--resize-timeout", GRACE, "--log-level", "info"]
    host = cluster.node("--node-rank", 0, *args, program=WORKER)
    wait("a host", lambda: "hosting at" in host.text())
    other = cluster.node("--node-rank", 1, *args, program=WORKER)
    for rank in (0, 1):
        wait("the workers", (cluster.out / f"up-{rank}").exists)
    return (host, other) if stuck_one == "host" else (other, host)


def ends_of(cluster, nodes):
    """All cruns end, and nothing is left when they have; how soon, `./dev bench stuck` judges."""
    codes = [n.wait() for n in nodes]
    said = "\n---\n".join(n.text() for n in nodes)
    assert marked(f"CRUN_TEST_MARK={cluster.mark}") == [], said
    return codes, said


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("which", ["host", "other"])
def test_the_first_sigterm_ends_both_nodes(cluster, which, how):
    victim, other = two_nodes(cluster, which)
    with stuck(victim.agent(), how):
        for n in (victim, other):
            n.terminate()
        codes, said = ends_of(cluster, (victim, other))
    assert codes == [143, 143], (codes, said)
    assert "did not take SIGTERM within 5 s" in victim.text(), said


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("which", ["host", "other"])
def test_the_third_ctrl_c_ends_both_nodes(cluster, which, how):
    victim, other = two_nodes(cluster, which)
    with stuck(victim.agent(), how):
        for _ in range(4):  # of three that were read late two may be one
            for n in (victim, other):
                if n.process.poll() is None:
                    n.process.send_signal(signal.SIGINT)
            time.sleep(1.05)  # sooner it is the same wish told twice
        codes, said = ends_of(cluster, (victim, other))
    assert codes[0] == 130 and codes[1] in (130, 75), (codes, said)  # 75: it saw the victim gone before it read its own third one
    assert "a third SIGINT" in victim.text(), said
