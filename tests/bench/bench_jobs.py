#!/usr/bin/env python3
"""A heartbeat of the oldest of many jobs of one rendezvousd, beside that of an only job.

    bench_jobs.py RENDEZVOUSD [--jobs N] [--check]

Each job has one node, which joined and is silent. NEXT of the oldest one's node is sent 20,000 times in one go, and all answers are read; of five turns the
fastest counts. Printed: microseconds a NEXT, of the only job and beside the others, and the ratio. With --check the exit code is 1 where it is above 1.5."""
import argparse
import resource
import socket
import struct
import subprocess
import sys
import time

TIMES, TURNS, BOUND = 20_000, 5, 1.5
SETTINGS = "v=1 nnodes=1 slots=1 silence=600000"


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)


def join(port, run):
    """A connection on which node n of the run has joined."""
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    s.sendall(request("RDZV.JOIN", run, "n", SETTINGS))
    answer = s.recv(65536)
    assert answer.startswith(b"$"), answer
    return s


def leave_silently(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset proves nothing: the job stays
    s.close()


def next_us(s):
    """Microseconds a NEXT of the node of run j0, pipelined. The first answer is the round, each other nil."""
    s.sendall(request("RDZV.NEXT", "j0", "n", "1", "0"))
    s.recv(65536)
    text = request("RDZV.NEXT", "j0", "n", "1", "0") * 1000
    best = float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        for _ in range(TIMES // 1000):
            s.sendall(text)
            left = 1000 * len(b"$-1\r\n")
            while left:
                got = s.recv(65536)
                assert got.startswith((b"$-1", b"-1", b"1", b"\r", b"\n")), got[:200]
                left -= len(got)
        best = min(best, (time.perf_counter() - began) / TIMES * 1e6)
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rendezvousd")
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--check", action="store_true")
    a = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    daemon = subprocess.Popen([a.rendezvousd, "--port", "0", "--max-jobs", str(a.jobs + 1), "--max-jobs-per-principal", str(a.jobs + 1)], stdout=subprocess.PIPE, text=True)
    try:
        port = int(daemon.stdout.readline().rsplit(":", 1)[1])
        first = join(port, "j0")
        alone = next_us(first)
        for i in range(1, a.jobs):
            leave_silently(join(port, f"j{i}"))
        beside = next_us(first)
        print(f"NEXT of an only job {alone:.2f} us, of the oldest of {a.jobs} jobs {beside:.2f} us: {beside / alone:.2f} times (bound {BOUND})")
        return 1 if a.check and beside > BOUND * alone else 0
    finally:
        daemon.kill()
        daemon.wait()


if __name__ == "__main__":
    sys.exit(main())
