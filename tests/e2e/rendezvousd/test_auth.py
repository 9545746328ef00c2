"""Who may use rendezvousd: every way to come in without the right token, over every transport and from every kind of address."""
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from crun_run import Crun
from daemon import ALICE, BOB, DEADLINE, Client, Daemon, RespError, network_namespace, refused_start, until, write_tokens
from support import ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from proxy import Proxy  # noqa: E402

WRONG = "WRONGPASS invalid username-password pair or user is disabled."


@pytest.fixture(params=["loopback", "other loopback address", "another host"])
def dial(request):
    """dial(daemon, tls=None) -> Client that comes from there."""
    if request.param == "another host":
        name, _, ours = request.getfixturevalue("namespace")

        def from_there(daemon, tls=None):
            with network_namespace(name):
                sock = socket.create_connection((ours, daemon.port), timeout=30)
            return Client(0, sock=sock, tls=tls)
        return from_there
    source = "127.0.0.1" if request.param == "loopback" else "127.0.0.2"
    return lambda daemon, tls=None: Client(daemon.port, source=source, tls=tls)


@pytest.fixture(params=["plain", "TLS"])
def transport(request):
    """(options of the daemon, ssl context of the client)"""
    if request.param == "plain":
        return [], None
    d = request.getfixturevalue("certificates")
    return ["--tls-cert", d / "cert.pem", "--tls-key", d / "key.pem"], request.getfixturevalue("tls")


def test_the_auth_matrix(tokens, dial, transport):
    options, tls = transport
    with Daemon("--bind", "0.0.0.0", "--token-file", tokens, "--auth-timeout", "60s", *options) as d:
        with dial(d, tls) as c:  # no token
            assert c.error("GET", "a") == "NOAUTH Authentication required."
            assert c.error("PING") == "NOAUTH Authentication required."
            assert c.error("RDZV.STATUS") == "NOAUTH Authentication required."
            assert c("HELLO")[1] == "rendezvousd" and c("QUIT") == "OK"
            assert c.closed()
        with dial(d, tls) as c:  # right
            c.authenticate(*ALICE)
            assert c.server_is_right
            assert c("SET", "k", "v") == "OK" and c("GET", "k") == "v"
            said, nonce = c.challenge(*ALICE, nonce="a" * 64), "a" * 64
        with dial(d, tls) as c:  # wrong secret
            proof = c.challenge(ALICE[0], "x" * 30)
            assert not c.server_is_right
            assert c.error("STORE.PROVE", proof) == WRONG
            assert c.closed()
        with dial(d, tls) as c:  # somebody nobody knows is not told so before the proof
            assert c.error("STORE.PROVE", c.challenge("mallory", ALICE[1])) == WRONG
        with dial(d, tls) as c:  # the right secret of somebody else
            assert c.error("STORE.PROVE", c.challenge(BOB[0], ALICE[1])) == WRONG
        with dial(d, tls) as c:  # replayed: all that was overheard of the right one, said again
            c("STORE.AUTH", ALICE[0], nonce)
            assert c.error("STORE.PROVE", said) == WRONG
        with dial(d, tls) as c:  # truncated
            assert c.error("STORE.PROVE", c.challenge(*ALICE)[:-1]) == WRONG
        with dial(d, tls) as c:  # reflected
            nonce = secrets.token_hex(32)
            assert c.error("STORE.PROVE", c("STORE.AUTH", ALICE[0], nonce)[1]) == WRONG
        with dial(d, tls) as c:  # once is enough
            proof = c.challenge(*ALICE)
            assert c("STORE.PROVE", proof) == "OK"
            assert c.error("STORE.PROVE", proof) == "ERR STORE.PROVE without STORE.AUTH before it"
        assert d.stop() == 0
    for reason in ("asked for 'get' before it has authenticated", "wrong proof for principal 'alice'", "wrong proof for principal 'mallory'"):
        assert f"reason={reason}" in d.err
    for _, secret in (ALICE, BOB):
        assert secret not in d.err
    assert d.err.count("audit: refused peer=") == 7  # one line each


def in_time(ask):
    """What is asked of a daemon of short patience, on a machine that may be busy."""
    def once():
        try:
            return [ask()]
        except (RespError, EOFError, OSError):
            return None
    return until(once, "an answer in time")[0]


