"""Kill -9 of a random worker at any moment: the job finishes, and its weights are those of the undisturbed run, bit for bit."""
import random
import re
import signal
import os
import subprocess
import threading
import time

import pytest

from support import CRUN, faulty_disk, worker_pid
from tensors import newest

EVERY = 4       # steps between checkpoints
EPOCHS, IMAGES, BATCH = 3, 640, 64


def command(world, run_id, out, data):
    return [str(a) for a in (
        CRUN, "--standalone", "--nproc_per_node", world, "--max-restarts", 3, "--run-id", run_id, "trainer",
        "--train-data", data / "train", "--arch", "resnet18", "--image-size", 32, "--batch-size", BATCH,
        "--num-epochs", EPOCHS, "--device", "cpu", "--amp", "off", "--base-learning-rate", 0.05, "--checkpoint-dir", out,
        "--checkpoint-every", EVERY, "--resume", "auto", "--print-freq", 1, "--log-level", "info", "--seed", 7)]


class Job:
    """A running job whose stderr is read as it comes."""

    def __init__(self, *args, env=None):
        self.p = subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.lines, self.on_line = [], None
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            self.lines.append(line)
            if self.on_line:
                self.on_line(line)

    def finish(self):
        code = self.p.wait(timeout=300)
        self.reader.join(timeout=10)
        assert code == 0, "".join(self.lines[-40:])
        return "".join(self.lines)


def kill(run_id, rank):
    pid = worker_pid(run_id, rank)
    if pid:
        os.kill(pid, signal.SIGKILL)
    return pid is not None


def weights(out):
    return (newest(out) / "model.safetensors").read_bytes()


@pytest.fixture(scope="module", params=[2, 3])
def undisturbed(request, shapes, tmp_path_factory):
    world = request.param
    data = shapes(32, IMAGES, 20)
    out = tmp_path_factory.mktemp("undisturbed")
    job = Job(world, f"undisturbed-{world}", out, data)
    job.finish()
    return world, data, weights(out)


def check(text, out, expected, killed_at):
    """Returns (step reached before the kill, step resumed from)."""
    assert weights(out) == expected, "the weights differ from the undisturbed run's"
    before, mark, _ = text.partition("restart 1/3")
    assert mark, "no restart was reported:\n" + text[-3000:]
    done = [p for p in map(position, before.splitlines()) if p is not None]
    resumed = [int(n) for n in re.findall(r"resumed from step (\d+)", text)]
    saved = [int(n) for n in re.findall(r"saved step (\d+)", before)]
    reached, start = (done[-1] if done else 0), (resumed[0] if resumed else 0)
    print(f"killed {killed_at}: reached step {reached}, resumed from {start}, {reached - start} steps redone")
    assert start >= (saved[-1] if saved else 0), "a complete checkpoint was not taken up"
    return reached, start


def position(line):
    """Steps done according to a progress line, None for another line."""
    m = re.search(r"Epoch (\d+)/\d+ \[ *(\d+)/(\d+)\]", line)
    return (int(m[1]) - 1) * int(m[3]) + int(m[2]) if m else None


def kill_at(job, run_id, rank, moment):
    """Kill when `moment` steps are done: at the line of the whole step, plus its fraction of a step. Before step 1: of the start-up."""
    done = threading.Event()
    whole, fraction = int(moment), moment % 1
    before = time.monotonic()

    def fire():
        for _ in range(1000):  # a worker that is being started has no rank yet
            if kill(run_id, rank):
                break
            time.sleep(0.01)
        done.set()

    def on_line(line):
        nonlocal before
        at, now = position(line), time.monotonic()
        if at == whole:
            job.on_line = None
            threading.Timer(fraction * min(now - before, 0.5), fire).start()
        if at is not None:
            before = now

    if whole == 0:
        threading.Timer(fraction, fire).start()
    else:
        job.on_line = on_line
    return done


def test_a_worker_killed_at_any_moment_changes_no_bit(undisturbed, tmp_path):
    world, data, expected = undisturbed
    steps = EPOCHS * IMAGES // BATCH
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    print(f"world {world}, seed {seed}, {steps} steps")
    slow_end = faulty_disk(fsync_ms=1000, only=f"step-{steps:08}.")  # a late kill still finds the job
    strata = range(9) if world == 2 else range(0, 9, 3)
    for i in strata:
        out, run_id = tmp_path / f"kill-{i}", f"kill-{world}-{i}-{seed}"
        moment = (steps - 1) * (i + rng.random()) / 9
        rank = rng.randrange(world)
        job = Job(world, run_id, out, data, env=slow_end if moment > steps / 2 else None)
        done = kill_at(job, run_id, rank, moment)
        text = job.finish()
        assert done.is_set()
        check(text, out, expected, f"rank {rank} {moment:.2f} steps into the run")


def test_a_worker_killed_while_saving_changes_no_bit(undisturbed, tmp_path):
    world, data, expected = undisturbed
    run_id = f"kill-save-{world}-{random.SystemRandom().randrange(1 << 30)}"
    job = Job(world, run_id, tmp_path, data)
    begun, hit = [], []

    def on_line(line):
        if "saving step" in line:
            begun.append(line)
            if len(begun) == 2:
                hit.append(kill(run_id, 0))

    job.on_line = on_line
    text = job.finish()
    assert hit == [True], "the save was never seen"
    check(text, tmp_path, expected, "while saving")
