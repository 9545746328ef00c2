"""Running crun in a test, and finding what it left. The build directory comes from CRUN_BUILD (default: build/ of the repository)."""

import contextlib
import os
import signal
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.path.abspath(os.environ.get("CRUN_BUILD", os.path.join(REPO, "build")))
CRUN = os.path.join(BUILD, "launcher", "crun")
WORKER = os.path.join(HERE, "worker.py")


class Crun:
    """Runs crun with a mark in the environment by which all processes of the test can be found."""

    def __init__(self, tmp_path):
        self.tmp = tmp_path
        self.mark = f"CRUN_TEST_MARK={os.getpid()}-{tmp_path.name}"
        self.env = dict(os.environ, TMPDIR=str(tmp_path))
        self.env.pop("OMP_NUM_THREADS", None)
        name, value = self.mark.split("=")
        self.env[name] = value
        self.started = []
        self.ports = []

    def start(self, *args, **kw):
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        env = dict(self.env, **kw.pop("extra_env", {}))
        p = subprocess.Popen([CRUN, *map(str, args)], env=env, **kw)
        self.started.append(p)
        return p

    def run(self, *args, timeout=90, **kw):
        """-> (exit code, stdout, stderr), and nothing may be left behind."""
        p = self.start(*args, **kw)
        out, err = p.communicate(timeout=timeout)
        assert self.processes() == []
        assert self.leftovers() == []
        text = lambda b: b.decode(errors="replace") if b is not None else None
        return p.returncode, text(out), text(err)

    def processes(self):
        """pids whose environment carries the mark (a zombie has none)."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if self.mark.encode() in f.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def leftovers(self):
        return [n for n in os.listdir(self.tmp) if n.startswith("crun-")]

    def wait_processes_gone(self, seconds):
        """-> seconds it took; fails if some are left."""
        start = time.monotonic()
        while True:
            left = self.processes()
            took = time.monotonic() - start
            if not left:
                return took
            assert took < seconds, f"still there after {took:.3f} s: {left}"
            time.sleep(0.002)

    def wait_processes(self, n, seconds=60):
        """Until exactly n processes are left (guardian and agent: 2)."""
        end = time.monotonic() + seconds
        while len(self.processes()) != n:
            assert time.monotonic() < end, self.processes()
            time.sleep(0.005)

    def wait_state(self, pid, state, seconds=60):
        """Until /proc shows this state letter."""
        end = time.monotonic() + seconds
        while open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != state:
            assert time.monotonic() < end
            time.sleep(0.002)

    def wait_file(self, name, seconds=60):
        path = self.tmp / name
        end = time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < end, f"{name} did not appear"
            time.sleep(0.005)
        return path.read_text()

    def port(self):
        """A port that nobody else is given until the test ends; crun can listen on it, and until then whoever dials is refused."""
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as crun's listener has it
        s.bind(("127.0.0.1", 0))
        self.ports.append(s)
        return s.getsockname()[1]

    @contextlib.contextmanager
    def stopped(self, pid):
        """This process does nothing meanwhile; then it finds all that happened at once."""
        os.kill(pid, signal.SIGSTOP)
        self.wait_state(pid, "T")
        yield
        os.kill(pid, signal.SIGCONT)

    def agent_of(self, guardian):
        with open(f"/proc/{guardian}/task/{guardian}/children") as f:
            return int(f.read().split()[0])

    def close(self):
        for p in self.started:
            if p.poll() is None:
                p.kill()
            p.wait()
        for pid in self.processes():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        for s in self.ports:
            s.close()
