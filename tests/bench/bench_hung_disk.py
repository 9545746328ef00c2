"""What a log disk that hangs costs: usage bench_hung_disk.py [--seconds N] [--kills N] [--check]    (CRUN_BUILD: the build folder; root, for FUSE)

heartbeat   2 nodes of 8 workers that write 1 MB/s each; the disk of all log files hangs for N seconds (60). How late a node's request to the
            rendezvous came at worst, before and meanwhile: the time between two requests beyond the usual one, taken by a relay between node and daemon.
kills       with the disk hung, of the log files, or of crun's stdout and stderr: kill -9 of guardian, agent, and pairs with one of them, until no
            worker is alive; median and worst of N each (10)
ends        with the disk of crun's stdout and stderr hung, of the log files, or of the program while it starts again, SIGTERM: until crun is gone, beyond its
            grace; worst of N
"""
import argparse
import contextlib
import os
import pathlib
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from crun_run import Crun  # noqa: E402
from daemon import Daemon  # noqa: E402
from pausing_fs import PausingFs  # noqa: E402
from processes import children, comm, wait  # noqa: E402

WRITER = HERE.parent / "e2e" / "launcher" / "log_worker.py"
WORKERS, RATE, WIDTH = 8, 1000000, 1000
SETTLE_S = 10  # of undisturbed heartbeats
HEARTBEAT_MS, KILL_MS, END_MS = 100, 200, 6000  # aims
GRACE_S = 1
VICTIMS = ["guardian", "agent", "guardian agent", "guardian output", "agent output"]
WRITER_VICTIMS = VICTIMS + ["guardian writer", "agent writer"]

# --- the relay, a process of its own: nothing here takes its turn ---


def relay(target, listener):
    """Prints a line "connection nanoseconds" for whatever comes from a node."""
    poll, other, numbers = select.epoll(), {}, {}
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                node, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", target))
                numbers[node.fileno()] = len(other) // 2
                for a, b in (node, server), (server, node):
                    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    other[a.fileno()] = (a, b)
                    poll.register(a, select.EPOLLIN)
                continue
            source, sink = other[fd]
            data = source.recv(1 << 16)
            if fd in numbers and data:
                os.write(1, b"%d %d\n" % (numbers[fd], time.monotonic_ns()))
            if data:
                sink.sendall(data)
            else:
                poll.unregister(fd)
                with contextlib.suppress(OSError):  # the other end went first
                    sink.shutdown(socket.SHUT_WR)


class Relay:
    def __init__(self, target):
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]
            self.p = subprocess.Popen([sys.executable, __file__, "--relay", str(target), str(s.fileno())], pass_fds=[s.fileno()], stdout=subprocess.PIPE)
        self.times = {}
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.p.stdout:
            number, ns = map(int, line.split())
            self.times.setdefault(number, []).append(ns / 1e6)

    def gaps(self, begin, end):
        """Milliseconds between two requests of one node, of those that ended in that time."""
        return [b - a for times in self.times.values() for a, b in zip(times, times[1:]) if begin < b <= end]


# --- heartbeats ---


def now_ms():
    return time.monotonic() * 1000


def heartbeats(crun, disk, seconds):
    """-> (largest lateness before, meanwhile), ms; fails if a worker was restarted"""
    with Daemon(env=crun.env) as daemon:
        relay = Relay(daemon.port)
        logs = crun.tmp / "disk"
        nodes = [crun.start("--nnodes", 2, "--nproc-per-node", WORKERS, "--rdzv-endpoint", f"127.0.0.1:{relay.port}", "--run-id", "bench", "-r", 3,
                            "--log-dir", logs / f"n{n}", sys.executable, "-S", "-E", WRITER, "steady", RATE, seconds + 2 * SETTLE_S, WIDTH,
                            stderr=open(crun.tmp / f"err{n}", "wb"), stdout=subprocess.DEVNULL, extra_env={"OMP_NUM_THREADS": "1"}) for n in (0, 1)]
        wait("lines", lambda: sum(n.endswith(".out") and len(d) > WIDTH for n, d in list(disk.files.items())) == 2 * WORKERS)
        begun = now_ms()
        time.sleep(SETTLE_S)
        paused = now_ms()
        disk.pause()
        time.sleep(seconds)
        disk.resume()
        resumed = now_ms()
        for p in nodes:
            code = p.wait(timeout=120)
            assert code == 0, code
        relay.p.kill()
        relay.p.wait()
    said = "".join((crun.tmp / f"err{n}").read_text() for n in (0, 1))
    assert "restart" not in said and len(re.findall("has not answered", said)) == 2, said
    usual = statistics.median(relay.gaps(begun, paused))
    return usual, max(relay.gaps(begun, paused)) - usual, max(relay.gaps(paused, resumed)) - usual


# --- kills ---


def end_of(fds):
    """When the last of these processes ended, as the kernel tells it."""
    fds = set(fds)
    while fds:
        ready, _, _ = select.select(fds, [], [], 30)
        assert ready, "workers live on"
        fds -= set(ready)
        for fd in ready:
            os.close(fd)
    return now_ms()


