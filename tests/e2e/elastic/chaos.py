"""Chaos from a seed: nodes on hosts of their own, and `crun chaos` (docs/guide/chaos.md) on them. test_chaos.py says what must hold meanwhile. Whoever dies is
started again, as a scheduler would."""

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from chaos_tool import ChaosTool
from processes import comm, marked, state, wait
from support import BUILD, CRUN, ROOT

WORKER = [BUILD / "tests" / "fault" / "chaos_worker"]
WORKERS = 2  # a node
CONF = "last_call_timeout=300ms,keep_alive_interval=500ms,join_timeout=15"
RUNS_S = 0.3  # a worker that left its time so lately is there
GONE_S = 5  # for what a dead crun leaves, on a busy machine; a tenth of a second is usual
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)

SHORT, LONG = "for 50ms..500ms", "for 500ms..6s"


def plan(seconds, server):
    """server: whether the home is a process of its own."""
    halves = "worker", "agent", "guardian", "output"
    lines = [f"for {seconds}", "every 1.2s"]
    lines += [f"draw 4 kill {who}" for who in halves] + [f"draw 2 stop {who} {how}" for who in halves for how in (SHORT, LONG)]
    lines += ["draw 2 kill guardian and kill agent", f"draw 2 stop guardian {LONG} and kill agent",
              f"draw 2 kill guardian and stop agent {LONG}", f"draw 2 stop guardian {LONG} and stop agent {LONG}", "draw 2 terminate guardian",
              "draw 2 kill node", f"draw 2 slow agent by 10 {LONG}", f"draw 2 cut {SHORT}", f"draw 2 cut {LONG}", f"draw 2 stop disk {SHORT}",
              f"draw 2 stop disk {LONG}"]
    lines += ["draw 2 kill server", f"draw 1 stop server {LONG}"] if server else []
    return "\n".join(lines) + "\n"


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


def idle_s(found):
    """The longest time in which no worker ran, between the first and the last moment of any."""
    longest, last = 0, None
    for life in sorted((x for x in found if x.kind == "worker"), key=lambda x: x.begin):
        longest = max(longest, life.begin - last) if last else 0
        last = max(last or 0, life.last)
    return longest / 1e9


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

    server = None  # the process that it is
    least = 2  # nodes of a round

    def __init__(self, cluster, net):
        self.where = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{net.hosts[0].addr}:29400"]

    def seat(self, number):
        """Options of that node alone."""
        return []


class Listed(Hosted):
    """Each of the first three hosts may host it; more than half of all nodes make a round."""

    least = 3

    def __init__(self, cluster, net):
        self.where = ["--rdzv_endpoint", ",".join(f"{h.addr}:29400" for h in net.hosts[:3])]

    def seat(self, number):
        return ["--node-rank", number]


class Rendezvousd(Hosted):
    def __init__(self, cluster, net):
        self.host, self.cluster = net.hosts[-1], cluster
        self.args = ["--token-file", str(net.token), "--state-dir", str(cluster.tmp / "state")]
        self.where = ["--rdzv_backend", "rendezvousd", "--rdzv_endpoint", f"{self.host.addr}:29400"]
        self.start()

    def start(self):
        self.server = self.cluster.rendezvousd(*self.args, prefix=self.host.prefix(), bind=self.host.addr, port=29400).p


class Redis(Hosted):
    def __init__(self, cluster, net):
        host = net.hosts[-1]
        self.redis = cluster.redis("appendonly yes", "appendfsync always", "protected-mode no", port=6379, bind=host.addr, prefix=host.prefix())
        self.where = ["--rdzv_endpoint", self.redis.url]
        self.server = self.redis.process

    def start(self):
        self.redis.start()
        self.server = self.redis.process


class File(Hosted):
    """A folder that all see, whatever the network does. A disk has no restart."""

    def __init__(self, cluster, net):
        shared = cluster.tmp / "shared"
        shared.mkdir()
        self.where = ["--rdzv_endpoint", f"file://{shared}"]


HOMES = {"c10d": Hosted, "list": Listed, "rendezvousd": Rendezvousd, "redis": Redis, "file": File}


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


def write_pid(file, process, program):
    """For `crun chaos`, once the process has become what it is to be."""
    with contextlib.suppress(OSError):  # it has ended already
        wait(program, lambda: process.poll() is not None or os.path.basename(os.readlink(f"/proc/{process.pid}/exe")).startswith(program))
    file.write_text(str(process.pid))


class Disk:
    """For log files: a file system that is a process (tests/support/pausing_fs.py)."""

    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, str(ROOT / "tests" / "support" / "pausing_fs.py"), str(folder)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        if not self.process.stdout.readline():
            pytest.skip(f"no FUSE file system here: {self.process.communicate()[1].decode().splitlines()[-1]}")

    def close(self):
        libc.umount2(os.fsencode(str(self.folder)), MNT_DETACH)
        self.process.kill()
        self.process.communicate()


