"""rendezvousd beside Redis, a bare libuv server and, where a torch is installed, PyTorch's TCPStore: one client, pinned, taking turns.
Turns are short and many, every other round backwards; a ratio is the median of the ratios within a round, so that what else the machine does
touches both sides alike.

    bench_store.py BENCH_STORE RENDEZVOUSD [--rounds N] [--ms N] [--only WORD] [--ahead] [--no-torch]

--ahead: servers and client run ahead of whatever else the machine does (SCHED_FIFO; needs the right to).
"""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SERVER_CPU, CLIENT_CPU = 0, 1
CASES = [("50 connections", 50, 1), ("256 connections", 256, 1), ("1,000 connections", 1000, 1), ("50 connections, 16 in one go", 50, 16)]
STORM = 4000

TORCH = """
import sys, time
import torch
from torch.distributed import TCPStore
s = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
print("ready", *torch.__version__.split("+")[0].split(".")[:2], flush=True)
time.sleep(3600)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def go_ahead():
    if "--ahead" in sys.argv:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


def pinned():
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[SERVER_CPU % len(cpus)]})
    go_ahead()


def cpu_ns(pid):
    """CPU time of all threads of a process so far."""
    total = 0
    for t in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{t}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


class Server:
    def __init__(self, name, protocol, argv, port=None, ready=False):
        self.name, self.protocol, self.port = name, protocol, port
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=pinned)
        if port is None:
            self.port = int(self.process.stdout.readline())
        elif ready:
            words = self.process.stdout.readline().split()
            if not words:
                raise OSError("it did not start")
            self.protocol = "tcpstore" if (int(words[1]), int(words[2])) >= (2, 2) else "tcpstore1"
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()


def servers(bench, rendezvousd, tmp, torch):
    port = free_port()
    found = [Server("rendezvousd", "resp", [rendezvousd, "--port", str(port)], port)]
    redis = shutil.which("redis-server")
    if redis:
        port = free_port()
        found.append(Server("redis", "resp", [redis, "--port", str(port), "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "", "--appendonly", "no",
                                              "--maxclients", "12000", "--tcp-backlog", "4096", "--dir", tmp], port))
    else:
        print("# SKIP redis: no redis-server")
    found.append(Server("libuv echo", "echo", [bench, "echo", str(SERVER_CPU)]))
    if not torch:
        return found
    python = os.environ.get("BENCH_TORCH_PYTHON", "/usr/bin/python3")
    try:
        port = free_port()
        found.append(Server("PyTorch's TCPStore", "tcpstore", [python, "-c", TORCH, str(port)], port, ready=True))
        found.append(Server.__new__(Server))
        found[-1].__dict__.update(found[0].__dict__, name="rendezvousd as TCPStore", protocol=found[-2].protocol)
    except (OSError, ValueError):
        print("# SKIP PyTorch's TCPStore: no torch in", python)
    return found


def measure(bench, *args):
    p = subprocess.run([bench, *map(str, args), str(CLIENT_CPU)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True,
                       check=False, preexec_fn=go_ahead)
    if p.returncode != 0:
        raise RuntimeError(p.stderr.strip())
    return [float(x) for x in p.stdout.split()]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("bench")
    ap.add_argument("rendezvousd")
    ap.add_argument("--rounds", type=int, default=21)
    ap.add_argument("--ms", type=int, default=80)
    ap.add_argument("--only", default="")
    ap.add_argument("--ahead", action="store_true")
    ap.add_argument("--no-torch", action="store_true")
    o = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        all_servers = servers(o.bench, o.rendezvousd, tmp, not o.no_torch)
        try:
            run(o, all_servers)
        finally:
            for s in all_servers:
                s.stop()


def beside(rows, base, column):
    return statistics.median(a[column] / b[column] for a, b in zip(rows, base))


def run(o, all_servers):
    for title, conns, pipeline in CASES:
        if o.only not in title:
            continue
        got = {s.name: [] for s in all_servers}
        for turn in range(o.rounds):
            for s in all_servers[::-1] if turn % 2 else all_servers:
                before = cpu_ns(s.process.pid)
                row = measure(o.bench, "ops", s.protocol, s.port, conns, pipeline, o.ms)
                all_of_them = row[0] * 1.2 * o.ms / 1e3  # with those of the warm-up
                got[s.name].append(row + [(cpu_ns(s.process.pid) - before) / all_of_them])
        print(f"{title}: additions/s (median of {o.rounds}, ratio to redis), median us of p50, p99, p99.9, server's CPU ns an addition")
        mid = {name: [statistics.median(col) for col in zip(*rows)] for name, rows in got.items()}
        base = got.get("redis")
        for name, m in mid.items():
            ratio = f"{beside(got[name], base, 0):5.2f}" if base else "    -"
            tail = f"(p99.9 ratio {beside(got[name], base, 3):.2f})" if base else ""
            print(f"  {name:24s} {m[0]:10,.0f} {ratio}   {m[1]:8.1f} {m[2]:8.1f} {m[3]:8.1f} {m[5]:7.0f} {tail}")
        sys.stdout.flush()
    if o.only in "storm":
        print(f"storm of {STORM:,} clients, connect + add + wait, first connect to last release: median ms, ratio to libuv echo within a round")
        got = {s.name: [] for s in all_servers if s.name != "redis"}
        for i in range(o.rounds):
            for s in all_servers[:: 1 if i % 2 else -1]:
                if s.name != "redis":
                    if s.protocol == "resp":
                        reset(s.port)
                    got[s.name].append(measure(o.bench, "storm", s.protocol, s.port, STORM)[0])
        for name, v in got.items():
            ratio = statistics.median(ms / floor for ms, floor in zip(v, got["libuv echo"]))
            print(f"  {name:24s} {statistics.median(v):10.1f} {ratio:5.2f}   (from {min(v):.1f} to {max(v):.1f})")


def reset(port):
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(b"FLUSHDB\r\n")
        assert s.recv(16) == b"+OK\r\n"


main()