def hang(crun, disk, number, on_console):
    """-> (Popen, names of its processes, pidfds of its workers): the disk of its log files, or that of its stdout and stderr, hangs"""
    at, log = crun.tmp / "disk", f"console-{number}" if on_console else f"kill-{number}/round-1/rank-0.out"
    how = {"prefix": ["sh", "-c", f'exec "$@" >>{at / log} 2>&1', "sh"]} if on_console else {}
    p = crun.start("--nproc-per-node", 2, "--shutdown-timeout", GRACE_S, *([] if on_console else ["--log-dir", at, "--run-id", f"kill-{number}"]), "sh", "-c",
                   f"trap '' TERM; while :; do echo line; touch {crun.tmp}/up-{number}-$RANK; sleep 0.01; done", stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, **how)
    for rank in (0, 1):
        crun.wait_file(f"up-{number}-{rank}")
    wait("lines", lambda: disk.files.get(log))
    disk.pause()
    assert disk.asked.wait(30)
    agent = crun.agent_of(p.pid)
    writer = next((pid for pid in children(p.pid) if comm(pid) == "job-output"), None)
    pids = {"guardian": p.pid, "agent": agent, "output": crun.output_of(p.pid), "writer": writer}
    return p, pids, [os.pidfd_open(pid) for pid in children(agent)]


def one_kill(crun, disk, number, on_console, victims):
    p, pids, workers = hang(crun, disk, number, on_console)
    begun = now_ms()
    for victim in victims.split():
        with contextlib.suppress(ProcessLookupError):  # it may have ended with the one before
            os.kill(pids[victim], signal.SIGKILL)
    took = end_of(workers) - begun
    disk.resume()
    p.wait(timeout=60)
    crun.wait_processes_gone(30)
    return took


def hang_start(crun, disk, number):
    """As hang(), where a worker's program is on the disk: its first start is through, the next one hangs."""
    disk.write("program", b"#!/bin/sh\ntouch $HERE/up-$1\nexec sleep 1000\n")
    p = crun.start("--max-restarts", 1, "--kill-timeout", 1, "--shutdown-timeout", GRACE_S, crun.tmp / "disk" / "program", number,
                   extra_env={"HERE": str(crun.tmp)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    crun.wait_file(f"up-{number}")
    agent = crun.agent_of(p.pid)
    wait("the shell to leave its script", lambda: [comm(w) for w in children(agent)] == ["sleep"])
    disk.pause()
    os.kill(children(agent)[0], signal.SIGKILL)
    assert disk.asked.wait(30)
    return p, {}, []


def one_end(crun, disk, number, what):
    p, _, workers = hang_start(crun, disk, number) if what == "program" else hang(crun, disk, number, what != "log files")
    begun = now_ms()
    p.terminate()
    code = p.wait(timeout=60)
    took = now_ms() - begun - 1000 * GRACE_S
    assert code == (71 if what == "program" else 143), code
    end_of(workers)
    disk.resume()
    crun.wait_processes_gone(30)
    return took


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as tmp:
        crun = Crun(pathlib.Path(tmp))
        try:
            disk = PausingFs(crun.tmp / "disk")
        except OSError as e:
            sys.exit(f"bench_hung_disk: no FUSE here: {e}")
        try:
            usual, before, meanwhile = heartbeats(crun, disk, o.seconds)
            missed += meanwhile > HEARTBEAT_MS
            print(f"requests of 2 nodes, every {usual:.0f} ms: latest {before:.1f} ms late in {SETTLE_S} s before, {meanwhile:.1f} ms late while the disk hung for "
                  f"{o.seconds} s (aim {HEARTBEAT_MS} ms); load {os.getloadavg()[0]:.1f}", flush=True)
            cases = [(False, v) for v in VICTIMS] + [(True, v) for v in WRITER_VICTIMS]
            for i, (on_console, victims) in enumerate(cases):
                took = sorted(one_kill(crun, disk, 1000 * i + k, on_console, victims) for k in range(o.kills))
                missed += took[-1] > KILL_MS
                print(f"{'stdout and stderr' if on_console else 'log files'} hung, kill -9 of {victims}, until no worker is alive: "
                      f"median {statistics.median(took):.0f} ms, worst {took[-1]:.0f} ms of {o.kills} (aim {KILL_MS} ms)", flush=True)
            for i, what in enumerate(["stdout and stderr", "log files", "program"]):
                took = sorted(one_end(crun, disk, 1000 * (len(cases) + i) + k, what) for k in range(o.kills))
                missed += took[-1] > END_MS
                print(f"{what} hung, SIGTERM, until crun is gone, beyond its grace: median {statistics.median(took):.0f} ms, worst {took[-1]:.0f} ms "
                      f"of {o.kills} (aim {END_MS} ms)", flush=True)
        finally:
            disk.resume()
            crun.close()
            disk.close()
    sys.exit(1 if o.check and missed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        relay(int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
    main()
