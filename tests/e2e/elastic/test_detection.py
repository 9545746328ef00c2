"""Deaths, silence and partitions: how soon the others go on, and that two rounds never run at once.

Workers leave their time in one file (tests/fault/stamp.c). Times are printed; bounds are asserted with room for a loaded machine and measured in
tests/bench/bench_detection.py.
"""
import functools
import os
import pathlib
import random
import re
import signal
import sys
import time

import pytest

from cluster import free_port, wait
from processes import children, state
from support import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
import netns  # noqa: E402
from proxy import FAULTS, Proxy  # noqa: E402

pytestmark = pytest.mark.serial
STAMP = [str(BUILD / "tests" / "fault" / "stamp")]
QUICK = "last_call_timeout=300ms,keep_alive_interval=300ms"  # silence after 0.9 s
STEADY = "last_call_timeout=300ms,keep_alive_interval=700ms"  # after 2.1 s: a second in which the machine stands still is none
DEFAULTS = "last_call_timeout=300ms"  # silence after 3 s, the kill's second: 4 s
LATE = 3  # seconds that a loaded machine may need beyond every bound


class Stamps:
    """What the workers left: {round: {rank: (first, last)}}, seconds of the monotonic clock."""

    def __init__(self, out):
        self.path, self.seen, self.rounds = out / "stamps", 0, {}  # seen: bytes

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self.seen)
                lines = file.read().rpartition(b"\n")[0]  # the last one may be half written
            self.seen += len(lines) + 1 if lines else 0
            for line in lines.split(b"\n") if lines else ():
                words = line.split()
                number, rank, t = int(words[0]), int(words[1]), int(words[2]) / 1e9
                ranks = self.rounds.setdefault(number, {})
                first, last = ranks.get(rank, (t, t))
                ranks[rank] = (min(first, t), max(last, t))
        return self.rounds

    def wait_round(self, world, after=0, seconds=60):
        """The first round above `after` in which ranks 0..world-1 run: (number, when the last of them began)."""

        def look():
            for number, ranks in sorted(self.read().items()):
                if number > after and sorted(ranks) == list(range(world)):
                    return number, max(first for first, _ in ranks.values())
            return None

        return wait(f"a round of {world} after round {after}", look, seconds)

    def never_two(self):
        """No worker of a round runs when one of a later round has begun."""
        rounds = sorted(self.read().items())
        for (a, old), (b, new) in zip(rounds, rounds[1:]):
            end, begin = max(last for _, last in old.values()), min(first for first, _ in new.values())
            assert end < begin, f"round {a} ran {1000 * (end - begin):.1f} ms into round {b}"
        return len(rounds)


@pytest.fixture
def stamps(cluster):
    return Stamps(cluster.out)


def daemon_at(cluster, *args, **kw):
    return cluster.rendezvousd(*args, **kw).p


def on_hosts(cluster, net, *args, conf=QUICK, state=None):
    """A daemon on the last host, a node on each of the others: -> (the daemon, the nodes, one more daemon at the same place)"""
    home = net.hosts[-1]
    more = ["--state-dir", state] if state else []

    def daemon():
        return daemon_at(cluster, "--token-file", net.token, *more, prefix=home.prefix(), bind=home.addr, port=29400)

    first = daemon()
    nodes = [cluster.node("--rdzv_endpoint", f"{home.addr}:29400", "--rdzv_id", "job", "--rdzv_conf", conf, "--max-restarts", 100,
                          *args, program=STAMP, prefix=h.prefix()) for h in net.hosts[:-1]]
    return first, nodes, daemon


def texts(nodes):
    return "\n---\n".join(n.text() for n in nodes)


# --- death --------------------------------------------------------------------------------------------------------


