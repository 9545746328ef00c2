"""Chaos on `trainer`: jobs of two nodes, one after the other, while `crun chaos` runs. test_trainer_chaos.py says what must hold.

Every job trains the same and always with four ranks, so that it has to end with the bytes of the one that nothing disturbed."""

import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import time

from chaos import LONG, SHORT, Campaign, process_text
from chaos_tool import clock_env
from processes import children, comm, marked, wait
from support import CRUN, TRAINER

NODES, WORKERS, STEPS, EVERY = 2, 2, 600, 50
STEP_S = 120  # for one step to be done, after the last fault, on a busy machine
TRAIN = ["--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device", "cpu", "--amp", "off", "--batch-size", 16, "--base-learning-rate", 0.01,
         "--sync-bn", "--threads", 1, "--loader-threads", 1, "--seed", 7, "--num-epochs", 1000, "--max-steps", STEPS, "--checkpoint-every", EVERY,
         "--checkpoint-keep", 0, "--resume", "auto", "--log-level", "info"]
CONF = "last_call_timeout=300ms,keep_alive_interval=500ms,join_timeout=30"


def plan(seconds, server):
    """server: whether the home is a process of its own. Checkpoints are damaged, but for the first, which somebody may need, and the last."""
    halves = "agent", "guardian", "output"
    lines = [f"for {seconds}", "every 2.5s", "draw 8 kill worker", f"draw 2 stop worker {SHORT}", f"draw 2 stop worker {LONG}",
             f"draw 4 slow worker by 4 {LONG}", f"draw 2 cut {SHORT}", f"draw 2 cut {LONG}", "draw 2 kill node", "draw 2 terminate guardian",
             f"draw 1 stop guardian {LONG} and kill agent", f"draw 2 fill {LONG}", "draw 2 corrupt */step-00000[1-5]*/*", f"draw 2 clock by -1h {LONG}",
             f"draw 2 clock by 3d {LONG}"]
    lines += [f"draw 1 kill {who}" for who in halves] + [f"draw 1 stop {who} {LONG}" for who in halves]
    lines += ["draw 1 kill server", f"draw 1 stop server {LONG}"] if server else []
    return "\n".join(lines) + "\n"


def program(data, out):
    return [TRAINER, *TRAIN, "--train-data", data / "train", "--checkpoint-dir", out]


def last_step(out):
    with contextlib.suppress(OSError):
        found = re.findall(rb'"step":(\d+)', (out / "metrics.jsonl").read_bytes()[-400:])
        return int(found[-1]) if found else 0
    return 0


def weights(out):
    return (out / f"step-{STEPS:08}" / "model.safetensors").read_bytes()


def files(out):
    """Without numbers of steps and times in their names: a job that drains saves after any step."""
    return {re.sub(r"\d{8}_\d{6}|\d{8}", "N", str(p.relative_to(out))) for p in out.rglob("*")}


def left_over(tmp):
    """Folders of cruns that were killed as a whole."""
    return [p for p in tmp.iterdir() if re.fullmatch(r"crun-[0-9a-f]{16}", p.name)]


def swept(tmp):
    """Whether they are gone once another crun has run: it removes what is old and nobody's."""
    old = left_over(tmp)
    for folder in old:
        os.utime(folder, (1, 1))
    p = subprocess.Popen([CRUN, "sleep", "1000"], env={**os.environ, "TMPDIR": str(tmp)})
    try:
        wait("the sweep", lambda: not any(folder.exists() for folder in old))
    except AssertionError:
        return False
    finally:
        p.terminate()
        p.wait()
    return not left_over(tmp)


def descriptors(pids):
    """How many of which kind they have open, together: {"socket": 7, ...}"""
    kinds = collections.Counter()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    to = os.readlink(fd.path)
                    kinds["file" if to.startswith("/") and not to.startswith(("/dev", "/memfd")) else re.sub(r"[:\[ ].*", "", to) or to] += 1
    return kinds


def memory():
    """What is shared by name: it outlives processes."""
    with open("/proc/sysvipc/shm", encoding="ascii") as f:
        return set(os.listdir("/dev/shm")), len(f.readlines())


