"""The TCPStore protocol as its clients speak it, byte by byte, in both generations."""
import socket
import struct

MAGIC = 0x3C85F7CE
NEWER = dict(set=1, compare_set=2, get=3, add=4, check=5, wait=6, num_keys=7, delete=8, append=9, multi_get=10, multi_set=11, cancel=12,
             queue_push=14, queue_pop=15, queue_len=16, list_keys=17, barrier=18)
OLDER = dict(set=0, compare_set=1, get=2, add=3, check=4, wait=5, num_keys=6, delete=8)


def text(b):
    return struct.pack("<Q", len(b)) + b


def texts(items):
    return struct.pack("<Q", len(items)) + b"".join(map(text, items))


class Client:
    def __init__(self, port, generation):
        self.codes = OLDER if generation == 1 else NEWER
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if generation == 2:
            self.sock.sendall(struct.pack("<BIBI", 0, MAGIC, 13, 4711))
            assert self.read(4) == struct.pack("<I", 4711)

    def close(self):
        self.sock.close()

    def read(self, n):
        got = b""
        while len(got) < n:
            more = self.sock.recv(n - len(got))
            if not more:
                raise EOFError(f"closed after {got!r}")
            got += more
        return got

    def number(self):
        return struct.unpack("<q", self.read(8))[0]

    def bytes(self):
        return self.read(self.number())

    def send(self, op, *fields):
        self.sock.sendall(bytes([self.codes[op]]) + b"".join(fields))

    # --- one function a request; what it returns is what the server says ---

    def set(self, k, v):
        self.send("set", text(k), text(v))

    def append(self, k, v):
        self.send("append", text(k), text(v))

    def compare_set(self, k, expected, desired):
        self.send("compare_set", text(k), text(expected), text(desired))
        return self.bytes()

    def get(self, k):
        self.send("get", text(k))
        return self.bytes()

    def add(self, k, delta):
        self.send("add", text(k), struct.pack("<q", delta))
        return self.number()

    def check(self, *keys):
        self.send("check", texts(keys))
        return self.read(1)

    def wait(self, *keys):
        self.send("wait", texts(keys))
        return self.read(1)

    def cancelled_wait(self, *keys):
        self.send("wait", texts(keys))
        self.send("cancel")
        return self.read(1)

    def num_keys(self):
        self.send("num_keys")
        return self.number()

    def delete(self, k):
        self.send("delete", text(k))
        return self.number()

    def multi_set(self, pairs):
        self.send("multi_set", struct.pack("<q", len(pairs)), *(text(k) + text(v) for k, v in pairs))

    def multi_get(self, *keys):
        self.send("multi_get", texts(keys))
        return [self.bytes() for _ in keys]

    def queue_push(self, k, v):
        self.send("queue_push", text(k), text(v))

    def queue_pop(self, k):
        self.send("queue_pop", text(k))
        n = self.number()
        return n, self.bytes() if n > 0 else None

    def queue_len(self, k):
        self.send("queue_len", text(k))
        return self.number()

    def list_keys(self):
        self.send("list_keys")
        return sorted(self.bytes() for _ in range(self.number()))

    def barrier(self, k, world):
        self.send("barrier", text(k), struct.pack("<q", world))
        return self.read(1)
