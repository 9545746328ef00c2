"""Daemons that share their state: one leads, the others stand by, and no worker notices which one it is."""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from cluster import free_port, wait
from daemon import Client, Daemon, RespError
from support import CRUN, RENDEZVOUSD

pytestmark = pytest.mark.serial
LATE = 3  # seconds that a busy machine may take besides
CONF = "last_call_timeout=0.2,keep_alive_interval=700ms"
SILENCE = 2.1


class Pair:
    """Two daemons at fixed ports."""

    def __init__(self, cluster, state, env=(), n=2):
        self.cluster, self.state, self.env = cluster, str(state), dict(env)
        self.ports = [free_port() for _ in range(n)]
        self.daemons = [self.start(i) for i in range(n)]

    def start(self, i):
        log = open(self.cluster.tmp / f"daemon-{i}.log", "ab")
        d = Daemon("--state", self.state, "--log-level", "info", port=self.ports[i], log=log, env=dict(self.cluster.env, **self.env))
        self.cluster.processes.append(d.p)
        return d

    def log(self, i):
        return (self.cluster.tmp / f"daemon-{i}.log").read_text()

    def address(self, i):
        return f"127.0.0.1:{self.ports[i]}"

    def list(self):
        return ",".join(self.address(i) for i in range(len(self.ports)))

    def says(self, i):
        """What daemon i says of itself; None: it does not answer."""
        try:
            with Client(self.ports[i]) as c:
                return dict(f.split("=", 1) for f in c("RDZV.SEATS", "j", "n").split())
        except (OSError, EOFError):
            return None

    def leads(self, i):
        return (self.says(i) or {}).get("leads") == "1"

    def leader(self, but=None):
        """The index of the one that leads."""
        return wait("a leader", lambda: next((f"{i}" for i in range(len(self.ports)) if i != but and self.leads(i)), None))

    def hears(self, n):
        """The round in which n nodes work that are on connections with whoever leads."""
        return wait("the nodes at the leader", lambda: heard(self, int(self.leader()), n), 30)

    def taken_over(self, lost):
        """The next leader, and how long it took."""
        begun = time.monotonic()
        new = int(self.leader(but=lost))
        return new, time.monotonic() - begun


def heard(pair, i, n):
    """The round in which n nodes work that are on connections with daemon i."""
    try:
        with Client(pair.ports[i]) as c:
            j = json.loads(c("RDZV.STATUS", "j"))
    except (OSError, EOFError, RespError):
        return False
    return j["state"] == "running" and sum(node["connected"] for node in j["nodes"]) == n and j["round"]


@contextlib.contextmanager
def stopped(pair, i):
    os.kill(pair.daemons[i].p.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pair.daemons[i].p.pid, signal.SIGCONT)


@pytest.fixture
def folder(cluster):
    path = cluster.tmp / "state"
    path.mkdir()
    return path


def job(cluster, pair, *more, nodes=2):
    args = ["--nnodes", nodes, "--rdzv-endpoint", pair.list(), "--rdzv-id", "j", "--max-restarts", 9, "--rdzv-conf", CONF, "--log-level", "info", *more]
    return [cluster.node(*args) for _ in range(nodes)]


