"""Clients that want all of a rendezvousd, and one that wants its heartbeats answered: for the test and the benchmark of what the ones may do to the other."""
import multiprocessing
import socket
import struct
import time

from daemon import Client, RespError, until
from servers import encode

FLOOD_BYTES = 64 * 1024
FILL_AT_ONCE = 2000
BEAT_S = 0.01  # between two heartbeats

# What each command is sent with: K the name of a key, V a large value, N as many names as the flood has room for. Those that are not here come without arguments.
ARGUMENTS = {
    "get": ["K"], "set": ["K", "v"], "incr": ["n"], "incrby": ["n", "7"], "del": ["K"], "setnx": ["K", "v"], "getdel": ["K"], "decr": ["n"], "decrby": ["n", "7"],
    "append": ["a", "v" * 1000], "strlen": ["K"], "mget": ["N"], "mset": ["P"], "exists": ["N"], "type": ["K"], "expire": ["K", "1000"], "ttl": ["K"], "persist": ["K"],
    "scan": ["0", "COUNT", "1000000", "MATCH", "*a*b*c*d*e"], "store.cas": ["c", "0", "", "v"], "store.wait": ["N", "0"], "echo": ["hello"], "select": ["0"],
    "client": ["LIST"], "command": [], "store.use": [""], "store.auth": ["x", "0" * 64], "store.prove": ["x"], "auth": ["x"],
    "rdzv.join": ["r", "n", "v=1 nnodes=1:2 slots=1"], "rdzv.next": ["r", "n", "0", "0"], "rdzv.fail": ["r", "n", "1"], "rdzv.done": ["r", "n", "1"], "rdzv.leave": ["r", "x"],
    "rdzv.drain": ["other"], "rdzv.admin": ["list"], "rdzv.report": ["r", "n", "step=1"], "rdzv.postmortem": ["r", "n", "{}"], "rdzv.alive": ["r", "n", "1"], "rdzv.failure": ["r", "n", "1", "{}"], "rdzv.steps": ["r", "n", "1", "10 0 0"], "rdzv.quiet": ["r", "n", "1", "1000 0"],
}
LEFT_OUT = {"quit"}  # nothing after it is read


def key_bytes(i):
    return b"key:%07d" % i


def fill(port, n):
    """n keys."""
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    for first in range(0, n, FILL_AT_ONCE):
        s.sendall(b"".join(b"SET " + key_bytes(i) + b" v\r\n" for i in range(first, min(n, first + FILL_AT_ONCE))))
        left = 5 * min(FILL_AT_ONCE, n - first)
        while left:
            left -= len(s.recv(65536))
    s.close()


def words_of(name, i):
    """One request of this command, the i-th of its flood."""
    out = [name]
    for word in ARGUMENTS.get(name, []):
        if word == "K":
            out.append(key_bytes(i))
        elif word == "N":
            out += [key_bytes(i * 1000 + k) for k in range(1000)]
        elif word == "P":
            out += [w for k in range(1000) for w in (key_bytes(i * 1000 + k), b"w")]
        else:
            out.append(word)
    return out


def flood_of(name):
    """(some 64 KiB of this command, how many requests)."""
    out, n = b"", 0
    while len(out) < FLOOD_BYTES:
        out += encode(words_of(name, n))
        n += 1
    return out, n


MANY, LARGE = 60_000, 8 << 20


