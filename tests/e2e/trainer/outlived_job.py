"""A job whose ranks outlive rounds, in the hands of a test: its lines as they come, who dies after which of them, what is left in the end."""
import collections
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from processes import marked, wait
from support import CRUN, faulty_disk, worker_pid
from tensors import newest

WORLD, IMAGES, BATCH, EPOCHS = 4, 640, 32, 5
PER_EPOCH = IMAGES // BATCH
STEPS = PER_EPOCH * EPOCHS
SIZES = {"small": 28, "resnet18": 32}
HOLD, WAKE_FD = 5, 2208
MODELS = {"small": ["--arch", "convnet", "--num-channels", 1], "resnet18": ["--arch", "resnet18"]}


class Held:
    """The disk of a run keeps its last save until all that was planned for its jobs has been done: who looks late still finds them."""
    of = {}

    def __init__(self, out):
        self.file, self.jobs = pathlib.Path(f"{out}.held"), []

    def env(self, last):
        self.file.touch()
        return faulty_disk(hold=self.file, only=f"step-{last:08}.")

    def let_go(self):
        if any(job.planned for job in self.jobs) and not any(job.plan for job in self.jobs):
            self.file.unlink(missing_ok=True)


class Job:
    """A running job whose output is read as it comes; who is killed after which step is said beforehand."""

    def __init__(self, data, out, *options, model="small", crun=(), env=None, world=WORLD, run_id=None, device="cpu", program=("trainer",),
                 last=None, more=None):
        """env: the whole of it; None: that of Held, and more."""
        self.world, self.planned, self.held = world, False, Held.of.setdefault(str(out), Held(out))
        last = last or (options[options.index("--max-steps") + 1] if "--max-steps" in options else STEPS)
        self.run_id, self.out = run_id or f"recovery-{os.getpid()}-{random.SystemRandom().randrange(1 << 30)}", out
        command = [CRUN, "--nproc_per_node", world, "--max-restarts", 50, "--restart-backoff", 0, "--hold-timeout", 60, "--run-id", self.run_id,
                   *crun, *program,
                   "--train-data", data / "train", *MODELS[model], "--image-size", SIZES[model], "--batch-size", BATCH, "--num-epochs", EPOCHS,
                   "--device", device, "--amp", "off", "--base-learning-rate", 0.05, "--checkpoint-dir", out, "--print-freq", 1,
                   "--log-level", "info", "--seed", 7, *options]
        self.lines, self.times, self.pids, self.killed, self.plan = [], [], [], [], collections.deque()
        env = env or {**self.held.env(last), **(more or {})}
        self.held.jobs.append(self)
        self.p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            self.lines.append(line)
            self.times.append(time.monotonic())
            if self.plan and self.plan[0][0](line):
                self.plan[0][1]()
                self.plan.popleft()
                self.held.let_go()

    def pid(self, rank):
        wait(f"rank {rank}", lambda: worker_pid(self.run_id, rank))
        return worker_pid(self.run_id, rank)

    def at_step(self, step, do):
        self.plan.append((lambda line: (position(line) or 0) >= step, do))

    def at(self, word, do):
        self.plan.append((lambda line: word in line, do))

    def kill(self, *ranks, signo=signal.SIGKILL):
        """-> what kills them, and notes who was there."""
        def do():
            self.pids.append([self.pid(r) for r in range(self.world)])
            self.killed += [time.monotonic()] if ranks else []
            for r in ranks:
                os.kill(self.pids[-1][r], signo)
        return do

    def kill_newcomer_too(self, rank, delay):
        """-> kills the rank, and `delay` seconds after it is there the process in its place, which is joining the others then."""
        def do():
            self.kill(rank)()
            dead = self.pids[-1][rank]
            wait("a process in its place", lambda: worker_pid(self.run_id, rank) not in (None, dead))
            newcomer = self.pid(rank)
            time.sleep(delay)
            os.kill(newcomer, signal.SIGKILL)
        return do

    def finish(self):
        """All is planned."""
        self.planned = True
        self.held.let_go()
        code = self.p.wait(timeout=300)
        self.reader.join(timeout=10)
        assert code == 0 and not self.plan, self.text()[-6000:]
        return self.text()

    def text(self):
        return "".join(self.lines)

    def seconds_to_next_step(self):
        """From each kill to the first step of the round after it, as lines come."""
        found, goes_on = [], False
        for line, at in zip(self.lines, self.times):
            goes_on = goes_on or "goes on from step" in line
            if goes_on and position(line):
                found.append(at - self.killed[len(found)])
                goes_on = False
        return found

    def weights(self):
        return (newest(self.out) / "model.safetensors").read_bytes()


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def position(line):
    """Steps done according to a progress line, None for another line."""
    m = re.search(r"Epoch (\d+)/\d+ \[ *(\d+)/(\d+)\]", line)
    return (int(m[1]) - 1) * int(m[3]) + int(m[2]) if m else None


def check_no_step_is_lost(text, recoveries, ahead=1):
    """Lines of rank 0 tell of each step once; a recovery goes on from where at least it was, but for a step that it alone had done when it died.
    ahead: steps that others may have done and it has not told of: one more where the host hears of steps one late."""
    reached, seen, found = 0, [], 0
    for line in text.splitlines():
        at, on = position(line), re.search(r"goes on from step (\d+)", line)
        if on:
            found += 1
            assert reached - 1 <= int(on[1]) <= reached + ahead, f"lost: {reached} -> {on[1]}\n{text[-6000:]}"
            seen = [step for step in seen if step <= int(on[1])]
        if at is not None:
            reached = at
            seen.append(at)
    assert found == recoveries, text[-6000:]
    assert len(seen) == len(set(seen)), "a step was done twice"
    assert "resumed from" not in text


def held_spares(run_id):
    """pids of spares that wait for a round: their pages say hold (common/crun/crun_page.h)."""
    found = []
    for pid in marked(f"TORCHELASTIC_RUN_ID={run_id}", "CRUN_SPARE=1"):
        try:
            for fd in os.scandir(f"/proc/{pid}/fd"):
                if "crun-page" in os.readlink(fd.path):
                    page = open(fd.path, "rb").read(4096)
                    holds, held = struct.unpack_from("II", page, WAKE_FD + 12)
                    if struct.unpack_from("I", page, 16)[0] == HOLD and held == holds:
                        found.append(pid)
        except OSError:
            pass
    return found
