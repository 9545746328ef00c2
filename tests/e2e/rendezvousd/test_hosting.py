"""A crun that hosts the rendezvous keeps strangers out as rendezvousd does; so does the store of a round."""
import os
import signal
import socket
import subprocess
import sys

import pytest

from daemon import ALICE, BOB, Client, Daemon, RespError, network_namespace, until, write_tokens
from support import CRUN, free_port, preload, run

HOST = ("--nnodes", "1:2", "--rdzv-id", "j1", "--rdzv-conf", "last_call_timeout=0.2,join_timeout=20")


@pytest.fixture
def hosted(tmp_path, namespace):
    """A running job of one node (room for two) whose crun hosts at (address, port); its worker told (MASTER_ADDR, MASTER_PORT)."""
    _, _, ours = namespace
    port, said = free_port(ours), tmp_path / "master"
    token = write_tokens(tmp_path / "token", ALICE)
    log = open(tmp_path / "log", "w+")
    p = subprocess.Popen([CRUN, *HOST, "--rdzv-endpoint", f"{ours}:{port}", "--token-file", token, "sh", "-c",
                          f'echo "$MASTER_ADDR $MASTER_PORT" >{said}.new; mv {said}.new {said}; sleep 600'], stdout=log, stderr=log)
    try:
        until(said.exists, "the worker runs")
        yield ours, port, said.read_text().split(), tmp_path / "log"
    finally:
        p.terminate()
        p.wait(60)
        log.close()


def from_there(namespace, port):
    name, _, ours = namespace
    with network_namespace(name):
        return Client(0, sock=socket.create_connection((ours, port), timeout=30))


def test_the_rendezvous_asks_strangers_for_the_token(hosted, namespace):
    _, port, _, log = hosted
    with from_there(namespace, port) as c:
        assert c.error("RDZV.STATUS", "j1") == "NOAUTH Authentication required."
    with from_there(namespace, port) as c:
        assert c.error("STORE.PROVE", c.challenge(ALICE[0], BOB[1])).startswith("WRONGPASS ")
    with from_there(namespace, port) as c:
        c.authenticate(*ALICE)
        assert '"run":"j1"' in c("RDZV.STATUS", "j1")
    text = until(lambda: log.read_text() if "wrong proof" in log.read_text() else None, "the refusal is logged")
    assert "refused peer=" in text and ALICE[1] not in text


def test_a_crun_with_another_token_is_told_of_on_both_sides(tmp_path):
    port, log, ready = free_port(), tmp_path / "log", tmp_path / "ready"
    (tmp_path / "theirs").mkdir()
    ours, theirs = write_tokens(tmp_path / "token", ALICE), write_tokens(tmp_path / "theirs" / "token", (ALICE[0], BOB[1]))
    where = ("--rdzv-endpoint", f"127.0.0.1:{port}")
    with open(log, "wb") as f:
        host = subprocess.Popen([CRUN, *HOST, *where, "--token-file", ours, "sh", "-c", f"touch {ready}; sleep 600"], stdout=f, stderr=f)
    try:
        until(ready.exists, "the worker runs")
        p = run(CRUN, *HOST[:-1], f"{HOST[-1]},is_host=0", *where, "--token-file", theirs, "true")
        assert p.returncode == 2 and "do not trust each other" in p.stderr, p.stderr
        words = "a node at 127.0.0.1 was turned away, for it holds another secret than this one.\nStart all nodes with the same --token-file.\n"
        until(lambda: words in log.read_text(), "the host's user is told")
    finally:
        host.terminate()
        host.wait(60)


def test_the_store_of_a_round_is_for_its_members(hosted, namespace):
    ours, _, (_, port), _ = hosted
    with Client(int(port), host=ours) as c:  # this host, own user: as a worker
        assert c("SET", "k", "v") == "OK"
        assert c("GET", "k") == "v"
    with from_there(namespace, int(port)) as c:
        with pytest.raises(RespError, match="NOPERM this server takes connections of the members of its job only"):
            c.receive()


