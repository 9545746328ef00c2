"""A job whose ranks outlive rounds, in the hands of a test: its lines as they come, who dies at which of them, what is left in the end.

What is planned for a step is done while the job stands at it: rank 0 in the line that tells of it, the others in the step after it."""
import collections
import dataclasses
import itertools
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

from processes import children, programs, state, wait
from stand import Stand
from support import CRUN, ROOT, worker_pid
from tensors import newest

WORLD, IMAGES, BATCH, EPOCHS = 4, 320, 16, 2
PER_EPOCH = IMAGES // BATCH
STEPS = PER_EPOCH * EPOCHS
SIZES = {"small": 28, "resnet18": 32}
HOLD, WAKE_FD = 5, 2208
MODELS = {"small": ["--arch", "convnet", "--num-channels", 1], "resnet18": ["--arch", "resnet18"]}
TEXT = "set width=18 layers=2 heads=3 context=16 vocabulary=101 dropout=0.1\n"  # a GPT-2, whose head is tied


class Run:
    """What the jobs of a run have in common, which are its nodes: the step at which they stand, and the last save, which the disk keeps until all that was
    planned has been done, so that what comes late still finds them."""
    of = {}

    def __init__(self, out):
        self.lock, self.jobs = threading.Lock(), []
        self.stand, self.held = Stand(f"{out}.stand"), pathlib.Path(f"{out}.held")
        self.held.touch()

    @classmethod
    def named(cls, run_id, out):
        """That of this id, whose checkpoints are there. Its folder does not tell runs apart: a later test may be given the same one."""
        if run_id not in cls.of:
            cls.of[run_id] = cls(out)
        return cls.of[run_id]

    def env(self, last):
        return {**self.stand.env("fault_disk"), "FAULT_DISK_HOLD": str(self.held), "FAULT_DISK_ONLY": f"step-{last:08}."}

    def look(self):
        """After a change of what is planned. Nothing goes on from the first step until all is."""
        with self.lock:
            planned, plans = any(job.planned for job in self.jobs), [list(job.plan) for job in self.jobs]
            steps = [what.step for plan in plans for what in itertools.takewhile(lambda what: not what.recovers, plan) if what.step]
            if not planned:
                self.stand.at(1)
            elif steps:
                self.stand.at(min(steps))
            else:
                self.stand.go()
            if planned and not any(plans):
                self.held.unlink(missing_ok=True)


@dataclasses.dataclass
class Planned:
    due: object  # (line) -> whether it is time
    do: object
    step: int = 0  # at which the job stands until this is done
    recovers: bool = False  # ranks join each other before: none may stand at a step


def rows_and_model(data, out, model):
    if model != "text":
        return ["--train-data", data / "train", *MODELS[model], "--image-size", SIZES[model]]
    net, tokens, draw = pathlib.Path(f"{out}.net"), pathlib.Path(f"{out}.bin"), random.Random(1)
    net.write_text((ROOT / "worker/model/nets/gpt2.net").read_text() + TEXT)
    tokens.write_bytes(struct.pack(f"<{IMAGES * 16 + 1}H", *(draw.randrange(101) for _ in range(IMAGES * 16 + 1))))
    return ["--train-data", tokens, "--token-bytes", 2, "--arch", net]


class Job:
    """A running job whose output is read as it comes; what happens at which step is said beforehand, up to finish() or go()."""

    def __init__(self, data, out, *options, model="small", crun=(), world=WORLD, run_id=None, device="cpu", program=("trainer",), last=None, more=None):
        """more: of the environment."""
        self.world, self.planned, self.failed = world, False, None
        last = last or (options[options.index("--max-steps") + 1] if "--max-steps" in options else STEPS)
        self.run_id, self.out = run_id or f"recovery-{os.getpid()}-{random.SystemRandom().randrange(1 << 30)}", out
        self.run = Run.named(self.run_id, out)
        command = [CRUN, "--nproc_per_node", world, "--max-restarts", 50, "--restart-backoff", 0, "--hold-timeout", 60, "--run-id", self.run_id,
                   *crun, *program,
                   *rows_and_model(data, out, model), "--batch-size", BATCH, "--num-epochs", EPOCHS,
                   "--device", device, "--amp", "off", "--base-learning-rate", 0.05, "--checkpoint-dir", out, "--print-freq", 1,
                   "--log-level", "info", "--seed", 7, *options]
        self.lines, self.times, self.pids, self.killed, self.plan = [], [], [], [], collections.deque()
        self.run.jobs.append(self)
        self.p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, **self.run.env(last), **(more or {})})
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            self.lines.append(line)
            self.times.append(time.monotonic())
            if not self.plan or not self.plan[0].due(line):
                continue
            try:
                self.plan[0].do()
                self.plan.popleft()
            except Exception as e:  # pylint: disable=broad-except
                self.failed = e
                self.plan.clear()
            self.run.look()

    def pid(self, rank):
        wait(f"rank {rank}", lambda: worker_pid(self.run_id, rank))
        return worker_pid(self.run_id, rank)

    def at_step(self, step, do, saved=None):
        """Done while the job stands at this step, and once the checkpoint of the step `saved` is there."""
        def when_saved():
            if saved:
                wait(f"the checkpoint of step {saved}", (self.out / f"step-{saved:08}").is_dir)
            do()

        self.plan.append(Planned(lambda line: (position(line) or 0) >= step, when_saved, step=step))

    def from_step(self, step, do, within=5):
        """Done at any moment of so many steps after this one: the job goes on meanwhile, but no further."""
        self.at_step(step, lambda: (self.let_go(step + within), do()))

    def at(self, word, do=lambda: None):
        """Done when this line comes; the job may stand at the step of what is planned after it."""
        self.plan.append(Planned(lambda line: word in line, do))

    def at_recovery(self, word="goes on from step", do=lambda: None):
        """A line that comes once ranks have joined each other."""
        self.plan.append(Planned(lambda line: word in line, do, recovers=True))

    def let_go(self, until=0):
        """Of what is being done now: the job goes on meanwhile, up to this step (0: without end)."""
        self.plan[0].step = until
        self.run.look()

    def go(self):
        """All is planned."""
        self.planned = True
        self.run.look()

    def drop_plan(self):
        self.plan.clear()
        self.go()

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
            self.let_go()
            dead = self.pids[-1][rank]
            wait("a process in its place", lambda: worker_pid(self.run_id, rank) not in (None, dead))
            newcomer = self.pid(rank)
            time.sleep(delay)
            os.kill(newcomer, signal.SIGKILL)
        return do

    def end_node(self):
        """crun and its workers die."""
        agent = children(self.p.pid)[0]
        workers = children(agent)
        os.kill(agent, signal.SIGKILL)
        wait("the end of its workers", lambda: all(state(pid) in (None, "Z") for pid in workers))

    def finish(self):
        """All is planned."""
        self.go()
        code = self.p.wait(timeout=300)
        self.reader.join(timeout=10)
        if self.failed:
            raise self.failed
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
    for pid in programs(f"TORCHELASTIC_RUN_ID={run_id}", "CRUN_SPARE=1"):
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