def goes_on(cluster, number, seconds=SILENCE + 1):
    """No worker is restarted in that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert list(cluster.rounds()) == [number], [n.text() for n in cluster.nodes]
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_the_other_leads_within_a_second_and_no_worker_restarts(cluster, folder, how):
    pair = Pair(cluster, folder)
    nodes = job(cluster, pair)
    number, _ = cluster.wait_round(2)
    lost = int(pair.leader())
    pair.daemons[lost].p.send_signal(how)
    new, took = pair.taken_over(lost)
    print(f"{how.name} to the next leader: {took:.3f} s")
    assert new != lost and took < 1 + LATE
    goes_on(cluster, number)
    if how == signal.SIGTERM:
        assert pair.daemons[lost].p.wait() == 0, pair.log(lost)
    cluster.say(f"fail-{number}-0")  # what is decided now
    again, ranks = cluster.wait_round(2, after=number)
    assert again == number + 1 and ranks[0]["TORCHELASTIC_RESTART_COUNT"] == "1"
    cluster.finish(*nodes)


def test_one_that_stood_still_is_replaced_after_its_claim_and_begins_anew(cluster, folder):
    pair = Pair(cluster, folder)
    nodes = job(cluster, pair)
    number, _ = cluster.wait_round(2)
    lost = int(pair.leader())
    os.kill(pair.daemons[lost].p.pid, signal.SIGSTOP)
    with Client(pair.ports[1 - lost]) as c:
        c.s.settimeout(30)
        begun = time.monotonic()
        wait("the other one to lead", lambda: "leads=1" in c("RDZV.SEATS", "j", "n"))
    took = time.monotonic() - begun
    print(f"stopped to the next leader: {took:.2f} s")
    assert 1 < took < 1.5 + 1 + LATE
    os.kill(pair.daemons[lost].p.pid, signal.SIGCONT)
    wait("a new beginning", lambda: "it begins anew, and stands by" in pair.log(lost))
    wait("it to stand by", lambda: pair.says(lost) == {"daemon": "1", "leads": "0", "state_id": pair.says(1 - lost)["state_id"]})
    print("rounds:", sorted(cluster.rounds()))
    cluster.wait_round(2, after=number - 1)
    cluster.finish(*nodes)


def test_a_leader_that_stands_still_for_good_is_left(cluster, folder):
    """Its port takes connections that nobody answers: they are no reason to stay with it."""
    pair = Pair(cluster, folder)
    nodes = job(cluster, pair)
    number, _ = cluster.wait_round(2)
    lost = int(pair.leader())
    with stopped(pair, lost):
        wait("the other one to lead", lambda: pair.leads(1 - lost))
        begun = time.monotonic()
        now = wait("the nodes at the other one", lambda: heard(pair, 1 - lost, 2), 30)
        print(f"the other one leads to all nodes at it: {time.monotonic() - begun:.1f} s; rounds: {number} {now}")
        assert number <= now <= number + 1
        cluster.wait_round(2, after=now - 1)
        cluster.finish(*nodes)


@pytest.mark.parametrize("backend", [[], ["--rdzv-backend", "rendezvousd"]], ids=["asked", "typed"])
def test_a_job_begins_though_the_first_of_the_list_stands_still(cluster, folder, backend):
    pair = Pair(cluster, folder)
    assert wait("the claim to be seen", lambda: all(pair.says(i)["state_id"] for i in range(2)))
    with stopped(pair, 0):
        wait("the other one to lead", lambda: pair.leads(1))
        node = cluster.node("--nnodes", 1, "--rdzv-endpoint", pair.list(), "--rdzv-id", "j", "--rdzv-conf", CONF + ",join_timeout=30", *backend, program=["true"])
        assert node.wait() == 0, node.text()
        p = subprocess.run([CRUN, "status", "--rdzv-endpoint", pair.list()], env=cluster.env, capture_output=True, text=True, check=False, timeout=9)
        assert p.returncode == 0 and p.stdout.startswith("RUN "), p.stdout + p.stderr


def test_a_folder_that_was_emptied_costs_a_restart(cluster, folder):
    """The daemons keep another state then, and all of them the same."""
    pair = Pair(cluster, folder)
    nodes = job(cluster, pair)
    number, _ = cluster.wait_round(2)
    before = pair.says(int(pair.leader()))["state_id"]
    shutil.rmtree(folder)
    folder.mkdir()
    wait("another state", lambda: (pair.says(int(pair.leader())) or {}).get("state_id", before) not in ("", before), 30)
    cluster.wait_round(2, after=number)
    cluster.finish(*nodes)


def test_one_that_stood_by_names_a_folder_that_was_emptied_anew(cluster, folder):
    pair = Pair(cluster, folder)
    first = int(pair.leader())
    before = pair.says(first)["state_id"]
    wait("the claim to be seen", lambda: pair.says(1 - first)["state_id"] == before)
    with stopped(pair, first):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        wait("it to lead", lambda: pair.leads(1 - first))
        assert pair.says(1 - first)["state_id"] not in ("", before)


def test_workers_go_on_while_all_daemons_are_gone(cluster, folder):
    """Every address of the list refuses, and most of the round is there: daemon_grace. Those that come back wait for the claim of the dead one."""
    pair = Pair(cluster, folder)
    nodes = job(cluster, pair)
    number, _ = cluster.wait_round(2)
    first = int(pair.leader())
    for i in (1 - first, first):
        pair.daemons[i].p.kill()
        pair.daemons[i].p.wait()
    goes_on(cluster, number)
    pair.daemons = [pair.start(i) for i in range(2)]
    now = pair.hears(2)
    assert number <= now <= number + 1
    cluster.wait_round(2, after=now - 1)
    cluster.finish(*nodes)


def test_probes_tell_who_leads(cluster, folder):
    daemons = [cluster.rendezvousd("--state", folder, "--http-port", 0) for _ in range(2)]

    def ask(d, path):
        try:
            with urllib.request.urlopen(d.http + path, timeout=10) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
    wait("one to lead", lambda: sorted(ask(d, "/readyz") for d in daemons) == [(200, "ready\n"), (503, "standing by\n")])
    assert [ask(d, "/healthz")[0] for d in daemons] == [200, 200]
    assert sorted(int("rendezvousd_leads 1\n" in ask(d, "/metrics")[1]) for d in daemons) == [0, 1]
    leader = next(d for d in daemons if ask(d, "/readyz")[0] == 200)
    assert leader.stop() == 0
    other = next(d for d in daemons if d is not leader)
    wait("the other one to lead", lambda: ask(other, "/readyz")[0] == 200)


def test_one_that_stands_by_names_the_leader_and_serves_nobody(cluster, folder):
    pair = Pair(cluster, folder)
    first = int(pair.leader())
    wait("the claim to be seen", lambda: pair.says(1 - first)["state_id"])
    text = f"STANDBY this rendezvousd stands by: {pair.address(first)} leads"
    with Client(pair.ports[1 - first]) as c:
        assert c("PING") == "PONG"
        for request in (("GET", "key"), ("SET", "key", "1"), ("DBSIZE",), ("RDZV.STATUS",), ("RDZV.JOIN", "j", "n", "min_nodes=1")):
            assert c.error(*request) == text
    with socket.create_connection(("127.0.0.1", pair.ports[1 - first])) as s:
        s.sendall(b"\x00\xce\xf7\x85\x3c")  # VALIDATE of a client of TCPStore
        assert s.recv(1) == b""
    with Client(pair.ports[first]) as c:
        assert c("SET", "key", "1") == "OK"
    p = subprocess.run([CRUN, "status", "--rdzv-endpoint", f"{pair.address(1 - first)},{pair.address(first)}"], env=cluster.env, capture_output=True, text=True, check=False)
    assert p.returncode == 0 and p.stdout.startswith("RUN "), p.stdout + p.stderr


def test_a_leader_that_the_list_lacks_is_named(cluster, folder):
    pair = Pair(cluster, folder, n=3)
    first = int(pair.leader())
    others = [pair.address(i) for i in range(3) if i != first]
    wait("the claim to be seen", lambda: all(pair.says(i)["state_id"] for i in range(3)))
    for places in (others[:1], others):
        node = cluster.node("--nnodes", 1, "--rdzv-endpoint", ",".join(places), "--rdzv-backend", "rendezvousd", "--rdzv-id", "j",
                            "--rdzv-conf", "join_timeout=10")
        assert node.wait() == 69, node.text()
        assert f"{pair.address(first)} leads, and --rdzv-endpoint {','.join(places)} does not name it: add it there" in node.text().splitlines()[-1], node.text()


def test_a_list_of_daemons_is_told_from_one_of_hosts(cluster, folder):
    """Seats and more than half of MAX are for hosts alone, --rdzv-backend only spares the question."""
    pair = Pair(cluster, folder)
    for more in ([], ["--rdzv-backend", "rendezvousd"]):
        node = cluster.node("--nnodes", "1:4", "--rdzv-endpoint", pair.list(), "--rdzv-id", f"j{len(more)}", "--rdzv-conf", CONF, *more, program=["true"])
        assert node.wait() == 0, node.text()
    both = [cluster.node("--nnodes", "2", "--node-rank", i, "--rdzv-endpoint", pair.list(), "--rdzv-id", "k", "--rdzv-conf", CONF) for i in range(2)]
    cluster.wait_round(2)
    cluster.finish(*both)
    for node in both:
        assert "hosting at" not in node.text() and "epoch" not in node.text(), node.text()


def test_a_list_that_is_neither_is_refused(cluster):
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    node = cluster.node("--nnodes", "1:4", "--rdzv-endpoint", hosts, "--rdzv-id", "j")
    assert node.wait() == 2, node.text()
    assert "two hosts of a list could gather 1 nodes each and both run the job" in node.text()
    assert "if they are daemons that share their state (none answers now): --rdzv-backend rendezvousd" in node.text()


def test_daemons_of_two_states_are_refused(cluster, folder):
    other = cluster.tmp / "other"
    other.mkdir()
    one, two = Pair(cluster, folder, n=1), Pair(cluster, other, n=1)
    states = {p.says(0)["state_id"] for p in (one, two) if p.leader()}
    assert len(states) == 2
    both = f"{one.address(0)},{two.address(0)}"
    p = subprocess.run([CRUN, "status", "--rdzv-endpoint", both], env=cluster.env, capture_output=True, text=True, check=False)
    assert p.returncode == 0 and p.stdout.startswith("RUN "), p.stdout + p.stderr
    assert f"the daemons {one.address(0)} and {two.address(0)} of the list do not share one state, " in p.stderr and all(s in p.stderr for s in states), p.stderr
    node = cluster.node("--nnodes", "1:2", "--rdzv-endpoint", both, "--rdzv-id", "j")
    assert node.wait() == 2, node.text()
    assert "do not share one state" in node.text() and one.address(0) in node.text() and two.address(0) in node.text(), node.text()
    alone = cluster.rendezvousd()
    node = cluster.node("--nnodes", "1:2", "--rdzv-endpoint", f"{alone.address},{one.address(0)}", "--rdzv-id", "j")
    assert node.wait() == 2 and f"the rendezvousd at {alone.address} keeps its jobs for itself" in node.text(), node.text()


def test_daemons_of_two_states_are_refused_before_either_takes_the_node(cluster, folder):
    """Also where one of them answers late."""
    other = cluster.tmp / "other"
    other.mkdir()
    one, two = Pair(cluster, folder, n=1), Pair(cluster, other, n=1)
    assert one.leader() and two.leader()
    os.kill(two.daemons[0].p.pid, signal.SIGSTOP)
    node = cluster.node("--nnodes", "1:2", "--rdzv-endpoint", f"{one.address(0)},{two.address(0)}", "--rdzv-id", "j", "--log-level", "info")
    wait("the first answer", lambda: "so are those of the list" in node.text())
    os.kill(two.daemons[0].p.pid, signal.SIGCONT)
    assert node.wait() == 2 and "do not share one state" in node.text(), node.text()
    with Client(one.ports[0]) as c:
        assert c.error("RDZV.STATUS", "j").startswith("NOJOB")


def test_daemons_of_which_one_has_no_token_are_both_named(cluster, folder):
    """The job would end with the daemon that trusts its nodes."""
    pair = Pair(cluster, folder, n=1)
    assert pair.leader()
    (cluster.tmp / "token").write_text("ops 0123456789abcdef0123456789abcdef\n")
    (cluster.tmp / "token").chmod(0o600)
    with open(cluster.tmp / "other.log", "ab") as log:
        other = Daemon("--state", folder, "--token-file", cluster.tmp / "token", port=free_port(), log=log, env=cluster.env)
    cluster.processes.append(other.p)
    node = cluster.node("--nnodes", 1, "--rdzv-endpoint", f"{pair.address(0)},{other.address}", "--rdzv-id", "j", program=["true"])
    assert node.wait() == 0, node.text()
    assert f"the daemons {pair.address(0)} and {other.address} do not have the same secret, so this node cannot go on with {other.address}: " in node.text(), node.text()


def refused(cluster, *args):
    p = subprocess.run([RENDEZVOUSD, "--port", "0", *map(str, args)], env=cluster.env, capture_output=True, text=True, check=False, timeout=30)
    return p.returncode, p.stderr


def test_what_is_no_folder_of_daemons_is_refused(cluster, folder):
    pair = Pair(cluster, folder, n=1)
    assert pair.leader()
    code, text = refused(cluster, "--state-dir", folder)
    assert code == 2 and f"'{folder}' has the state that daemons share (crun-rendezvousd/claim): expected" in text, (code, text)
    alone = cluster.tmp / "alone"
    assert cluster.rendezvousd("--state-dir", alone).stop() == 0
    for state in (alone, f"file://{alone}"):
        code, text = refused(cluster, "--state", state)
        assert code == 2 and f"'{alone}' is the folder of one daemon alone (it has jobs/ and epoch): expected" in text, (code, text)
    code, text = refused(cluster, "--state", "/etc/passwd")
    assert code == 2 and "--state '/etc/passwd': expected a folder" in text, (code, text)
    code, text = refused(cluster, "--state", "k8s://x")
    assert code == 2 and "another --state of a rendezvousd" in text, (code, text)


def test_its_sockets_may_be_given_to_it(cluster, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        fd = os.dup2(s.fileno(), 3, inheritable=True) if s.fileno() != 3 else 3
        with open(cluster.tmp / "given.log", "ab") as log:
            p = subprocess.Popen(["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", RENDEZVOUSD, "--state", folder], env=cluster.env, pass_fds=(fd,),
                                 stdout=log, stderr=log)
        cluster.processes.append(p)
    with Client(port) as c:
        wait("it to lead", lambda: "leads=1" in c("RDZV.SEATS", "j", "n"))
        assert c("SET", "key", "1") == "OK"
    p.terminate()
    assert p.wait() == 0


def take_overs(cluster, pair, count, seed, bound):
    """Kills, ends and stops in turn, by chance. With a silence longer than a claim is valid no worker restarts, also where that was waited out."""
    dice = random.Random(seed)
    nodes = job(cluster, pair, "--rdzv-conf", CONF + ",keep_alive_max_attempt=10")
    number, _ = cluster.wait_round(2)
    slowest, hows = {}, []
    for _ in range(count):
        hows = hows or dice.sample([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], 3)
        how = hows.pop()
        lost = int(pair.leader())
        stood = pair.log(lost).count("standing by: ")
        pair.daemons[lost].p.send_signal(how)
        if how == signal.SIGSTOP:
            begun = time.monotonic()
            wait("the other one to lead", lambda lost=lost: pair.leads(1 - lost), 30)
            took = time.monotonic() - begun
        else:
            new, took = pair.taken_over(lost)
            assert new != lost
        slowest[how.name] = max(slowest.get(how.name, 0), took)
        assert took < (bound if how == signal.SIGSTOP else 1) + LATE, (how, pair.log(0), pair.log(1))
        if how == signal.SIGSTOP:
            pair.daemons[lost].p.send_signal(signal.SIGCONT)
        else:
            pair.daemons[lost].p.wait()
            pair.daemons[lost] = pair.start(lost)
        wait("it to stand by", lambda lost=lost, stood=stood: pair.log(lost).count("standing by: ") > stood)
        assert pair.hears(2) == number, (how, [n.text() for n in nodes])
        time.sleep(dice.random() * 0.3)
    print(f"{count} take-overs: " + ", ".join(f"{how} {s:.2f} s at most" for how, s in slowest.items()) + f"")
    assert list(cluster.rounds()) == [number]
    cluster.finish(*nodes)


COUNTS = pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])


@COUNTS
def test_take_overs_over_a_folder(cluster, folder, count):
    take_overs(cluster, Pair(cluster, folder), count, 56, 1.5 + 1)


@COUNTS
def test_take_overs_over_an_etcd(cluster, count):
    take_overs(cluster, Pair(cluster, cluster.etcd().url + "/state"), count, 57, 3 + 1)


@COUNTS
def test_take_overs_over_a_lease(cluster, count):
    k = cluster.kubernetes()
    take_overs(cluster, Pair(cluster, "k8s://daemons", env=k.pod(cluster.tmp)), count, 58, 3 + 1)
