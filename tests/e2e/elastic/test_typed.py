"""As torchrun's users type it: the nodes need nothing but each other."""
import contextlib
import re
import signal
import socket
import threading
import time

import pytest

from cluster import WORKER, free_port, wait
from processes import WAIT
from support import CRUN, run


def c10d(port, *more, host="127.0.0.1"):
    return ["--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{host}:{port}", "--rdzv_id", "j", *more]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_two_cruns_and_nothing_else(cluster, host):
    port = free_port()
    cluster.node(*c10d(port, host=host))
    cluster.node(*c10d(port, "--rdzv_id", " j ", host=host))
    _, ranks = cluster.wait_round(2)
    assert {e["GROUP_RANK"] for e in ranks.values()} == {"0", "1"}
    assert {e["GROUP_WORLD_SIZE"] for e in ranks.values()} == {"2"}
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"], e["CRUN_STORE"]) for e in ranks.values()}) == 1
    assert {e["TORCHELASTIC_RUN_ID"] for e in ranks.values()} == {"j"}
    assert len({e["CRUN_NODE_ID"] for e in ranks.values()}) == 2
    cluster.finish()


@pytest.mark.parametrize("host, shown", [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1")])
def test_an_address_that_cannot_be_reached_is_told_as_it_is_typed(cluster, host, shown):
    port = free_port()
    node = cluster.node("--nnodes", 2, "--node-rank", 1, "--master-addr", host, "--master-port", port)
    wait("what it cannot reach", lambda: f"crun: cannot reach {shown}:{port}: " in node.text())
    node.terminate()
    assert node.wait() != 0


def test_the_one_who_may_not_host_may_start_first(cluster):
    port = free_port()
    first = cluster.node(*c10d(port, "--rdzv_conf", "is_host=0"))
    wait("a line that says what is missing", lambda: f"127.0.0.1:{port}" in first.text())
    cluster.node(*c10d(port))
    cluster.wait_round(2)
    cluster.finish()


def test_while_joining_a_line_each_second_says_what_is_missing(cluster):
    port = free_port()
    first = cluster.node("--nnodes", 3, "--node-rank", 1, "--rdzv-endpoint", f"127.0.0.1:{port}")
    wait("two lines", lambda: first.text().count("joining: 1 of 3 nodes, missing ") >= 2)
    assert re.search(r"missing node ranks 0,2; here: \S+; for \d+ s, given up in \d+ s$", first.text(), re.M)
    cluster.node("--nnodes", 3, "--node-rank", 2, "--rdzv-endpoint", f"127.0.0.1:{port}")
    wait("a line", lambda: "joining: 2 of 3 nodes, missing " in first.text())
    cluster.node("--nnodes", 3, "--node-rank", 0, "--rdzv-endpoint", f"127.0.0.1:{port}")
    _, ranks = cluster.wait_round(3)
    cluster.finish()


@pytest.mark.long
def test_a_host_that_dies_is_followed_by_another_on_its_machine(cluster):
    port = free_port()
    args = c10d(port, "--max-restarts", 1, "--rdzv_conf", "last_call_timeout=200ms", "--log-level", "info")
    host = cluster.node(*args)
    wait("the host", lambda: "joining: 1 of 2" in host.text())
    other = cluster.node(*args)
    number, _ = cluster.wait_round(2)
    host.process.kill()
    host.wait()
    wait("a new host", lambda: f"hosting at 127.0.0.1:{port}" in other.text())
    third = cluster.node(*args)
    again, _ = cluster.wait_round(2, after=number)
    assert again > number
    cluster.finish(other, third)


@pytest.mark.long
@pytest.mark.parametrize("ranks, conf", [
    ((0, 1, 2), ""),  # with group rank 0 the store goes, too: the silence rule
    ((2, 0, 1), ",daemon_grace=4"),  # the others are a majority with a store: what runs may run on
])
def test_all_others_follow_a_new_host(cluster, ranks, conf):
    port = free_port()
    args = ["--nnodes", "2:3", "--max-restarts", 1, "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "j",
            "--rdzv_conf", f"last_call_timeout=1s{conf}"]
    host = cluster.node("--node-rank", ranks[0], *args)
    wait("the host", lambda: "joining: 1 of 2" in host.text())
    others = [cluster.node("--node-rank", r, *args) for r in ranks[1:]]
    number, _ = cluster.wait_round(3)
    host.process.kill()
    host.wait()
    again, _ = cluster.wait_round(2, after=number)
    assert again > number
    cluster.finish(*others)


@pytest.mark.long
def test_without_a_host_the_others_end(cluster):
    port = free_port()
    conf = "join_timeout=8,daemon_grace=1"
    cluster.node(*c10d(port, "--rdzv_conf", conf))
    other = cluster.node(*c10d(port, "--rdzv_conf", f"is_host=0,{conf}"))
    cluster.wait_round(2)
    cluster.nodes[0].process.kill()
    assert other.wait(2 * WAIT) not in (0, 75)
    assert f"127.0.0.1:{port}" in other.text()


def test_static(cluster):
    port = free_port()
    args = ["--nnodes", 2, "--nproc_per_node", 2, "--master_addr", "127.0.0.1", "--master_port", port]
    cluster.node("--node_rank", 1, *args)
    cluster.node("--node_rank", 0, *args)
    _, ranks = cluster.wait_round(4)
    assert [ranks[i]["GROUP_RANK"] for i in range(4)] == ["0", "0", "1", "1"]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in ranks.values()} == {("127.0.0.1", str(port))}
    cluster.finish()


def test_static_restarts_on_the_same_port(cluster):
    port = free_port()
    args = ["--nnodes", 2, "--master_addr", "127.0.0.1", "--master_port", port, "--max_restarts", 1]
    cluster.node("--node_rank", 1, *args)
    cluster.node("--node_rank", 0, *args)
    number, _ = cluster.wait_round(2)
    cluster.say(f"fail-{number}-1")
    _, ranks = cluster.wait_round(2, after=number)
    assert {e["MASTER_PORT"] for e in ranks.values()} == {str(port)}
    assert {e["TORCHELASTIC_RESTART_COUNT"] for e in ranks.values()} == {"1"}
    cluster.finish()


def test_one_node_with_a_fixed_port(cluster):
    port = free_port()
    cluster.node("--nproc_per_node", 2, "--master_port", port)
    _, ranks = cluster.wait_round(2)
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in ranks.values()} == {("127.0.0.1", str(port))}
    cluster.finish()


