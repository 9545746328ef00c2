"""How many threads a rank takes, and how they wait for one another."""
import os
import re

import pytest

from support import CRUN, TRAINER, run

CORES = sorted(os.sched_getaffinity(0))
LINE = ["--train-data", "null", "--null-images", 8, "--num-labels", 3, "--arch", "convnet", "--image-size", 28, "--batch-size", 8,
        "--num-epochs", 1, "--device", "cpu"]


def without_omp(**more):
    return {**{k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}, **more}


def threads(*args, env=None, **kw):
    p = run(TRAINER, *LINE, *args, env=env or without_omp(), **kw)
    assert p.returncode == 0, p.stderr
    return tuple(map(int, re.search(r"; (\d+) compute and (\d+) loader threads a rank", p.stderr).groups()))


def test_a_rank_alone_takes_the_cores_it_may_use():
    assert threads() == (len(CORES),) * 2
    assert threads(preexec_fn=lambda: os.sched_setaffinity(0, CORES[:1])) == (1, 1)


def test_openmps_number_of_threads_is_taken_and_the_option_goes_before_it():
    assert threads(env=without_omp(OMP_NUM_THREADS="3"))[0] == 3
    assert threads(env=without_omp(OMP_NUM_THREADS="3,2"))[0] == 3  # of nested levels the outer one
    assert threads(env=without_omp(OMP_NUM_THREADS=""))[0] == len(CORES)
    assert threads("--threads", 2, env=without_omp(OMP_NUM_THREADS="3"))[0] == 2
    p = run(TRAINER, *LINE, env=without_omp(OMP_NUM_THREADS="many"))
    assert p.returncode == 2 and "OMP_NUM_THREADS" in p.stderr and "'many'" in p.stderr, p.stderr


def test_ranks_share_the_cores_of_their_machine():
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, *LINE, env=without_omp())
    assert p.returncode == 0, p.stderr
    assert f"; {max(1, len(CORES) // 2)} compute and " in p.stderr, p.stderr


@pytest.mark.parametrize("asked,found", [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_threads_wait_passively_unless_told_otherwise(asked, found):
    policy = {"OMP_WAIT_POLICY": asked} if asked else {}
    p = run(TRAINER, *LINE, env=without_omp(OMP_DISPLAY_ENV="true", **policy))
    assert p.returncode == 0, p.stderr
    told = re.findall(r"OMP_WAIT_POLICY = '(\w+)'", p.stderr)  # by the runtime, when it starts
    assert told and told[-1] == found, p.stderr


@pytest.mark.parametrize("many,spins", [(1, True), (len(CORES) + 1, False)])
def test_they_spin_for_a_moment_where_each_has_its_core(many, spins):
    p = run(TRAINER, *LINE, env=without_omp(OMP_DISPLAY_ENV="verbose", OMP_NUM_THREADS=str(many)))
    assert p.returncode == 0, p.stderr
    assert (re.findall(r"GOMP_SPINCOUNT = '(\d+)'", p.stderr)[-1] == "8000") == spins, p.stderr
