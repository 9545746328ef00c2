"""`crun chaos` on a running job, and its trace."""
import os
import re
import signal
import subprocess
from typing import NamedTuple

from processes import children, wait
from support import BUILD, CRUN

CLOCK = BUILD / "launcher" / "tools" / "chaos" / "chaos-clock.so"
LINE = re.compile(r"(?P<at>\d+\.\d+) (?P<what>.*) -> (?P<met>.*)")


def clock_env(file):
    """Environment of a program whose wall clock `crun chaos` can make wrong."""
    return {"LD_PRELOAD": str(CLOCK), "CRUN_CHAOS_CLOCK": str(file), "ASAN_OPTIONS": "verify_asan_link_order=0"}


class Deed(NamedTuple):
    """One fault that was inflicted; a line of the trace has one or several, in order."""

    at: float
    what: str  # "kill worker"
    node: int  # -1: wherever the rank was
    met: str   # "4242 (rank 3 of node 1)", "nobody"


class ChaosTool:
    """plan: text. What it prints is in a file, which is read as it grows."""

    def __init__(self, folder, plan, seed, *targets, options=()):
        folder.mkdir(parents=True, exist_ok=True)
        self.plan, self.out = folder / "plan", folder / "trace"
        self.plan.write_text(plan)
        self.args = [str(CRUN), "chaos", "--plan", str(self.plan), "--seed", str(seed), *options, *map(str, targets)]
        with open(self.out, "wb") as f:
            self.p = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)

    def text(self):
        return self.out.read_text()

    def lines(self):
        return [m for m in map(LINE.fullmatch, self.text().splitlines()) if m]

    def deeds(self):
        found = []
        for line in self.lines():
            for what, met in zip(line["what"].split(" and "), line["met"].split("; ")):
                node = re.search(r" node (\d+)", what)
                found.append(Deed(float(line["at"]), re.match(r"cut|fill|clock|\w+ \S+", what)[0], int(node[1]) if node else -1, met))
        return found

    def wait_deeds(self, n):
        """So many lines of the trace, or its end."""
        wait(f"{n} faults", lambda: len(self.lines()) >= n or self.p.poll() is not None)
        return self.deeds()

    def watcher(self):
        pid, = children(self.p.pid)
        return pid

    def wait(self, seconds=None):
        return self.p.wait(seconds or float(os.environ.get("CRUN_TEST_WAIT", 60)))

    def end(self, signo=signal.SIGTERM):
        """-> its exit code"""
        if self.p.poll() is None:
            self.p.send_signal(signo)
        return self.wait()

    def kill(self):
        """It has no time to undo anything."""
        watcher = self.watcher()
        self.p.kill()
        self.p.wait()
        return watcher
