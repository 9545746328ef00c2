"""Several cruns on this machine, each a node of one job."""
import json
import os
import re
import select
import signal
import subprocess
import sys

from apis import Etcd, Kubernetes
from daemon import Daemon
from processes import WAIT, children, end_all, kill, wait
from servers import Redis, wait_port  # noqa: F401
from support import CRUN, RENDEZVOUSD, ROOT, free_port  # noqa: F401

WORKER = [sys.executable, "-S", "-E", str(ROOT / "tests" / "e2e" / "elastic" / "worker.py")]


def kill_and_wait(*nodes):
    """Guardian and agent of each, until none of them is left: one that is killed, and waits for its turn to end, holds its connections open meanwhile."""
    ends = {os.pidfd_open(pid): pid for n in nodes for pid in (n.pid, n.agent())}
    kill(*ends.values())
    for fd in ends:
        wait("the end of who was killed", lambda fd=fd: select.select([fd], [], [], 0)[0])
        os.close(fd)
    for n in nodes:
        n.wait()


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

    def wait(self, seconds=WAIT):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"crun did not end within {seconds} s:\n{self.text()}") from None

    def agent(self):
        return children(self.pid)[0]

    def worker(self):
        """The pid of its only worker."""
        pid, = children(self.agent())
        return pid

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
        self.servers = []
        self.nodes = []

    def node(self, *args, program=WORKER, prefix=(), env=(), crun=CRUN):
        log = self.tmp / f"node-{len(self.nodes)}.log"
        with open(log, "wb") as f:
            p = subprocess.Popen([*map(str, prefix), str(crun), *map(str, args), *map(str, program)], stdout=f, stderr=f,
                                 stdin=subprocess.DEVNULL, env=dict(self.env, **dict(env)))
        self.processes.append(p)
        self.nodes.append(Node(p, log))
        return self.nodes[-1]

    def rendezvousd(self, *args, **kw):
        """-> a Daemon of its own"""
        with open(self.tmp / "rendezvousd.log", "ab") as log:
            d = Daemon(*args, log=log, env=self.env, **kw)
        self.processes.append(d.p)
        return d

    def daemon(self, *args):
        """-> HOST:PORT of a rendezvousd of its own."""
        return self.rendezvousd(*args).address

    def redis(self, *args, **kw):
        """-> a Redis of its own"""
        self.servers.append(Redis(self.tmp, *args, **kw))
        return self.servers[-1]

    def etcd(self, **kw):
        """-> an Etcd of its own"""
        self.servers.append(Etcd(self.tmp, **kw))
        return self.servers[-1]

    def kubernetes(self, **kw):
        """-> a Kubernetes of its own; nodes find it by its pod()"""
        self.servers.append(Kubernetes(self.tmp, **kw))
        return self.servers[-1]

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

    def close(self):
        for n in self.nodes:
            if n.process.poll() is None:
                n.process.kill()
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()
        for s in self.servers:
            s.stop()
        left = end_all(f"CRUN_TEST_MARK={self.mark}", seconds=10)
        assert not left, f"processes were left behind: {left}"


def masked(env):
    """An environment without what has to differ from node to node, or from home to home."""
    out = {}
    for name, value in env.items():
        if name in ("MASTER_PORT", "CRUN_NODE_ID", "CRUN_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "CRUN_PAGE_FD", "NCCL_RAS_ADDR",
                    "OUT", "HOME", "TMPDIR", "CRUN_TEST_MARK", "STARTED_BY_TEST", "PWD", "OLDPWD", "PYTEST_CURRENT_TEST"):
            value = re.sub(r"[^/:]+", "X", value) if name == "CRUN_STORE" else "X"
        out[name] = value
    return out
