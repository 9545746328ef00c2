"""How soon everybody is gone, whatever stands still: usage bench_stuck.py [--turns N] [--moments N] [--check]    (CRUN_BUILD: the build folder)

signal    the agent is stopped, spins, or is traced; SIGTERM: until crun is gone, beyond nothing: the guardian gives it 5 s
ctrl-c    likewise, from the third SIGINT
half      kill -9 of guardian or agent while the other one is held like that, until no direct worker is alive; the same with the deputy killed as well
moment    kill -9 of guardian, agent, or both at a random moment of a job, until nobody is left
"""
import argparse
import os
import pathlib
import random
import select
import signal
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from crun_run import Crun  # noqa: E402
from held import stuck  # noqa: E402
from moments import kill_at  # noqa: E402
from processes import children  # noqa: E402

SIGNAL_MS, THIRD_MS, HALF_MS, STAND_IN_MS, MOMENT_MS = 6000, 1000, 200, 300, 130  # aims
HOW = ["stopped", "spinning", "traced"]


def now_ms():
    return time.monotonic() * 1000


def start(crun):
    """-> (Popen, agent, pidfds of the workers)"""
    for name in ("up-0", "up-1"):
        (crun.tmp / name).unlink(missing_ok=True)
    p = crun.start("--nproc_per_node", 2, "sh", "-c", f"touch {crun.tmp}/up-$RANK; exec sleep 1000")
    for rank in (0, 1):
        crun.wait_file(f"up-{rank}")
    agent = crun.agent_of(p.pid)
    return p, agent, {os.pidfd_open(pid) for pid in children(agent)}


def end_of(fds):
    """When the last of these processes ended, as the kernel tells it."""
    while fds:
        ready, _, _ = select.select(fds, [], [], 60)
        assert ready, "workers live on"
        fds = fds - set(ready)
        for fd in ready:
            os.close(fd)
    return now_ms()


def after_signals(crun, how, signo, n):
    """From the last of n signals to the end of crun."""
    p, agent, workers = start(crun)
    with stuck(agent, how):
        for i in range(n):
            begun = now_ms()
            p.send_signal(signo)
            if i < n - 1:
                time.sleep(1.05)  # sooner it is the same wish told twice
        p.communicate(timeout=60)
        took = now_ms() - begun
    end_of(workers)
    crun.wait_processes_gone(30)
    return took


def after_kill(crun, how, victim, with_deputy):
    p, agent, workers = start(crun)
    deputy = crun.deputy_of(p.pid)
    other, killed = (agent, p.pid) if victim == "guardian" else (p.pid, agent)
    with stuck(other, how):
        if with_deputy:
            os.kill(p.pid, signal.SIGSTOP)  # it starts no other
            os.kill(deputy, signal.SIGKILL)
        begun = now_ms()
        os.kill(killed, signal.SIGKILL)
        took = end_of(workers) - begun
        p.kill()
        crun.wait_processes_gone(30)
    p.communicate(timeout=60)
    return took


def at_moment(crun, rng, victim):
    return 1000 * kill_at(crun, rng, victim, "off", 1 << 20)[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    missed = 0
    rng = random.Random(1)

    def judge(what, took, aim_ms, figure=max):
        nonlocal missed
        missed += figure(took) > aim_ms
        print(f"{what}: median {statistics.median(took):.0f} ms, worst {max(took):.0f} ms of {len(took)} (aim {aim_ms} ms{'' if figure is max else ' for the median'})",
              flush=True)

    with tempfile.TemporaryDirectory() as tmp:
        crun = Crun(pathlib.Path(tmp))
        try:
            for how in HOW:
                judge(f"agent {how}, SIGTERM, until crun is gone", [after_signals(crun, how, signal.SIGTERM, 1)], SIGNAL_MS)
                judge(f"agent {how}, third SIGINT, until crun is gone", [after_signals(crun, how, signal.SIGINT, 3)], THIRD_MS)
            for victim, other in (("guardian", "agent"), ("agent", "guardian")):
                for how in HOW:
                    for with_deputy in (False, True):
                        judge(f"{other} {how}, kill -9 of {victim}{' and deputy' * with_deputy}, until no worker is alive",
                              [after_kill(crun, how, victim, with_deputy) for _ in range(o.turns)], STAND_IN_MS if with_deputy else HALF_MS)
            for victim in ("guardian", "agent", "both"):
                judge(f"kill -9 of {victim} at a random moment, until nobody is left", [at_moment(crun, rng, victim) for _ in range(o.moments)], MOMENT_MS,
                      statistics.median)
        finally:
            crun.close()
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.exit(1 if o.check and missed else 0)


if __name__ == "__main__":
    main()
