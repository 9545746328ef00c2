"""A running rendezvousd, and a small RESP client that can authenticate as docs/design/security.md describes it."""
import contextlib
import ctypes
import hashlib
import hmac
import os
import secrets
import signal
import socket
import ssl
import subprocess

import pytest

from processes import wait
from support import RENDEZVOUSD

ALICE = ("alice", "alice-0123456789abcdef")
BOB = ("bob", "bob-0123456789abcdefgh")


def write_tokens(path, *tokens, mode=0o600):
    path.touch(mode=0o600)
    path.write_text("# who may use the daemon\n" + "".join(f"{p} {s}\n" for p, s in tokens))
    path.chmod(mode)
    return path


DEADLINE = 30


class RespError(Exception):
    """An error reply."""


class Daemon:
    """A rendezvousd, once it is ready. port: by default one that nobody has. log: a file for what it logs, which stop() has in self.err otherwise.
    A connection has a minute to authenticate: tests that are about that time give the option."""

    def __init__(self, *args, port=0, bind=None, log=None, env=None, pass_fds=(), prefix=(), wait=True, cwd=None, program=RENDEZVOUSD):
        where = ["--bind", bind] if bind else []
        self.p = subprocess.Popen([*prefix, str(program), "--port", str(port), *where, *map(str, args)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=log or subprocess.PIPE, text=True, pass_fds=pass_fds, cwd=cwd,
                                  env={"RENDEZVOUSD_AUTH_TIMEOUT": "60s", **os.environ, **(env or {})})
        self.http = None
        if not wait:
            return
        line = self.p.stdout.readline()
        if not line.startswith("rendezvousd ready on "):
            self.p.kill()
            said = "" if log else self.p.stderr.read()
            if "this build has no HTTP" in said:
                pytest.skip("this build has no HTTP")
            if "using ulimit -v" in said:
                pytest.skip("the address sanitizer needs its address space")
            raise AssertionError(f"not ready: {line!r} {said!r}")
        self.port = int(line.rsplit(":", 1)[1])
        self.address = f"{bind or '127.0.0.1'}:{self.port}"
        if "--http-port" in map(str, args):
            self.http = self.p.stdout.readline().split()[-1].rstrip("/")

    def stop(self, sig=signal.SIGTERM):
        """End it; its exit code. What it logged is in self.err then."""
        if self.p.poll() is None:
            self.p.send_signal(sig)
        try:
            _, self.err = self.p.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise
        return self.p.returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.p.poll() is None:
            self.stop()
        self.p.stdout.close()
        if self.p.stderr:
            self.p.stderr.close()


def refused_start(*args, env=None, **kw):
    """The one sentence and the exit code of a start that must fail."""
    p = subprocess.run([str(RENDEZVOUSD), "--port", "0", *map(str, args)], capture_output=True, text=True, timeout=DEADLINE, check=False,
                       env={**os.environ, **(env or {})}, **kw)
    assert p.stdout == "" and p.stderr.count("\n") == 1, p
    return p.stderr.strip(), p.returncode


class Client:
    """One connection. Replies: str for status and bulk, int, None, list; errors are raised."""

    def __init__(self, port, host="127.0.0.1", source=None, tls=None, sock=None):
        self.s = sock or socket.create_connection((host, port), timeout=DEADLINE, source_address=source and (source, 0))
        self.s.settimeout(DEADLINE)
        if tls:
            self.s = tls.wrap_socket(self.s, server_hostname="store.example")
        self.f = self.s.makefile("rb")

    def send(self, *args):
        out = b"*%d\r\n" % len(args)
        for a in args:
            a = a if isinstance(a, bytes) else str(a).encode()
            out += b"$%d\r\n%s\r\n" % (len(a), a)
        self.s.sendall(out)

    def receive(self):
        line = self.f.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(line)
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RespError(rest)
        if kind == b":":
            return int(rest)
        n = int(rest)
        if n < 0:
            return None
        if kind == b"*":
            return [self.receive() for _ in range(n)]
        data = self.f.read(n + 2)
        return data[:-2].decode()

    def __call__(self, *args):
        self.send(*args)
        return self.receive()

    def error(self, *args):
        try:
            got = self(*args)
        except RespError as e:
            return str(e)
        raise AssertionError(f"{args}: {got!r} instead of an error")

    def closed(self):
        """The server has closed it, or does within the deadline."""
        try:
            return self.f.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True

    def challenge(self, principal, secret, nonce=None):
        """STORE.AUTH; what STORE.PROVE must say."""
        nonce = nonce or secrets.token_hex(32)
        server_nonce, server_proof, instance = self("STORE.AUTH", principal, nonce)

        def prove(role):
            text = "\0".join(["crun-auth-1", role, principal, nonce, server_nonce, instance, ""])
            return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        self.server_is_right = hmac.compare_digest(prove("server"), server_proof)
        return prove("client")

    def authenticate(self, principal, secret):
        assert self("STORE.PROVE", self.challenge(principal, secret)) == "OK"
        return self

    def close(self):
        self.f.close()
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@contextlib.contextmanager
def network_namespace(name):
    """Sockets made in this block, by this thread, are made in the network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{name}") as there:
        if libc.setns(there.fileno(), 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(here.fileno(), 0x40000000)


def until(condition, what):
    return wait(what, condition, DEADLINE)