def test_a_node_says_by_which_address_it_is_reached(cluster):
    port = free_port()
    cluster.node(*c10d(port, "--local-addr", "127.0.0.2"))
    cluster.node(*c10d(port, "--local-addr", "127.0.0.2"))
    _, ranks = cluster.wait_round(2)
    assert {e["MASTER_ADDR"] for e in ranks.values()} == {"127.0.0.2"}
    cluster.finish()


def test_slurm_is_found_out(cluster):
    job = str(free_port())  # any number that no other test has
    for rank in ("1", "0"):
        cluster.node("--nnodes", 2, env={"SLURM_JOB_ID": job, "SLURM_NODEID": rank, "SLURM_STEP_ID": "3",
                                         "SLURM_JOB_NODELIST": "localhost,node[2-3]"})
    _, ranks = cluster.wait_round(2)
    assert {e["TORCHELASTIC_RUN_ID"] for e in ranks.values()} == {f"{job}.3"}
    cluster.finish()


def test_a_cluster_that_is_set_up_once(cluster):
    folder = cluster.tmp / ".config" / "crun"
    folder.mkdir(parents=True)
    (folder / "crun.conf").write_text(f"rdzv_endpoint = {cluster.daemon()}\n")
    for _ in range(2):
        cluster.node("--nnodes", 2, "--rdzv_id", "job")
    cluster.wait_round(2)
    cluster.finish()