def largest():
    """{name: one request, as large as the server takes them}"""
    keys = [key_bytes(100_000 + i) for i in range(MANY)]
    pairs = [w for k in keys[:MANY // 2] for w in (k, b"w")]
    value = b"v" * LARGE
    return {"exists, 60,000 names": encode(["exists", *keys]), "mget, 60,000 names": encode(["mget", *keys]), "mset, 30,000 pairs": encode(["mset", *pairs]),
            "store.wait, 60,000 names": encode(["store.wait", *keys, "0"]), "store.wait, 60,000 new": encode(["store.wait", *(b"new" + k for k in keys), "1"]),
            "del, 60,000 names": encode(["del", *keys]), "set, 8 MiB": encode(["set", "large", value]), "get, 8 MiB": encode(["get", "large"]),
            "append, 8 MiB": encode(["append", "long", value]), "store.cas, 8 MiB": encode(["store.cas", "large", "1", value, b"x"])}


def commands(port):
    """Of the server, the one that deletes all keys last."""
    with Client(port) as c:
        return sorted((name for name in c("COMMAND", "LIST") if name not in LEFT_OUT), key=lambda name: name == "flushdb")


def flood(port, name, seconds=60):
    """Send it, and read until all is answered or the server has had enough; seconds it took."""
    return send(port, *flood_of(name), seconds)


def send(port, text, left=1, seconds=60):
    """The same with this text, of so many requests."""
    began = time.monotonic()
    with Client(port) as c:
        c.s.settimeout(seconds)
        try:
            c.s.sendall(text)
            while left:
                left -= 1
                try:
                    c.receive()
                except RespError:
                    pass
        except (EOFError, ConnectionError):
            pass
    return time.monotonic() - began


VALIDATE = b"\x00" + struct.pack("<I", 0x3C85F7CE)
TCPSTORE = {"LIST_KEYS": b"\x11", "NUM_KEYS": b"\x07", "MULTI_GET": b"\x0a" + struct.pack("<Q", 6000) + b"".join(struct.pack("<Q", 11) + key_bytes(i) for i in range(6000)),
            "CHECK": b"\x05" + struct.pack("<Q", 6000) + b"".join(struct.pack("<Q", 11) + key_bytes(i) for i in range(6000))}


def flood_tcpstore(port, name, seconds=60):
    """64 KiB of a request of PyTorch's protocol; what comes back is thrown away, for at most so long."""
    one = TCPSTORE[name]
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
        s.sendall(VALIDATE + one * max(1, FLOOD_BYTES // len(one)))
        s.shutdown(socket.SHUT_WR)
        try:
            while time.monotonic() < began + seconds and s.recv(1 << 20):
                pass
        except OSError:
            pass
    return time.monotonic() - began


# --- walks and heartbeats, each in a process of its own ---------------------------------------------------------------


def walk_for_ever(port):
    """SCANs in one go, 64 KiB of them at a time."""
    ask, cursor = 1000, b"0"
    while True:
        with Client(port) as c:
            try:
                c.s.sendall(b"".join(encode(["SCAN", cursor, "COUNT", ask]) for _ in range(FLOOD_BYTES // 60)))
                for _ in range(FLOOD_BYTES // 60):
                    cursor = c.receive()[0].encode()
            except (EOFError, OSError):
                pass


def beat_for_ever(port, told):
    """The heartbeats of a member of a job: each as soon as BEAT_S has passed since the last one was answered; milliseconds go to `told`."""
    with Client(port) as c:
        c("RDZV.JOIN", "probe", "n1", "v=1 nnodes=1:1 slots=1")
        while True:
            began = time.perf_counter()
            c("RDZV.NEXT", "probe", "n1", "0", "0")
            told.send((time.perf_counter() - began) * 1e3)
            time.sleep(BEAT_S)


class Heart:
    """A member of a job whose heartbeats are timed."""

    def __init__(self, port):
        self.ours, theirs = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(target=beat_for_ever, args=(port, theirs), daemon=True)
        self.process.start()
        until(lambda: self.ours.poll(), "a heartbeat is answered")

    def beats(self):
        """Milliseconds that each answer took since the last call."""
        out = []
        while self.ours.poll():
            out.append(self.ours.recv())
        return out

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.join()


class Walker:
    """A client that walks over all keys, over and over."""

    def __init__(self, port):
        self.process = multiprocessing.Process(target=walk_for_ever, args=(port,), daemon=True)
        self.process.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.join()