def test_a_killed_agent_is_known_to_be_dead_at_once(cluster, stamps):
    where = cluster.daemon()
    args = ["--nnodes", "3:4", "--rdzv_endpoint", where, "--rdzv_id", "job", "--rdzv_conf", DEFAULTS + ",keep_alive_max_attempt=20",
            "--max-restarts", 3]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(4)]
    one, _ = stamps.wait_round(4)
    killed = time.monotonic()
    nodes[2].kill_agent()
    two, began = stamps.wait_round(3, after=one)
    print(f"kill -9 of an agent to the next round: {1000 * (began - killed):.0f} ms")
    assert began - killed < 15, "it was taken for silence"
    assert two == one + 1
    stamps.never_two()
    cluster.finish(*(n for n in nodes if n is not nodes[2]))


def test_a_new_host_waits_until_nobody_runs_the_last_round(cluster, stamps):
    """The host and a worker die; another node, whose agent stands still, cannot be told."""
    args = ["--nnodes", "1:3", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job", "--rdzv_conf", DEFAULTS, "--max-restarts", 3,
            "--log-level", "info"]
    host = cluster.node("--node-rank", 2, *args, program=STAMP)
    wait("the host", lambda: "hosting at" in host.text())
    failing, still = [cluster.node("--node-rank", i, *args, program=STAMP) for i in (0, 1)]
    one, _ = stamps.wait_round(3)
    worker = failing.worker()
    host.process.kill()
    host.wait()
    agent = still.agent()
    os.kill(agent, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    try:
        stamps.wait_round(1, after=one)
    finally:
        os.kill(agent, signal.SIGCONT)
    stamps.wait_round(2, after=one)
    stamps.never_two()
    cluster.finish(failing, still)


# --- silence ------------------------------------------------------------------------------------------------------


def partition(cluster, net, stamps, conf, silence, interval):
    """The workers that cannot be told have a second to be killed in; the others need a second at most for their round."""
    first, nodes, _ = on_hosts(cluster, net, "--nnodes", "2:3", conf=conf)
    one, _ = stamps.wait_round(3)
    cut = time.monotonic()
    net.hosts[2].cut()
    two, began = stamps.wait_round(2, after=one)
    print(f"partition to the next round: {began - cut:.2f} s (bound {silence + 2} s)")
    assert silence - interval + 1 < began - cut < silence + 2 + LATE
    stamps.never_two()
    wait("a fence", lambda: "the workers here were ended" in nodes[2].text())
    net.hosts[2].heal()
    stamps.wait_round(3, after=two)
    stamps.never_two()
    cluster.finish(*nodes)


def test_a_silent_partition_and_a_healed_one(cluster, net, stamps):
    partition(cluster, net, stamps, STEADY, 2.1, 0.7)


@pytest.mark.slow
def test_a_silent_partition_with_the_default_heartbeat(cluster, net, stamps):
    partition(cluster, net, stamps, DEFAULTS, 3, 1)


def test_the_workers_of_a_host_that_is_cut_off_end_before_the_others_go_on(cluster, net, stamps):
    """A node hosts, and its link is cut. A machine that gets its address hosts in its place. Workers take all the time that they get to stop."""
    host, *others, successor = net.hosts
    args = ["--nnodes", "2:3", "--rdzv_endpoint", f"{host.addr}:29400", "--rdzv_id", "job", "--rdzv_conf", "last_call_timeout=60", "--max-restarts", 9]
    start = functools.partial(cluster.node, *args, program=STAMP, env={"STAMP_DEAF": "1"})
    nodes = [start(prefix=h.prefix()) for h in (host, *others)]
    one, _ = stamps.wait_round(3)
    cut = time.monotonic()
    host.cut()
    wait("a fence", lambda: "which leaves fewer than 2 nodes here" in nodes[0].text())
    netns.ip("addr", "add", f"{host.addr}/24", "dev", "eth0", ns=successor.ns)
    for h in others:
        netns.ip("neigh", "flush", "dev", "eth0", ns=h.ns)
    start(prefix=successor.prefix())
    two, began = stamps.wait_round(3, after=one)
    ranks = stamps.read()
    ends = max(last for _, last in ranks[one].values())
    print(f"link cut to the end of all workers: {ends - cut:.2f} s (bound 4 s), to the next round {began - cut:.2f} s")
    stamps.never_two()
    assert ends - cut < 4 + LATE, texts(nodes)
    assert two > one
    host_of_old = nodes.pop(0)
    host_of_old.process.kill()
    cluster.finish(*nodes, cluster.nodes[-1])


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["daemon", "node"])
def test_a_partition_of_one_way(cluster, net, stamps, deaf):
    _, nodes, _ = on_hosts(cluster, net, "--nnodes", "2:3")
    one, _ = stamps.wait_round(3)
    node, home = net.hosts[2], net.hosts[-1]
    who, to = (home, node) if deaf == "daemon" else (node, home)
    who.deaf_to_us(to)
    two, _ = stamps.wait_round(2, after=one)
    who.hears_us(to)
    stamps.wait_round(3, after=two)
    stamps.never_two()
    cluster.finish(*nodes)


