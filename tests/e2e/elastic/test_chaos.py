"""Chaos: kill -9 and SIGSTOP of workers and of crun's own processes, of two at once, partitions, log disks that hang, homes that stop or are restarted. What must
hold: two rounds of one job never run at once, no worker outlives its crun, exit codes are those of docs/reference/exit-codes.md, and the job goes on.

CRUN_CHAOS_SECONDS: how long faults are inflicted on each home; CRUN_CHAOS_SEED: the plan."""
import os
import time

import pytest

import chaos

pytestmark = pytest.mark.serial
RECOVERY_S = 60


def campaign(cluster, net, home, seconds, nodes):
    seed = int(os.environ.get("CRUN_CHAOS_SEED", time.time_ns() % 100000))
    print(f"\n{home}, seed {seed} (CRUN_CHAOS_SEED)", flush=True)
    c = chaos.Chaos(cluster, net, home, nodes)
    try:
        c.inflict(seconds, seed)
        recovered = c.recover(RECOVERY_S)
        c.finish()
    finally:
        c.close()
    found = chaos.lives(cluster.out)
    seen = chaos.worlds(found)
    same, other = chaos.overlaps(seen)
    met = sum(d.met != "nobody" for d in c.deeds())
    print(f"{home}, {seconds:.0f} s: {len(c.deeds())} faults, {met} of them met somebody, {sum(p.starts for p in c.places)} cruns, {len(seen)} rounds; all nodes "
          f"ran again after {recovered:.1f} s, none ran for {chaos.idle_s(found):.1f} s at most; exit codes {dict(sorted(c.exits.items()))}; overlaps: {len(same)} within an instance of the job, "
          f"{len(other)} between two")
    assert not c.wrong, f"seed {seed}\n" + "\n".join(c.wrong) + "\n" + c.tool.text()
    assert not same, f"seed {seed}: {same}"
    assert len(seen) > 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("home", chaos.HOMES)
def test_ten_minutes(cluster, wide_net, home):
    campaign(cluster, wide_net, home, float(os.environ.get("CRUN_CHAOS_SECONDS", 600)), 4)


@pytest.mark.long
def test_ten_seconds(cluster, net):
    campaign(cluster, net, "rendezvousd", 10, 3)
