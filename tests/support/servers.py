"""The store's server and a real redis-server, side by side, and a client that shows every reply as the bytes it came as."""
import shutil
import signal
import socket
import subprocess

import pytest

from daemon import Daemon
from processes import wait
from support import free_port

DEADLINE_S = 20


def wait_port(host, port, seconds=30):
    def dial():
        try:
            socket.create_connection((host, port), timeout=1).close()
            return True
        except OSError:
            return False

    wait(f"a listener at {host}:{port}", dial, seconds)


class Rendezvousd(Daemon):
    name = "rendezvousd"

    def stop(self, sig=signal.SIGTERM):
        assert super().stop(sig) == 0, f"it ended with {self.p.returncode}"


class Redis:
    """A redis-server in a folder of its own. args: lines of its configuration; prefix: what becomes the server by exec."""

    name = "redis"

    def __init__(self, tmp, *args, port=None, sentinel=False, bind="127.0.0.1", prefix=()):
        if not shutil.which("redis-server"):
            pytest.skip("no redis-server")
        self.port = port or free_port()
        self.dir = tmp / f"redis-{self.port}"
        self.dir.mkdir(exist_ok=True)
        self.args, self.sentinel, self.bind, self.prefix = list(map(str, args)), sentinel, bind, list(map(str, prefix))
        self.processes = []
        self.start()

    def start(self, *more, listening=True):
        conf = self.dir / "redis.conf"
        lines = [f"port {self.port}", f"bind {self.bind}", f"dir {self.dir}", 'save ""', *self.args, *more]
        if not (self.sentinel and conf.exists()):
            conf.write_text("\n".join(line for line in lines if not (self.sentinel and line.startswith("save"))) + "\n")
        log_file = self.dir / "log"
        ready = log_file.read_text().count("Ready to accept") if log_file.exists() else 0
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen([*self.prefix, "redis-server", str(conf)] + (["--sentinel"] if self.sentinel else []), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        self.processes.append(self.process)
        if listening and self.prefix:  # where it listens nobody can dial from here
            wait("a server", lambda: log_file.read_text().count("Ready to accept") > ready)
        elif listening:
            wait_port(self.bind, self.port)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        for p in self.processes:
            p.kill()
            p.wait()

    def cli(self, *args):
        r = subprocess.run(["redis-cli", "-p", str(self.port), *map(str, args)], capture_output=True, text=True, timeout=30, check=False)
        return r.stdout.strip()

    @property
    def url(self):
        return f"redis://{self.bind}:{self.port}"


def encode(words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


class Wire:
    """One connection. Replies are raw bytes, exactly as sent."""

    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def close(self):
        self.s.close()

    def send(self, *words):
        self.s.sendall(encode(words))

    def more(self):
        got = self.s.recv(65536)
        if not got:
            raise EOFError("the server closed the connection")
        self.buf += got

    def line(self):
        while b"\r\n" not in self.buf:
            self.more()
        line, self.buf = self.buf.split(b"\r\n", 1)
        return line + b"\r\n"

    def read(self):
        out = self.line()
        n = int(out[1:]) if out[:1] in b"$*" else -1
        if out[:1] == b"$" and n >= 0:
            while len(self.buf) < n + 2:
                self.more()
            out, self.buf = out + self.buf[:n + 2], self.buf[n + 2:]
        elif out[:1] == b"*":
            for _ in range(n):
                out += self.read()
        return out

    def ask(self, *words):
        self.send(*words)
        return self.read()

    def silent(self, seconds):
        """Nothing comes for so long."""
        if self.buf:
            return False
        self.s.settimeout(seconds)
        try:
            self.more()
            return False
        except TimeoutError:
            return True
        finally:
            self.s.settimeout(DEADLINE_S)


def elements(reply):
    """The bulk strings of a flat array, in bytes."""
    parts = reply.split(b"\r\n")
    return parts[2::2][:int(parts[0][1:])]
