"""kill -9 of the agent, the guardian, or both at a random moment of a job whose workers fork, leave for sessions of their own and ignore SIGTERM: how long until
all are gone, as the kernel tells it (pidfd), so that a look at /proc on a busy machine does not count."""

import contextlib
import os
import select
import signal
import time

from processes import kill

WORKERS = 3
# Direct workers hold MEMORY bytes; what they leave in the background is told apart by CHILD.
WORKER = r"""
trap '' TERM
CHILD=1 setsid sh -c 'trap "" TERM; sleep 1000 & sleep 1000' &
(CHILD=1 setsid sleep 1000 &)
CHILD=1 sleep 1000 &
exec python3 -S -E -c "import signal; x = bytearray($MEMORY); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
"""


def states(pids):
    """pid -> (state, name), of those that are there."""
    found = {}
    for pid in pids:
        try:
            head, tail = open(f"/proc/{pid}/stat").read().rsplit(")", 1)
            found[pid] = tail.split()[0], head.split("(", 1)[1]
        except OSError:
            pass
    return found


def children(pids):
    found = set()
    for pid in pids:
        try:
            if b"CHILD=1" in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"):
                found.add(pid)
        except OSError:
            pass
    return found


class Ends:
    """When processes end, as the kernel tells it."""

    def __init__(self, pids):
        self.fds, self.poll, self.last = {}, select.poll(), 0.0
        self.add(pids)

    def add(self, pids):
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            self.fds[fd] = pid
            self.poll.register(fd, select.POLLIN)

    def left(self):
        return set(self.fds.values())

    def take(self, ms):
        for fd, _ in self.poll.poll(ms):
            self.last = time.monotonic()
            self.poll.unregister(fd)
            os.close(fd)
            del self.fds[fd]

    def wait(self, may_live, seconds=10):
        """Until all have ended but those that may_live() names."""
        end = time.monotonic() + seconds
        while self.fds and time.monotonic() < end:
            self.take(20)
            if self.fds and self.left() <= may_live():
                break

    def finish(self):
        """-> when the last one ended that has"""
        self.take(0)
        for fd in self.fds:
            os.close(fd)
        return self.last


def kill_at(crun, rng, victim, cgroup, memory):
    """One job, killed at one moment. -> (phase, seconds until all were gone, children that survived the kill of both, zombies)"""
    phase = rng.choice(["spawning", "running", "stopping"])
    p = crun.start("--nproc_per_node", WORKERS, "--cgroup", cgroup, "sh", "-c", WORKER, extra_env={"MEMORY": str(memory)})
    time.sleep(rng.uniform(0, 0.06) if phase == "spawning" else rng.uniform(0.1, 0.3))
    if phase == "stopping":
        p.terminate()
        time.sleep(rng.uniform(0, 0.05))
    try:
        agent = crun.agent_of(p.pid)
    except (OSError, IndexError):
        agent = None  # it is not there yet
    seen = set(crun.processes())
    watched = Ends(seen - {p.pid, agent})
    kills = ([p.pid] if victim != "agent" or not agent else []) + ([agent] if agent and victim != "guardian" else [])
    for pid in kills:
        with contextlib.suppress(ProcessLookupError):  # an agent told to stop before it had workers may be gone
            os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    watched.wait(lambda: children(watched.left()) if victim == "both" else set())
    left = set()
    while True:  # those that were born meanwhile
        now = set(crun.processes())
        watched.add(now - seen - {p.pid, agent})
        seen |= now
        left = children(now) if victim == "both" else set()
        if not now - left:
            break
        assert time.monotonic() - start < 10, f"{phase}: still there: {states(now)}"
    took = max(0, watched.finish() - start)
    p.communicate(timeout=60)
    # What crun is itself without its guardian is reaped by whoever adopts it; so are all, if neither half is left.
    zombies = {pid: s for pid, s in states(seen - {p.pid, agent}).items() if s[0] == "Z" and s[1] not in ("crun", "job-deputy", "job-gauges", "job-output")} if victim != "both" and agent else {}
    kill(*left)
    if victim != "both" and agent:
        assert crun.leftovers() == []
    return phase, took, len(left), len(zombies)
