"""docs/examples/ddp_inprocess.py under crun: which processes are the ranks of a round, what they end with."""
import contextlib
import os
import re
import struct

from crun_run import Crun
from processes import programs, wait
from support import LIBCRUN, ROOT

INPROCESS = ROOT / "docs" / "examples" / "ddp_inprocess.py"
BEGINS = re.compile(r"^rank (\d) \(pid (\d+)\): round (\d+) begins after step (\d+)$", re.M)

PAUSES = """
import os, sys, time
example, folder, steps, *pauses = sys.argv[1:]
sys.path.insert(0, os.path.dirname(example))
import ddp_inprocess
import crun

batch = ddp_inprocess.batch

def pausing_batch(step, *more):
    if str(step) in pauses:  # until the test says go
        with crun.phase("paused"):
            while not os.path.exists(os.path.join(folder, f"go-{step}")):
                time.sleep(0.01)
    return batch(step, *more)

ddp_inprocess.batch = pausing_batch
ddp_inprocess.main(int(steps))
"""


def crun_for(tmp_path, python):
    """A Crun whose programs `python` runs, with the module crun."""
    c = Crun(tmp_path)
    c.env |= {"LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "PYTHON_EXEC": python, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return c


def pausing(folder, steps, *pauses):
    """-> the program that waits before each of these steps for a file go-STEP in the folder"""
    script = folder / "job.py"
    script.write_text(PAUSES)
    return script, INPROCESS, folder, steps, *pauses


class Rounds:
    """A crun that runs the example; who said what is read from a file as it comes."""

    def __init__(self, crun, *args, ranks=4, name="out"):
        self.crun, self.ranks, self.path = crun, ranks, crun.tmp / name
        self.out = open(self.path, "wb")
        self.p = crun.start("--nproc-per-node", ranks, "--no-log-prefix", "--hold-timeout", 120, "--max-restarts", 9, "--restart-backoff", 0, *args, stdout=self.out)

    def said(self):
        return self.path.read_text()

    def in_round(self, n):
        """-> {rank: pid}, and the step after which it begins"""
        def complete():
            found = {int(rank): (int(pid), int(step)) for rank, pid, round_, step in BEGINS.findall(self.said()) if int(round_) == n}
            return found if len(found) == self.ranks else None
        found = wait(f"round {n}", complete, 240)
        assert len({step for _, step in found.values()}) == 1, "all begin after the same step"
        return {rank: pid for rank, (pid, _) in found.items()}, found[0][1]

    def spare(self, pids):
        """-> the warm spare, once it waits: torch is imported"""
        def found():
            with contextlib.suppress(OSError):
                return next((p for p in programs(self.crun.mark, "CRUN_SPARE=1") if p not in pids.values() and waits(p)), None)
        return wait("a warm spare", found, 240)

    def end(self):
        """-> what the ranks have at the end"""
        _, err = self.p.communicate(timeout=300)
        self.out.close()
        assert self.p.returncode == 0, self.said() + err.decode()
        found = re.findall(rf"^rank (\d) of {self.ranks}: (\d+) steps, weights (\w+)$", self.said(), re.M)
        assert sorted(int(rank) for rank, _, _ in found) == list(range(self.ranks)), self.said()
        return {(steps, weights) for _, steps, weights in found}, err.decode()


def page_of(pid):
    """Its shared page (common/crun/crun_page.h)."""
    for fd in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "crun-page" in os.readlink(fd.path):
                return open(fd.path, "rb").read()
    return bytes(4096)


def steps_of(pid):
    return struct.unpack_from("Q", page_of(pid), 24)[0]


def waits(pid):
    """It has let go of the newest hold, and is told no round yet."""
    page = page_of(pid)
    holds, held = struct.unpack_from("II", page, 2220)
    return struct.unpack_from("I", page, 16)[0] == 5 and holds == held