def test_a_proof_that_comes_too_late(tokens, dial, transport):
    options, tls = transport

    def asked():
        c = dial(d, tls)
        return c, c.challenge(*ALICE)

    with Daemon("--bind", "0.0.0.0", "--token-file", tokens, "--auth-timeout", "1s", *options) as d:
        friend = in_time(lambda: dial(d, tls).authenticate(*ALICE))
        c, proof = in_time(asked)
        with pytest.raises((RespError, EOFError, ConnectionError)) as e:
            c.receive()
        assert "TIMEOUT not authenticated within 1000 ms" in str(e.value)
        with pytest.raises((OSError, EOFError)):
            for _ in range(1000):
                c("STORE.PROVE", proof)
        assert friend("PING") == "PONG"  # the deadline is for strangers only
        for client in friend, c:
            client.close()
        assert d.stop() == 0
    assert "reason=not authenticated within 1000 ms" in d.err and ALICE[1] not in d.err


def test_a_crun_whose_proof_the_network_keeps_tries_again(tokens, tmp_path):
    crun, said = Crun(tmp_path), tmp_path / "daemon"
    with open(said, "wb") as log, Daemon("--token-file", tokens, "--auth-timeout", 0.5, log=log) as d:
        proxy = Proxy("127.0.0.1", d.port)
        proxy.set("stall-up")
        p = crun.start("--rdzv-endpoint", f"127.0.0.1:{proxy.port}", "--rdzv-id", "j", "--rdzv-conf", "is_host=0", "--token-file", tokens, "true")
        until(lambda: "not authenticated within 500 ms" in said.read_text(), "its time is over")
        proxy.set("pass")
        err = p.communicate(timeout=DEADLINE)[1].decode()
        proxy.close()
    crun.close()
    assert p.returncode == 0, err


def test_principals_have_keys_of_their_own(tokens):
    with Daemon("--token-file", tokens) as d, Client(d.port) as a, Client(d.port) as b, Client(d.port) as a2:
        a.authenticate(*ALICE)
        b.authenticate(*BOB)
        assert a("SET", "k", "alice's") == "OK"
        assert b("GET", "k") is None and b("DBSIZE") == 0
        assert b("SET", "k", "bob's") == "OK"
        a2.authenticate(*ALICE)
        assert a2("GET", "k") == "alice's"


def test_who_has_authenticated_may_send_long_requests(tokens):
    with Daemon("--token-file", tokens) as d, Client(d.port) as c:
        c.authenticate(*ALICE)
        for n in (60_000, 70_000, 1_000_000, 8_000_000):
            assert c("SET", "k", b"x" * n) == "OK" and c("STRLEN", "k") == n
        c.s.sendall(b"APPEND a " + b"y" * 3000 + b"\r\n" + b"".join(b"*3\r\n$6\r\nAPPEND\r\n$1\r\na\r\n$3000\r\n" + b"y" * 3000 + b"\r\n" for _ in range(500)))
        assert [c.receive() for _ in range(501)] == [3000 * (i + 1) for i in range(501)]


def join(c, run, node="n1"):
    return c("RDZV.JOIN", run, node, "slots=1", "v=1", "nnodes=1:1", "max_restarts=0")


def test_a_job_belongs_to_whose_join_made_it(tokens):
    with Daemon("--token-file", tokens) as d, Client(d.port) as a, Client(d.port) as b:
        a.authenticate(*ALICE)
        b.authenticate(*BOB)
        assert b.error("STORE.USE", "j1").startswith("NOJOB run 'j1' is unknown")
        join(a, "j1")
        for verb in ("RDZV.STATUS", "RDZV.DRAIN", "STORE.USE"):
            assert b.error(verb, "j1").startswith("NOJOB run 'j1' is unknown here")
        assert a("SET", "k", "own") == "OK"
        assert a("STORE.USE", "j1") == "OK" and a("GET", "k") is None and a("SET", "k", "job's") == "OK"
        assert a("STORE.USE") == "OK" and a("GET", "k") == "own"
        assert a("STORE.USE", "j1") == "OK" and a("GET", "k") == "job's"
        assert b("RDZV.STATUS").count("j1") == 0


