"""Recovery in process on a card: of two ranks that share it one is killed, the other keeps its process, and no step is lost or done twice.

Over NCCL the survivor's stream stands in a collective of a graph then, which an abort has to free; what that leaves in the sums must not be applied."""
import os
import re
import subprocess

import pytest

from hung import COMM_TIMEOUT, MARK, SECONDS, dissect, fail, new_job, note_end
from outlived_job import Job, check_no_step_is_lost, held_spares
from processes import wait
from support import TRAINER

WORLD, KILL_AT, STEPS = 2, 20, 80
RUN = ["--image-size", 64, "--batch-size", 32, "--num-epochs", 40, "--max-steps", STEPS, "--no-tf32", "--deterministic", "--oversubscribe", "--comm-timeout", COMM_TIMEOUT]


def job(shapes, out, two_hosts, comm, *options, crun=()):
    mark = new_job()
    j = Job(shapes(64, 640, 40), out, *RUN, "--comm", comm, *options, model="resnet18", world=WORLD, device="cuda", more={MARK: mark}, crun=crun,
            program=[*two_hosts, TRAINER])
    j.mark = mark
    return j


def fail_with_stacks(job):
    job.drop_plan()  # those who die now are not part of it
    seen = dissect(job.mark)
    job.p.terminate()
    try:
        job.p.wait(timeout=20)
    except subprocess.TimeoutExpired:
        job.p.kill()
    job.reader.join(timeout=10)
    fail(SECONDS, job.text(), seen)


def finish(job):
    """-> what it said, unless NCCL sees that there is one card."""
    job.go()
    try:
        code = job.p.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        fail_with_stacks(job)
    job.reader.join(timeout=10)
    text = job.text()
    if code != 0:
        note_end(text)
    if code != 0 and "uplicate GPU" in text:
        pytest.skip("NCCL sees through it and refuses the GPU twice: " + text[-400:])
    if job.failed:
        raise job.failed
    assert code == 0 and not job.plan, text[-6000:]
    return text


@pytest.fixture(scope="module")
def calm(gpu, shapes, tmp_path_factory):
    """Weights of the run that nothing disturbs: the sum of two addends has the same bits over NCCL and gloo."""
    undisturbed = job(shapes, tmp_path_factory.mktemp("calm") / "out", (), "gloo")
    finish(undisturbed)
    return undisturbed.weights()


def tell(keep, name, disturbed, text):
    split = re.findall(r"kept 1 worker.*", text)
    times = disturbed.seconds_to_next_step()
    keep(f"recovery-{name}", {"kill to next step, s": times, "split": split})
    print(f"\n{name}: kill to the next step {', '.join(f'{1e3 * t:.0f} ms' for t in times)}; {split}")


def expect_same_end(disturbed, text, recoveries, calm):
    check_no_step_is_lost(text, recoveries, ahead=2)
    assert "cannot be captured" not in text and "has no state any more" not in text, text[-6000:]
    assert disturbed.weights() == calm, "other weights than those of the undisturbed run"


@pytest.mark.parametrize("comm, victim", [("gloo", 1), ("nccl", 1), ("nccl", 0)])
def test_the_survivor_keeps_its_process_and_no_step_is_lost(request, shapes, tmp_path, two_hosts, calm, keep, comm, victim):
    if comm == "nccl":
        request.getfixturevalue("nccl")
    disturbed = job(shapes, tmp_path / "out", two_hosts, comm)
    disturbed.at_step(KILL_AT, disturbed.kill(victim))
    disturbed.at_recovery(do=disturbed.kill())  # who is there now
    text = finish(disturbed)
    tell(keep, f"{comm}-victim-{victim}", disturbed, text)
    assert [a == b for a, b in zip(*disturbed.pids)] == [r != victim for r in range(WORLD)]
    expect_same_end(disturbed, text, 1, calm)


def test_a_rank_that_has_parts_is_lost(nccl, shapes, tmp_path, two_hosts, calm, keep):
    """Of two ranks each is the other's second owner; parts of two addends have the same bits as the whole."""
    disturbed = job(shapes, tmp_path / "out", two_hosts, "nccl", "--zero", 3, "--replicate-state", 1)
    disturbed.at_step(KILL_AT, disturbed.kill(1))
    disturbed.at_recovery(do=disturbed.kill())
    text = finish(disturbed)
    tell(keep, "nccl-zero-3", disturbed, text)
    assert [a == b for a, b in zip(*disturbed.pids)] == [True, False]
    expect_same_end(disturbed, text, 1, calm)


def test_a_warm_spare_with_a_context_takes_the_place(nccl, shapes, tmp_path, two_hosts, calm, keep):
    disturbed = job(shapes, tmp_path / "out", two_hosts, "nccl", crun=["--warm-spares", 1])
    spares = []

    def do():
        wait("a spare that is ready", lambda: held_spares(disturbed.run_id))
        spares.extend(held_spares(disturbed.run_id))
        disturbed.kill(1)()

    disturbed.at_step(KILL_AT, do)
    disturbed.at_recovery(do=lambda: spares.append(os.path.exists(f"/proc/{spares[0]}")))
    text = finish(disturbed)
    tell(keep, "nccl-spare", disturbed, text)
    assert spares[1], "the spare is a rank now"
    expect_same_end(disturbed, text, 1, calm)


def test_again_and_again(nccl, shapes, tmp_path, two_hosts, calm, keep):
    """Each time in the middle of a step, at another moment of it."""
    disturbed = job(shapes, tmp_path / "out", two_hosts, "nccl")
    for i, victim in enumerate((1, 1, 0)):
        disturbed.at_step(KILL_AT * (i + 1) - 10, disturbed.kill(victim))
        disturbed.at_recovery()
    text = finish(disturbed)
    tell(keep, "nccl-again", disturbed, text)
    expect_same_end(disturbed, text, 3, calm)
