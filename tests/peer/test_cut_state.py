"""crun.State of a model that is cut over ranks, FSDP2: in two groups that have the same, and in one with second owners. Ranks are killed, and losses and
weights stay those of a run that nobody disturbed. KILLS=N: N kills at random steps in a run instead of one."""
import os
import random
import re
import signal
import sys

import pytest
from cluster import Cluster
from processes import wait
from support import LIBCRUN, ROOT
from torch_rounds import BEGINS, Rounds, crun_for, steps_of

pytestmark = pytest.mark.timeout(900)  # each job imports PyTorch in four processes and more
EXAMPLE = ROOT / "docs" / "examples" / "fsdp_inprocess.py"
KILLS = int(os.environ.get("KILLS", "1"))
COPYING, PAUSE = 17, 30 + 40 * KILLS  # steps: a rank dies while that one is copied; all wait behind that one
STEPS = PAUSE + 20

# The example, with pieces of 4 KiB, and a checkpoint each 20 steps. Rank 1 ends itself in the copy of a step, behind the first piece.
JOB = """
import functools, os, signal, sys, time
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import fsdp_inprocess
import crun
from crun import _parts, _tensors

_, _, layout, steps, folder, spread, dies_at, pause = sys.argv
_tensors.PIECE = 4096
left = 1 << 30  # messages until it ends

def copying(*args, of=_parts.copying):
    global left
    left = 3 if (crun.info().round, crun.info().rank, args[5]) == (1, 1, int(dies_at)) else 1 << 30  # length, header, a piece
    return of(*args)

def exchange(*args, of=_parts._exchange):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    of(*args)

def batch(step, *more, of=fsdp_inprocess.batch):
    if step == int(pause):  # until the test says go
        with crun.phase("paused"):
            while not os.path.exists(os.path.join(folder, "go")):
                time.sleep(0.01)
    return of(step, *more)

crun.State = functools.partial(crun.State, spread=int(spread))
_parts.copying, _parts._exchange, fsdp_inprocess.batch, fsdp_inprocess.EVERY = copying, exchange, batch, 20
fsdp_inprocess.main(layout, int(steps), folder)
"""


def losses(text):
    """{(rank, step): losses that it had}"""
    found = {}
    for rank, step, loss in re.findall(r"^rank (\d): step (\d+): loss (\S+)$", text, re.M):
        found.setdefault((int(rank), int(step)), set()).add(loss)
    return found


class Job(Rounds):
    def __init__(self, tmp_path, layout, spread=1, dies_at=-1, pause=-1):
        script, self.folder, self.of = tmp_path / "job.py", tmp_path / "checkpoints", crun_for(tmp_path, sys.executable)
        script.write_text(JOB)
        self.folder.mkdir()
        super().__init__(self.of, "--max-restarts", KILLS + 9, script, EXAMPLE, layout, STEPS, self.folder, spread, dies_at, pause)

    def kill_at_random(self, rng, n):
        """In its round n -> {rank: pid} of the next one, and the steps that are done again"""
        pids, begin = self.in_round(n)
        victim, last = rng.choice(sorted(pids.values())), begin + rng.randrange(3, 30)
        wait("its steps", lambda: steps_of(victim) >= last, 300)
        reached = steps_of(victim)
        os.kill(victim, signal.SIGKILL)
        after, step = self.in_round(n + 1)
        assert len(set(after.values()) & set(pids.values())) == 3, "the others keep their processes"
        return after, reached - step


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(*args):
        jobs.append(Job(tmp_path, *args))
        return jobs[-1]
    yield begin
    for job in jobs:
        job.of.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    had = {}

    def of(layout):
        if layout not in had:
            job = Job(tmp_path_factory.mktemp(layout), layout)
            try:
                had[layout] = job.end()[0], losses(job.said())
            finally:
                job.of.close()
        return had[layout]
    return of


def assert_alike(job, weights, undisturbed):
    different = {at: loss for at, loss in losses(job.said()).items() if loss != undisturbed[1][at]}
    assert not different and {step for _, step in losses(job.said())} == set(range(1, STEPS + 1)), different
    assert weights == undisturbed[0]


