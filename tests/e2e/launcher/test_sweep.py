"""What a stop costs on a host that runs thousands of other processes: crun looks at its own tree, or once at each process."""
import contextlib
import os
import re
import subprocess

import pytest

from support import BUILD, preload

pytestmark = pytest.mark.serial
# Two workers with a child each, which has left their process groups; in each round but the last one of them fails.
WORKER = "setsid sleep 1000 & [ $RANK = 0 ] && [ $CRUN_ROUND -le $ROUNDS ] && exit 3; [ $CRUN_ROUND -gt $ROUNDS ] || exec sleep 1000"


@contextlib.contextmanager
def others(n):
    """So many processes that have nothing to do with crun."""
    p = subprocess.Popen([BUILD / "tests" / "fault" / "sleepers", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if p.stdout.readline() != "ready\n":
            pytest.skip(f"this machine does not run {n} processes more")
        yield
    finally:
        p.stdin.close()
        p.wait(60)
        p.stdout.close()


def stops(crun, rounds, env=()):
    """What the stop of each round took, in ms, as crun tells it."""
    p = crun.start("--nproc_per_node", 2, "--max-restarts", rounds, "--restart-backoff", 0, "--cgroup", "off", "sh", "-c", WORKER,
                   extra_env={"ROUNDS": str(rounds), **dict(env)})
    err = p.communicate(timeout=120)[1].decode()
    assert p.returncode == 0, err
    found = [float(ms) for ms in re.findall(r", stop ([0-9.]+) ms,", err)]
    assert len(found) == rounds, err
    print(f"stops: {found} ms, {len(os.listdir('/proc'))} entries in /proc")
    return found


def test_a_stop_does_not_look_at_other_processes(crun):
    with others(4000):
        assert min(stops(crun, 5)) < 25, "ms; 2 to 5 are usual, 250 were when each process was compared with each"


def test_a_kernel_without_children_files_finds_them_all(crun):
    stops(crun, 2, preload("fault_proc"))
    assert crun.processes() == []


@pytest.mark.slow
def test_a_stop_among_twenty_thousand_processes(crun):
    with others(20000):
        assert min(stops(crun, 9)) < 60
