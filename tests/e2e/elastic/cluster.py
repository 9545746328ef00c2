"""Several cruns on this machine, each a node of one job."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

from support import BUILD, CRUN, free_port

HERE = pathlib.Path(__file__).resolve().parent
WORKER = [sys.executable, "-S", "-E", str(HERE / "worker.py")]
RENDEZVOUSD = BUILD / "rendezvousd" / "rendezvousd"


def wait(what, condition, seconds=float(os.environ.get("CRUN_TEST_WAIT", 60))):
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)


def joined(node, count, nodes):
    """This node, once it is one of `count` that wait for the others."""
    wait("a node to join", lambda: f"joining: {count} of {nodes} nodes" in node.text())
    return node


class Node:
    """One crun."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        self.pid = process.pid

    def text(self):
        return self.log.read_text(errors="replace")

    def wait(self, seconds=float(os.environ.get("CRUN_TEST_WAIT", 60))):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"crun did not end within {seconds} s:\n{self.text()}") from None

    def agent(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            return int(f.read().split()[0])

    def worker(self):
        """The pid of its only worker."""
        agent = self.agent()
        with open(f"/proc/{agent}/task/{agent}/children") as f:
            pid, = f.read().split()
        return int(pid)

    def kill_agent(self):
        os.kill(self.agent(), signal.SIGKILL)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)


class Cluster:
    def __init__(self, tmp_path):
        self.tmp = tmp_path
        self.out = tmp_path / "out"
        self.out.mkdir()
        self.mark = f"{os.getpid()}-{tmp_path.name}"
        self.env = dict(os.environ, HOME=str(tmp_path), TMPDIR=str(tmp_path), OUT=str(self.out), CRUN_TEST_MARK=self.mark)
        for name in list(self.env):
            if name.startswith(("PET_", "CRUN_RDZV", "SLURM_", "PBS_", "OMPI_")) or name == "OMP_NUM_THREADS":
                del self.env[name]
        self.processes = []
        self.nodes = []

    def node(self, *args, program=WORKER, prefix=(), env=()):
        log = self.tmp / f"node-{len(self.nodes)}.log"
        with open(log, "wb") as f:
            p = subprocess.Popen([*map(str, prefix), str(CRUN), *map(str, args), *map(str, program)], stdout=f, stderr=f,
                                 stdin=subprocess.DEVNULL, env=dict(self.env, **dict(env)))
        self.processes.append(p)
        self.nodes.append(Node(p, log))
        return self.nodes[-1]

    def daemon(self, *args, port=None):
        """-> HOST:PORT of a rendezvousd of its own."""
        port = port or free_port()
        log = self.tmp / f"rendezvousd-{len(self.processes)}.log"
        with open(log, "wb") as f:
            p = subprocess.Popen([str(RENDEZVOUSD), "--port", str(port), *map(str, args)], stdout=f, stderr=f, env=self.env,
                                 stdin=subprocess.DEVNULL)
        self.processes.append(p)
        wait_port("127.0.0.1", port)
        return f"127.0.0.1:{port}"

    def redis(self):
        port = free_port()
        p = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.tmp)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(p)
        wait_port("127.0.0.1", port)
        return f"redis://127.0.0.1:{port}"

    # --- what the workers tell ---

    def rounds(self):
        """{round: {rank: environment}}"""
        found = {}
        for d in self.out.glob("round-*"):
            ranks = {}
            for f in d.glob("rank-*.json"):
                ranks[int(f.stem.split("-")[1])] = json.loads(f.read_text())
            found[int(d.name.split("-")[1])] = ranks
        return found

    def wait_round(self, world, after=0):
        """The first round above `after` in which all of `world` workers run: (number, {rank: environment})."""

        def look():
            for number, ranks in sorted(self.rounds().items()):
                if number > after and len(ranks) == world and all(int(e["WORLD_SIZE"]) == world for e in ranks.values()):
                    assert sorted(ranks) == list(range(world))
                    return number, ranks
            dead = [n for n in self.nodes if n.process.poll() is not None]
            assert len(dead) < len(self.nodes), "every crun has ended:\n" + "\n".join(n.text() for n in self.nodes)
            return None

        try:
            return wait(f"a round of {world}", look)
        except AssertionError as e:
            raise AssertionError(str(e) + "\n" + "\n---\n".join(n.text() for n in self.nodes)) from None

    def reason(self, round_, rank):
        """Why this worker was stopped: 1 failure, 2 resize, 3 drain."""
        return int(wait("the end of a worker", lambda: self._read(f"ended-{round_}-{rank}")))

    def _read(self, name):
        path = self.out / name
        return path.read_text() if path.exists() else None

    def say(self, name):
        (self.out / name).touch()

    def finish(self, *nodes, code=0):
        self.say("finish")
        for n in nodes or self.nodes:
            assert n.wait() == code, n.text()

    # --- the end ---

    def left(self):
        found = []
        mark = f"CRUN_TEST_MARK={self.mark}".encode()
        for p in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (p / "environ").read_bytes().split(b"\0"):
                    found.append(int(p.name))
            except OSError:
                pass
        return found

    def close(self):
        for n in self.nodes:
            if n.process.poll() is None:
                n.process.kill()
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()
        end = time.monotonic() + 10
        while self.left() and time.monotonic() < end:
            time.sleep(0.01)
        left = self.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes were left behind: {left}"


def wait_port(host, port, seconds=30):
    def dial():
        try:
            socket.create_connection((host, port), timeout=1).close()
            return True
        except OSError:
            return False

    wait(f"a listener at {host}:{port}", dial, seconds)


def masked(env):
    """An environment without what has to differ from node to node, or from home to home."""
    out = {}
    for name, value in env.items():
        if name in ("MASTER_PORT", "CRUN_NODE_ID", "CRUN_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "CRUN_PAGE_FD",
                    "OUT", "HOME", "TMPDIR", "CRUN_TEST_MARK", "PWD", "OLDPWD", "PYTEST_CURRENT_TEST"):
            value = re.sub(r"[^/:]+", "X", value) if name == "CRUN_STORE" else "X"
        out[name] = value
    return out
