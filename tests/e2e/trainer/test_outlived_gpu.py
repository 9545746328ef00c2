"""Recovery in process where the host runs ahead of the device, over a GPU that is not there (tests/worker/device/cuda/fake_module.c)."""
import pytest

from outlived_job import STEPS, Job, check_no_step_is_lost, held_spares
from processes import wait
from support import BUILD, faulty_disk

WORLD = 2
MODULE = BUILD / "tests" / "worker" / "device" / "cuda" / "fake_cuda.so"
SMALL = ["--num-epochs", 2, "--batch-size", 16, "--deterministic", "--comm", "gloo"]


def env(gpus):
    return {**faulty_disk(fsync_ms=1000, only="step-00000020."), "CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": str(gpus)}


def job(data, out, *options, gpus=WORLD, **kw):
    return Job(data, out, *SMALL, *options, world=WORLD, device="cuda", env=env(gpus), **kw)


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    data = shapes(28, 160, 20)
    calm = job(data, tmp_path_factory.mktemp("undisturbed") / "out")
    calm.finish()
    return data, calm.weights()


@pytest.mark.parametrize("victim", range(WORLD))
def test_a_rank_that_is_killed_costs_no_step_and_no_bit(undisturbed, tmp_path, victim):
    data, expected = undisturbed
    disturbed = job(data, tmp_path / "out")
    disturbed.at_step(5, disturbed.kill(victim))
    disturbed.at_step(16, disturbed.kill())
    text = disturbed.finish()
    assert [a == b for a, b in zip(*disturbed.pids)] == [r != victim for r in range(WORLD)]
    check_no_step_is_lost(text, 1, ahead=2)
    assert disturbed.weights() == expected
