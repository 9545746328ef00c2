"""Waiting for what processes do, and finding those that a test has started."""
import contextlib
import os
import pathlib
import re
import signal
import time

WAIT = float(os.environ.get("CRUN_TEST_WAIT", 60))  # seconds that anything may take


def wait(what, condition, seconds=None):
    """The first true value of condition()."""
    seconds = WAIT if seconds is None else seconds
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)


def marked(*marks):
    """pids of those with each NAME=VALUE in their environment, as it was when they began (a zombie has none)."""
    found, marks = [], {mark.encode() for mark in marks}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if marks <= set(f.read().split(b"\0")):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def state(pid):
    """The letter that /proc shows; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def watched(pid):
    """Processes whose pidfd is in an epoll of this one."""
    at = pathlib.Path(f"/proc/{pid}/fdinfo")
    text = {}
    for fd in at.iterdir():
        try:
            text[fd.name] = fd.read_text()
        except OSError:
            continue  # closed meanwhile
    polled = {n for t in text.values() for n in re.findall(r"^tfd:\s+(\d+)", t, re.M)}
    return {int(n) for fd in polled for n in re.findall(r"^Pid:\s+(\d+)", text.get(fd, ""), re.M)}


def pending(pid):
    """Signals that were sent to the process and that nobody has taken yet, as bits; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
            return int(re.search(r"^ShdPnd:\s+(\w+)", f.read(), re.M)[1], 16)
    except OSError:
        return 0


def children(pid):
    """Of all its threads; the oldest of each first."""
    found = []
    for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as f:
            found += [int(p) for p in f.read().split()]
    return found


def programs(*marks):
    """Of marked() those that do not only hold the memory of a worker."""
    return [pid for pid in marked(*marks) if comm(pid) != "job-memory"]


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def comm(pid):
    """The name that the kernel has for it; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return None


def kill(*pids):
    """With SIGKILL. The end of one may end the next before its turn comes; whoever inherits it may have waited for it already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all(mark, seconds):
    """Wait so long for all that are marked to end, then kill them. -> "pid command" of those that had to be killed"""
    end = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.005)
    said = [f"{pid} {command(pid)}" for pid in left]
    while left:
        kill(*left)
        time.sleep(0.005)
        left = [pid for pid in marked(mark) if state(pid) != "D"]
    return said