@pytest.mark.slow
def test_flapping_makes_few_rounds(cluster, net, stamps):
    flaps = 20
    _, nodes, _ = on_hosts(cluster, net, "--nnodes", "2:3")
    stamps.wait_round(3)
    for _ in range(flaps):
        net.hosts[2].cut()
        time.sleep(1.5)
        net.hosts[2].heal()
        time.sleep(1.5)
    last = max(stamps.read())
    print(f"{flaps} flaps in {flaps * 3} s: {last} rounds")
    assert last <= 2 * flaps  # each one breaks a round at most, and lets one begin
    stamps.wait_round(3, after=last - 1)
    stamps.never_two()
    cluster.finish(*nodes)


@pytest.mark.slow
def test_an_agent_that_is_stopped_loses_its_workers_meanwhile(cluster, stamps):
    where = cluster.daemon()
    args = ["--nnodes", "2:3", "--rdzv_endpoint", where, "--rdzv_id", "job", "--rdzv_conf", DEFAULTS, "--max-restarts", 9]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(3)]
    one, _ = stamps.wait_round(3)
    agent = nodes[1].agent()
    os.kill(agent, signal.SIGSTOP)
    stopped = time.monotonic()
    two, began = stamps.wait_round(2, after=one)
    print(f"SIGSTOP of an agent to the next round: {began - stopped:.2f} s")
    stamps.never_two()
    time.sleep(max(0, 10 - (time.monotonic() - stopped)))
    os.kill(agent, signal.SIGCONT)
    stamps.wait_round(3, after=two)
    stamps.never_two()
    cluster.finish(*nodes)
    said = nodes[1].text()
    assert re.search(rf"its agent \(pid {agent}, state T in \w+\) has stood still for [34]\d\d\d ms: .*keep_alive_interval", said), said
    assert re.search(r"nothing was heard of the rendezvous for \d+ ms \(--rdzv-conf .*\), of which this crun itself stood still for \d{4,5} ms", said), said


def test_both_halves_that_are_stopped_lose_their_workers_meanwhile(cluster, stamps):
    args = ["--nnodes", "1:2", "--rdzv_endpoint", cluster.daemon(), "--rdzv_id", "job", "--rdzv_conf", STEADY, "--max-restarts", 9]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(2)]
    one, _ = stamps.wait_round(2)
    worker = nodes[1].worker()
    halves = [nodes[1].pid, nodes[1].agent()]
    for pid in halves:
        os.kill(pid, signal.SIGSTOP)
    two, _ = stamps.wait_round(1, after=one)
    assert state(worker) in (None, "Z")
    for pid in halves:
        os.kill(pid, signal.SIGCONT)
    stamps.wait_round(2, after=two)
    stamps.never_two()
    cluster.finish(*nodes)
    assert re.search(r"restart 1/9 \(node '[^']+' was not heard of for [\d.]+ s "
                     r"\(--rdzv-conf keep_alive_interval, keep_alive_max_attempt\)\)", nodes[0].text()), nodes[0].text()


# --- the daemon ----------------------------------------------------------------------------------------------------


