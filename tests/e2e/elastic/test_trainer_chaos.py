"""Chaos over each home while `trainer` trains on two nodes with two ranks each: workers and crun's own processes are killed, stopped and slowed, nodes lost
and cut off, the home killed and stopped, the disk of the checkpoints filled and its files damaged, clocks wrong. What must hold: each job ends at its last
step, having done each step once, with the bytes of an undisturbed run; no process, file, descriptor or shared memory is left; exit codes are those of
docs/reference/exit-codes.md.

CRUN_CHAOS_SECONDS: how long faults are inflicted on each home; CRUN_CHAOS_SEED: the plan."""
import os
import time

import pytest

import trainer_chaos
from chaos import HOMES
from support import tmpfs

pytestmark = [pytest.mark.serial, pytest.mark.slow]
DISK_MIB = 64


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("home", HOMES)
def test_ten_minutes_of_training(cluster, net, shapes, home):
    seconds = float(os.environ.get("CRUN_CHAOS_SECONDS", 600))
    seed = int(os.environ.get("CRUN_CHAOS_SEED", time.time_ns() % 100000))
    print(f"\n{home}, seed {seed} (CRUN_CHAOS_SEED)", flush=True)
    with tmpfs(cluster.tmp / "checkpoints", DISK_MIB) as disk:
        c = trainer_chaos.TrainerChaos(cluster, net, home, shapes(28, 592, 20), disk)
        try:
            c.inflict(seconds, seed)
            c.finish()
        finally:
            c.close()
            cluster.close()
    met = sum(d.met != "nobody" for d in c.deeds())
    print(f"{home}, {seconds:.0f} s: {len(c.deeds())} faults, {met} of them met somebody, {sum(p.starts for p in c.places)} cruns, {c.jobs} jobs trained to "
          f"step {trainer_chaos.STEPS}; exit codes {dict(sorted(c.exits.items()))}")
    assert not c.wrong, f"seed {seed}\n" + "\n".join(c.wrong) + "\n" + c.tool.text()[-3000:]
    assert c.jobs > 0