def test_nobody_takes_a_run_id_before_its_owner_comes(tokens):
    with Daemon("--token-file", tokens) as d, Client(d.port) as a, Client(d.port) as b:
        a.authenticate(*ALICE)
        b.authenticate(*BOB)
        join(b, "slurm-4711")
        assert b("STORE.USE", "slurm-4711") == "OK" and b("SET", "k", "bob's") == "OK"
        join(a, "slurm-4711")
        assert a("STORE.USE", "slurm-4711") == "OK" and a("GET", "k") is None
        assert b("RDZV.DRAIN", "slurm-4711") == "OK"
        assert '"state":"running"' in a("RDZV.STATUS", "slurm-4711") and "bob" not in a("RDZV.STATUS")


def test_plain_auth_is_off_unless_allowed(tokens):
    with Daemon("--token-file", tokens) as d:
        with Client(d.port) as c:
            assert c.error("AUTH", ALICE[1]).startswith("ERR plain AUTH is off")
            assert c.error("AUTH", *ALICE).startswith("ERR plain AUTH is off")
    with Daemon("--token-file", tokens, "--allow-plain-auth") as d:
        for words in ((ALICE[1],), ALICE):
            with Client(d.port) as c:
                assert c("AUTH", *words) == "OK" and c("PING") == "PONG"
        with Client(d.port) as c:
            c.s.sendall(f"AUTH {ALICE[1]}\r\nSET a {'x' * 5000}\r\nGET a\r\n".encode())  # long requests may follow at once
            assert [c.receive(), c.receive(), len(c.receive())] == ["OK", "OK", 5000]
        for words in (("x" * 30,), (ALICE[0], BOB[1]), ("mallory", ALICE[1]), (ALICE[0], ALICE[1][:-1])):
            with Client(d.port) as c:
                assert c.error("AUTH", *words) == WRONG
                assert c.closed()
    with Daemon() as d, Client(d.port) as c:
        assert c.error("AUTH", "x").startswith("ERR AUTH <password> called without any password configured")


def test_redis_cli_authenticates_where_plain_auth_is_allowed(tokens):
    if not shutil.which("redis-cli"):
        pytest.skip("redis-cli is not installed")
    with Daemon("--token-file", tokens, "--allow-plain-auth") as d:
        p = subprocess.run(["redis-cli", "-p", str(d.port), "--user", ALICE[0], "--pass", ALICE[1], "--no-auth-warning", "set", "a", "1"],
                           capture_output=True, text=True, timeout=30, check=False)
        assert p.stdout.strip() == "OK", p
        p = subprocess.run(["redis-cli", "-p", str(d.port), "set", "a", "1"], capture_output=True, text=True, timeout=30, check=False)
        assert "NOAUTH" in p.stdout + p.stderr


@pytest.mark.parametrize("text", [b"*2\r\n$4\r\nHELO\r\n$2000\r\n", b"*9\r\n", b"x" * 1500 + b"\r\n", b"*2\r\n$1025\r\n", b"\x00\x01\x02"])
def test_a_stranger_gets_a_kibibyte(tokens, text):
    with Daemon("--token-file", tokens) as d:
        with Client(d.port) as c:
            c.s.sendall(text)
            with pytest.raises((RespError, ConnectionError)) as e:
                c.receive()
            assert isinstance(e.value, ConnectionError) or "Protocol error" in str(e.value)
            assert c.closed()
        assert d.stop() == 0
    assert "reason=before it has authenticated: Protocol error" in d.err


