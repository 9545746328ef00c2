"""Machines that share nothing but a network, as a user finds them: what both sides say, and how both end."""
import re
import subprocess
import time

import pytest

import machines as rig
from cluster import free_port, joined, kill_and_wait, wait
from daemon import write_tokens
from support import CRUN, LIBCRUN, ROOT

E = ["--rdzv-endpoint", "node1:29500", "--rdzv-id", "j"]
SHARED = {"CRUN_TOKEN": "a-secret-of-enough-bytes"}
PRINTS = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE via $MASTER_ADDR:$MASTER_PORT, token ${CRUN_TOKEN-none}"]
SQUATS = "import socket; s = socket.socket(); s.bind(('', 29502)); s.listen(); print('listens', flush=True); open_ = [s.accept() for _ in range(999)]"
WAITS = ["sh", "-c", "exec sleep 60"]

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    why = rig.available()
    if why:
        pytest.skip(why)
    made = rig.Machines(tmp_path_factory.mktemp("machines"), 4)
    yield made
    made.close()


@pytest.fixture
def start(cluster, net):
    """start(1, "--nnodes", 2, ..., program=[...]) -> a crun on node1"""
    def start(number, *args, env=SHARED, program=PRINTS, crun=CRUN):
        m = net.v[number - 1]
        return cluster.node(*args, prefix=m.prefix(), program=program, env={**m.env, **env}, crun=crun)

    for m in net.v:
        (m.home / ".config" / "crun" / "token").unlink(missing_ok=True)
    yield start
    cluster.close()  # nobody of this test listens for the next one


def hosting(node):
    wait("a host", lambda: "this crun hosts the rendezvous there" in node.text())
    return node


def says(node, words):
    wait(words, lambda: words in node.text())


def test_machines_with_secrets_of_their_own_name_the_commands_that_help(start, net):
    """Which are then typed: the file is copied as scp -p would, and both nodes train."""
    host = hosting(start(1, "--nnodes", 2, *E, env={}))
    other = start(2, "--nnodes", 2, *E, env={})
    assert other.wait() == 2
    assert "\n  scp -p node1:.config/crun/token ~/.config/crun/token\n" in other.text() and "\n  export CRUN_TOKEN=" in other.text(), other.text()
    says(host, f"\n  scp -p ~/.config/crun/token {net.v[1].addr}:.config/crun/token\nor start every node with the same secret")
    token = net.v[1].home / ".config" / "crun" / "token"
    token.write_text((net.v[0].home / ".config" / "crun" / "token").read_text())
    again = start(2, "--nnodes", 2, *E, env={})
    assert (host.wait(), again.wait()) == (0, 0), host.text() + again.text()
    assert "rank 0 of 2" in host.text() and "rank 1 of 2" in again.text()


def test_secrets_that_differ_over_a_folder_or_a_list_are_named_with_the_commands_that_help(start, net, cluster):
    """By both sides, once, and without a line of the log."""
    folder = cluster.tmp / "shared"
    folder.mkdir()
    shared = ["--nnodes", 2, "--rdzv-endpoint", f"file://{folder}", "--rdzv-id", "j"]
    leader = start(1, *shared, env={})
    says(leader, "joining: 1 of 2 nodes")
    other = start(2, *shared, env={})
    listed = ["--nnodes", "2:3", "--rdzv-endpoint", "node3:29501,node4:29501,node1:29501", "--rdzv-id", "l"]
    third, fourth = start(3, "--node-rank", 0, *listed, env={}), start(4, "--node-rank", 1, *listed, env={})
    says(fourth, "the host node3:29501 and this node do not trust each other, so they cannot be in one job: ")
    says(fourth, "\n  scp -p node3:.config/crun/token ~/.config/crun/token\nor start every node")
    says(third, "\n  scp -p ~/.config/crun/token node4:.config/crun/token\nor start every node")  # the same file as the other one names
    assert other.wait() == 2
    assert "\n  scp -p node1:.config/crun/token ~/.config/crun/token\n" in other.text() and "\n  export CRUN_TOKEN=" in other.text(), other.text()
    says(leader, f"\n  scp -p ~/.config/crun/token {net.v[1].addr}:.config/crun/token\nor start every node with the same secret")
    for n in (leader, third, fourth):
        assert n.text().count("scp -p") == 1 and "audit" not in n.text(), n.text()


