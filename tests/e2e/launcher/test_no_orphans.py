"""kill -9 of the agent, the guardian, or both at random moments: nobody is left.

Figures are printed (pytest -s), and judged by `./dev bench stuck`. The moments of the ten are always the same, those of the hundred come from the
clock; CRUN_TEST_SEED repeats them."""

import os
import random
import time

import pytest

from moments import kill_at

pytestmark = pytest.mark.serial


def campaign(crun, victim, cgroup, moments, memory, seed):
    seed = int(os.environ.get("CRUN_TEST_SEED", seed))
    rng = random.Random(seed)
    done = [kill_at(crun, rng, victim, cgroup, memory) for _ in range(moments)]
    took = sorted(1000 * d[1] for d in done)
    print(f"\nkill -9 of {victim}, cgroup {cgroup}, {moments} moments, seed {seed}: gone after p50 {took[len(took) // 2]:.0f} ms, max {took[-1]:.0f} ms; "
          f"survivors at 100 ms: {sum(t > 100 for t in took)}; zombies: {sum(d[3] for d in done)}; children left by the kill of both: "
          f"{sum(d[2] for d in done)} in {sum(d[2] > 0 for d in done)} moments")
    assert sum(d[3] for d in done) == 0
    if victim != "both":
        assert sum(d[2] for d in done) == 0


@pytest.mark.parametrize("victim", ["agent", "guardian", "both"])
def test_nobody_is_left_at_any_of_ten_moments(crun, victim):
    for cgroup in "auto", "off":
        campaign(crun, victim, cgroup, 5, 1 << 20, 1)


@pytest.mark.slow
@pytest.mark.parametrize("cgroup", ["auto", "off"])
@pytest.mark.parametrize("victim", ["agent", "guardian", "both"])
def test_nobody_is_left_at_any_of_a_hundred_moments(crun, victim, cgroup):
    campaign(crun, victim, cgroup, 100, 60 << 20, time.time_ns() % 100000)
