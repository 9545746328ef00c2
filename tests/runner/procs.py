"""Processes as /proc shows them: whose they are, what they cost, and how much of the machine others use."""
import os
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))
BUSY = 0.2  # a share of the cores: from here on, others work on this machine


class Stat:
    def __init__(self, pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        self.state, self.parent, self.group, self.session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
        self.cpu = sum(map(int, fields[11:15])) / TICKS  # its own and that of the children it has waited for


def everyone():
    """-> {pid: Stat}"""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(pid)] = Stat(pid)
        except OSError:
            pass
    return found


def descendants(root, processes=None):
    """-> pids below this one"""
    children = {}
    for pid, stat in (everyone() if processes is None else processes).items():
        children.setdefault(stat.parent, []).append(pid)
    found, look = [], [root]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def children(pid):
    """Of all its threads."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as f:
                found += [int(p) for p in f.read().split()]
    except OSError:
        pass  # it ended
    return found


def machine():
    """-> seconds since it started that all cores together worked, and that its host gave to other guests"""
    with open("/proc/stat", encoding="utf-8") as f:
        user, nice, system, _, _, irq, softirq, stolen = ([int(n) for n in f.readline().split()[1:9]] + [0] * 8)[:8]
    return (user + nice + system + irq + softirq) / TICKS, stolen / TICKS


def used():
    """-> seconds: the time, and what all cores together, and this process with all below it, have worked until now"""
    processes, me = everyone(), os.getpid()
    return time.monotonic(), machine()[0], sum(processes[pid].cpu for pid in [me, *descendants(me, processes)] if pid in processes)


def share_of_others(before, now):
    """-> the share of the cores that others used between two used()"""
    seconds, worked, ours = (b - a for a, b in zip(before, now))
    return max(0.0, min(1.0, (worked - ours) / (seconds * CORES)))


class Others(threading.Thread):
    """Measures every few seconds which share of the cores is used by processes that are not below this one, and writes it to a file."""

    def __init__(self, path, every=3):
        super().__init__(daemon=True)
        self.path, self.every, self.cpu, self.share = path, every, 0.0, 0.0
        self.path.write_text("0")
        self.before = self.look()

    def look(self):
        now = used()
        self.cpu = now[2]
        return now

    def run(self):
        while True:
            time.sleep(self.every)
            now = self.look()
            self.share = share_of_others(self.before, now)
            new = self.path.with_suffix(".new")
            new.write_text(f"{self.share:.3f}")
            new.replace(self.path)
            self.before = now


def others_work(path):
    """Whether they do, by what Others wrote there."""
    try:
        with open(path, encoding="utf-8") as f:
            return float(f.read()) >= BUSY
    except (OSError, TypeError, ValueError):
        return False
