"""Nodes come, go, fail and die; the rendezvous is a rendezvousd."""
import os
import re
import signal
import sys
import time

import pytest

from cluster import free_port, wait
from support import CRUN, run

FAST = "last_call_timeout=200ms,keep_alive_max_attempt=20"  # a busy machine is no silence; the dead prove their death


@pytest.fixture
def job(cluster):
    """job(args...) starts a node of one job at a rendezvousd."""
    where = cluster.daemon()

    def start(*args, conf=FAST, run_id="job", **kw):
        return cluster.node("--rdzv_endpoint", where, "--rdzv_id", run_id, "--rdzv_conf", conf, *args, **kw)

    start.where = where
    return start


def test_a_node_joins_and_another_leaves(cluster, job):
    size = ["--nnodes", "1:3"]
    first = job(*size)
    one, ranks = cluster.wait_round(1)
    assert ranks[0]["CRUN_RESTART_REASON"] == "start" and ranks[0]["CRUN_PREV_RANK"] == "-1"
    second = job(*size)
    two, ranks = cluster.wait_round(2, after=one)
    assert cluster.reason(one, 0) == 2
    assert ranks[0]["CRUN_NODE_ID"] != ranks[1]["CRUN_NODE_ID"]
    assert [ranks[i]["CRUN_PREV_RANK"] for i in (0, 1)] == ["0", "-1"]  # who stays keeps its place
    assert {e["CRUN_RESTART_REASON"] for e in ranks.values()} == {"resize"}
    assert {e["TORCHELASTIC_RESTART_COUNT"] for e in ranks.values()} == {"0"}
    first.terminate()
    assert first.wait() == 75, first.text()
    three, ranks = cluster.wait_round(1, after=two)
    assert ranks[0]["CRUN_PREV_RANK"] == "1" and ranks[0]["TORCHELASTIC_RESTART_COUNT"] == "0"
    cluster.finish(second)


def test_below_min_a_leave_drains_the_job(cluster, job):
    nodes = [job("--nnodes", 2) for _ in range(2)]
    number, _ = cluster.wait_round(2)
    nodes[1].terminate()
    for n in nodes:
        assert n.wait() == 75, n.text()
    assert [cluster.reason(number, r) for r in (0, 1)] == [3, 3]


DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.makedirs(os.environ["OUT"] + "/round-" + os.environ["CRUN_ROUND"], exist_ok=True)
path = os.environ["OUT"] + "/round-" + os.environ["CRUN_ROUND"] + "/rank-" + os.environ["RANK"] + ".json"
import json
with open(path + ".tmp", "w") as f:
    json.dump(dict(os.environ), f)
