"""A rank that is slow is named, and why: its processor (stopped for as long as it works) or its data (files that open slowly) within 20 steps, its network
(a proxy that holds back what comes from it and goes to it) once two tries of its links in a row were slow and no other process hides it. Where others work
on the machine, they slow all ranks, and hide the slow one for a while: 20 steps are asked for where they use less than a fifth of the cores.
tests/launcher/straggler asks for them with simulated ranks, always."""
import collections
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from processes import wait
from runner import procs
from stand import Stand
from support import CRUN, worker_pid

WORLD, SLOW = 3, 1
ONSET = 30  # the step at which the job stands until the rank is slow


class Job:
    """A job of three ranks; what it prints is read as it comes."""

    def __init__(self, data, *options, batch, crun=(), env=None):
        self.run_id = f"slow-{os.getpid()}-{time.monotonic_ns()}"
        command = [CRUN, "--nproc_per_node", WORLD, "--run-id", self.run_id, *crun, "trainer", "--train-data", data / "train", "--arch", "convnet",
                   "--num-channels", 1, "--image-size", 28, "--batch-size", batch, "--num-epochs", 100000, "--device", "cpu", "--amp", "off",
                   "--threads", 1, "--print-freq", 1, "--log-level", "info", "--seed", 7, *options]
        self.lines, self.step = [], 0
        self.p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            m = re.search(r"Epoch (\d+)/\d+ \[ *(\d+)/(\d+)\]", line)
            if m:
                self.step = (int(m[1]) - 1) * int(m[3]) + int(m[2])
            else:
                self.lines.append(line)

    def text(self):
        return "".join(self.lines)

    def pid(self, rank):
        wait(f"rank {rank}", lambda: worker_pid(self.run_id, rank))
        return worker_pid(self.run_id, rank)

    def half_speed(self, rank):
        return HalfSpeed(self.pid(rank), [self.pid(r) for r in range(WORLD) if r != rank])

    def at_step(self, step):
        wait(f"step {step}", lambda: self.step >= step or self.p.poll() is not None, 200)
        assert self.p.poll() is None, self.text()[-4000:]

    def named(self, after, why):
        """Waits for the line that names SLOW for `why`, of steps after the onset. Nothing else is named before, unless others work on the machine: they
        slow ranks down, too. -> last of the ten steps that showed it; whether others did."""
        before = procs.used()

        def is_busy():
            return procs.share_of_others(before, procs.used()) >= procs.BUSY

        def found():
            shown = re.finditer(r"straggler: rank (\d+) \((\w+)\): .*steps \d+ to (\d+)", "".join(self.lines[after:]))
            shown = [f for f in shown if int(f[3]) > ONSET]
            return next((f for f in shown if (int(f[1]), f[2]) == (SLOW, why)), None) or next((f for f in shown if not is_busy()), None)
        wait(f"a rank that is slow for its {why}", lambda: found() or self.p.poll() is not None, 200)
        assert found() and (int(found()[1]), found()[2]) == (SLOW, why), self.text()[-4000:]
        return int(found()[3]), is_busy()

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(timeout=100)
        self.reader.join(timeout=10)
        return self.text()


def on_processor(pid):
    """-> seconds that the main thread ran, and that it was ready to run and waited for a core"""
    run, ready = map(int, pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[:2])
    return run / 1e9, ready / 1e9


class HalfSpeed(threading.Thread):
    """A process that does its work in twice the time, however busy the machine is: after each bit of work it is stopped for as long as the same work takes
    the others, less what it gained on them. For a process that was stopped is given a core sooner, where all have to wait for one: from what the kernel
    says of the others' waits follows how long it would have waited."""

    def __init__(self, pid, others):
        super().__init__(daemon=True)
        self.pid, self.others, self.over = pid, others, threading.Event()

    def run(self):
        try:
            first = [on_processor(pid) for pid in self.others]
            run, ready = on_processor(self.pid)
            while not self.over.wait(0.01):
                os.kill(self.pid, signal.SIGSTOP)
                now_run, now_ready = on_processor(self.pid)
                ran, waited = (sum(on_processor(pid)[i] for pid in self.others) - sum(f[i] for f in first) for i in (0, 1))
                alone = (now_run - run) * (1 + waited / ran if ran > 0 else 1)  # what its work takes one that nobody stops
                time.sleep(max(0, 2 * alone - (now_run - run) - (now_ready - ready)))
                os.kill(self.pid, signal.SIGCONT)
                run, ready = now_run, now_ready
        except (ProcessLookupError, FileNotFoundError):
            pass

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.join()


