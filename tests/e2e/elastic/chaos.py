"""Chaos from a seed: nodes on hosts of their own, and what befalls them. test_chaos.py says what must hold meanwhile.

A plan is drawn before anything starts: after how long which fault hits which node, for how long. What a fault finds (a node amid its start, or none)
depends on the machine. Whoever dies is started again, as a scheduler would."""

import contextlib
import os
import random
import signal
import time
from typing import NamedTuple

from pausing_fs import PausingFs
from processes import children, comm, marked, state, wait
from support import BUILD

WORKER = [BUILD / "tests" / "fault" / "chaos_worker"]
WORKERS = 2  # a node
CONF = "last_call_timeout=300ms,keep_alive_interval=500ms,join_timeout=15"
RUNS_S = 0.3  # a worker that left its time so lately is there
GONE_S = 5  # for what a dead crun leaves, on a busy machine; a tenth of a second is usual

HALVES = ("worker", "agent", "guardian", "output")
BESIDE = {"output": "crun-output", "home": "crun-home"}  # who: as the kernel names it
# Of 28 faults so many are of that kind, on average. Pairs: what happens to the guardian, then at once to its agent.
KINDS = {**{(how, who): 2 for how in ("kill", "stop") for who in HALVES}, ("kill", "home"): 1, ("stop", "home"): 1, ("pair", "kill", "kill"): 1,
         ("pair", "stop", "kill"): 1, ("pair", "kill", "stop"): 1, ("pair", "stop", "stop"): 1, ("terminate",): 1, ("cut",): 2, ("disk",): 2, ("home",): 1}


class Fault(NamedTuple):
    after: float  # seconds since the one before
    kind: tuple
    node: int
    lasts: float  # where it has an end


def plan(seed, nodes, seconds):
    dice, drawn, at = random.Random(seed), [], 0.0
    while at < seconds:
        f = Fault(min(dice.expovariate(1 / 1.2), 6), dice.choices(list(KINDS), list(KINDS.values()))[0], dice.randrange(nodes),
                  dice.choice([dice.uniform(0.05, 0.5), dice.uniform(0.5, 6)]))
        at += f.after
        drawn.append(f)
    return drawn


# --- what workers tell ---


class Life(NamedTuple):
    """One process, from its first to its last moment (ns)."""

    kind: str
    round: int
    rank: int
    world: str
    pid: int
    node: str
    begin: int
    last: int


def lives(out):
    found = []
    for f in (out / "journal").iterdir():
        lines = f.read_text().split("\n")
        if len(lines) < 3:  # it was killed before it had begun
            continue
        kind, round_, rank, world, pid, node, begin = lines[0].split()
        found.append(Life(kind, int(round_), int(rank), world, int(pid), node, int(begin), int(lines[1])))
    return found


class World(NamedTuple):
    """All processes of one start of the job."""

    round: int
    name: str
    begin: int
    last: int
    ranks: frozenset


def worlds(found, kind="worker"):
    """In the order of their beginnings."""
    grouped = {}
    for life in found:
        if life.kind == kind:
            grouped.setdefault((life.round, life.world), []).append(life)
    return sorted((World(*key, min(x.begin for x in v), max(x.last for x in v), frozenset(x.rank for x in v)) for key, v in grouped.items()),
                  key=lambda w: w.begin)


def overlaps(sorted_worlds):
    """-> (of one instance, of different ones): pairs of worlds that ran at once. A new instance of the job begins at round 1."""
    same, other = [], []
    for i, a in enumerate(sorted_worlds):
        for b in sorted_worlds[i + 1:]:
            if b.begin < a.last:
                (same if b.round > a.round else other).append((a, b, (a.last - b.begin) / 1e6))
    return same, other


# --- homes ---


class Hosted:
    """The crun on the first host; it comes back when that is started again."""

    def __init__(self, cluster, net):
        self.where = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{net.hosts[0].addr}:29400"]

    def kill(self):
        pass

    def start(self):
        pass


