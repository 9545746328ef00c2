"""Recovery in process: when a rank dies the others keep their processes and their step, and the end is that of the undisturbed run."""
import json
import os
import random
import re
import signal
import time

import numpy as np
import pytest

from metrics_file import loss_curve
from outlived_job import IMAGES, PER_EPOCH, SIZES, STEPS, WORLD, Job, check_no_step_is_lost, listens
from processes import wait
from support import free_port, worker_pid
from tensors import newest

LONG = ["--batch-size", 32, "--num-epochs", 5]  # of 640 images: 100 steps


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, and the weights at the end, by model"""
    known = {}

    def of(model="small", long=()):
        key = model, bool(long)
        if key not in known:
            data = shapes(SIZES[model], 640 if long else IMAGES, 20)
            job = Job(data, tmp_path_factory.mktemp("undisturbed") / "out", *long, model=model)
            job.finish()
            known[key] = (data, job.weights())
        return known[key]

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


@pytest.mark.parametrize("model, long", [("small", []), *(pytest.param(model, LONG, marks=pytest.mark.slow) for model in ("small", "resnet18"))],
                         ids=["small", "small, 100 steps", "resnet18, 100 steps"])
def test_random_ranks_at_random_moments(undisturbed, tmp_path, model, long):
    data, expected = undisturbed(model, long)
    last, between = (100, 20) if long else (STEPS, 7)
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    print("seed", seed)
    job = Job(data, tmp_path / "out", *long, model=model, last=last)
    victims = [rng.randrange(WORLD) for _ in range(4)]
    for i, victim in enumerate(victims):
        kill, delay = job.kill(victim), rng.random() * 0.02
        job.from_step(5 + between * i, lambda kill=kill, delay=delay: (time.sleep(delay), kill()))
        job.at_recovery()  # one after the other
    job.at_step(last - 2, job.kill())
    text = job.finish()
    for before, after, victim in zip(job.pids, job.pids[1:], victims):
        assert [a == b for a, b in zip(before, after)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, len(victims))
    assert job.weights() == expected


@pytest.mark.parametrize("victim", [0, 2])
def test_decoded_pictures_outlive_a_rank_that_is_killed(undisturbed, tmp_path, victim):
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--cache-decoded", "64M")
    job.at_step(PER_EPOCH + 2, job.kill(victim))
    text = job.finish()
    assert f"{IMAGES} of {IMAGES} decoded pictures are there already" in text, text[-6000:]
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
    job.at_step(12, job.kill(0, 1, 2, 3), saved=5)
    text = job.finish()
    assert "resumed from step" in text and job.weights() == expected


@pytest.mark.parametrize("victim", [0, 3])
def test_while_a_checkpoint_is_written(undisturbed, tmp_path, victim):
    """One that goes on writing is not given up by a rank that stays; one whose writer died is written later."""
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--checkpoint-every", 20, more={"FAULT_DISK_ONLY": "step-000000"})  # each save is held until all is done

    def once_it_is_begun():
        wait("the writer", (tmp_path / "out/step-00000020.tmp").is_dir)  # a thread that steps do not wait for
        job.kill(victim)()

    job.at_step(21, once_it_is_begun)
    job.at_recovery(do=job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, 1)
    before = text.partition("goes on from step")[0]
    assert "saving step 20" in before
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
    job.at_step(PER_EPOCH, job.kill(2, signo=signal.SIGSTOP))
    job.at_step(STEPS - 2, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [True, True, False, True]
    assert "(rank 2 hung at step" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


def test_metrics_tell_each_step_once(undisturbed, tmp_path):
    data, _ = undisturbed()
    job = Job(data, tmp_path / "out", "--log-dir", tmp_path / "logs")
    for step, victim in (5, 1), (14, 3), (24, 0), (33, 2):
        job.at_step(step, job.kill(victim))
    job.finish()
    rows = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines() if '"lr"' in line]
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    assert sorted(r["seconds"] for r in rows) == [r["seconds"] for r in rows], "times are carried on"


def test_ranks_of_a_node_that_is_left_go_on_in_a_smaller_world(undisturbed, tmp_path):
    """Two nodes of two ranks, one of which dies whole: shares of a batch are larger, plans are made anew, in the same processes."""
    data, _ = undisturbed()
    port, out = free_port(), tmp_path / "out"
    nodes = ["--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "join_timeout=60"]
    first = Job(data, out, crun=nodes, world=2)
    second = None
    try:
        wait("the host", lambda: listens(port))
        second = Job(data, out, crun=nodes, world=2, run_id=first.run_id)
        killed = []

        def end_the_other():
            killed.append([first.pid(r) for r in range(2)])
            second.end_node()

        first.at("4 ranks, 2 nodes")
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


def test_a_node_that_comes_back_is_taken_in_between_two_steps(shapes, tmp_path):
    """Four ranks, then two, then four again: those that stay keep their processes, and losses are those of a run that nothing disturbs."""
    data, out, port = shapes(28, IMAGES, 20), tmp_path / "out", free_port()
    fixed = ["--sync-bn", "--max-steps", 40, "--log-dir"]
    nodes = ["--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "join_timeout=60"]
    alone = Job(data, tmp_path / "one", *fixed, tmp_path / "one.log", world=1, device="ref")
    alone.finish()
    first = Job(data, out, *fixed, tmp_path / "logs", crun=nodes, world=2, device="ref")
    others, pids = [], []

    def join():
        others.append(Job(data, out, *fixed, tmp_path / "logs", crun=nodes, world=2, device="ref", run_id=first.run_id))

    def note():
        pids.append([first.pid(r) for r in range(2)])

    try:
        wait("the host", lambda: listens(port))
        first.at("4 ranks, 2 nodes")
        first.at_step(5, lambda: (note(), others[0].end_node()))
        first.at_recovery(do=note)
        first.at_step(15, join)
        first.at_recovery("a node has come; the workers here stay, and go on with it")
        first.at_recovery(do=note)
        join()
        text = first.finish()
        assert others[1].p.wait(timeout=60) == 0, others[1].text()
    finally:
        for job in others:
            job.p.wait(timeout=60)
            job.reader.join(timeout=10)
    assert pids[0] == pids[1] == pids[2], "ranks 0 and 1 stayed"
    check_no_step_is_lost(text, 2)
    assert "restart 1/50" in text and "restart 2/" not in text, "no restart is used up by a node that comes"
    one, many = loss_curve(tmp_path / "one.log"), loss_curve(tmp_path / "logs")
    assert len(one) == len(many) == 40
    worst = np.max(np.abs(one - many) / np.abs(one))
    print(f"4, 2, 4 ranks: largest relative difference of 40 losses {worst:.1e}")
    assert worst <= 1e-9


def test_layouts_that_share_the_state_start_again(undisturbed, tmp_path):
    """A state that ranks hold in parts is taken from the checkpoint, as before."""
    data, _ = undisturbed()
    job = Job(data, tmp_path / "out", "--zero", 1, "--checkpoint-every", 5)
    job.at_step(12, job.kill(1), saved=5)
    text = job.finish()
    assert "kept" not in text and "resumed from step" in text
    assert "recovery: when a rank dies all start again from the newest checkpoint: with --zero a part of the state has one owner" in text


@pytest.mark.parametrize("delay", [0, 0.1, pytest.param(0.05, marks=pytest.mark.slow), pytest.param(0.2, marks=pytest.mark.slow)])
def test_the_process_in_the_place_dies_while_it_joins(undisturbed, tmp_path, delay):
    """The others wait for it, and are to notice."""
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out")
    job.at_step(9, job.kill_newcomer_too(1, delay))
    job.at_recovery("restart 2/50", job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [True, False, True, True]
    assert "restart 2/50 (rank 1 killed by SIGKILL), kept 3 workers: detect" in text and "resumed from" not in text
    assert job.weights() == expected


def test_a_notice_while_a_process_takes_a_place_saves_the_step_reached(undisturbed, tmp_path):
    """The process in the place does not know signals yet: it joins, and all save together."""
    data, expected = undisturbed()
    job = Job(data, tmp_path / "out", "--checkpoint-every", 1000)

    def kill_and_stop():
        job.kill(1)()
        job.let_go()
        dead = job.pids[-1][1]
        wait("a process in its place", lambda: worker_pid(job.run_id, 1) not in (None, dead))
        job.p.terminate()

    job.at_step(9, kill_and_stop)
    job.at_recovery()
    job.go()
    assert job.p.wait(timeout=120) == 75, job.text()[-4000:]
    job.reader.join(timeout=10)
    updates = json.loads((newest(tmp_path / "out") / "manifest.json").read_text())["meta"]["updates"]
    assert updates >= 9 and "killing them" not in job.text()
    again = Job(data, tmp_path / "out", "--resume", "auto")
    assert f"resumed from step {updates}" in again.finish() and again.weights() == expected