class TrainerChaos(Campaign):
    def __init__(self, cluster, net, home, data, disk):
        self.data, self.disk, self.job, self.job_since, self.over, self.jobs = data, disk, 0, 0, False, 0
        self.expected = self.undisturbed(cluster)
        self.memory = memory()
        super().__init__(cluster, net, home, NODES, self.make, self.left_by)

    def undisturbed(self, cluster):
        out = cluster.tmp / "undisturbed"
        node = cluster.node("--standalone", "--nproc_per_node", NODES * WORKERS, program=program(self.data, out))
        assert node.wait(600) == 0, node.text()[-3000:]
        return weights(out), files(out)

    def out(self):
        return self.disk / f"job-{self.job}"

    def clock(self, place):
        return self.cluster.tmp / f"clock-{place.number}"

    def make(self, place):
        preload = [f"{k}={v}" for k, v in clock_env(self.clock(place)).items()]
        return self.cluster.node(
            "--nnodes", NODES, "--nproc_per_node", WORKERS, "--rdzv_id", f"job-{self.job}", *self.home.where,
            *self.home.seat(place.number), "--rdzv_conf", CONF, "--local-addr",
            place.host.addr, "--max-restarts", 1000000, "--restart-backoff", 0, "--warm-spares", 1, "--log-level", "info",
            program=["env", *preload, *program(self.data, self.out())], prefix=place.host.prefix(), env={"CHAOS_NODE": place.name})

    def left_by(self, place):
        return marked(f"CHAOS_NODE={place.name}")

    # --- jobs ---

    def keep_nodes(self):
        """One that is done ends the job, the other one, which may have been killed at that moment, with it."""
        for place in self.places:
            code = place.node.process.poll()
            if code == 0:
                self.over = True
            elif code is not None and not self.over:
                self.take_leave(place, place.allowed)
                place.start()

    def end_job(self):
        for place in self.places:
            if place.node.process.poll() is None:
                place.node.terminate()  # it came too late, and waits for the others
            place.node.wait()
            self.take_leave(place, lambda place=place: place.allowed() | {0, 143})
        self.check_job()
        self.over, self.jobs = False, self.jobs + 1

    def check_job(self):
        out, (bytes_, names) = self.out(), self.expected
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [m["step"] for m in lines if "lr" in m]
        wrong = []
        full = any(d.what == "fill" for d in self.deeds()[self.job_since:])  # metrics.jsonl then lacks lines, and says so
        if steps != (sorted(set(steps)) if full else list(range(1, STEPS + 1))):
            wrong.append(f"steps {len(steps)}, {steps[:1]} to {steps[-1:]}")
        if weights(out) != bytes_:
            wrong.append("its weights are others than those of the undisturbed run")
        if os.readlink(out / "latest") != f"step-{STEPS:08}":
            wrong.append("latest is " + os.readlink(out / "latest"))
        more = files(out) - names
        if any(d.what.startswith("corrupt") for d in self.deeds()[self.job_since:]):  # what was damaged is set aside where its step is saved again
            more = {name for name in more if not name.startswith("step-N.corrupt")}
        for name in [name for name in more if name.startswith("metrics.jsonl.until-")]:  # all ranks died before the first save (docs/reference/files.md)
            more -= {name}
            last = max(map(int, re.findall(r'"step": ?(\d+)', (out / name).read_text())), default=0)
            if last >= 2 * EVERY and not full:
                wrong.append(f"it began anew after step {last}, when there was a checkpoint")
        if more:
            wrong.append(f"files that the undisturbed run has not: {sorted(more)}")
        (names_now, segments), (names_before, segments_before) = memory(), self.memory
        if more := names_now - names_before or segments > segments_before:
            wrong.append(f"shared memory: {more}, {segments} segments instead of {segments_before}")
        shutil.rmtree(out)
        self.wrong += [f"job {self.job}: {w}\n" + "\n---\n".join(p.node.text()[-6000:] for p in self.places) for w in wrong]

    def next_job(self):
        self.end_job()
        self.job += 1
        self.job_since = len(self.deeds())
        for place in self.places:
            place.start()

    # --- descriptors ---

    def counts(self):
        """Of crun's own processes and of workers, at a moment at which steps are done; None: not now."""
        before, crun, workers = last_step(self.out()), [], []
        with contextlib.suppress(OSError, IndexError):
            for place in self.places:
                below = children(place.node.pid)
                crun += [place.node.pid, *below]
                workers += [pid for pid in children(below[0]) if comm(pid) == "trainer"]
        if len(workers) != NODES * (WORKERS + 1) or not 0 < before < last_step(self.out()) + 1:
            return None
        return descriptors(crun), descriptors(workers)

    def steady(self):
        """-> the least and the most of some moments, of crun's processes and of workers: a checkpoint that is being written has files open, a node that talks
        a socket."""
        seen = []

        def look():
            self.keep_nodes()
            if self.over:
                self.next_job()
            if now := self.counts():
                seen.append(now)
            time.sleep(0.05)
            return len(seen) >= 20

        wait("training", look, STEP_S)
        return [{of: {kind: of(s[i][kind] for s in seen) for kind in set().union(*(s[i] for s in seen))} for of in (min, max)} for i in (0, 1)]

    # --- the campaign ---

    def inflict(self, seconds, seed):
        before = self.steady()
        self.begin(plan(seconds, self.home.server is not None), seed, [lambda p: f"folder={self.disk}", lambda p: f"clock={self.clock(p)}"])
        while self.tool.p.poll() is None:
            self.keep_home()
            self.keep_nodes()
            if self.over:
                self.next_job()
            time.sleep(0.02)
        assert self.tool.p.returncode == 0, self.tool.text()[-1000:]
        self.home_due = 0
        self.keep_home()
        after = self.steady()
        for who, a, b in zip(("crun", "workers"), before, after):
            if more := {kind: f"{a[max].get(kind, 0)} -> {n}" for kind, n in b[min].items() if n > a[max].get(kind, 0)}:
                self.wrong.append(f"descriptors of {who}: {more}")

    def finish(self):
        begun, left, went_on = time.monotonic(), STEPS - last_step(self.out()), None

        def look():
            nonlocal went_on
            self.keep_nodes()
            if went_on is None and (self.over or STEPS - last_step(self.out()) != left):
                went_on = time.monotonic() - begun
            return self.over

        try:
            wait("the end of the job", look, STEP_S + STEPS)
        except AssertionError as e:
            self.wrong.append(str(e) + "\n" + "\n---\n".join(p.node.text()[-6000:] for p in self.places))
            for place in self.places:
                self.wrong.append("\n".join(f"{pid} {comm(pid)}: {process_text(pid)}" for pid in self.left_by(place)))
            return
        self.end_job()
        if not swept(self.cluster.tmp):
            self.wrong.append(f"left in TMPDIR: {left_over(self.cluster.tmp)}")
        print(f"the last job ended {time.monotonic() - begun:.1f} s after the last fault: {left} steps were left, the first of them came after {went_on:.1f} s")