@pytest.mark.parametrize("said", ["crun.conf", "backend"])
def test_the_port_of_a_daemon_that_is_away_is_left_to_it(cluster, said):
    """On the daemon's own host, while it is started again: a crun that hosted in its place would keep it out."""
    port = free_port()
    args = ["--nnodes", 2, "--rdzv_id", "job"]
    if said == "crun.conf":
        folder = cluster.tmp / ".config" / "crun"
        folder.mkdir(parents=True)
        (folder / "crun.conf").write_text(f"rdzv_endpoint = 127.0.0.1:{port}\n")
    else:
        args += ["--rdzv-backend", "rendezvousd", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    first = cluster.node(*args)
    wait("a line", lambda: f"cannot reach 127.0.0.1:{port}" in first.text())
    cluster.rendezvousd(port=port)
    cluster.node(*args)
    cluster.wait_round(2)
    cluster.finish()


def test_a_rendezvous_that_is_not_there_is_named_with_the_time_that_is_left(cluster):
    """When it has lasted for a second, then after pauses of 1, 2, 4 s and so on, not each second."""
    port = free_port()
    node = cluster.node("--nnodes", 2, "--rdzv-backend", "rendezvousd", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job")

    def said():
        return [int(s) for s in re.findall(rf"cannot reach 127\.0\.0\.1:{port}: Connection refused; given up in (\d+) s\n", node.text())]
    wait("three lines", lambda: len(said()) >= 3)
    node.terminate()
    assert node.wait() != 0
    left = said()
    assert all(a - b >= 2**n - 1 for n, (a, b) in enumerate(zip(left, left[1:]))) and left[0] - left[2] >= 2, node.text()  # whole seconds
    assert node.text().count(f"cannot reach 127.0.0.1:{port}") == len(left), node.text()


def test_a_crun_that_hosts_says_so_and_gives_the_port_back(cluster):
    port = free_port()
    host = cluster.node(*c10d(port))
    wait("the host", lambda: "joining: 1 of 2" in host.text())
    other = cluster.node(*c10d(port))
    cluster.wait_round(2)
    cluster.finish()
    says = f"nobody listens at 127.0.0.1:{port}: this crun hosts the rendezvous there until the job has ended"
    assert (host.text().count(says), other.text().count(says)) == (1, 0)
    cluster.rendezvousd(port=port)  # fails if it cannot have it


@pytest.mark.parametrize("args, words", [
    (["--nnodes", "2"], ["needs a place to meet", "--rdzv-endpoint", "crun.conf"]),
    (["--nnodes", "2", "--rdzv_backend", "etcd", "--rdzv_id", "j"], ["--rdzv-backend etcd needs --rdzv-endpoint"]),
    (["--nnodes", "2", "--rdzv_endpoint", "etcd://h/a/b", "--rdzv_id", "j"], ["'/a/b'", "one word"]),
    (["--nnodes", "2", "--rdzv_endpoint", "etcd://me:sesame@h", "--rdzv_id", "j"], ["CRUN_ETCD_USER_FILE"]),
    (["--nnodes", "2", "--rdzv_endpoint", "file:///tmp"], ["--rdzv-id"]),
    (["--nnodes", "2", "--rdzv_endpoint", "file://tmp", "--rdzv_id", "j"], ["absolute path"]),
    (["--nnodes", "2", "--rdzv_endpoint", "file:///no/such/folder", "--rdzv_id", "j"], ["/no/such/folder", "No such file"]),
    (["--nnodes", "2", "--rdzv_endpoint", "redis://h/x", "--rdzv_id", "j"], ["expected a number"]),
    (["--nnodes", "2", "--standalone"], ["--standalone runs one node"]),
    (["--nnodes", "2", "--rdzv_endpoint", "127.0.0.1:1", "--iface", "nosuch0"], ["--iface 'nosuch0'", "lo"]),
])
def test_what_cannot_work_is_refused_at_once(cluster, args, words):
    p = run(CRUN, *args, *WORKER, timeout=60, env=cluster.env)
    assert p.returncode == 2, p.stderr
    for w in words:
        assert w in p.stderr, p.stderr


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9\r\n"])
def test_what_is_no_rendezvous_is_called_so(cluster, greeting):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]

        def serve():
            while True:
                try:
                    c = s.accept()[0]
                except OSError:
                    return
                with c, contextlib.suppress(OSError):
                    c.settimeout(5)
                    c.sendall(greeting or (c.recv(4096) and b"<!DOCTYPE html>\r\n"))
                    c.shutdown(socket.SHUT_WR)
                    while c.recv(4096):  # what is closed unread is reset, and the greeting may be lost
                        pass

        threading.Thread(target=serve, daemon=True).start()
        node = cluster.node(*c10d(port, "--rdzv_conf", "is_host=0,join_timeout=3"))
        assert node.wait() == 69
        s.shutdown(socket.SHUT_RDWR)
    assert f"127.0.0.1:{port} answers, but is no rendezvous" in node.text()
    assert "rotocol error" not in node.text() and "cannot reach 127" not in node.text()


def test_another_id_at_a_hosting_crun_is_told_whom_it_serves(cluster):
    port = free_port()
    host = cluster.node(*c10d(port))
    wait("the host", lambda: "joining: 1 of 2" in host.text())
    stranger = cluster.node("--nnodes", 2, "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "k")
    wait("the line", lambda: f"127.0.0.1:{port} serves job 'j'" in stranger.text())
    assert "serves job" not in host.text()
    cluster.node(*c10d(port))
    cluster.wait_round(2)
    stranger.terminate()
    stranger.wait()
    cluster.nodes.remove(stranger)
    cluster.finish()


@pytest.mark.parametrize("stopped", [0, 1], ids=["host", "other"])
def test_the_others_hear_which_node_was_stopped_and_by_what(cluster, stopped):
    port = free_port()
    nodes = [cluster.node(*c10d(port)), cluster.node(*c10d(port))]
    cluster.wait_round(2)
    nodes.sort(key=lambda n: "this crun hosts" not in n.text())
    nodes[stopped].process.send_signal(signal.SIGHUP)
    assert nodes[1 - stopped].wait() == 75
    words = rf"the job was stopped by SIGHUP on node '{socket.gethostname()}\+\S+'; the workers here are asked to stop\n"
    assert re.search(words, nodes[1 - stopped].text()), nodes[1 - stopped].text()
    assert "the job was stopped by" not in nodes[stopped].text()
    nodes[stopped].wait()


def test_workers_that_the_signal_killed_did_not_stop_in_good_order(cluster):
    port = free_port()
    plain = ["sh", "-c", "echo up; exec sleep 600"]
    nodes = [cluster.node(*c10d(port), program=plain), cluster.node(*c10d(port), program=plain)]
    wait("the workers", lambda: all("up\n" in n.text() for n in nodes))
    nodes[1].terminate()
    assert (nodes[0].wait(), nodes[1].wait()) == (75, 143), nodes[0].text() + nodes[1].text()
    assert "the workers were stopped before the end; start it again to go on (exit code 75)\n" in nodes[0].text(), nodes[0].text()
    assert "in good order" not in nodes[0].text() + nodes[1].text()


def test_a_second_ctrl_c_to_the_host_leaves_no_grace_anywhere(cluster):
    """Its workers and the others' do not end by themselves."""
    port = free_port()
    deaf = ["sh", "-c", "trap '' INT TERM; echo up; while :; do sleep 1; done"]
    host = cluster.node(*c10d(port, "--shutdown-timeout", 600), program=deaf)
    wait("the host", lambda: "this crun hosts" in host.text())
    other = cluster.node(*c10d(port, "--shutdown-timeout", 600), program=deaf)
    wait("the workers", lambda: "up\n" in host.text() and "up\n" in other.text())
    host.process.send_signal(signal.SIGINT)
    wait("the first one", lambda: "the job was stopped by SIGINT on node" in other.text())
    wait("how long it takes", lambda: "crun: stopping after SIGINT: the workers have 600 s in all; Ctrl-C kills them at once\n" in host.text())
    while host.process.poll() is None:  # one within a second of the first is the same wish
        host.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert other.wait() == 130
    assert re.search(r"the job was ended by a second SIGINT, which leaves no grace, on node '\S+'; the workers here are killed\n", other.text()), other.text()


def test_a_second_ctrl_c_elsewhere_ends_the_workers_there_alone(cluster):
    """The host's stop as after one; whoever typed it hears how long that takes."""
    port = free_port()
    host = cluster.node(*c10d(port), program=["sh", "-c", "trap 'echo saves; sleep 2; exit 75' INT TERM; echo up; while :; do sleep 0.1; done"])
    wait("the host", lambda: "this crun hosts" in host.text())
    other = cluster.node(*c10d(port), program=["sh", "-c", "trap '' INT TERM; echo up; while :; do sleep 1; done"])
    wait("the workers", lambda: "up\n" in host.text() and "up\n" in other.text())
    other.process.send_signal(signal.SIGINT)
    wait("how long it takes", lambda: "crun: stopping after SIGINT: the workers have 25 s in all; Ctrl-C kills those of this node at once\n" in other.text())
    other.process.send_signal(signal.SIGINT)
    assert (other.wait(), host.wait()) == (130, 75), other.text() + host.text()
    assert "saves\n" in host.text() and "the workers stopped in good order before the end" in host.text(), host.text()


def test_a_host_that_is_stopped_while_others_join_is_named(cluster):
    port = free_port()
    args = ["--nnodes", 3, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j"]
    host = cluster.node(*args)
    wait("the host", lambda: "this crun hosts" in host.text())
    other = cluster.node(*args)
    wait("both", lambda: "joining: 2 of 3" in other.text())
    host.process.terminate()
    assert other.wait() == 75
    assert re.search(r"the job was stopped by SIGTERM on node '\S+' before its first round here; start it again", other.text()), other.text()