os.rename(path + ".tmp", path)
time.sleep(600)
"""


def test_who_disobeys_the_drain_of_others_is_named(cluster, job):
    deaf = job("--nnodes", 2, "--drain-timeout", "0.2", program=[sys.executable, "-S", "-E", "-c", DEAF])
    other = job("--nnodes", 2)
    _, ranks = cluster.wait_round(2)
    rank = next(r for r, e in ranks.items() if f"+{deaf.agent()}-" in e["CRUN_NODE_ID"])
    other.terminate()
    assert (other.wait(), deaf.wait()) == (75, 75), other.text() + deaf.text()
    assert f"stopped before the end; start it again to go on (exit code 75); not in good order: rank {rank} " in deaf.text()
    assert "stopped in good order" not in deaf.text()
    assert "not in good order" not in other.text()


@pytest.mark.long
@pytest.mark.parametrize("who", ["host", "guest"])
def test_a_signal_ends_a_node_whose_agent_stands_still(cluster, who):
    """Its workers end with the lease at the latest, the node with the signal; the other one can still be stopped."""
    args = ["--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job", "--rdzv_conf", "last_call_timeout=300ms,join_timeout=5"]
    host = cluster.node(*args)
    wait("the host", lambda: "this crun hosts the rendezvous" in host.text())
    guest = cluster.node(*args)
    cluster.wait_round(2)
    node, other = (host, guest) if who == "host" else (guest, host)
    agent = node.agent()
    os.kill(agent, signal.SIGSTOP)
    begun = time.monotonic()
    node.terminate()
    assert node.wait() == 143, node.text()
    took = time.monotonic() - begun
    assert 5 <= took, took
    assert re.search(rf"its agent \(pid {agent}, state T\b.*\) did not take SIGTERM within 5 s", node.text()), node.text()
    if who == "guest":  # the host has no lease: it is the others that need it
        assert re.search(r"has stood still for [1-9]\d\d\d ms: the workers were ended.*keep_alive_interval", node.text()), node.text()
    other.terminate()
    assert other.wait() in (75, 143, 69), other.text()


def test_a_hosting_crun_that_is_stopped_drains_the_job(cluster):
    port = free_port()
    args = ["--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_conf", FAST]
    host = cluster.node(*args)
    one, _ = cluster.wait_round(1)
    other = cluster.node(*args)
    cluster.wait_round(2, after=one)
    host.terminate()
    assert (host.wait(), other.wait()) == (75, 75), host.text() + other.text()


def test_a_dead_agent_costs_a_restart(cluster, job):
    size = ["--nnodes", "1:2", "--max-restarts", 1]
    nodes = [job(*size)]
    one, _ = cluster.wait_round(1)
    nodes.append(job(*size))
    number, _ = cluster.wait_round(2, after=one)
    start = time.monotonic()
    nodes[1].kill_agent()
    _, ranks = cluster.wait_round(1, after=number)
    print(f"kill -9 of an agent to the next round's workers: {1000 * (time.monotonic() - start):.0f} ms")
    assert ranks[0]["TORCHELASTIC_RESTART_COUNT"] == "1"
    cluster.finish(nodes[0])


def test_a_spare_takes_the_place_of_a_dead_node(cluster, job):
    size = ["--nnodes", 2, "--max-restarts", 1]
    nodes = [job(*size) for _ in range(2)]
    number, _ = cluster.wait_round(2)
    nodes.append(job(*size, "--spare"))
    wait("the spare", lambda: "waits as a spare" in nodes[2].text())
    nodes[0].kill_agent()
    _, ranks = cluster.wait_round(2, after=number)
    assert {e["CRUN_PREV_RANK"] for e in ranks.values()} >= {"-1"}
    cluster.finish(*nodes[1:])
    assert "ran no worker" not in nodes[2].text()


def test_a_spare_that_was_never_needed_says_so_at_the_end(cluster, job):
    nodes = [job("--nnodes", 1)]
    cluster.wait_round(1)
    nodes += [job("--nnodes", 1, "--spare"), job("--nnodes", 1, "--spare", "--spare-exit-code", 0)]
    for node in nodes[1:]:
        wait("the spare", lambda: "waits as a spare" in node.text())
    cluster.finish(nodes[0])
    for node, code in ((nodes[1], 72), (nodes[2], 0)):
        assert node.wait() == code
        assert f"the job is over; this node waited as a spare to the end and ran no worker (exit code {code}, --spare-exit-code)" in node.text()
    assert "ran no worker" not in nodes[0].text()
    said = nodes[1].text()
    assert "is complete: round " in said and "has all the nodes it may have (1, the first at " in said, said
    assert " are here" not in said.split("waits as a spare", 1)[1], said


def test_a_node_beyond_the_last_place_ends_at_once_with_69(cluster, job):
    """Its command does not run, and nobody asked for a spare: a second job under the same name, mostly."""
    size = ["--nnodes", 2, "--max-restarts", 1]
    nodes = [job(*size) for _ in range(2)]
    number, _ = cluster.wait_round(2)
    third = job(*size)
    assert third.wait() == 69
    said = third.text()
    assert "has no place for this node: it has all its nodes (2, the first at " in said and "(--rdzv-id); --spare waits until one of them goes" in said, said
    assert "the job failed" not in said, said
    # whoever comes back in a dead node's place is not beyond the last one
    nodes[1].kill_agent()
    nodes[1] = job(*size)
    cluster.wait_round(2, after=number)
    cluster.finish(*nodes)


@pytest.mark.parametrize("typed, said", [([], "no --rdzv-id is given, and jobs share the rendezvous at "), (["--rdzv-id", "default"], "--rdzv-id 'default' is no name of one job alone")])
def test_a_shared_rendezvous_wants_a_name_of_the_jobs_own(cluster, typed, said):
    node = cluster.node("--nnodes", 2, "--rdzv_endpoint", cluster.daemon(), *typed)
    assert node.wait() == 2 and said in node.text() and "REFUSED" not in node.text(), node.text()


def test_nodes_may_have_different_numbers_of_workers(cluster, job):
    for rank, n in enumerate((1, 3, 2)):
        job("--nnodes", 3, "--node-rank", rank, "--nproc_per_node", n, "--role", "a" if n == 3 else "b")
    _, ranks = cluster.wait_round(6)
    assert [int(ranks[i]["GROUP_RANK"]) for i in range(6)] == [0, 1, 1, 1, 2, 2]
    assert [int(ranks[i]["LOCAL_RANK"]) for i in range(6)] == [0, 0, 1, 2, 0, 1]
    assert [int(ranks[i]["LOCAL_WORLD_SIZE"]) for i in range(6)] == [1, 3, 3, 3, 2, 2]
    assert [int(ranks[i]["ROLE_RANK"]) for i in range(6)] == [0, 0, 1, 2, 1, 2]
    assert [int(ranks[i]["ROLE_WORLD_SIZE"]) for i in range(6)] == [3, 3, 3, 3, 3, 3]
    cluster.finish()


def test_the_budget_is_the_jobs_and_every_node_names_the_culprit(cluster, job):
    nodes = [job("--nnodes", 2, "--max-restarts", 1, "--node-rank", r) for r in range(2)]
    one, _ = cluster.wait_round(2)
    cluster.say(f"fail-{one}-0")
    two, ranks = cluster.wait_round(2, after=one)
    assert {e["TORCHELASTIC_RESTART_COUNT"] for e in ranks.values()} == {"1"}
    cluster.say(f"fail-{two}-1")
    for n in nodes:
        assert n.wait() == 7, n.text()
    assert "failed: rank 1 exited with code 7" in nodes[0].text() and f"on {os.uname().nodename}\n" in nodes[0].text()
    assert f"the job failed: rank 1 on {os.uname().nodename} exited with code 7" in nodes[1].text()


def test_restarts_outside_the_window_do_not_count(cluster, job):
    nodes = [job("--nnodes", 2, "--max-restarts", 1, "--restart-window", 1, "--restart-backoff", 0) for _ in range(2)]
    number = 0
    for _ in range(3):
        number, _ = cluster.wait_round(2, after=number)
        time.sleep(1.5)  # out of the window
        cluster.say(f"fail-{number}-0")
    cluster.wait_round(2, after=number)
    cluster.finish(*nodes)


def test_the_first_restart_is_at_once_and_the_next_ones_wait(cluster, job):
    nodes = [job("--nnodes", 1, "--max-restarts", 3, "--restart-backoff", 1)]
    took, number = [], 0
    for _ in range(3):
        number, _ = cluster.wait_round(1, after=number)
        start = time.monotonic()
        cluster.say(f"fail-{number}-0")
        cluster.wait_round(1, after=number)
        took.append(time.monotonic() - start)
    print("restarts took", [f"{t:.2f} s" for t in took])
    assert took[1] >= 1 and took[2] >= 2
    cluster.finish(*nodes)


def test_settings_that_differ_are_refused_with_both_values(cluster, job):
    first = job("--nnodes", 2, "--max-restarts", 1)
    wait("the first", lambda: "joining: 1 of 2" in first.text())
    for args, words in ((["--nnodes", "1:2", "--max-restarts", 1], ["--nnodes 2", "1:2"]),
                        (["--nnodes", 2, "--max-restarts", 5], ["--max-restarts", "1", "5"])):
        other = job(*args)
        assert other.wait() == 78
        assert all(w in other.text() for w in words), other.text()
    job("--nnodes", 2, "--max-restarts", 1)
    cluster.wait_round(2)
    cluster.finish(first, cluster.nodes[-1])


def test_the_status_shows_what_workers_report(cluster, job):
    job("--nnodes", 1)
    cluster.wait_round(1)

    def look():
        text = run(CRUN, "status", "--rdzv_endpoint", job.where, env=cluster.env).stdout
        return text if "310.5" in text else None

    line = wait("a report", look).splitlines()[1].split()
    assert line[:2] == ["job", "running"] and "12" in line and "0.25" in "".join(line)
    cluster.finish()


def test_two_jobs_in_one_daemon_do_not_meet(cluster, job):
    for run_id in ("a", "b"):
        for _ in range(2):
            job("--nnodes", 2, run_id=run_id, env={"OUT": str(cluster.out / run_id)})
    for run_id in ("a", "b"):
        d = cluster.out / run_id
        wait("both ranks", lambda: len(list(d.glob("round-1/rank-*.json"))) == 2)  # pylint: disable=cell-var-from-loop
        (d / "finish").touch()
    for n in cluster.nodes:
        assert n.wait() == 0, n.text()


POD = "resnet50-imagenet-fp16-nightly-sweep-2026-11-with-a-long-nam"  # "-10" makes 63 characters, the most that a pod's name may have


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for host names of their own")
@pytest.mark.parametrize("order, expected", [
    ("auto", ["node1", "node2", "node10"]),  # as people count
    ("join", ["node10", "node2", "node1"]),
    ("auto", [POD + "-1", POD + "-2", POD + "-10"]),
    ("auto", ["web", "web-2", "web2"]),  # names that begin with another one
])
def test_ranks_follow_host_names_or_arrival(cluster, job, order, expected):
    names = expected if order == "join" else expected[::-1]
    for here, name in enumerate(names, 1):
        n = job("--nnodes", 3, "--rank-order", order,
                prefix=["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"])
        if here < 3:
            wait("the node", lambda: f"joining: {here} of 3" in n.text())  # pylint: disable=cell-var-from-loop
    _, ranks = cluster.wait_round(3)
    ids = [ranks[i]["CRUN_NODE_ID"] for i in range(3)]
    assert [i.split("+")[0] for i in ids] == expected
    assert all(re.search(r"\+\d+-[0-9a-f]{16}$", i) for i in ids) and len({i[-16:] for i in ids}) == 3
    cluster.finish()


def test_a_finished_id_may_be_used_again(cluster, job):
    job("--nnodes", 1)
    cluster.wait_round(1)
    cluster.finish()
    (cluster.out / "finish").unlink()
    for f in cluster.out.glob("round-*/rank-*"):
        f.unlink()
    n = job("--nnodes", 1)
    cluster.wait_round(1)
    cluster.finish(n)


def test_a_node_says_that_it_backs_off(cluster):
    node = cluster.node("--nnodes", 1, "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job", "--max-restarts", 2,
                        "--restart-window", 1000, "--restart-backoff", 3, program=["false"])
    assert node.wait() == 1
    assert "rounds failed early one after another; the next one waits" in node.text()
    assert "restart 2 (" in node.text()


def test_a_node_that_had_finished_says_what_it_does_not_know(cluster, job):
    conf = FAST + ",join_timeout=8"
    finished = job("--nnodes", 2, conf=conf, program=["true"])
    other = job("--nnodes", 2, conf=conf, program=["sleep", "600"])
    ask = [CRUN, "status", "--json", "--rdzv_endpoint", job.where, "job"]
    wait("the end of one", lambda: '"done"' in run(*ask, env=cluster.env).stdout)
    before = len(finished.text())
    cluster.processes[0].kill()
    assert finished.wait() == 69
    said = finished.text()[before:]
    assert "this node's workers had finished; whether the job has, is unknown" in said, said
    assert "were ended" not in said
    waits = [line for line in said.splitlines() if "given up in" in line]  # none if the machine stood still for so long
    assert all(re.search(r"cannot reach \S+: .*; this node's workers have finished; whether the job has, is unknown; given up in \d+ s",
                         line) for line in waits), said
    other.process.kill()
    other.wait()


def test_a_node_that_leaves_does_not_say_how_long_it_would_wait(cluster, job, tmp_path):
    up = tmp_path / "up"
    node = job("--nnodes", 1, conf=FAST, program=["sh", "-c", f"trap 'sleep 0.5; exit 75' TERM; touch {up}; sleep 600 & wait"])
    wait("its worker", up.exists)
    node.terminate()
    cluster.processes[0].kill()
    assert node.wait() == 75
    assert "stopped in good order after SIGTERM" in node.text() and "given up in" not in node.text(), node.text()