def agent_there(namespace, port, *args, home):
    name, _, ours = namespace
    return subprocess.run(["ip", "netns", "exec", name, CRUN, *HOST, "--rdzv-endpoint", f"{ours}:{port}", *args, "true"], capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, "HOME": str(home), "CRUN_TOKEN_FILE": ""})


def test_an_agent_with_another_token_is_told_so(hosted, namespace, tmp_path):
    _, port, _, _ = hosted
    p = agent_there(namespace, port, "--token-file", write_tokens(tmp_path / "other", (ALICE[0], BOB[1])), home=tmp_path)
    assert p.returncode == 2 and "the server does not hold the secret that we hold for principal 'alice'" in p.stderr, p.stderr
    p = agent_there(namespace, port, home=tmp_path)  # the one made for us
    assert p.returncode == 2 and "--token-file" in p.stderr, p.stderr


def test_an_agent_with_the_token_comes_in(tmp_path, namespace):
    name, theirs, ours = namespace
    port, token = free_port(ours), write_tokens(tmp_path / "token", ALICE)
    common = ["--nnodes", "2", "--nproc_per_node", "2", "--rdzv-id", "j2", "--rdzv-endpoint", f"{ours}:{port}", "--token-file", str(token), "sh", "-c",
              "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"]
    here = subprocess.Popen([CRUN, *common], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    there = subprocess.Popen(["ip", "netns", "exec", name, CRUN, *common], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    out = [p.communicate(timeout=90)[0] for p in (here, there)]
    assert here.returncode == there.returncode == 0, out
    assert sorted(line.split("rank ")[1].split()[0] for o in out for line in o.splitlines() if "of 4 at" in line) == ["0", "1", "2", "3"]


def test_a_member_of_the_round_may_use_keys_and_nothing_else(tmp_path, namespace):
    """One port for both, as with --master_port: the address lets a worker in, not an agent."""
    name, _, ours = namespace
    port, token = free_port(ours), write_tokens(tmp_path / "token", ALICE)
    ready = tmp_path / "ready"
    common = ["--nnodes", "2", "--master_addr", ours, "--master_port", str(port), "--rdzv-id", "j3", "--token-file", str(token), "sh", "-c",
              f"touch {ready}$RANK; sleep 600"]
    with open(tmp_path / "log", "w") as log:
        agents = [subprocess.Popen([CRUN, "--node_rank", "0", *common], stdout=log, stderr=log),
                  subprocess.Popen(["ip", "netns", "exec", name, CRUN, "--node_rank", "1", *common], stdout=log, stderr=log)]
        try:
            until(lambda: all((tmp_path / f"ready{r}").exists() for r in (0, 1)), "both workers run")
            with from_there(namespace, port) as c:
                assert c("SET", "k", "v") == "OK" and c("GET", "k") == "v"
                for words in (("RDZV.STATUS", "j3"), ("RDZV.DRAIN", "j3"), ("RDZV.LEAVE", "j3", "x"), ("STORE.USE", "j3")):
                    assert c.error(*words).startswith("NOPERM this connection has not authenticated")
                assert len(c("CLIENT", "LIST").splitlines()) == 1  # itself
                c.authenticate(*ALICE)
                assert '"state":"running"' in c("RDZV.STATUS", "j3")
            assert [a.poll() for a in agents] == [None, None]
        finally:
            for a in agents:
                a.terminate()
            for a in agents:
                a.wait(60)


def test_a_daemon_takes_its_port_when_a_crun_that_hosts_there_has_ended():
    with socket.create_server(("127.0.0.1", 0)) as held:
        d = Daemon(port=held.getsockname()[1], wait=False)
        line = d.p.stderr.readline()
        assert "Address already in use; trying again for 60 s" in line, line
    with d.p:
        assert d.p.stdout.readline().startswith("rendezvousd ready on 127.0.0.1:")
        d.p.terminate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_crun_hosts_on_the_port_of_a_daemon_that_is_restarted(tmp_path, monkeypatch, how):
    monkeypatch.setenv("HOME", str(tmp_path))
    port = free_port()
    with Daemon(port=port) as d:
        d.p.send_signal(how)
        d.p.wait(60)
    where, job = ["--rdzv-endpoint", f"127.0.0.1:{port}", "--nnodes", "1:2"], ["sh", "-c", "echo rank $RANK"]
    thief = subprocess.Popen([CRUN, *where, "--rdzv-id", "stranger", "--rdzv-conf", "last_call_timeout=0.2,join_timeout=60", *job],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with thief:
        try:
            line = until(lambda: next((line for line in thief.stderr if "does not host there" in line), None), "it waits for the daemon")
            assert f"a rendezvousd of this machine had port {port} in the last minute" in line, line
            p = run(CRUN, *where, "--rdzv-conf", "is_host=1,last_call_timeout=0.2", *job, timeout=60)
            assert p.returncode == 0 and "rank 0" in p.stdout, "whoever asks for it does host"
            with Daemon(port=port):
                assert thief.wait(60) == 0 and "rank 0" in thief.stdout.read()
        finally:
            thief.kill()


LATE = ("--insecure", "--rdzv-id", "late", "--rdzv-backend", "c10d", "--rdzv-conf", "join_timeout=60", "echo", "it runs")


def start_late(tmp_path, how, log):
    """A crun whose endpoint's name the name service knows later, or answers late."""
    env = dict(os.environ, **preload("fault_names"), FAULT_NAMES=f"{how}:{tmp_path / 'known'}")
    return subprocess.Popen([CRUN, "--rdzv-endpoint", f"late-1:{free_port()}", *LATE], env=env, stdout=log, stderr=log)


def test_a_crun_whose_name_becomes_known_late_hosts(tmp_path):
    """Pods start before their Service: the first answer is no reason to dial oneself for ever."""
    with open(tmp_path / "log", "w+") as log:
        p = start_late(tmp_path, "late", log)
        until(lambda: "cannot reach host 'late-1'" in (tmp_path / "log").read_text(), "the name is not known")
        (tmp_path / "known").touch()
        assert p.wait(60) == 0
    said = (tmp_path / "log").read_text()
    assert "this crun hosts the rendezvous there until the job has ended" in said and "joining: 1 of 1 nodes here; it begins in " in said and "it runs" in said, said


def test_a_name_service_that_does_not_answer_makes_nobody_deaf(tmp_path):
    with open(tmp_path / "log", "w+") as log:
        p = start_late(tmp_path, "held", log)
        until(lambda: "connecting to late-1" in (tmp_path / "log").read_text(), "the name is looked up")
        p.send_signal(signal.SIGINT)
        assert p.wait(60) == 130
    assert "does not take signals" not in (tmp_path / "log").read_text()


def test_a_job_meets_over_tls(tmp_path, tokens, certificates):
    token = write_tokens(tmp_path / "token", ALICE)
    with Daemon("--token-file", tokens, "--tls-only", "--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem") as d:
        where = ["--rdzv-endpoint", f"127.0.0.1:{d.port}", "--token-file", token]
        ca = ["--rdzv-ca", certificates / "cert.pem"]
        p = run(CRUN, *HOST, *where, *ca, "sh", "-c", "echo rank $RANK of $WORLD_SIZE", timeout=60)
        assert p.returncode == 0 and "rank 0 of 1" in p.stdout, p
        assert run(CRUN, "status", *where, *ca, timeout=30).stdout.splitlines()[1].split()[:2] == ["j1", "succeeded"]
        p = run(CRUN, "status", *where, timeout=30)
        assert p.returncode == 1 and "this server speaks TLS only" in p.stderr
        p = run(CRUN, "status", *where, "--rdzv-ca", certificates / "client.pem", timeout=30)
        assert p.returncode == 69 and "certificate is refused" in p.stderr


TOO_LARGE = """
import os, socket, struct
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=30)
s.sendall(b"\\x00" + struct.pack("<I", 0x3C85F7CE) + b"\\x01" + struct.pack("<Q", 1) + b"k" + struct.pack("<Q", 10 << 20))
assert s.recv(1) == b""
"""


def test_a_value_of_torchs_that_is_too_large_is_told():
    """Its own client says that the connection is lost, and no more."""
    p = run(CRUN, "--standalone", sys.executable, "-S", "-c", TOO_LARGE)
    assert p.returncode == 0, p.stderr
    assert "a length of 10485760, expected up to" in p.stderr