def lines_of_the_readme():
    """What is typed on each of two machines: the secret, and the command."""
    text = (ROOT / "README.md").read_text()
    variable, command = re.search(r"^    export (CRUN_TOKEN)=SECRET .*: (openssl .*)$", text, re.M).groups()
    secret = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout.strip()
    words, = re.findall(r"^    crun-launcher (--nnodes 2 .*) train\.py", text.replace("\\\n", " "), re.M)
    return {variable: secret}, words.split()


def test_two_machines_train_by_the_lines_of_the_readme(start, net, cluster):
    """After the wheel: two commands on each. The program is the example worker: barriers, and a sum over 16 ranks."""
    env, words = lines_of_the_readme()
    launcher = cluster.tmp / "crun-launcher"
    launcher.symlink_to(CRUN)
    for m in net.v[:2]:
        (m.home / "train.py").write_text((ROOT / "docs/examples/worker.py").read_text().replace("else 100", "else 5"))
    env |= {"PYTHONPATH": str(ROOT / "python"), "LIBCRUN": str(LIBCRUN)}
    nodes = [start(n, *words, program=["train.py"], env=env, crun=launcher) for n in (1, 2)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text() + nodes[1].text()
    done = re.findall(r"rank (\d+) of 16: hello, round 1, sum 600\n", nodes[0].text() + nodes[1].text())
    assert sorted(map(int, done)) == list(range(16)), nodes[0].text() + nodes[1].text()
    for n, node in enumerate(nodes, 1):  # their /etc/hosts is Debian's
        assert node.text().count(f"PyTorch's Gloo would wait at 127.0.1.1, where no other node reaches it, for that is the address of this machine's own name, node{n}: ") == 1


def test_nothing_shared_but_a_variable_is_one_command_more_on_each_node(start, net):
    """export CRUN_TOKEN=..., and the line of the README. Workers do not see the secret."""
    nodes = [hosting(start(1, "--nnodes", 2, *E)), start(2, "--nnodes", 2, *E)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text() + nodes[1].text()
    assert "Gloo" not in nodes[0].text()  # its program is no Python
    assert "token none" in nodes[0].text() and not (net.v[0].home / ".config" / "crun" / "token").exists()


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("args, program, code, why", [
    ((), ["nosuch.py"], 127, "script 'nosuch.py' is not found"),
    (("--nproc-per-node", "gpu"), PRINTS, 2, "no GPU is usable here"),
])
def test_a_node_that_can_start_nothing_ends_all_with_its_sentence_and_code(start, first, args, program, code, why):
    """Whoever hosts, and whoever comes first."""
    env = {**SHARED, "CUDA_VISIBLE_DEVICES": ""}
    good = lambda: start(1, "--nnodes", 2, *E, program=WAITS, env=env)
    bad = lambda: start(2, "--nnodes", 2, *args, *E, program=program, env=env)
    nodes = [good(), bad()] if first == 1 else [bad(), good()][::-1]
    assert [n.wait() for n in nodes] == [code, code], nodes[0].text() + nodes[1].text()
    assert f"{why}; this node tells the others" in nodes[1].text() or why in nodes[1].text(), nodes[1].text()
    assert re.search(rf"the job failed: .*{re.escape(why)}.*, reported by node2 \(exit code {code}\)", nodes[0].text()), nodes[0].text()


def test_a_hosting_node_that_can_start_nothing_tells_those_that_come(start):
    host = hosting(start(1, "--nnodes", 2, *E, program=["nosuch.py"]))
    other = start(2, "--nnodes", 2, *E, program=WAITS)
    assert (host.wait(), other.wait()) == (127, 127), host.text() + other.text()
    assert "reported by node1 (exit code 127)" in other.text()


def test_a_node_that_leaves_a_job_that_goes_on_says_why(start, cluster):
    """Its program is there, and cannot be executed: the interpreter that it names is not."""
    bad = cluster.tmp / "bad"
    bad.write_text("#!/nowhere/sh\n")
    bad.chmod(0o755)
    args = ["--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1", *E]
    host = hosting(start(1, *args, program=WAITS))
    start(2, *args, program=WAITS)
    leaver = start(3, *args, program=[bad])
    assert leaver.wait() == 127, leaver.text()
    says(host, "leaves (exit code 127): program")
    says(host, "is not found, reported by node3; the nodes of the job change")


def test_a_node_of_other_settings_ends_all_that_wait_for_it(start):
    host = hosting(start(1, "--nnodes", 2, *E))
    other = start(2, "--nnodes", 3, *E)
    assert (host.wait(), other.wait()) == (78, 78), host.text() + other.text()
    assert "node 'node2' left: the job was started with --nnodes 2:2, not 3:3" in host.text()


def test_a_node_of_another_id_is_told_on_both_sides(start):
    host = hosting(start(1, "--nnodes", 2, *E))
    other = start(2, "--nnodes", 2, "--rdzv-endpoint", "node1:29500", "--rdzv-id", "k")
    says(host, "a node waits here for nodes of job 'k', not of job 'j': is one of the two ids wrong?")
    says(other, "node1:29500 serves job 'j'; this node waits there for nodes of job 'k' (--rdzv-id)")
    says(other, "no other node of job 'k' has come to node1:29500")
    assert "no other node has come" not in host.text(), host.text()


FAST = ["--rdzv-conf", "keep_alive_interval=0.3,keep_alive_max_attempt=3"]
AGAIN = ["sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; echo up; exec sleep 600"]  # ends in the round after a loss


def pair(start, *args):
    """-> the hosting node1 and node2, whose workers run"""
    host = hosting(start(1, "--nnodes", 2, *args, *E, program=AGAIN))
    nodes = [host, start(2, "--nnodes", 2, *args, *E, program=AGAIN)]
    for n in nodes:
        says(n, "up\n")
    return nodes


def test_a_node_whose_link_is_cut_is_named_and_with_no_restart_left_both_end(start, net):
    host, other = pair(start, *FAST)
    net.v[1].host.cut()
    try:
        assert (host.wait(20), other.wait(20)) == (69, 69), host.text() + other.text()
    finally:
        net.v[1].host.heal()
    assert "nothing was heard of node2 for 900 ms (--rdzv-conf keep_alive_interval, keep_alive_max_attempt), which leaves fewer than 2 nodes here" in host.text()
    assert "the job failed: nothing was heard of node2 for 900 ms" in host.text() and "lost touch" not in host.text(), host.text()
    assert re.search(r"nothing is heard of node2: this crun waits up to \d s more, to tell how the job ended\n", host.text()), host.text()
    assert "job 'j' is lost: the rendezvous at node1:29500 is gone or out of reach, the workers here were ended, and no restart is left (--max-restarts 0)" in other.text()


def test_the_times_of_a_restart_count_from_when_touch_was_lost(start, net):
    host, other = pair(start, "--max-restarts", 1, *FAST)
    net.v[1].host.cut()
    says(other, "; the workers here were ended\n")
    net.v[1].host.heal()
    assert (host.wait(), other.wait()) == (0, 0), host.text() + other.text()
    detect = re.search(r"restart 1/1 \(lost touch with the rendezvous\): detect (\d+)\.\d ms", other.text())
    assert detect and int(detect[1]) >= 800, other.text()


def test_the_host_that_was_killed_is_started_again_as_the_survivor_says(start):
    host, other = pair(start, "--max-restarts", 1, *FAST)
    kill_and_wait(host)
    says(other, "the crun or rendezvousd that hosted job 'j' at node1:29500 is gone or out of reach: if it has ended, start it again on node1 with the same command")
    again = start(1, "--nnodes", 2, "--max-restarts", 1, *FAST, *E, program=AGAIN)
    assert (again.wait(), other.wait()) == (0, 0), again.text() + other.text()


def test_without_a_restart_the_survivor_of_a_killed_host_ends_at_once(start):
    host, other = pair(start, *FAST)
    kill_and_wait(host)
    assert other.wait(20) == 69 and "job 'j' is lost: " in other.text() and "start it again" not in other.text(), other.text()


def test_a_node_that_died_is_named_to_who_waits_for_another(start):
    host, other = pair(start, "--max-restarts", 1)
    other.process.kill()
    says(host, "job 'j' has lost a node (node 'node2+")
    assert "and needs 2: start crun again there, or elsewhere, with the same command" in host.text() and "no other node has come" not in host.text()
    again = start(3, "--nnodes", 2, "--max-restarts", 1, *E, program=AGAIN)
    assert (host.wait(), again.wait()) == (0, 0), host.text() + again.text()


@pytest.mark.parametrize("home", ["host", "daemon"])
def test_a_job_that_a_dead_node_ends_waits_for_no_report_of_it(start, net, cluster, home):
    """The end of a job waits up to 3 s for the reports of other nodes; this one can send none."""
    where = E
    if home == "daemon":
        tokens = write_tokens(cluster.tmp / "tokens", ("crun", SHARED["CRUN_TOKEN"]))
        cluster.rendezvousd("--token-file", tokens, prefix=net.v[2].prefix(), bind=net.v[2].addr, port=29400)
        where = ["--rdzv-endpoint", "node3:29400", "--rdzv-id", "j"]
    nodes = [joined(start(1, "--nnodes", 2, "--node-rank", 0, *where, program=AGAIN), 1, 2), start(2, "--nnodes", 2, "--node-rank", 1, *where, program=AGAIN)]
    for n in nodes:
        says(n, "up\n")
    nodes[1].process.kill()
    begun = time.monotonic()
    assert nodes[0].wait() == 69 and re.search(r"the job failed: node 'node2\+\S+' is gone: ", nodes[0].text()), nodes[0].text()
    assert time.monotonic() - begun < 2.5


def test_a_name_without_an_address_is_called_so(start):
    node = start(1, "--nnodes", 2, "--rdzv-endpoint", "nosuch:29500", "--rdzv-id", "j", program=WAITS)
    says(node, "the name 'nosuch' has no address on this machine: ")
    assert "nobody listens" not in node.text()


def test_endpoints_that_never_meet_are_named_after_five_seconds(start, net):
    """localhost on each node; each its own name; node rank 0 typed on a node that the master address is not of; a port
    that a program which is no rendezvous has; node rank 0 typed on none."""
    squatter = subprocess.Popen([*net.v[3].prefix(), "/usr/bin/python3", "-c", SQUATS], stdout=subprocess.PIPE)
    assert squatter.stdout.readline() == b"listens\n"
    on = lambda n, *args: start(n, "--nnodes", 2, *args, program=WAITS)
    nodes = [on(1, "--rdzv-endpoint", "localhost:29500", "--rdzv-id", "j"), on(2, "--rdzv-endpoint", "127.0.1.1:29501", "--rdzv-id", "j"),
             on(3, "--rdzv-endpoint", "node3:29500", "--rdzv-id", "j"), on(4, "--node-rank", 0, "--master-addr", "node1"),
             on(4, "--rdzv-endpoint", "node4:29502", "--rdzv-id", "j"), on(2, "--node-rank", 1, "--master-addr", "node2")]
    says(nodes[0], "no other node has come to localhost:29500, and none of another machine can")
    says(nodes[0], "--rdzv-endpoint node1:29500\n")
    says(nodes[1], "no other node has come to 127.0.1.1:29501, and none of another machine can")
    says(nodes[2], "where this crun hosts job 'j': all nodes need this same --rdzv-endpoint node3:29500, not each its own name, and --rdzv-id j. "
                   "Otherwise packets to TCP port 29500 there may be dropped")
    says(nodes[3], "--master-addr node1 is no address of this machine, and the node of --node-rank 0 hosts the rendezvous")
    says(nodes[4], "another program of this machine has port 29502, and no rendezvous answers there: end it, or give all nodes another port")
    squatter.kill()
    squatter.wait()
    says(nodes[5], "the node of --node-rank 0 hosts the rendezvous there, and this one has --node-rank 1")
    for n in nodes[:4]:
        waits = re.findall(r"; for (\d+) s, given up in", n.text())
        assert len(waits) <= 4 and all(int(b) - int(a) >= 1 for a, b in zip(waits, waits[1:])), n.text()  # after 1, 2, 4 s and so on


def test_what_this_node_uses_is_named_where_nobody_is_met(start, net, cluster):
    """An address that no machine has for its own; a port that nobody listens at; a folder; a daemon where another id waits."""
    folder = cluster.tmp / "shared"
    folder.mkdir()
    tokens = write_tokens(cluster.tmp / "tokens", ("crun", SHARED["CRUN_TOKEN"]))
    cluster.rendezvousd("--token-file", tokens, prefix=net.v[3].prefix(), bind=net.v[3].addr, port=29400)
    on = lambda n, where, run: start(n, "--nnodes", 2, "--rdzv-endpoint", where, "--rdzv-id", run, program=WAITS)
    nodes = [on(1, "10.99.0.77:29500", "j"), on(2, "node1:29505", "j"), on(3, f"file://{folder}", "j"), on(1, "node4:29400", "x"), on(2, "node4:29400", "y")]
    says(nodes[0], "start the one that it leads to with --rdzv-conf is_host=1. Otherwise packets to TCP port 29500 there may be dropped")
    says(nodes[1], "nobody listens at node1:29505: the node that has node1 for an address of its own hosts there. Has it begun? ")
    says(nodes[1], "--rdzv-conf is_host=1\n")
    says(nodes[2], f"no other node of job 'j' has come to file://{folder}: all nodes need this same --rdzv-endpoint and --rdzv-id j\n")
    for n, run, other in ((nodes[3], "x", "y"), (nodes[4], "y", "x")):
        says(n, f"no other node of job '{run}' has come to node4:29400: all nodes need this same --rdzv-endpoint and --rdzv-id {run}. "
                f"Another job, '{other}', waits there for nodes, too: is it this one, with another --rdzv-id?\n")


def test_the_port_of_the_store_is_fixed_and_a_closed_one_is_named(start, net):
    nodes = [hosting(start(1, "--nnodes", 2, "--master-port", 29501, *E)), start(2, "--nnodes", 2, "--master-port", 29501, *E)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text() + nodes[1].text()
    assert f"rank 1 of 2 via {net.v[0].addr}:29501" in nodes[1].text()


def test_a_store_that_another_machine_cannot_reach_is_named(start, net, cluster):
    """Only the port of the rendezvous is open between the two."""
    tokens = write_tokens(cluster.tmp / "tokens", ("crun", SHARED["CRUN_TOKEN"]))
    first, second, third = (m.host for m in net.v[:3])
    cluster.rendezvousd("--token-file", tokens, prefix=third.prefix(), bind=third.addr, port=29400)
    second.deaf_to_us(first)
    try:
        line = lambda n: start(n, "--nnodes", 2, "--rdzv-endpoint", "node3:29400", "--rdzv-id", "j", program=WAITS)
        nodes = [line(1), line(2)]
        says(nodes[1], ": the workers of all nodes meet there, at group rank 0. Allow that port between the nodes, or name one that is allowed with "
                       "--master-port\n")
        assert f"cannot reach {first.addr}:" in nodes[1].text() and "meet there" not in nodes[0].text()
    finally:
        second.hears_us(first)


def test_master_addr_with_c10d_is_the_endpoint_that_is_meant(start, net):
    line = lambda n: start(n, "--nnodes", 2, "--node_rank", n - 1, "--master_addr", "node1", "--master_port", 29502, "--rdzv_backend", "c10d")
    nodes = [hosting(line(1)), line(2)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].text() + nodes[1].text()
    assert "nobody listens at node1:29502" in nodes[0].text() and "no effect" not in nodes[1].text()


def test_a_wait_for_more_nodes_says_when_it_ends(cluster):
    node = cluster.node("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "j", program=WAITS)
    wait("when it begins", lambda: re.search(r"joining: 1 of 1 to 2 nodes here; it begins in \d+ s, sooner with all of them \(--rdzv-conf last_call_timeout\)\n", node.text()))
