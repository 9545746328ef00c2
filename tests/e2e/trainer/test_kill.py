"""Kill -9 of a random worker at any moment: the job finishes, and its weights are those of the undisturbed run, bit for bit."""
import random
import re
import signal
import os
import subprocess
import threading
import time

import pytest

from stand import Stand
from support import CRUN, faulty_disk, worker_pid
from tensors import newest

EVERY = 4       # steps between checkpoints
EPOCHS, BATCH, IMAGES = 2, 32, 320
SMALL = ["--arch", "convnet", "--num-channels", 1]
SHARED = [*SMALL, "--model-parallel-size", 2, "--model-parallel-dim", 1]  # four ranks are 2 x 2
MODELS = {"small": (28, SMALL), "cut": (28, [*SMALL, "--zero", 1]), "resnet18": (32, ["--arch", "resnet18"]),
          "2x2": (28, SHARED), "2x2-zero-1": (28, [*SHARED, "--zero", 1]), "2x2-zero-2": (28, [*SHARED, "--zero", 2]),
          "zero-3": (28, ["--arch", "mlp", "--num-channels", 1, "--zero", 3]), "resnet18-zero-3": (32, ["--arch", "resnet18", "--zero", 3]), "2x2-zero-3": (28, [*SHARED, "--fsdp"]),
          "2x2-stages": (28, [*SMALL, "--stages", 2, "--microbatches", 4]), "long": (28, [*SMALL, "--num-epochs", 3, "--batch-size", 64])}


def images(model):
    return 640 if model == "long" else IMAGES


def steps(model):
    return 3 * 640 // 64 if model == "long" else EPOCHS * IMAGES // BATCH


def command(model, world, run_id, out, data):
    size, args = MODELS[model]
    return [str(a) for a in (
        CRUN, "--standalone", "--nproc_per_node", world, "--max-restarts", 3, "--recovery", "restart", "--run-id", run_id, "trainer",
        "--train-data", data / "train", "--image-size", size, "--batch-size", BATCH, "--num-epochs", EPOCHS, *args, "--device", "cpu", "--amp", "off", "--base-learning-rate", 0.05, "--checkpoint-dir", out,
        "--checkpoint-every", EVERY, "--resume", "auto", "--print-freq", 1, "--log-level", "info", "--seed", 7)]


class Job:
    """A running job whose stderr is read as it comes."""

    def __init__(self, *args, env=None):
        self.p = subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.lines, self.on_line, self.lock = [], None, threading.Lock()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            with self.lock:
                self.lines.append(line)
                if self.on_line:
                    self.on_line(line)

    def watch(self, on_line):
        """Also of the lines that have come."""
        with self.lock:
            for line in self.lines:
                on_line(line)
            self.on_line = on_line

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