def test_bytes_dripped_do_not_prolong_the_deadline(tokens):
    with Daemon("--token-file", tokens, "--auth-timeout", "500ms") as d, Client(d.port) as c:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 20:
                c.s.sendall(b"HELLO\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("sent", [b"", b"*"], ids=["silent", "began"])
def test_too_many_strangers_give_way_and_harm_nobody(tokens, sent):
    """Their own time, which is never over here, is shorter while all places are taken; that of the silent ones is over at once."""
    with Daemon("--token-file", tokens, "--max-unauthenticated", "4", "--auth-timeout", "1h") as d, Client(d.port) as friend:
        friend.authenticate(*ALICE)
        idle = [socket.create_connection(("127.0.0.1", d.port), timeout=30) for _ in range(12)]
        for s in idle:
            s.sendall(sent)
        with Client(d.port) as late:
            assert friend("PING") == "PONG"
            late.authenticate(*BOB)
            assert late("PING") == "PONG"
        for s in idle:
            s.close()
    assert re.search(r"not authenticated within \d+ ms, and others wait for a place", d.err)


def test_a_stranger_keeps_its_time_while_there_is_room(tokens):
    with Daemon("--token-file", tokens, "--max-unauthenticated", "2", "--auth-timeout", "1h") as d, Client(d.port) as slow:
        with Client(d.port) as quick:
            quick.authenticate(*BOB)
        slow.authenticate(*ALICE)
        assert slow("PING") == "PONG"


def test_no_address_takes_more_than_its_share(tokens, namespace):
    name, _, ours = namespace
    with Daemon("--bind", "0.0.0.0", "--token-file", tokens, "--max-clients-per-address", "3", "--max-unauthenticated", "100") as d:
        with network_namespace(name):
            socks = [socket.create_connection((ours, d.port), timeout=30) for _ in range(4)]
        clients = [Client(0, sock=s) for s in socks]
        for c in clients[:3]:
            c.authenticate(*ALICE)
        with pytest.raises(RespError, match="LIMIT too many connections of this address"):
            clients[3].receive()
        clients[0].close()

        def again():
            with network_namespace(name):
                s = socket.create_connection((ours, d.port), timeout=30)
            with Client(0, sock=s) as c:
                try:
                    c.authenticate(*ALICE)
                except (RespError, EOFError, ConnectionError):
                    return False
            return True
        until(again, "a place is free again")
        assert d.stop() == 0
    assert "reason=more than 3 connections of this address" in d.err


def test_without_tokens_only_our_own_user_on_this_host_is_served():
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("another uid needs root and setpriv(1)")
    with Daemon() as d:
        with Client(d.port) as c:
            assert c("PING") == "PONG"
            assert c("STORE.AUTH", "anybody", "a" * 64) == "OK"  # no proof is asked for
        said = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c",
                               f"import socket; s = socket.create_connection(('127.0.0.1', {d.port})); print(s.recv(200).decode())"],
                              capture_output=True, text=True, timeout=30, check=False).stdout
        assert "NOPERM this server takes local connections of its own user only" in said
        assert d.stop() == 0
    assert "reason=uid 65534 is not 0" in d.err


def test_a_client_that_is_gone_before_it_was_asked_is_told_apart():
    """It was not refused: in a job whose nodes dial several addresses at once they leave all but one."""
    with Daemon("--log-level", "debug") as d, Client(d.port) as c:
        assert c("PING") == "PONG"
        d.p.send_signal(signal.SIGSTOP)
        until(lambda: pathlib.Path(f"/proc/{d.p.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it stands still")
        with socket.create_connection(("127.0.0.1", d.port), timeout=30) as s:
            s.sendall(b"SET k v\r\n")
        d.p.send_signal(signal.SIGCONT)
        until(lambda: "total_connections_received:2" in c("INFO", "stats"), "it has come")
        assert c("GET", "k") is None  # nobody knows whose request that was
        assert d.stop() == 0
    assert re.search(r"debug audit: peer=\S+: the peer closed its connection before it could be asked whose it is", d.err), d.err
    assert "refused peer" not in d.err, d.err


def test_with_tokens_other_users_of_this_host_may_prove_themselves(tokens):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("another uid needs root and setpriv(1)")
    with Daemon("--token-file", tokens) as d:
        said = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c",
                               f"import socket; s = socket.create_connection(('127.0.0.1', {d.port})); s.sendall(b'GET a\\r\\n'); "
                               "print(s.recv(200).decode())"], capture_output=True, text=True, timeout=30, check=False).stdout
        assert "NOAUTH" in said


def test_insecure_serves_whoever_comes(namespace):
    name, _, ours = namespace
    with Daemon("--bind", "0.0.0.0", "--insecure") as d:
        with network_namespace(name):
            s = socket.create_connection((ours, d.port), timeout=30)
        with Client(0, sock=s) as c:
            assert c("PING") == "PONG"