class Place:
    """A host, its disk for log files, and the cruns that ran there one after the other. make(place): starts one."""

    def __init__(self, campaign, number, make):
        self.campaign, self.number, self.make = campaign, number, make
        self.host = campaign.net.hosts[number]
        self.pid_file = campaign.cluster.tmp / f"crun-{number}.pid"
        self.starts, self.node = 0, None
        self.start()

    def start(self):
        self.starts += 1
        self.since = len(self.campaign.deeds())
        self.name = f"{os.getpid()}.{self.number}.{self.starts}"
        self.node = self.make(self)
        write_pid(self.pid_file, self.node.process, CRUN.name)

    def felt(self):
        """What has been done to the crun that is here."""
        return [d for d in self.campaign.deeds()[self.since:] if d.node == self.number]

    def allowed(self):
        """Exit codes that docs/reference/exit-codes.md has for what this crun has felt; for what befalls the job: always."""
        felt = {d.what for d in self.felt() if d.met != "nobody"}
        codes = {69, 75}  # nobody could reach the home for long; too few nodes were left
        codes |= {137} if "kill agent" in felt else set()
        codes |= {-signal.SIGKILL} if felt & {"kill guardian", "kill node"} else set()
        codes |= {143} if "terminate guardian" in felt else set()
        return codes


class Campaign:
    """Nodes that are started again, and a home that is, while `crun chaos` runs. left(place): pids of what the crun that was there has left."""

    def __init__(self, cluster, net, home, places, make, left):
        self.cluster, self.net, self.left = cluster, net, left
        self.home, self.server_file = HOMES[home](cluster, net), cluster.tmp / "server.pid"
        self.tool, self.home_due, self.dice = None, None, random.Random(0)
        self.exits, self.wrong = {}, []
        self.note_server()
        self.places = []
        for number in range(places):
            self.places.append(Place(self, number, make))

    def deeds(self):
        return self.tool.deeds() if self.tool else []

    def begin(self, plan_text, seed, more=()):
        """more: what each TARGET has beside its crun and its link."""
        targets = [f"{p.pid_file},link={self.net.switch}:{p.host.port_of_switch}" + "".join(f",{m(p)}" for m in more) for p in self.places]
        targets += [f"server={self.server_file}"] if self.home.server else []
        self.tool = ChaosTool(self.cluster.tmp / f"chaos-{seed}", plan_text, seed, *targets)

    def close(self):
        if self.tool:
            self.tool.end()

    # --- whoever ended ---

    def note_server(self):
        if self.home.server:
            write_pid(self.server_file, self.home.server, "")

    def keep_home(self):
        """Start it again a while after it died."""
        if not self.home.server or self.home.server.poll() is None:
            return
        if self.home_due is None:
            self.home_due = time.monotonic() + self.dice.uniform(0.05, 3)
        elif time.monotonic() >= self.home_due:
            self.home_due = None
            self.home.start()
            self.note_server()

    def take_leave(self, place, allowed):
        """allowed(): exit codes. The line of the trace may come a moment after the deed."""
        code = place.node.process.poll()
        self.exits[code] = self.exits.get(code, 0) + 1
        with contextlib.suppress(AssertionError):
            wait("the trace", lambda: code in allowed(), GONE_S)
        if code not in allowed():
            self.wrong.append(f"{place.name} ended with {code} after {place.felt()}:\n" + place.node.text()[-3000:])
        try:
            wait("the end of what it started", lambda: not self.left(place), GONE_S)
        except AssertionError:
            left = {pid: process_text(pid) for pid in self.left(place)}
            self.wrong.append(f"{place.name} ended with {code} after {place.felt()} and left {left}\n" + place.node.text()[-3000:])
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def keep_nodes(self):
        for place in self.places:
            if place.node.process.poll() is not None:
                self.take_leave(place, place.allowed)
                place.start()

    def go(self):
        """Until the plan is over."""
        while self.tool.p.poll() is None:
            self.keep_home()
            self.keep_nodes()
            time.sleep(0.01)
        assert self.tool.p.returncode == 0, self.tool.text()[-1000:]
        if self.home.server and self.home.server.poll() is not None:
            self.home_due = 0
            self.keep_home()


# --- the campaign whose workers tell when they ran ---


class Chaos(Campaign):
    def __init__(self, cluster, net, home, places):
        (cluster.out / "journal").mkdir()
        self.size, self.disks = places, []
        try:
            for number in range(places):
                self.disks.append(Disk(cluster.tmp / f"disk-{number}"))
            super().__init__(cluster, net, home, places, self.make, self.left_by)
        except BaseException:
            self.close_disks()
            raise

    def make(self, place):
        return self.cluster.node(
            "--nnodes", f"{self.home.least}:{self.size}", "--nproc_per_node", WORKERS, "--rdzv_id", "chaos", *self.home.where,
            *self.home.seat(place.number), "--rdzv_conf", CONF, "--local-addr",
            place.host.addr, "--max-restarts", 1000000, "--restart-backoff", 0, "--shutdown-timeout", 0.5, "--resize-timeout", 0.5, "--drain-timeout",
            0.5, "--log-dir", self.disks[place.number].folder, "--log-level", "info", program=WORKER, prefix=place.host.prefix(),
            env={"CHAOS_NODE": place.name})

    def left_by(self, place):
        return [pid for pid in marked(f"CHAOS_NODE={place.name}") if comm(pid) == "chaos_worker"]

    def disk_word(self, place):
        return f"disk={self.disks[place.number].process.pid}"

    def inflict(self, seconds, seed):
        self.begin(plan(seconds, self.home.server is not None), seed, [self.disk_word])
        self.go()

    def close_disks(self):
        for disk in self.disks:
            disk.close()

    def close(self):
        super().close()
        self.cluster.close()
        self.close_disks()

    def recover(self, seconds):
        """After the last fault: -> seconds until a world of all nodes ran."""
        begun = time.monotonic()

        def look():
            """All of them run a while after the last fault."""
            self.keep_nodes()
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
            self.take_leave(place, lambda: {0})
