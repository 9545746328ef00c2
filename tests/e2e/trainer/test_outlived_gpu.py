"""Recovery in process where the host runs ahead of the device, over a GPU that is not there (tests/worker/device/cuda/fake_module.c)."""
import re

import pytest

from metrics_file import loss_curve
from outlived_job import Job, check_no_step_is_lost, held_spares
from processes import wait
from support import BUILD
from test_resharded_rounds import CUT, FIXED, RULES, Nodes

pytestmark = pytest.mark.gpu_emulated

WORLD = 2
MODULE = BUILD / "tests" / "worker" / "device" / "cuda" / "fake_cuda.so"
SMALL = ["--num-epochs", 2, "--batch-size", 16, "--deterministic", "--comm", "gloo"]


def fake(gpus):
    return {"CRUN_CUDA_MODULE": str(MODULE), "FAKE_GPUS": str(gpus)}


def job(data, out, *options, gpus=WORLD, world=WORLD, last=20, **kw):
    return Job(data, out, *SMALL, *options, world=world, device="cuda", more=fake(gpus), last=last, **kw)


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


@pytest.mark.parametrize("victim, gpu", [(1, "the last rank's, which it has opened"), (0, "another one")])
def test_a_warm_spare_takes_the_place(undisturbed, tmp_path, victim, gpu):
    """And its lines have the place's rank, those of the GPU module too, which it has loaded before."""
    data, expected = undisturbed
    disturbed = job(data, tmp_path / "out", crun=["--warm-spares", 1])

    def do():
        wait("a spare that is ready", lambda: held_spares(disturbed.run_id))
        disturbed.kill(victim)()

    disturbed.at_step(5, do)
    text = disturbed.finish()
    check_no_step_is_lost(text, 1, ahead=2)
    assert disturbed.weights() == expected
    began = re.findall(r" info rank=(-?\d+) cuda: run 1: ", text)
    assert sorted(began) == sorted(map(str, [*range(WORLD), victim])), gpu


THREE, LAST = 3, 14


@pytest.mark.parametrize("layout, victim", [("zero 1", 1), pytest.param("zero 2", 0, marks=pytest.mark.slow), ("zero 3", 2)])
def test_a_rank_that_has_parts_is_killed(shapes, tmp_path, layout, victim):
    """Its second owner has them."""
    data, options = shapes(28, 160, 20), [*CUT[layout], "--max-steps", LAST, "--batch-size", 12]
    calm, disturbed = (job(data, tmp_path / name, *options, gpus=THREE, world=THREE, last=LAST) for name in ("calm", "disturbed"))
    disturbed.at_step(4, disturbed.kill(victim))
    disturbed.at_step(LAST - 3, disturbed.kill())
    text = disturbed.finish()
    calm.finish()
    assert [a == b for a, b in zip(*disturbed.pids)] == [r != victim for r in range(THREE)]
    assert "goes on from step" in text
    check_no_step_is_lost(text, 1)
    assert disturbed.weights() == calm.weights()


@pytest.mark.parametrize("layout", ["zero 1", pytest.param("zero 3", marks=pytest.mark.slow)])
def test_a_node_is_lost_and_comes_back(shapes, tmp_path, layout):
    """Three ranks, two, three: parts go to other owners, from card to card. Each node has cards of its own."""
    data, options = shapes(28, 160, 20), ["--batch-size", 12, "--deterministic", "--comm", "gloo"]
    calm = Job(data, tmp_path / "calm", *FIXED, *RULES[layout], "--max-steps", LAST, *options, "--log-dir", tmp_path / "calm-logs", world=1, device="cuda", more=fake(1))
    nodes = Nodes(data, tmp_path, layout, (2, 1), options, device="cuda", last=LAST,
                  env=lambda world: {**fake(3), "CUDA_VISIBLE_DEVICES": "0,1" if world == 2 else "2"})
    nodes.first.at_step(3, lambda: (nodes.note(), nodes.end(1)))
    nodes.first.at_recovery(do=nodes.note)
    nodes.first.at_step(6, lambda: nodes.start(1))
    nodes.first.at_recovery("a node has come; the workers here stay, and go on with it")
    nodes.first.at_recovery(do=nodes.note)
    calm.finish()
    nodes.check(loss_curve(tmp_path / "calm-logs"), 2, bound=1e-3)
    assert nodes.jobs[2].p.returncode == 0, nodes.jobs[2].text()