class Rendezvousd(Hosted):
    def __init__(self, cluster, net):
        self.host, self.cluster = net.hosts[-1], cluster
        self.args = ["--token-file", str(net.token), "--state-dir", str(cluster.tmp / "state")]
        self.where = ["--rdzv_backend", "rendezvousd", "--rdzv_endpoint", f"{self.host.addr}:29400"]
        self.start()

    def start(self):
        self.daemon = self.cluster.rendezvousd(*self.args, prefix=self.host.prefix(), bind=self.host.addr, port=29400)

    def kill(self):
        self.daemon.p.kill()
        self.daemon.p.wait()


class Redis(Hosted):
    def __init__(self, cluster, net):
        host = net.hosts[-1]
        self.redis = cluster.redis("appendonly yes", "appendfsync always", "protected-mode no", port=6379, bind=host.addr, prefix=host.prefix())
        self.where = ["--rdzv_endpoint", self.redis.url]

    def start(self):
        self.redis.start()

    def kill(self):
        self.redis.kill()


class File(Hosted):
    """A folder that all see, whatever the network does. A disk has no restart."""

    def __init__(self, cluster, net):
        shared = cluster.tmp / "shared"
        shared.mkdir()
        self.where = ["--rdzv_endpoint", f"file://{shared}"]


HOMES = {"c10d": Hosted, "rendezvousd": Rendezvousd, "redis": Redis, "file": File}


# --- nodes ---


def process_text(pid):
    """What may be known of one that ought to be gone."""
    text = f"state {state(pid)}, child of {parent(pid)}"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", encoding="utf-8") as f:
        text += " in " + f.read()
    return text


