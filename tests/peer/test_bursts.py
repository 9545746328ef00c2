"""crun.inprocess: three ranks are killed within seconds, whatever the others are at then. BURSTS=N: N seeds instead of two, half of them with a spare."""
import contextlib
import os
import random
import re
import signal
import sys
import time

import pytest

from processes import wait
from torch_rounds import BEGINS, INPROCESS, Rounds, crun_for, steps_of

STEPS = 1500
SEEDS = range(int(os.environ.get("BURSTS", "2")))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    c = crun_for(tmp_path_factory.mktemp("undisturbed"), sys.executable)
    weights, _ = Rounds(c, INPROCESS, STEPS).end()
    c.close()
    return weights


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_while_one_lives_that_has_the_state(tmp_path, undisturbed, seed):
    rng, crun = random.Random(seed), crun_for(tmp_path, sys.executable)
    job = Rounds(crun, *(["--warm-spares", 1] if seed % 2 else []), INPROCESS, STEPS)
    first, _ = job.in_round(1)
    if seed % 2:
        job.spare(first)
    keeper = first.pop(rng.randrange(4))
    wait("some steps", lambda: steps_of(keeper) > 20, 100)
    killed = set()
    for _ in range(3):
        newest = {rank: int(pid) for rank, pid, _, _ in BEGINS.findall(job.said())}
        victim = rng.choice([pid for pid in newest.values() if pid != keeper and pid not in killed])
        killed.add(victim)
        with contextlib.suppress(ProcessLookupError):  # crun may have ended one that had not begun
            os.kill(victim, signal.SIGKILL)
        time.sleep(rng.uniform(0.3, 2.5))
    weights, err = job.end()
    crun.close()
    assert weights == undisturbed and "is lost" not in err, err
    assert keeper in {int(pid) for _, pid, round_, _ in BEGINS.findall(job.said()) if int(round_) > 1}, "who has the state stays"
    steps = [int(step) for _, _, _, step in BEGINS.findall(job.said())]
    assert steps == sorted(steps), f"no step is done again\n{job.said()}"
    print("seed", seed, "to the first step, ms:", re.findall(r"first step (\d+) ms", err))