def kinds(small, large):
    """Parameters (model, ranks, kills): the small model's by default, the large one's in ./dev test --slow."""
    rows = [pytest.param("small", *row, id=f"small-{row[0]}") for row in small]
    return rows + [pytest.param("resnet18", *row, id=f"resnet18-{row[0]}", marks=pytest.mark.slow) for row in large]


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> start(run_id, out, env=None), and the weights of a run that nobody disturbs"""
    known = {}

    def prepare(model, world):
        data = shapes(MODELS[model][0], images(model), 20)

        def begin(run_id, out, env=None):
            return Job(model, world, run_id, out, data, env=env)

        if (model, world) not in known:
            out = tmp_path_factory.mktemp("undisturbed") / "out"
            begin(f"undisturbed-{world}-{os.getpid()}", out).finish()
            known[model, world] = weights(out)
        return begin, known[model, world]

    return prepare


def check(text, out, expected, killed_at):
    """Returns (step reached before the kill, step resumed from)."""
    assert weights(out) == expected, "the weights differ from the undisturbed run's"
    before, mark, _ = text.partition("restart 1/3")
    assert mark, "no restart was reported:\n" + text[-3000:]
    before = before.partition("resumed from step")[0]  # crun's line may come after the first saves of the next round
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
    done, fired = threading.Event(), False
    whole, fraction = int(moment), moment % 1
    before = time.monotonic()

    def fire():
        for _ in range(1000):  # a worker that is being started has no rank yet
            if kill(run_id, rank):
                break
            time.sleep(0.01)
        done.set()

    def on_line(line):
        nonlocal before, fired
        at, now = position(line), time.monotonic()
        if at == whole and not fired:  # not where it is done again
            fired = True
            threading.Timer(fraction * min(now - before, 0.5), fire).start()
        if at is not None:
            before = now

    if whole == 0:
        threading.Timer(fraction, fire).start()
    else:
        job.watch(on_line)
    return done


LAYOUTS = [pytest.param(model, 4, 1, id=model, marks=marks) for marks, models in (((), ("2x2-zero-2", "2x2-zero-3", "2x2-stages")), (pytest.mark.slow, ("2x2", "2x2-zero-1")))
           for model in models]
LAYOUTS += [pytest.param("zero-3", 3, 1, id="3-zero-3"), pytest.param("resnet18-zero-3", 3, 1, id="resnet18-3-zero-3", marks=pytest.mark.slow)]
LAYOUTS += [pytest.param("long", 3, 3, id="long-3", marks=pytest.mark.slow)]  # a kill in each of three epochs


@pytest.mark.long
@pytest.mark.parametrize("model, world, kills", kinds([(2, 2), (3, 1)], [(2, 9), (3, 3)]) + LAYOUTS)
def test_a_worker_killed_at_any_moment_changes_no_bit(undisturbed, tmp_path, model, world, kills):
    begin, expected = undisturbed(model, world)
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    last = steps(model)
    print(f"world {world}, seed {seed}, {last} steps")
    held = tmp_path / "held"
    late = faulty_disk(hold=held, only=f"step-{last:08}.")  # a late kill still finds the job
    for i in range(kills):
        out, run_id = tmp_path / f"kill-{i}", f"kill-{world}-{i}-{seed}"
        moment = (last - 1) * (i + rng.random()) / kills
        rank = rng.randrange(world)
        held.touch()
        job = begin(run_id, out, env=late)
        done = kill_at(job, run_id, rank, moment)
        done.wait(300)
        held.unlink()
        text = job.finish()
        assert done.is_set()
        check(text, out, expected, f"rank {rank} {moment:.2f} steps into the run")


CUT = [pytest.param(model, 3, rank, id=f"{model}-3-{rank}", marks=pytest.mark.slow if "resnet18" in model else ())
       for model in ("cut", "zero-3", "resnet18-zero-3") for rank in (0, 2)]  # one that writes, one that sends what is written


@pytest.mark.parametrize("model, world, rank", kinds([(2, 0), (3, 0)], [(2, 0), (3, 0)]) + CUT)
def test_a_worker_killed_while_saving_changes_no_bit(undisturbed, tmp_path, model, world, rank):
    begin, expected = undisturbed(model, world)
    run_id = f"kill-save-{world}-{random.SystemRandom().randrange(1 << 30)}"
    held = tmp_path / "held"
    stand = Stand(tmp_path / "stand", 2 * EVERY - 1)  # so that the first save is over before the second one is due
    job = begin(run_id, tmp_path / "killed", env={**faulty_disk(hold=held, only="step-"), **stand.env("fault_disk")})
    hit = []

    def on_line(line):
        if f"saved step {EVERY}" in line:
            held.touch()
            stand.go()
        if (at := re.search(r"saving step (\d+)", line)) and int(at[1]) > EVERY and not hit:  # 8, or 9 if the writer rests late
            hit.append(kill(run_id, rank) and int(at[1]))
        if "restart 1/3" in line:
            held.unlink(missing_ok=True)

    job.watch(on_line)
    text = job.finish()
    assert hit and hit[0], "the save was never seen:\n" + text
    assert f"saved step {hit[0]}" not in text.partition("restart 1/3")[0], "the save was over when the rank died"
    check(text, tmp_path / "killed", expected, "while saving")
