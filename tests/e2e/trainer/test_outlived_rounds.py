"""Recovery in process: when a rank dies the others keep their processes and their step, and the end is that of the undisturbed run."""
import collections
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from processes import children, marked, wait
from support import CRUN, faulty_disk, free_port, worker_pid
from tensors import newest

WORLD, IMAGES, BATCH, EPOCHS = 4, 640, 32, 5
PER_EPOCH = IMAGES // BATCH
STEPS = PER_EPOCH * EPOCHS
SIZES = {"small": 28, "resnet18": 32}
MODELS = {"small": ["--arch", "convnet", "--num-channels", 1], "resnet18": ["--arch", "resnet18"]}


class Job:
    """A running job whose output is read as it comes; who is killed after which step is said beforehand."""

    def __init__(self, data, out, *options, model="small", crun=(), env=None, world=WORLD, run_id=None):
        self.run_id, self.out = run_id or f"recovery-{os.getpid()}-{random.SystemRandom().randrange(1 << 30)}", out
        command = [CRUN, "--nproc_per_node", world, "--max-restarts", 50, "--restart-backoff", 0, "--hold-timeout", 60, "--run-id", self.run_id,
                   *crun, "trainer",
                   "--train-data", data / "train", *MODELS[model], "--image-size", SIZES[model], "--batch-size", BATCH, "--num-epochs", EPOCHS,
                   "--device", "cpu", "--amp", "off", "--base-learning-rate", 0.05, "--checkpoint-dir", out, "--print-freq", 1,
                   "--log-level", "info", "--seed", 7, *options]
        self.lines, self.pids, self.plan = [], [], collections.deque()
        env = env or faulty_disk(fsync_ms=1000, only=f"step-{STEPS:08}.")  # who looks late still finds the job
        self.p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.p.stdout:
            self.lines.append(line)
            if self.plan and self.plan[0][0](line):
                self.plan.popleft()[1]()

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
            self.pids.append([self.pid(r) for r in range(WORLD)])
            for r in ranks:
                os.kill(self.pids[-1][r], signo)
        return do

    def finish(self):
        code = self.p.wait(timeout=300)
        self.reader.join(timeout=10)
        assert code == 0 and not self.plan, self.text()[-6000:]
        return self.text()

    def text(self):
        return "".join(self.lines)

    def weights(self):
        return (newest(self.out) / "model.safetensors").read_bytes()


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def position(line):
    """Steps done according to a progress line, None for another line."""
    m = re.search(r"Epoch (\d+)/\d+ \[ *(\d+)/(\d+)\]", line)
    return (int(m[1]) - 1) * int(m[3]) + int(m[2]) if m else None