@pytest.mark.parametrize("layout, owners", [("hsdp", (1, 3)), ("fsdp", (1, 2))], ids=["two groups", "second owners"])
def test_what_dies_with_a_rank_is_on_another_one_or_in_the_checkpoint(start, undisturbed, layout, owners):
    rng, job, n = random.Random(KILLS), start(layout, 1, COPYING if layout == "fsdp" else -1, PAUSE), 1
    if layout == "fsdp":
        pids, step = job.in_round(2)
        n = 2
        assert step == COPYING - 1, "a rank died while the step behind that one was copied"
    for n in range(n, n + KILLS):
        pids, again = job.kill_at_random(rng, n)
        assert again <= 1, "steps done again: what it had begun"
    wait("the steps before", lambda: all(steps_of(pid) == PAUSE for pid in pids.values()), 300)
    for rank in owners:
        os.kill(pids[rank], signal.SIGKILL)
    (job.folder / "go").touch()
    after, step = job.in_round(n + 2)
    weights, err = job.end()
    assert {r for r in pids if pids[r] == after[r]} == {0, 1, 2, 3} - set(owners), "the others keep their processes"
    assert step == PAUSE // 20 * 20 and re.search(rf"State: step {PAUSE} is not whole: nobody has the part of ranks? [\d, ]+: all go on from step {step}, of the ch", err), err
    assert (f"State: step {COPYING} is not whole: nobody has the part of rank 1: all go on from step {COPYING - 1}, which is" in err) == (layout == "fsdp"), err
    assert_alike(job, weights, undisturbed(layout))
    assert "hung" not in err and ("its second owner" in err) == (layout == "fsdp") and re.search(r"keeping [\d.]+ MB of each rank, twice.*: [\d.]+ ms", err), err
    print("to the first step, ms:", re.findall(r"first step (\d+) ms", err), re.findall("keeping.*", err))


def test_copies_that_are_spread_over_steps(start, undisturbed):
    rng, job = random.Random(KILLS), start("fsdp", 3)
    for n in range(1, KILLS + 1):
        _, again = job.kill_at_random(rng, n)
        assert again <= 6
    weights, err = job.end()
    assert "of the checkpoint" not in err and "after 3 steps each" in err, err
    assert_alike(job, weights, undisturbed("fsdp"))
    print("to the first step, ms:", re.findall(r"first step (\d+) ms", err), re.findall("keeping.*", err))


@pytest.mark.parametrize("layout, nodes", [("fsdp", "2"), ("hsdp", "1:2")], ids=["second owners are on the other node", "a group is less"])
def test_a_node_dies_with_all_its_ranks(tmp_path, undisturbed, layout, nodes):
    cluster, script, folder = Cluster(tmp_path), tmp_path / "job.py", tmp_path / "checkpoints"
    script.write_text(JOB)
    folder.mkdir()
    cluster.env |= {"LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}
    arguments = ["--nnodes", nodes, "--nproc-per-node", 2, "--rdzv-endpoint", cluster.daemon(), "--rdzv-id", "cut", "--max-restarts", 5, "--restart-backoff", 0,
                 "--hold-timeout", 120, "--rdzv-conf", "last_call_timeout=1", "--no-log-prefix"]

    def node():
        return cluster.node(*arguments, program=[script, EXAMPLE, layout, STEPS, folder, 1, -1, PAUSE])

    def begins(round_, ranks):
        """{pid} and the step, of that round"""
        text = "".join(n.text() for n in cluster.nodes)
        found = [(int(pid), int(step)) for _, pid, n, step in BEGINS.findall(text) if int(n) == round_]
        return ({pid for pid, _ in found}, found[0][1]) if len(found) == ranks else None
    stays, dies = node(), node()
    try:
        before, _ = wait("round 1", lambda: begins(1, 4), 300)
        wait("the steps before", lambda: all(steps_of(pid) == PAUSE for pid in before), 300)
        dies.kill_agent()
        comes = [node()] if layout == "fsdp" else []
        (folder / "go").touch()
        after, step = wait("round 2", lambda: begins(2, 4 if comes else 2), 300)
        assert step == PAUSE and len(after & before) == 2, "no step is lost, and who was there stays"
        for n in [stays, *comes]:
            assert n.wait(300) == 0, n.text()
        text = "".join(n.text() for n in cluster.nodes)
        assert "is not whole" not in text, text
        had = {at: loss for at, loss in losses(text).items() if layout == "fsdp" or at[1] <= PAUSE}
        assert not {at: loss for at, loss in had.items() if loss != undisturbed(layout)[1][at]}
        assert len(set(re.findall(rf"{STEPS} steps, weights (\w+)$", text, re.M))) == 1
    finally:
        cluster.close()


MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
import fsdp_inprocess
from crun import _parts
_parts.available = lambda: 1000
fsdp_inprocess.main("fsdp", 1, sys.argv[2])
"""


def test_a_node_without_the_memory_is_refused_with_the_number(tmp_path):
    crun, script = crun_for(tmp_path, sys.executable), tmp_path / "job.py"
    script.write_text(MEMORY)
    p = crun.start("--nproc-per-node", 1, "--max-restarts", 1, "--restart-backoff", 0, script, EXAMPLE.parent, tmp_path / "checkpoints")
    _, err = p.communicate(timeout=300)
    crun.close()
    assert p.returncode == 1 and re.search(r"crun.State: it needs [\d.]+ MB of CPU memory in each process for copies of [\d.]+ MB of state, "
                                           r"[\d.]+ MB more on this node: 0.0 MB are left", err.decode()), err.decode()
