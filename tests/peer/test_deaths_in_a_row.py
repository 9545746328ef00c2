"""crun.inprocess with PyTorch: a second rank dies while the next round forms, and the others go on with the state that they have."""
import os
import re
import signal
import sys

import pytest

from processes import wait
from torch_rounds import INPROCESS, Rounds, crun_for, steps_of

STEPS = 400

# The example; the process that takes a dead rank's place stops at one of the places where the others wait for it.
FORMING = """
import functools, os, sys, time
example, folder, place, steps = sys.argv[1:]
sys.path.insert(0, os.path.dirname(example))
import ddp_inprocess
import crun
from torch.distributed import distributed_c10d as c10d

def stopping(name, function):
    @functools.wraps(function)
    def stops(*args, **kwargs):
        me = crun.info()
        if (name, me.round, me.rank) == (place, 2, 1):
            with open(os.path.join(folder, "stopped"), "w") as f:
                f.write(f"{os.getpid()}\\n")
            time.sleep(600)
        return function(*args, **kwargs)
    return stops

def telling(c10d, made=crun._reconnect._round_store):
    store = made(c10d)
    tell = type(store).set
    def set_(self, *args):  # where this rank listens: the others may connect from here on
        tell(self, *args)
        stopping("connect", lambda: None)()
    type(store).set = set_
    return store

def batch(step, *more, of=ddp_inprocess.batch):
    if step == 20:  # until the test has killed a rank
        with crun.phase("paused"):
            while not os.path.exists(os.path.join(folder, "go")):
                time.sleep(0.01)
    return of(step, *more)

ddp_inprocess.batch = batch
crun._reconnect._round_store = telling
c10d._new_process_group_helper = stopping("init_process_group", c10d._new_process_group_helper)
crun._state._take = stopping("restore", crun._state._take)
ddp_inprocess.DistributedDataParallel = stopping("DDP", ddp_inprocess.DistributedDataParallel)
ddp_inprocess.main(int(steps))
"""


@pytest.fixture
def crun(tmp_path):
    c = crun_for(tmp_path, sys.executable)
    yield c
    c.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    c = crun_for(tmp_path_factory.mktemp("undisturbed"), sys.executable)
    weights, _ = Rounds(c, INPROCESS, STEPS, ranks=3).end()
    c.close()
    return weights


@pytest.mark.parametrize("place", ["init_process_group", "connect", "restore", "DDP"])
def test_a_second_death_while_the_next_round_forms_loses_no_state(crun, tmp_path, undisturbed, place):
    script, stopped = tmp_path / "job.py", tmp_path / "stopped"
    script.write_text(FORMING)
    job = Rounds(crun, script, INPROCESS, tmp_path, place, STEPS, ranks=3)
    before, _ = job.in_round(1)
    wait("the steps before", lambda: steps_of(before[0]) == steps_of(before[2]) == 20)
    os.kill(before[1], signal.SIGKILL)
    (tmp_path / "go").touch()
    os.kill(int(wait("the second victim", lambda: stopped.exists() and re.match(r"(\d+)\n", stopped.read_text()), 240)[1]), signal.SIGKILL)
    after, step = job.in_round(3)
    assert (after[0], after[2]) == (before[0], before[2]) and step == 20, "the survivors keep processes and state"
    weights, err = job.end()
    assert weights == undisturbed and "hung" not in err and "is lost" not in err, err