def test_a_daemon_that_is_killed_and_restarted_restarts_no_worker(cluster, stamps):
    port, state = free_port(), cluster.tmp / "state"
    first = daemon_at(cluster, "--state-dir", state, port=port)
    args = ["--nnodes", "3", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf", DEFAULTS]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(3)]
    one, _ = stamps.wait_round(3)
    first.kill()
    first.wait()
    time.sleep(5)  # more than the silence that would fence, and the kill's second
    daemon_at(cluster, "--state-dir", state, port=port)
    time.sleep(4)
    now = time.monotonic()
    rounds = stamps.read()
    assert list(rounds) == [one], texts(nodes)
    assert all(now - last < LATE for _, last in rounds[one].values())
    cluster.finish(*nodes)


@pytest.mark.slow
def test_a_daemon_without_memory_is_told_what_it_lost(cluster, stamps):
    port = free_port()
    first = daemon_at(cluster, port=port)
    args = ["--nnodes", "2", "--max-restarts", 1, "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf", STEADY]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(2)]
    one, _ = stamps.wait_round(2)
    first.kill()
    first.wait()
    second = daemon_at(cluster, port=port)
    two, _ = stamps.wait_round(2, after=one)
    stamps.never_two()
    assert any("has lost its memory of job 'job'" in n.text() for n in nodes), texts(nodes)
    assert all("did not know this job (instance" in n.text() for n in nodes), texts(nodes)
    second.kill()
    second.wait()
    daemon_at(cluster, port=port)
    for n in nodes:
        assert n.wait() == 69 and "no restart is left (--max-restarts 1)" in n.text(), n.text()
    assert max(stamps.read()) == two


@pytest.mark.slow
def test_a_daemon_killed_while_the_network_is_cut(cluster, net, stamps):
    first, nodes, again = on_hosts(cluster, net, "--nnodes", "2:3", conf=DEFAULTS, state=cluster.tmp / "state")
    one, _ = stamps.wait_round(3)
    net.hosts[2].cut()
    first.kill()
    cut = time.monotonic()
    first.wait()
    time.sleep(8)
    rounds = stamps.read()
    assert list(rounds) == [one]
    ends = sorted(last for _, last in rounds[one].values())
    print(f"the node that is cut off ended its workers after {ends[0] - cut:.2f} s (bound 4 s); the others run on")
    assert ends[0] - cut < 4 + LATE / 2
    assert time.monotonic() - ends[1] < LATE, texts(nodes)
    again()
    two, _ = stamps.wait_round(2, after=one)
    net.hosts[2].heal()
    stamps.wait_round(3, after=two)
    stamps.never_two()
    cluster.finish(*nodes)


@pytest.mark.slow
def test_the_grace_for_a_dead_daemon_ends(cluster, stamps):
    port = free_port()
    first = daemon_at(cluster, port=port)
    args = ["--nnodes", "2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf",
            STEADY + ",daemon_grace=3,join_timeout=5,is_host=0"]  # this host is the daemon's: a crun would host in its place
    nodes = [cluster.node(*args, program=STAMP) for _ in range(2)]
    one, _ = stamps.wait_round(2)
    first.kill()
    gone = time.monotonic()
    for n in nodes:
        assert n.wait() == 69, n.text()
        assert "cannot reach" in n.text()
    ends = [last for _, last in stamps.read()[one].values()]
    print("workers ran on for", [f"{e - gone:.2f} s" for e in ends])
    assert all(2 < e - gone < 3 + LATE for e in ends)


@pytest.mark.slow
def test_a_daemon_that_is_stopped_declares_nobody_dead(cluster, stamps):
    port = free_port()
    daemon = daemon_at(cluster, port=port)
    args = ["--nnodes", "2:3", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf", DEFAULTS,
            "--max-restarts", 1]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(3)]
    one, _ = stamps.wait_round(3)
    daemon.send_signal(signal.SIGSTOP)
    time.sleep(5)
    daemon.send_signal(signal.SIGCONT)
    # The agents fenced themselves; all of them are in the very next round, and one restart is used up.
    two, _ = stamps.wait_round(3, after=one)
    assert two == one + 1, texts(nodes)
    stamps.never_two()
    cluster.finish(*nodes)


