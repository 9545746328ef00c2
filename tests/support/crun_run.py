"""Running crun in a test, and finding what it left."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import support
from processes import WAIT, children, comm, end_all, marked, programs, state, wait

REPO, BUILD, CRUN = map(str, (support.ROOT, support.BUILD, support.CRUN))
WORKER = os.path.join(REPO, "tests", "e2e", "launcher", "worker.py")


OWN = 4  # processes of crun itself: guardian, agent, deputy, output process


class Crun:
    """Runs crun with a mark in the environment by which all processes of the test can be found."""

    def __init__(self, tmp_path, program=CRUN):
        self.tmp, self.program = tmp_path, str(program)
        self.mark = f"CRUN_TEST_MARK={os.getpid()}-{tmp_path.name}"
        self.env = dict(os.environ, TMPDIR=str(tmp_path))
        self.env.pop("OMP_NUM_THREADS", None)
        name, value = self.mark.split("=")
        self.env[name] = value
        self.started = []
        self.ports = []

    def start(self, *args, prefix=(), **kw):
        """prefix: what becomes crun by exec."""
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        env = dict(self.env, **kw.pop("extra_env", {}))
        p = subprocess.Popen([*map(str, prefix), self.program, *map(str, args)], env=env, **kw)
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
        """pids of all that crun and its workers are."""
        return marked(self.mark)

    def programs(self):
        """The same without those that only share the memory of a worker."""
        return programs(self.mark)

    def leftovers(self):
        return [n for n in os.listdir(self.tmp) if n.startswith("crun-")]

    def wait_processes_gone(self, seconds=WAIT):
        """-> seconds it took; fails if some are left."""
        start = time.monotonic()
        while True:
            left = self.processes()
            took = time.monotonic() - start
            if not left:
                return took
            assert took < seconds, f"still there after {took:.3f} s: {left}"
            time.sleep(0.002)

    def wait_processes(self, n):
        """Until exactly n processes are left (crun's own: OWN)."""
        wait(f"the time of {n} processes", lambda: len(self.processes()) == n)

    def own(self, guardian):
        """pids of crun itself."""
        return [guardian, *children(guardian)]

    def wait_state(self, pid, letter):
        """Until /proc shows this state letter."""
        wait(f"state {letter} of {pid}", lambda: state(pid) == letter)

    def wait_file(self, name):
        path = self.tmp / name
        wait(name, path.exists)
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
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def kill_both(self, guardian, in_shell=False):
        """Guardian and agent, as in one instant: neither acts, nor does the deputy before both are dead (a death continues it). in_shell: a shell
        would see the guardian stop; there the agent goes on when the guardian dies, and may end before the second kill."""
        agent, still = self.agent_of(guardian), [] if in_shell else [guardian, self.deputy_of(guardian)]
        for pid in [*still, agent]:
            os.kill(pid, signal.SIGSTOP)
            self.wait_state(pid, "T")
        for pid in [guardian, agent] if in_shell else [agent, guardian]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def agent_of(self, guardian):
        return children(guardian)[0]

    def helper_of(self, guardian, name, *before):
        """The process beside the agent of that name; another one than those. One that is killed may be there for a while."""
        return wait(name, lambda: next((pid for pid in children(guardian) if comm(pid) == name and pid not in before), None))

    def output_of(self, guardian, *before):
        return self.helper_of(guardian, "job-output", *before)

    def deputy_of(self, guardian, *before):
        return self.helper_of(guardian, "job-deputy", *before)

    def close(self):
        """Nobody outlives a crun: not one that ended, nor one that is killed here because its test did not wait for it."""
        for p in self.started:
            if p.poll() is None:
                p.kill()
            p.wait()
        for s in self.ports:
            s.close()
        left = end_all(self.mark, seconds=10)
        assert not left, f"processes were left behind: {left}"