def test_hangup_reads_tokens_again(tokens):
    carol = ("carol", "carol-0123456789abcdef")
    with Daemon("--token-file", tokens) as d, Client(d.port) as a, Client(d.port) as b:
        a.authenticate(*ALICE)
        b.authenticate(*BOB)
        write_tokens(tokens, ALICE, carol)
        d.p.send_signal(1)
        assert b.closed()  # bob is no longer in it
        assert a("PING") == "PONG"
        with Client(d.port) as c:
            c.authenticate(*carol)
        write_tokens(tokens, ALICE, mode=0o644)  # refused: what was read before stays
        d.p.send_signal(1)
        with Client(d.port) as c:
            until(lambda: c.authenticate(*carol), "carol is still there")
        assert a("PING") == "PONG"
        d.p.send_signal(1)
        assert d.stop() == 0
    assert "reason=principal 'bob' is no longer in the token file" in d.err
    assert "may be used by others (mode 0644)" in d.err


def test_audit_lines_are_rate_limited_and_counted(tokens):
    n = 200
    with Daemon("--token-file", tokens) as d:
        for _ in range(n):
            with Client(d.port) as c:
                assert c.error("GET", "a").startswith("NOAUTH")
        assert d.stop() == 0
    lines = d.err.count("refused peer=")
    counted = sum(int(n) for n in re.findall(r"(\d+) more peers were refused", d.err))
    print(f"{lines} lines for {n} peers, {counted} counted")
    assert 20 <= lines < n and lines + counted == n


def test_who_has_another_token_is_refused_though_it_is_who_leaves(tokens):
    """crun finds the daemon's proof wrong and goes, without a proof of its own."""
    with Daemon("--token-file", tokens, "--http-port", 0) as d:
        with Client(d.port) as c:
            c.challenge(ALICE[0], BOB[1])
            assert not c.server_is_right
        until(lambda: "\nrendezvousd_peers_refused_total 1\n" in urllib.request.urlopen(d.http + "/metrics", timeout=DEADLINE).read().decode(), "it is counted")
        with Client(d.port) as c:
            c.authenticate(*ALICE)
        with Client(d.port) as c:
            assert c.error("PING")
        assert d.stop() == 0
    assert d.err.count("refused peer=") == 2 and "it asked as principal 'alice', saw our proof and left" in d.err


def test_tls_only_and_client_certificates(tokens, certificates, tls):
    d1 = ["--token-file", tokens, "--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem"]
    with Daemon(*d1, "--tls-only") as d:
        with Client(d.port) as c:
            assert c.error("HELLO") == "NOPERM this server speaks TLS only"
        with Client(d.port, tls=tls) as c:
            c.authenticate(*ALICE)
            assert c("SET", "big", "x" * 1000000) == "OK" and len(c("GET", "big")) == 1000000
            until(lambda: int(re.search(r"tot-mem=(\d+)", c("CLIENT", "LIST"))[1]) < 500000, "the memory of the reply is free again")
    with Daemon(*d1, "--tls-client-ca", certificates / "client.pem") as d:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            with Client(d.port, tls=tls) as c:
                c("HELLO")
        context = ssl.create_default_context(cafile=certificates / "cert.pem")
        context.load_cert_chain(certificates / "client.pem", certificates / "client-key.pem")
        with Client(d.port, tls=context) as c:
            c.authenticate(*ALICE)
            assert c("PING") == "PONG"
        assert d.stop() == 0
    assert "reason=TLS" in d.err


def test_the_end_of_a_tls_connection_is_told(tokens, certificates):
    """Without close_notify a client cannot tell an end from one that somebody on the way made up."""
    context = ssl.create_default_context(cafile=certificates / "cert.pem")
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    with Daemon("--token-file", tokens, "--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem") as d, \
            socket.create_connection(("127.0.0.1", d.port), timeout=DEADLINE) as plain, \
            context.wrap_socket(plain, server_hostname="store.example", suppress_ragged_eofs=False) as s:
        s.sendall(b"QUIT\r\n")
        assert s.makefile("rb").read() == b"+OK\r\n"