@pytest.mark.slow
def test_a_daemon_that_pauses_for_a_moment_changes_nothing(cluster, stamps):
    port = free_port()
    daemon = daemon_at(cluster, port=port)
    args = ["--nnodes", "2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job", "--rdzv_conf", DEFAULTS]
    nodes = [cluster.node(*args, program=STAMP) for _ in range(2)]
    one, _ = stamps.wait_round(2)
    for _ in range(3):
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(1)  # a third of the silence, and the time between two requests, are to spare
        daemon.send_signal(signal.SIGCONT)
        time.sleep(1.5)
    assert list(stamps.read()) == [one]
    cluster.finish(*nodes)


# --- everything -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(os.environ.get("CRUN_FAULT_SEED", s)) for s in (1, 2, 3)])
def test_whatever_the_network_does(cluster, stamps, seed):
    """Each node behind a proxy of its own that goes wrong at random; then the job must end well."""
    print(f"seed {seed} (CRUN_FAULT_SEED)")
    dice = random.Random(seed)
    port, state = free_port(), cluster.tmp / "state"
    daemon = daemon_at(cluster, "--state-dir", state, port=port)
    proxies = [Proxy("127.0.0.1", port, seed + i) for i in range(3)]
    args = ["--nnodes", "1:3", "--rdzv_id", "job", "--rdzv_conf", QUICK, "--max-restarts", 1000]
    nodes = [cluster.node("--rdzv_endpoint", f"127.0.0.1:{p.port}", *args, program=STAMP) for p in proxies]
    stamps.wait_round(3)
    for _ in range(25):
        what = dice.random()
        if what < 0.1:
            daemon.kill()
            daemon.wait()
            time.sleep(dice.uniform(0, 1))
            daemon = daemon_at(cluster, "--state-dir", state, port=port)
        elif what < 0.2:
            os.kill(nodes[dice.randrange(3)].agent(), signal.SIGSTOP)
        else:
            dice.choice(proxies).set(dice.choice(FAULTS))
        time.sleep(dice.uniform(0, 2))
        for n in nodes:
            os.kill(n.agent(), signal.SIGCONT)
    for p in proxies:
        p.set("pass")
    last = max(stamps.read())
    stamps.wait_round(3, after=last - 1)
    print(f"{stamps.never_two()} rounds")
    cluster.finish(*nodes)
    for p in proxies:
        p.close()


def looked(node):
    """Its gauges process has looked at the links once: the thread for them waits for the kernel's news."""
    for pid in children(node.pid):
        if (pathlib.Path(f"/proc/{pid}/comm")).read_text() == "job-gauges\n":
            calls = [(task / "syscall").read_text().split() for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
            return any(call[0] == "7" and call[2:4] == ["0x1", "0x1388"] for call in calls)
    return False


def test_a_link_that_was_cut_is_named(cluster, net):
    """By the node whose link it is, as soon as it knows the job's end."""
    hosts = net.hosts[:2]
    args = ["--nnodes", 2, "--rdzv_endpoint", f"{hosts[0].addr}:29400", "--rdzv_id", "job", "--rdzv_conf", QUICK]
    own_sys = ["unshare", "-m", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh"]
    nodes = [cluster.node(*args, program=["sleep", "600"], prefix=h.prefix() + own_sys) for h in hosts]
    for n in nodes:
        wait("a look at the links", lambda n=n: looked(n))
    hosts[1].cut()
    codes = [n.wait() for n in nodes]
    assert codes == [69, 69], texts(nodes)
    assert "eth0 went down" not in nodes[0].text(), texts(nodes)
    assert re.search(r"crun: nothing was heard of .*; the workers here were ended; eth0 went down\n", nodes[1].text()), texts(nodes)
    assert re.search(r"crun: job 'job' is lost: .*; eth0 went down\n", nodes[1].text()), texts(nodes)
