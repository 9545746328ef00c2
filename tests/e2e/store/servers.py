"""The store's server and a real redis-server, side by side, and a client that shows every reply as the bytes it came as."""
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from support import BUILD, free_port

RENDEZVOUSD = BUILD / "rendezvousd" / "rendezvousd"
DEADLINE_S = 20


class Server:
    def __init__(self, name, argv, port, cwd):
        self.name, self.port = name, port
        self.process = subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, f"{name} ended with {self.process.returncode}"
                assert time.monotonic() < end, f"{name} does not listen"
                time.sleep(0.01)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(DEADLINE_S) == 0, f"{self.name} ended with {self.process.returncode}"
        finally:
            self.process.kill()


def start_rendezvousd(tmp):
    port = free_port()
    return Server("rendezvousd", [str(RENDEZVOUSD), "--port", str(port)], port, tmp)


def start_redis(tmp):
    program = shutil.which("redis-server")
    if not program:
        pytest.skip("no redis-server")
    port = free_port()
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--hz", "100"]
    return Server("redis", argv, port, tmp)


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