def test_many_tls_clients_at_once(tokens, certificates, tls):
    errors = []

    def work(d):
        try:
            with Client(d.port, tls=tls) as c:
                c.authenticate(*ALICE)
                for i in range(20):
                    assert c("ECHO", "y" * i * 997) == "y" * i * 997
        except Exception as e:  # noqa: BLE001 - told by the main thread
            errors.append(e)
    with Daemon("--token-file", tokens, "--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem") as d:
        threads = [threading.Thread(target=work, args=(d,)) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert not errors


@pytest.mark.parametrize("args, says", [
    (["--bind", "0.0.0.0"], "--bind 0.0.0.0: beyond loopback clients must authenticate: give --token-file FILE"),
    (["--bind", "127.0.0.1,::"], "--bind ::: beyond loopback clients must authenticate"),
    (["--bind", ","], "--bind ',': expected addresses separated by commas"),
    (["--insecure", "--token-file", "T"], "--insecure and --token-file contradict each other"),
    (["--allow-plain-auth"], "--allow-plain-auth without --token-file has no effect"),
    (["--tls-key", "x"], "--tls-key without --tls-cert has no effect"),
    (["--tls-only"], "--tls-only without --tls-cert has no effect"),
    (["--tls-cert", "/nonexistent"], "certificate '/nonexistent' cannot be used"),
    (["--max-request", "2G"], "--max-request: expected at most 1G"),
    (["--max-memory", "lots"], "expected bytes such as 65536, 64M or 1G"),
    (["--max-memory", "0x10"], "expected bytes such as 65536, 64M or 1G"),
    (["--max-memory", "1e9"], "expected bytes such as 65536, 64M or 1G"),
    (["--token-file", "/nonexistent"], "token file '/nonexistent' cannot be read: No such file or directory"),
    (["--token-file", "fd:77"], "token file 'fd:77' cannot be read: Bad file descriptor"),
    (["--token-file", "fd:x"], "token file 'fd:x': expected fd: and the number of an open descriptor"),
    (["--http-bind", "0.0.0.0", "--http-port", "0"], "--http-bind 0.0.0.0: beyond loopback readers must show a token"),
    (["--http-insecure"], "--http-insecure without --http-port has no effect"),
    (["--http-port", "0", "--http-token-file", "T", "--http-insecure"], "--http-token-file and --http-insecure contradict each other"),
    (["--http-port", "0", "--http-bind", "here"], "address 'here' for HTTP: expected an IPv4 or IPv6 address"),
])
def test_a_start_that_cannot_be_is_one_sentence_and_exit_2(tokens, args, says):
    text, code = refused_start(*[str(tokens) if a == "T" else a for a in args])
    assert says in text and code == 2


def test_a_token_file_that_others_may_read_is_refused(tokens):
    for mode in (0o644, 0o640, 0o604):
        tokens.chmod(mode)
        text, code = refused_start("--token-file", tokens)
        assert f"may be used by others (mode 0{mode:o}): expected 0600 or less (chmod 600 '{tokens}')" in text and code == 2


def test_tokens_come_over_an_inherited_descriptor(tokens):
    with open(tokens) as f, open(tokens) as g, Daemon("--token-file", f"fd:{f.fileno()}", "--http-port", "0", "--http-token-file", f"fd:{g.fileno()}",
                                                      pass_fds=[f.fileno(), g.fileno()]) as d, Client(d.port) as c:
        c.authenticate(*ALICE)
        d.p.send_signal(1)
        assert c("PING") == "PONG"
        page = urllib.request.Request(d.http + "/metrics", headers={"Authorization": "Bearer " + ALICE[1]})
        assert urllib.request.urlopen(page, timeout=DEADLINE).status == 200
        assert d.stop() == 0
    assert d.err.count("a descriptor can be read only once") == 2


def unauthenticated(d):
    text = urllib.request.urlopen(d.http + "/metrics", timeout=DEADLINE).read().decode()
    return int(re.search(r"^rendezvousd_unauthenticated_connections (\d+)", text, re.M)[1])


def gave_way(c):
    try:
        c.receive()
    except RespError as e:
        return str(e).startswith("TIMEOUT not authenticated within ")
    return False


def test_the_address_with_more_than_half_of_the_places_gives_way_first(tokens, namespace):
    name, _, ours = namespace
    with Daemon("--bind", "0.0.0.0", "--token-file", tokens, "--max-unauthenticated", "4", "--http-port", "0") as d, Client(d.port) as first:
        until(lambda: unauthenticated(d) == 1, "it has come")
        with network_namespace(name):
            socks = [socket.create_connection((ours, d.port), timeout=30) for _ in range(4)]
        clients = [Client(0, sock=s) for s in socks]
        assert gave_way(clients[0])
        first.authenticate(*ALICE)
        for c in clients:
            c.close()


def test_all_addresses_of_one_ipv6_network_have_one_share(tokens, namespace):
    name, theirs, ours = namespace
    for ns, mine, address in ([], ours, "fd00:c::1:1"), (["-n", name], theirs, "fd00:c::1"), (["-n", name], theirs, "fd00:c::2"):
        device = re.search(rf"^\d+: (\w+) +inet {re.escape(mine)}/", subprocess.run(["ip", *ns, "-o", "-4", "addr"], capture_output=True, text=True).stdout, re.M)[1]
        if subprocess.run(["ip", *ns, "addr", "replace", f"{address}/64", "dev", device, "nodad"], capture_output=True).returncode:
            pytest.skip("no IPv6")
    with Daemon("--bind", "::", "--token-file", tokens, "--max-unauthenticated", "4", "--http-port", "0") as d, Client(d.port) as first:
        until(lambda: unauthenticated(d) == 1, "it has come")
        with network_namespace(name):
            socks = [socket.create_connection(("fd00:c::1:1", d.port), timeout=30, source_address=(f"fd00:c::{1 + i % 2}", 0)) for i in range(4)]
        clients = [Client(0, sock=s) for s in socks]
        assert gave_way(clients[0])
        first.authenticate(*ALICE)
        for c in clients:
            c.close()


def test_what_is_no_principal_nonce_or_run_is_named(tokens):
    with Daemon("--token-file", tokens) as d, Client(d.port) as c:
        assert c.error("STORE.AUTH", "x" * 64, "a" * 64) == "ERR a principal has 1 to 63 characters"
        assert c.error("STORE.AUTH", "", "a" * 64) == "ERR a principal has 1 to 63 characters"
        assert c.error("STORE.AUTH", "alice", "a" * 63) == "ERR the nonce is not 64 hex digits"
        assert c.error("STORE.AUTH", "alice") == "ERR wrong number of arguments for 'store.auth' command"
        assert c.error("STORE.PROVE", "a" * 64) == "ERR STORE.PROVE without STORE.AUTH before it"
        assert c.error("AUTH", "a", "b", "c").startswith("ERR syntax error")
        c.authenticate(*ALICE)
        assert c.error("STORE.USE", "r" * 256).startswith("ERR run id of 256 bytes: expected 1 to 255")
        assert c.error("STORE.USE", "a", "b") == "ERR wrong number of arguments for 'store.use' command"


def test_hangup_reads_certificates_again(tokens, certificates, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def use(c, k):
        shutil.copy(certificates / k, key)
        shutil.copy(certificates / c, cert)

    def accepted(ca, port):
        try:
            with Client(port, tls=ssl.create_default_context(cafile=certificates / ca)) as c:
                return c("HELLO")[1] == "rendezvousd"
        except ssl.SSLError:
            return False
    use("cert.pem", "key.pem")
    with Daemon("--token-file", tokens, "--tls-cert", cert, "--tls-key", key) as d, \
            Client(d.port, tls=ssl.create_default_context(cafile=certificates / "cert.pem")) as old:
        old.authenticate(*ALICE)
        assert accepted("cert.pem", d.port) and not accepted("client.pem", d.port)
        use("client.pem", "client-key.pem")
        d.p.send_signal(1)
        until(lambda: accepted("client.pem", d.port), "the new certificate is shown")
        assert old("PING") == "PONG"
        cert.write_text("no certificate")
        d.p.send_signal(1)
        assert accepted("client.pem", d.port) and old("PING") == "PONG"
        assert d.stop() == 0
    assert f"certificate '{cert}' cannot be used" in d.err and "what was read before stays" in d.err
