"""Recovery in process where ranks hold parts of the model: stages, a shared last layer, ZeRO with second owners."""
import os
import random
import re
import subprocess
import time

import pytest

from outlived_job import IMAGES, MODELS, STEPS, WORLD, Job, check_no_step_is_lost, held_spares
from processes import wait
from support import TRAINER

ADAM = ["--optimizer", "adam", "--base-learning-rate", 0.001]
LARS = ["--optimizer", "lars", "--lars-eta", 0.05]
STAGES = ["--stages", 2, "--microbatches", 2]
TENSOR = ["--model-parallel-size", 2, "--model-parallel-dim", 1]
SECOND = ["--replicate-state", 1]
LAYOUTS = {
    "stages": [*STAGES, *ADAM, "--ema", 0.9, "--clip-grad-norm", 0.5],
    "tensor": [*TENSOR, *LARS],
    "zero 1": ["--zero", 1, *SECOND, *ADAM, "--ema", 0.9],
    "zero 2": ["--zero", 2, *SECOND, *LARS, "--accumulate", 2],
    "zero 3": ["--zero", 3, *SECOND, *ADAM, "--ema", 0.9, "--clip-grad-norm", 0.5],
    "stages, zero 2": [*STAGES, "--zero", 2, *SECOND, *ADAM],
    "tensor, zero 3": [*TENSOR, "--zero", 3, *SECOND, *ADAM],
    "blocks, vocabulary": [*TENSOR, *ADAM, "--ema", 0.9],
    "tied stages": [*STAGES, *ADAM, "--clip-grad-norm", 0.5],
}
MODEL_OF = {"blocks, vocabulary": "text", "tied stages": "text"}  # else the small one
IN_MEMORY = ["--memory-checkpoints", 50]
WHOLE = {"data parallel": []}  # test_outlived_rounds.py, but for what is the same for all


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, and the weights at the end, by layout"""
    known, data = {}, shapes(28, IMAGES, 20)

    def of(layout):
        if layout not in known:
            job = Job(data, tmp_path_factory.mktemp("undisturbed") / "out", *{**LAYOUTS, **WHOLE}[layout], model=MODEL_OF.get(layout, "small"))
            job.finish()
            known[layout] = job.weights()
        return data, known[layout]

    return of


# Each layout once, each victim.
QUICK = {("stages", 0), ("tensor", 0), ("zero 1", 2), ("zero 2", 1), ("zero 3", 0), ("stages, zero 2", 2), ("tensor, zero 3", 3), ("blocks, vocabulary", 0), ("tied stages", 1)}
SLOW = pytest.mark.slow
VICTIMS = [pytest.param(layout, victim, marks=() if (layout, victim) in QUICK else SLOW) for layout in LAYOUTS for victim in range(WORLD)]


@pytest.mark.parametrize("layout, victim", VICTIMS)
def test_a_rank_that_is_killed_costs_no_step_and_no_bit(undisturbed, tmp_path, layout, victim):
    data, expected = undisturbed(layout)
    job = Job(data, tmp_path / "out", *LAYOUTS[layout], model=MODEL_OF.get(layout, "small"))
    job.at_step(7, job.kill(victim))
    job.at_step(STEPS - 5, job.kill())  # who is there now
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r != victim for r in range(WORLD)]
    assert f"restart 1/50 (rank {victim} killed by SIGKILL), kept 3 workers: detect" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_ranks_at_random_moments(undisturbed, tmp_path, layout):
    """Also in the middle of an update, of a gather, of a recovery."""
    data, expected = undisturbed(layout)
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    print("seed", seed)
    job = Job(data, tmp_path / "out", *LAYOUTS[layout], model=MODEL_OF.get(layout, "small"))
    victims = [rng.randrange(WORLD) for _ in range(8)]
    for i, victim in enumerate(victims):
        kill, delay = job.kill(victim), rng.random() * 0.02
        job.from_step(5 + 4 * i, lambda kill=kill, delay=delay: (time.sleep(delay), kill()))
        job.at_recovery()  # one after the other
    job.at_step(STEPS - 5, job.kill())
    text = job.finish()
    for before, after, victim in zip(job.pids, job.pids[1:], victims):
        assert [a == b for a, b in zip(before, after)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, len(victims))
    assert job.weights() == expected


@pytest.mark.parametrize("layout, delay", [pytest.param("stages", 0.1, marks=SLOW), ("zero 1", 0.15)])
def test_the_process_in_the_place_dies_while_it_joins(undisturbed, tmp_path, layout, delay):
    data, expected = undisturbed(layout)
    job = Job(data, tmp_path / "out", *LAYOUTS[layout])
    job.at_step(9, job.kill_newcomer_too(1, delay))
    job.at_recovery("restart 2/50", job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [True, False, True, True]
    assert "resumed from" not in text and job.weights() == expected


def test_two_at_once_of_which_none_was_the_others_second_owner(undisturbed, tmp_path):
    data, expected = undisturbed("zero 1")
    job = Job(data, tmp_path / "out", *LAYOUTS["zero 1"])
    job.at_step(9, job.kill(1, 3))
    job.at_step(STEPS - 5, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [True, False, True, False]
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected


@pytest.mark.parametrize("layout, lost", [("zero 1", "rank 1 and rank 2, which had its part of the state as well, are lost together"),
                                          ("stages", "rank 0 is lost, and no other rank has its part of the state")])
def test_a_part_that_is_lost_with_both_owners_comes_from_the_checkpoint(undisturbed, tmp_path, layout, lost):
    """In the same processes: those that are left go back to it, too."""
    data, expected = undisturbed(layout)
    victims = (1, 2) if layout == "zero 1" else (0, 1)
    job = Job(data, tmp_path / "out", *LAYOUTS[layout], "--checkpoint-every", 5)
    job.at_step(12, job.kill(*victims), saved=5)
    job.at_step(STEPS - 5, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r not in victims for r in range(WORLD)]
    assert f"{lost}: all ranks go back to the newest checkpoint" in text
    assert len(re.findall(r"resumed from step", text)) == 1 and "goes on from step" not in text
    assert job.weights() == expected


def test_where_nothing_was_saved_it_is_said_that_all_begin_again(undisturbed, tmp_path):
    data, expected = undisturbed("zero 1")
    job = Job(data, tmp_path / "out", *LAYOUTS["zero 1"], "--checkpoint-every", 1000)
    job.at_step(2, job.kill(1, 2))
    text = job.finish()
    assert "are lost together: all ranks go back to the newest checkpoint" in text and "resumed from" not in text
    assert text.count("there is no checkpoint to go on from: begins again at step 0") == 1, text[-6000:]
    assert job.weights() == expected


@pytest.mark.parametrize("layout, victims", [("zero 1", (1, 2)), pytest.param("stages", (0, 1), marks=SLOW), ("tensor, zero 3", (0, 1, 2, 3)),
                                             ("data parallel", (0, 1, 2, 3))])
def test_a_part_that_is_lost_with_both_owners_comes_from_memory(undisturbed, tmp_path, layout, victims):
    """No checkpoint was saved; those that are left go back a few steps, whoever died finds its part where the one before it kept it."""
    data, expected = undisturbed(layout)
    job = Job(data, tmp_path / "out", *{**LAYOUTS, **WHOLE}[layout], *IN_MEMORY)
    job.at_step(12, job.kill(*victims))
    job.at_step(STEPS - 5, job.kill())
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r not in victims for r in range(WORLD)]
    resumed = re.findall(r"resumed from memory, step (\d+)", text)
    assert len(resumed) == 1 and 2 <= int(resumed[0]) < STEPS / 2 and "resumed from step" not in text and "goes on from step" not in text, text[-6000:]
    assert job.weights() == expected


@pytest.mark.parametrize("options, crun", [pytest.param(["--zero", 1, *ADAM, "--ema", 0.9], [], marks=SLOW), (["--zero", 1, *ADAM, "--ema", 0.9], ["--virtual-local-rank"]),
                                           (LAYOUTS["zero 1"], ["--recovery", "restart"])])
def test_processes_that_start_again_go_on_from_memory(undisturbed, tmp_path, options, crun):
    data, expected = undisturbed("zero 1")
    job = Job(data, tmp_path / "out", *options, *IN_MEMORY, crun=crun)
    job.at_step(12, job.kill(3))
    job.at_step(STEPS - 5, job.kill())
    text = job.finish()
    assert not any(a == b for a, b in zip(*job.pids)) and "resumed from memory, step" in text and "resumed from step" not in text, text[-6000:]
    assert job.weights() == expected


def test_a_newer_checkpoint_goes_before_what_is_in_memory(undisturbed, tmp_path):
    data, expected = undisturbed("zero 1")
    job = Job(data, tmp_path / "out", *LAYOUTS["zero 1"], "--checkpoint-every", 5, "--checkpoint-sync", "--memory-checkpoints", 1e-9)  # after step 2, and then not soon again
    job.at_step(12, job.kill(0, 1, 2, 3))
    text = job.finish()
    assert re.search(r"resumed from step 10\b", text) and "from memory" not in text, text[-6000:]
    assert job.weights() == expected


def test_without_crun_it_is_said_that_nothing_is_kept(shapes, tmp_path):
    data = shapes(28, IMAGES, 20)
    done = subprocess.run([str(a) for a in [TRAINER, "--train-data", data / "train", *MODELS["small"], "--image-size", 28, "--batch-size", 32, "--max-steps", 3,
                                            "--device", "cpu", "--amp", "off", *IN_MEMORY]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "--memory-checkpoints: no crun is there that keeps memory from round to round: nothing is kept" in done.stderr


@pytest.mark.parametrize("layout, victim", [("data parallel", 0), pytest.param("data parallel", 2, marks=SLOW), pytest.param("zero 2", 0, marks=SLOW), ("stages", 1)])
def test_a_warm_spare_takes_the_place(undisturbed, tmp_path, layout, victim):
    data, expected = undisturbed(layout)
    job = Job(data, tmp_path / "out", *{**LAYOUTS, **WHOLE}[layout], crun=["--warm-spares", 1])
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