def check_no_step_is_lost(text, recoveries):
    """Lines of rank 0 tell of each step once; a recovery goes on from where at least it was, but for a step that it alone had done when it died."""
    reached, seen, found = 0, [], 0
    for line in text.splitlines():
        at, on = position(line), re.search(r"goes on from step (\d+)", line)
        if on:
            found += 1
            assert reached - 1 <= int(on[1]) <= reached + 1, f"lost: {reached} -> {on[1]}\n{text[-6000:]}"
            seen = [step for step in seen if step <= int(on[1])]
        if at is not None:
            reached = at
            seen.append(at)
    assert found == recoveries, text[-6000:]
    assert len(seen) == len(set(seen)), "a step was done twice"
    assert "resumed from" not in text


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, and the weights at the end, by model"""
    known = {}

    def of(model="small"):
        if model not in known:
            data = shapes(SIZES[model], IMAGES, 20)
            job = Job(data, tmp_path_factory.mktemp("undisturbed") / "out", model=model)
            job.finish()
            known[model] = (data, job.weights())
        return known[model]

    return of


@pytest.mark.parametrize("model", ["small", pytest.param("resnet18", marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_costs_no_step_and_no_bit(undisturbed, tmp_path, model, victim):
    data, expected = undisturbed(model)
    job = Job(data, tmp_path / "out", model=model)
    job.at_step(7, job.kill(victim))
    job.at_step(STEPS - 5, job.kill())  # who is there now
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r != victim for r in range(WORLD)]
    assert f"restart 1/50 (rank {victim} killed by SIGKILL), kept 3 workers: detect" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


@pytest.mark.parametrize("model", ["small", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_random_ranks_at_random_moments(undisturbed, tmp_path, model):
    data, expected = undisturbed(model)
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    print("seed", seed)
    job = Job(data, tmp_path / "out", model=model)
    victims = [rng.randrange(WORLD) for _ in range(4)]
    for i, victim in enumerate(victims):
        kill, delay = job.kill(victim), rng.random() * 0.05
        job.at_step(5 + 10 * i, lambda kill=kill, delay=delay: (time.sleep(delay), kill()))
        job.at("goes on from step", lambda: None)  # one after the other
    job.at_step(50, job.kill())
    text = job.finish()
    for before, after, victim in zip(job.pids, job.pids[1:], victims):
        assert [a == b for a, b in zip(before, after)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, len(victims))
    assert job.weights() == expected


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


@pytest.mark.parametrize("victim", [0, 2])
def test_decoded_pictures_outlive_a_rank_that_is_killed(undisturbed, tmp_path, victim):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--cache-decoded", "64M")
    job.at_step(PER_EPOCH + 2, job.kill(victim))
    text = job.finish()
    assert f"{IMAGES} of {IMAGES} decoded pictures are there already" in text, text[-6000:]
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


HOLD, WAKE_FD = 5, 2208


@pytest.mark.parametrize("victim", [0, 2])
def test_a_warm_spare_takes_the_place(undisturbed, tmp_path, victim):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", crun=["--warm-spares", 1])
    spares = []

    def do():
        wait("a spare that is ready", lambda: held_spares(job.run_id))
        spares.extend(held_spares(job.run_id))
        job.kill(victim)()

    job.at_step(9, do)
    job.at_step(STEPS - 5, lambda: spares.append(os.path.exists(f"/proc/{spares[0]}")))
    text = job.finish()
    assert spares[1], "the spare is a rank now"
    assert "kept 3 workers" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


@pytest.mark.parametrize("victims", [(1, 3), (0, 1, 2)])
def test_several_at_once(undisturbed, tmp_path, victims):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out")
    job.at_step(9, job.kill(*victims))
    job.at_step(STEPS - 2, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r not in victims for r in range(WORLD)]
    assert "resumed from" not in text and job.weights() == expected


def test_all_at_once_begin_again_from_the_checkpoint(undisturbed, tmp_path):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--checkpoint-every", 5)
    job.at("saved step 5\n", lambda: None)
    job.at_step(12, job.kill(0, 1, 2, 3))
    text = job.finish()
    assert "resumed from step" in text and job.weights() == expected


@pytest.mark.parametrize("victim", [0, 3])
def test_while_a_checkpoint_is_written(undisturbed, tmp_path, victim):
    """One that goes on writing is not given up by a rank that stays; one whose writer died is written later."""
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--checkpoint-every", 10, env=faulty_disk(fsync_ms=100))
    job.at("saving step 20", job.kill(victim))
    job.at_step(STEPS - 20, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, 1)
    assert victim == 0 or "saved step 20" in text
    assert job.weights() == expected


@pytest.mark.parametrize("victim", [0, 1])
def test_in_an_evaluation(undisturbed, tmp_path, victim):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--test-data", data / "val", "--log-dir", tmp_path / "logs")
    job.at_step(PER_EPOCH, job.kill(victim))  # the last line before it
    text = job.finish()
    assert "resumed from" not in text and job.weights() == expected
    assert len(re.findall(r"goes on from step", text)) == 1


@pytest.mark.slow
def test_a_rank_that_stands_still(undisturbed, tmp_path):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", crun=["--hang-timeout", 3])
    job.at_step(40, job.kill(2, signo=signal.SIGSTOP))
    job.at_step(STEPS - 2, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [True, True, False, True]
    assert "(rank 2 hung at step" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


def test_metrics_tell_each_step_once(undisturbed, tmp_path):
    data, _ = undisturbed()
    job = Job(data, tmp_path / "out", "--log-dir", tmp_path / "logs")
    for step, victim in (9, 1), (30, 3), (50, 0), (70, 2):
        job.at_step(step, job.kill(victim))
    job.finish()
    rows = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines() if '"lr"' in line]
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    assert sorted(r["seconds"] for r in rows) == [r["seconds"] for r in rows], "times are carried on"


def test_ranks_of_a_node_that_is_left_go_on_in_a_smaller_world(undisturbed, tmp_path):
    """Two nodes of two ranks, one of which dies whole: shares of a batch are larger, plans are made anew, in the same processes."""
    data, _ = undisturbed()
    port, out = free_port(), tmp_path / "out"
    nodes = ["--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "last_call_timeout=1,join_timeout=60"]
    first = Job(data, out, crun=nodes, world=2)
    second = None
    try:
        wait("the host", lambda: listens(port))
        second = Job(data, out, crun=nodes, world=2, run_id=first.run_id)
        killed = []

        def end_the_other():
            killed.append([first.pid(r) for r in range(2)])
            agent = children(second.p.pid)[0]
            os.kill(agent, signal.SIGKILL)

        first.plan.append((lambda line: "4 ranks, 2 nodes" in line, lambda: None))
        first.at_step(9, end_the_other)
        first.at_step(STEPS - 5, lambda: killed.append([first.pid(r) for r in range(2)]))
        text = first.finish()
    finally:
        if second:
            second.p.wait(timeout=60)
            second.reader.join(timeout=10)
    assert killed[0] == killed[1], "ranks 0 and 1 stayed"
    assert "kept 2 workers" in text and text.count("goes on from step") == 1
    assert json.loads((newest(out) / "manifest.json").read_text())["meta"]["updates"] == STEPS


def test_layouts_that_share_the_state_start_again(undisturbed, tmp_path):
    """A state that ranks hold in parts is taken from the checkpoint, as before."""
    data, _ = undisturbed()
    job = Job(data, tmp_path / "out", "--zero", 1, "--checkpoint-every", 5)
    job.at("saved step 5\n", lambda: None)
    job.at_step(12, job.kill(1))
    text = job.finish()
    assert "kept" not in text and "resumed from step" in text