class SlowProxy:
    """Where all ranks connect to one another. While `when` exists, what rank `slow` sends and gets is held back."""

    def __init__(self, when, ports, slow, seconds):
        self.when, self.ports, self.slow, self.seconds = when, ports, slow, seconds
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        line = b""
        while not line.endswith(b"\n"):
            line += client.recv(1)
        rank, host, port = line.decode().split()
        owner = {p: r for r, p in (entry.split() for entry in self.ports.read_text().splitlines())}.get(port)
        server = socket.create_connection((host, int(port)))
        client.sendall(b"%d\n" % server.getsockname()[1])
        is_slow = str(self.slow) in (rank, owner)
        for s in (client, server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.one_way(client, server, is_slow)
        self.one_way(server, client, is_slow)

    def one_way(self, a, b, is_slow):
        queue, there = collections.deque(), threading.Semaphore(0)

        def read():
            data = b"x"
            while data:
                try:
                    data = a.recv(1 << 16)
                except OSError:
                    data = b""
                queue.append((time.monotonic() + (self.seconds if is_slow and self.when.exists() else 0), data))
                there.release()

        def write():
            data = b"x"
            while data:
                there.acquire()
                due, data = queue.popleft()
                time.sleep(max(0, due - time.monotonic()))
                try:
                    b.sendall(data)
                    if not data:
                        b.shutdown(socket.SHUT_WR)
                except OSError:
                    return

        for f in (read, write):
            threading.Thread(target=f, daemon=True).start()


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 640, 20)


@pytest.fixture
def stand(tmp_path):
    return Stand(tmp_path / "stand", ONSET)


@pytest.mark.serial
def test_a_rank_at_half_its_speed_is_named_for_its_compute(data, stand):
    job = Job(data, batch=480, env={**os.environ, **stand.env()})
    job.at_step(ONSET)
    before = len(job.lines)
    with job.half_speed(SLOW):
        stand.go()
        step, busy = job.named(before, "compute")
    job.end()
    assert ONSET < step <= ONSET + 20 or busy, step


@pytest.mark.serial
def test_a_rank_whose_files_are_slow_is_named_for_its_data(data, stand, tmp_path):
    when = tmp_path / "slow"
    env = {**os.environ, **stand.env("fault_slow"), "FAULT_SLOW_RANK": str(SLOW), "FAULT_SLOW_PATH": "/train/", "FAULT_SLOW_MS": "10",
           "FAULT_SLOW_WHEN": str(when)}
    job = Job(data, "--loader-threads", 1, batch=96, env=env)
    job.at_step(ONSET)
    before = len(job.lines)
    when.touch()
    stand.go()
    step, busy = job.named(before, "data")
    job.end()
    assert ONSET < step <= ONSET + 20 or busy, step


@pytest.mark.serial
def test_a_rank_behind_a_slow_proxy_is_named_for_its_network(data, stand, tmp_path):
    when, ports = tmp_path / "slow", tmp_path / "ports"
    ports.touch()
    proxy = SlowProxy(when, ports, SLOW, 0.02)
    env = {**os.environ, **stand.env("fault_slow"), "FAULT_SLOW_PROXY": str(proxy.port), "FAULT_SLOW_PORTS": str(ports)}
    job = Job(data, batch=96, env=env)
    job.at_step(ONSET)
    before = len(job.lines)
    when.touch()
    stand.go()
    job.named(before, "network")
    when.unlink()
    job.end()


@pytest.mark.serial
def test_a_straggler_that_is_excluded_is_replaced_and_the_others_stay(data):
    job = Job(data, batch=480, crun=("--max-restarts", 3, "--straggler-action", "exclude", "--restart-backoff", 0, "--hold-timeout", 60))
    job.at_step(20)
    before = [job.pid(r) for r in range(WORLD)]
    with job.half_speed(SLOW):
        wait("a restart", lambda: "restart 1/3" in job.text(), 200)
    reached = job.step
    job.at_step(reached + 20)
    after = [job.pid(r) for r in range(WORLD)]
    text = job.end()
    assert [a == b for a, b in zip(before, after)] == [r != SLOW for r in range(WORLD)], text[-4000:]
    assert f"restart 1/3 (rank {SLOW} excluded as a straggler (compute)), kept {WORLD - 1} workers" in text, text[-4000:]