def parent(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        ppid = int(f.read().rsplit(")", 1)[1].split()[1])
        return f"{ppid} ({comm(ppid)}, state {state(ppid)})"
    return "?"


class Hit:
    """A process that was stopped, and goes on later, if it is still there."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(self.fd, signal.SIGSTOP)

    def release(self):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGCONT)
        os.close(self.fd)


class Place:
    """A host, its disk for log files, and the cruns that ran there one after the other."""

    def __init__(self, cluster, net, number, home):
        self.cluster, self.host, self.number, self.home = cluster, net.hosts[number], number, home
        self.disk = PausingFs(cluster.tmp / f"disk-{number}")
        self.starts, self.node, self.felt = 0, None, []
        self.start()

    def start(self):
        self.starts += 1
        self.felt = []
        self.name = f"{os.getpid()}.{self.number}.{self.starts}"
        self.node = self.cluster.node(
            "--nnodes", "2:3", "--nproc_per_node", WORKERS, "--rdzv_id", "chaos", *self.home.where, "--rdzv_conf", CONF, "--local-addr",
            self.host.addr, "--max-restarts", 1000000, "--restart-backoff", 0, "--shutdown-timeout", 0.5, "--resize-timeout", 0.5, "--drain-timeout",
            0.5, "--log-dir", self.cluster.tmp / f"disk-{self.number}", "--log-level", "info", program=WORKER, prefix=self.host.prefix(),
            env={"CHAOS_NODE": self.name})

    def victim(self, who):
        """Its pid; None: there is none just now."""
        with contextlib.suppress(OSError, IndexError, StopIteration):
            if self.node.process.poll() is not None:
                return None
            below = children(self.node.pid)
            if who == "guardian":
                return self.node.pid
            if who in BESIDE:
                return next(pid for pid in below if comm(pid) == BESIDE[who])
            return below[0] if who == "agent" else next(pid for pid in children(below[0]) if comm(pid) == "chaos_worker")
        return None

    def feel(self, what):
        self.felt.append(f"{what} at {time.monotonic():.3f}")

    def hit(self, how, who):
        """-> what ends it, None: nothing does"""
        pid = self.victim(who)
        if not pid:
            return None
        self.feel(f"{how} {who}")
        try:
            if how == "stop":
                return Hit(pid).release
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return None

    def allowed(self):
        """Exit codes that docs/reference/exit-codes.md has for what this crun has felt; for what befalls the job: always."""
        felt = [what.rsplit(" at ", 1)[0] for what in self.felt]
        codes = {69, 75}  # nobody could reach the home for long; too few nodes were left
        codes |= {137} if "kill agent" in felt else set()
        codes |= {-signal.SIGKILL} if "kill guardian" in felt else set()
        codes |= {143} if "terminate" in felt else set()
        return codes

    def left(self):
        """pids of workers and daemons of the crun that was here."""
        return [pid for pid in marked(f"CHAOS_NODE={self.name}") if comm(pid) == "chaos_worker"]


class Chaos:
    def __init__(self, cluster, net, home, places=3):
        (cluster.out / "journal").mkdir()
        self.cluster, self.net = cluster, net
        self.home = HOMES[home](cluster, net)
        self.places = []
        self.endings = []  # (when, what), of faults that are not over
        self.exits, self.wrong, self.hits = {}, [], 0
        for number in range(places):
            self.places.append(Place(cluster, net, number, self.home))

    def close(self):
        self.end_faults(everything=True)
        self.cluster.close()
        for place in self.places:
            place.disk.close()

    # --- faults ---

    def later(self, seconds, end):
        if end:
            self.endings.append((time.monotonic() + seconds, end))

    def end_faults(self, everything=False):
        now = time.monotonic()
        due = [e for e in self.endings if everything or e[0] <= now]
        self.endings = [e for e in self.endings if e not in due]
        for _, end in due:
            end()

    def is_on(self, name):
        return any(getattr(end, "__name__", "") == name for _, end in self.endings)

    def inflict(self, fault):
        place, kind = self.places[fault.node], fault.kind
        self.hits += 1
        if kind[0] in ("kill", "stop"):
            self.later(fault.lasts, place.hit(*kind))
        elif kind[0] == "pair":
            for how, who in zip(kind[1:], ("guardian", "agent")):
                self.later(fault.lasts, place.hit(how, who))
        elif kind[0] == "terminate" and place.node.process.poll() is None:
            place.feel("terminate")
            place.node.terminate()
        elif kind[0] == "cut":
            place.host.cut()
            self.later(fault.lasts, place.host.heal)
        elif kind[0] == "disk":
            place.disk.pause()
            self.later(fault.lasts, place.disk.resume)
        elif kind[0] == "home" and not self.is_on("start"):
            self.home.kill()
            self.later(fault.lasts / 2, self.home.start)

    # --- whoever ended ---

    def take_leave(self, place, allowed):
        code = place.node.process.poll()
        self.exits[code] = self.exits.get(code, 0) + 1
        if code not in allowed:
            self.wrong.append(f"{place.name} ended with {code} after {place.felt}:\n" + place.node.text()[-3000:])
        workers = {life.pid for life in lives(self.cluster.out) if life.kind == "worker" and life.node == place.name}
        try:
            wait("the end of what it started", lambda: not place.left(), GONE_S)
        except AssertionError:
            left = {pid: process_text(pid) for pid in place.left()}
            who = "workers" if workers & set(left) else "daemons"
            self.wrong.append(f"{place.name} ended with {code} after {place.felt} and left {who}: {left}\n" + place.node.text()[-3000:])
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def start_again(self):
        for place in self.places:
            if place.node.process.poll() is not None:
                self.take_leave(place, place.allowed())
                place.start()

    # --- the campaign ---

    def go(self, faults):
        for fault in faults:
            at = time.monotonic() + fault.after
            while time.monotonic() < at:
                self.end_faults()
                self.start_again()
                time.sleep(0.01)
            self.inflict(fault)

    def recover(self, seconds):
        """After the last fault: -> seconds until a world of all nodes ran."""
        self.end_faults(everything=True)
        begun = time.monotonic()

        def look():
            """All of them run a while after the last fault."""
            self.start_again()
            least = max(begun + RUNS_S, time.monotonic() - RUNS_S) * 1e9
            running = [life for life in lives(self.cluster.out) if life.kind == "worker" and life.last > least]
            return any(len(w.ranks) == WORKERS * len(self.places) for w in worlds(running))

        try:
            wait("a world of all nodes", look, seconds)
        except AssertionError as e:
            self.wrong.append(str(e) + "\n" + "\n---\n".join(p.node.text()[-3000:] for p in self.places))
        return time.monotonic() - begun

    def finish(self):
        self.cluster.say("finish")
        for place in self.places:
            place.node.wait()
            self.take_leave(place, {0})
