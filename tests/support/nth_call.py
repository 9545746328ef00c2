"""The Nth allocation (tests/fault/nth.c) or system call (strace -e inject) of one process fails, for N of the day; what a run must be like then."""
import os
import random
import shutil
import subprocess
import time

import pytest

from processes import wait
from support import preload

PATIENCE_S = 10
ALL = "all"

# Errors that each call may answer with where a machine is short of something, or a disk is broken.
ERRORS = {
    "write": ("ENOSPC", "EIO"),
    "openat": ("EMFILE", "ENFILE"),
    "fsync": ("EIO",),
    "accept4": ("EMFILE", "ECONNABORTED"),
    "clone3": ("EAGAIN",),
    "mmap": ("ENOMEM",),
}


def today():
    return int(os.environ.get("TEST_DAY", time.time() // 86400))


def numbers(most, few):
    """Which of 1 … most: `few` of them, others each day; ALL of them."""
    every = range(1, most + 1)
    return every if few == ALL or few >= most else sorted(random.Random(today()).sample(every, few))


def environment(process, log, **more):
    """Of a program, one process of which is the one; more: at, on, hold, short (nth.c)."""
    return {**preload("nth"), "NTH_PROCESS": process, "NTH_LOG": str(log), **{f"NTH_{k.upper()}": str(v) for k, v in more.items() if v}}


def sites(log):
    """Call sites of all allocations, in order, of a run without a fault."""
    return log.read_text().splitlines() if log.exists() else []


def has_failed(log):
    return any(line.startswith("failed ") for line in sites(log))


def key(all_sites, n):
    """(call site, k-th call) of N: what stays the same where threads make N another one each time."""
    return f"{all_sites[n - 1]}:{all_sites[:n].count(all_sites[n - 1])}"


def keys(log, few, firsts):
    """Of N of the day, and, if firsts, of the first call of each call site."""
    all_sites = sites(log)
    first = {all_sites.index(site) + 1 for site in all_sites if firsts}
    return [key(all_sites, n) for n in sorted(first | set(numbers(len(all_sites), few)))]


def check_end(code, said):
    """Of a program that had a fault. It has a code of its own, and names what it lacked, where it says anything at all."""
    assert 0 <= code < 128 or code == 143, (code, said)  # no signal, no abort(); 143: a stop that was asked for
    assert code != 255, said  # exit(-1) of a library
    for words in ("killed by SIGABRT", "killed by SIGSEGV", "killed by SIGBUS", "Assertion", "core dumped"):
        assert words not in said, said


class Injected:
    """A call of one process fails: `environment` for the program, then attach()."""

    def __init__(self, tmp, process, call, error, n):
        if not shutil.which("strace"):
            pytest.skip("no strace")
        self.pids, self.out = tmp / "held", tmp / "strace"
        self.environment = environment(process, tmp / "log", hold=self.pids)
        self.call, self.what = call, f"inject={call}:error={error}:when={n}"

    def attach(self):
        """Once the process is there, with its threads of now; it goes on then."""
        pid = int(wait("the process to be traced", lambda: self.pids.exists() and self.pids.read_text()).split()[0])
        self.p = subprocess.Popen(["strace", "-q", "-o", str(self.out), "-p", str(pid), "-e", f"trace={self.call}", "-e", self.what], stderr=subprocess.DEVNULL)

    def detach(self):
        """Whether the call has failed."""
        self.p.wait(PATIENCE_S)
        return "(INJECTED)" in self.out.read_text()
