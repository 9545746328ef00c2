"""Recovery in process where ranks hold parts of the model: stages, a shared last layer, ZeRO with second owners."""
import re

import pytest

from outlived_job import IMAGES, STEPS, WORLD, Job, check_no_step_is_lost

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
}


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, and the weights at the end, by layout"""
    known, data = {}, shapes(28, IMAGES, 20)

    def of(layout):
        if layout not in known:
            job = Job(data, tmp_path_factory.mktemp("undisturbed") / "out", *LAYOUTS[layout])
            job.finish()
            known[layout] = job.weights()
        return data, known[layout]

    return of


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_is_killed_costs_no_step_and_no_bit(undisturbed, tmp_path, layout, victim):
    data, expected = undisturbed(layout)
    job = Job(data, tmp_path / "out", *LAYOUTS[layout])
    job.at_step(7, job.kill(victim))
    job.at_step(STEPS - 5, job.kill())  # who is there now
    text = job.finish()
    assert [a == b for a, b in zip(*job.pids)] == [r != victim for r in range(WORLD)]
    assert f"restart 1/50 (rank {victim} killed by SIGKILL), kept 3 workers: detect" in text
    check_no_step_is_lost(text, 1)
    assert job.weights() == expected
