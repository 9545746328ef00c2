"""A real etcd as the home of a rendezvous: what its failures cost, who may use it, what it sees of a job."""
import os
import subprocess
import time

import pytest

from apis import certificates
from cluster import WAIT, kill_and_wait, wait
from support import BUILD, CRUN
from test_elected import CONF, leader_of

pytestmark = pytest.mark.serial
BOUND = 3 + 3 + 1 + 0.6  # D, silence, kill, and what the requests take


def args_of(etcd, *more):
    return ["--rdzv-endpoint", etcd.url, "--rdzv-id", "job", "--rdzv-conf", CONF, "--log-level", "info", *more]


def leads(nodes):
    """How often one of them has begun to lead."""
    return sum(n.text().count("leading job 'job'") for n in nodes)


def test_an_etcd_keeps_its_promises(cluster):
    etcd = cluster.etcd()
    p = subprocess.run([BUILD / "tests" / "common" / "test_rdzv_etcd_real"], env=dict(cluster.env, CRUN_TEST_HOME=etcd.url), timeout=WAIT, check=False,
                       capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr


def test_four_nodes_go_on_without_the_one_that_led(cluster):
    args = args_of(cluster.etcd(), "--nnodes", "3:4", "--max-restarts", 3)
    nodes = [cluster.node(*args) for _ in range(4)]
    first, _ = cluster.wait_round(4)
    leader = leader_of(nodes)
    start = time.monotonic()
    kill_and_wait(leader)
    again, _ = cluster.wait_round(3, after=first)
    took = time.monotonic() - start
    print(f"the leader killed, to the next round: {took:.2f} s")
    assert again == first + 1 and 4 < took < BOUND + 3  # a loaded machine's
    cluster.finish(*(n for n in nodes if n is not leader))


@pytest.mark.parametrize("which", ["the leader", "a follower"])
def test_a_member_of_the_etcd_dies_and_no_worker_and_no_leader_with_it(cluster, which):
    etcd = cluster.etcd(members=3)
    args = args_of(etcd, "--nnodes", "2:3", "--max-restarts", 3)
    nodes = [cluster.node(*args) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    one = etcd.leader()
    etcd.kill(one if which == "the leader" else (one + 1) % 3)
    etcd.leader()
    time.sleep(5)  # longer than a claim lives that nobody renews
    assert list(cluster.rounds()) == [first]
    assert leads(nodes) == 1, [n.text() for n in nodes]
    nodes[0].kill_agent()  # what is decided now
    cluster.wait_round(2, after=first)
    cluster.finish(*nodes[1:])


@pytest.mark.slow
def test_the_members_of_an_etcd_die_in_turn_and_the_nodes_notice_nothing(cluster):
    etcd = cluster.etcd(members=3)
    nodes = [cluster.node(*args_of(etcd, "--nnodes", "2:3", "--max-restarts", 3)) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    for i in (*range(3), etcd.leader(), etcd.leader(), etcd.leader()):
        etcd.kill(i)
        etcd.leader()
        time.sleep(4)
        etcd.start(i)
        wait("the member that came back", lambda i=i: etcd.serves(i))
    assert list(cluster.rounds()) == [first] and leads(nodes) == 1, [n.text() for n in nodes]
    nodes[0].kill_agent()
    cluster.wait_round(2, after=first)
    cluster.finish(*nodes[1:])


def test_an_etcd_that_starts_again_costs_nothing(cluster):
    """Its only member, which is away for longer than a claim and a silence."""
    etcd = cluster.etcd()
    nodes = [cluster.node(*args_of(etcd, "--nnodes", "2:3", "--max-restarts", 3)) for _ in range(3)]
    first, _ = cluster.wait_round(3)
    puts = lambda: etcd.metric("etcd_debugging_mvcc_put_total")
    seen = puts()
    wait("renewals with a time away", lambda: puts() >= seen + 3)
    etcd.kill(0)
    time.sleep(8)
    etcd.start(0)
    wait("renewals", lambda: etcd.serves(0) and puts() >= 2)  # since its start
    assert list(cluster.rounds()) == [first] and leads(nodes) == 1, [n.text() for n in nodes]
    nodes[0].kill_agent()
    cluster.wait_round(2, after=first)
    cluster.finish(*nodes[1:])


def test_at_rest_it_is_one_write_a_second_and_the_end_leaves_nothing(cluster):
    etcd = cluster.etcd()
    nodes = [cluster.node(*args_of(etcd, "--nnodes", 3)) for _ in range(3)]
    cluster.wait_round(3)
    sockets = [os.readlink(f"/proc/{n.worker()}/fd/{fd}") for n in nodes for fd in os.listdir(f"/proc/{n.worker()}/fd")]
    assert not [s for s in sockets if s.startswith("socket:")], sockets  # workers inherit nothing of it
    wait("nobody to watch any more", lambda: etcd.metric("etcd_debugging_mvcc_watcher_total") == 0)
    names = ["etcd_debugging_mvcc_put_total", "etcd_debugging_mvcc_range_total"]
    began, before = time.monotonic(), [etcd.metric(n) for n in names]
    wait("six renewals", lambda: etcd.metric(names[0]) >= before[0] + 6)
    took = time.monotonic() - began
    puts, ranges = (etcd.metric(n) - b for n, b in zip(names, before))
    print(f"at rest {puts / took:.2f} puts and {ranges / took:.2f} reads a second")
    assert puts / took < 1.3 and ranges <= puts  # each reads what it compares
    cluster.finish()
    assert etcd.keys() == 0


def test_the_names_of_torchrun_mean_it(cluster):
    etcd = cluster.etcd()
    for backend in ("etcd", "etcd-v2"):
        nodes = [cluster.node("--nnodes", 2, "--rdzv-backend", backend, "--rdzv-endpoint", etcd.url.removeprefix("etcd://"), "--rdzv-id", "job",
                              program=["true"]) for _ in range(2)]
        assert [n.wait() for n in nodes] == [0, 0], nodes[0].text() + nodes[1].text()


def tls_of(tmp):
    certificates(tmp)
    return ["--cert-file", tmp / "server.pem", "--key-file", tmp / "server.key", "--trusted-ca-file", tmp / "ca.pem", "--client-cert-auth"]


def test_tls_asks_for_the_certificates_of_both_sides(cluster):
    etcd = cluster.etcd(tls=tls_of(cluster.tmp))
    env = {"CRUN_ETCD_CA": str(cluster.tmp / "ca.pem"), "CRUN_ETCD_CERT": str(cluster.tmp / "client.pem"), "CRUN_ETCD_KEY": str(cluster.tmp / "client.key")}
    nodes = [cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"], env=env) for _ in range(2)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text()
    stranger = cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"])
    assert stranger.wait() == 2 and "a certificate is refused" in stranger.text(), stranger.text()


def etcdctl(etcd, *words):
    subprocess.run(["curl", "-sf", f"http://127.0.0.1:{etcd.ports[0][0]}/v3/{words[0]}", "-d", words[1]], check=True, timeout=30, stdout=subprocess.DEVNULL)


def test_an_etcd_with_users_takes_one_from_a_file(cluster):
    etcd = cluster.etcd()
    for path, body in (("auth/user/add", '{"name":"root","password":"pass:word"}'), ("auth/role/add", '{"name":"root"}'),
                       ("auth/user/grant", '{"user":"root","role":"root"}'), ("auth/enable", "{}")):
        etcdctl(etcd, path, body)
    stranger = cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"])
    assert stranger.wait() == 2 and "user name is empty" in stranger.text() and "CRUN_ETCD_USER_FILE" in stranger.text(), stranger.text()
    (cluster.tmp / "user").write_text("root:pass:word\n")
    env = {"CRUN_ETCD_USER_FILE": str(cluster.tmp / "user")}
    nodes = [cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"], env=env) for _ in range(2)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text()
    (cluster.tmp / "user").write_text("root:other\n")
    wrong = cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"], env=env)
    assert wrong.wait() == 2 and "invalid user ID or password" in wrong.text() and "other" not in wrong.text(), wrong.text()


def test_an_etcd_without_its_gateway_is_named(cluster):
    etcd = cluster.etcd(args=["--enable-grpc-gateway=false"])
    node = cluster.node(*args_of(etcd, "--nnodes", 2), program=["true"])
    assert node.wait() == 2 and "its JSON gateway is off" in node.text(), node.text()


def test_without_libcurl_there_is_one_sentence(tmp_path):
    (tmp_path / "libcurl.so.4").touch()
    p = subprocess.run([CRUN, "--nnodes", "2", "--rdzv-endpoint", "etcd://127.0.0.1:1", "--rdzv-id", "job", "true"], capture_output=True, text=True,
                       timeout=WAIT, check=False, env=dict(os.environ, LD_LIBRARY_PATH=str(tmp_path), HOME=str(tmp_path)))
    assert p.returncode == 69 and p.stderr.count("\n") == 1 and "Debian 12: libcurl4" in p.stderr, p.stderr
