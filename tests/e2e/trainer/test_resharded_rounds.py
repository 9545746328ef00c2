"""ZeRO with second owners where the number of ranks changes: parts go to other owners, no step is lost, no checkpoint is read."""
import json
import os
import random
import signal
import time

import numpy as np
import pytest

from metrics_file import loss_curve
from outlived_job import IMAGES, Job, check_no_step_is_lost, listens
from processes import children, wait
from support import free_port
from tensors import newest

LAST = 40
ADAM = ["--optimizer", "adam", "--base-learning-rate", 0.001, "--ema", 0.9]
LARS = ["--optimizer", "lars", "--lars-eta", 0.05]
RULES = {"zero 1": ADAM, "zero 2": [*LARS, "--accumulate", 2], "zero 3": [*ADAM, "--clip-grad-norm", 0.5]}
CUT = {name: ["--zero", name[-1], "--replicate-state", 1, *rule] for name, rule in RULES.items()}
FIXED = ["--sync-bn", "--max-steps", LAST]
BOUND = 1e-9  # of losses, in fp64: other sums of the same samples


@pytest.fixture(scope="module")
def undisturbed(shapes, tmp_path_factory):
    """-> data, and the losses of one rank that nothing disturbs, by layout"""
    known, data = {}, shapes(28, IMAGES, 20)

    def of(layout):
        if layout not in known:
            path = tmp_path_factory.mktemp("undisturbed")
            Job(data, path / "out", *FIXED, *RULES[layout], "--log-dir", path / "logs", world=1, device="ref").finish()
            known[layout] = loss_curve(path / "logs")
        return data, known[layout]

    return of


class Nodes:
    """A job of several crun, the first of which is the host; they are one another's only by the rendezvous."""

    def __init__(self, data, path, layout, worlds, least=1, options=()):
        self.data, self.path, self.port = data, path, free_port()
        self.options = [*FIXED, *CUT[layout], "--log-dir", path / "logs", *options]
        self.crun = ["--nnodes", f"{least}:{len(worlds)}", "--rdzv_endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf", "last_call_timeout=1,join_timeout=60"]
        self.worlds, self.jobs, self.pids = worlds, [], []
        self.first = self.start(worlds[0])
        wait("the host", lambda: listens(self.port))
        for world in worlds[1:]:
            self.start(world)
        self.first.plan.append((lambda line: f"{sum(worlds)} ranks, {len(worlds)} nodes" in line, lambda: None))

    def start(self, world):
        run_id = self.jobs[0].run_id if self.jobs else None
        self.jobs.append(Job(self.data, self.path / "out", *self.options, crun=self.crun, world=world, device="ref", run_id=run_id))
        return self.jobs[-1]

    def note(self):
        """Who is there, of the first node."""
        self.pids.append([self.first.pid(r) for r in range(self.worlds[0])])

    def end(self, k):
        """A node dies, with all that runs on it."""
        os.kill(children(self.jobs[k].p.pid)[0], signal.SIGKILL)

    def finish(self):
        try:
            return self.first.finish()
        finally:
            for job in self.jobs[1:]:
                job.p.wait(timeout=60)
                job.reader.join(timeout=10)

    def check(self, expected, recoveries):
        text = self.finish()
        check_no_step_is_lost(text, recoveries)
        losses = loss_curve(self.path / "logs")
        assert len(losses) == len(expected) == LAST
        worst = np.max(np.abs(losses - expected) / np.abs(expected))
        print(f"largest relative difference of {LAST} losses {worst:.1e}")
        assert worst <= BOUND
        assert json.loads((newest(self.path / "out") / "manifest.json").read_text())["meta"]["updates"] == LAST
        assert all(pids == self.pids[0] for pids in self.pids), "ranks of the first node stayed"
        return text


SLOW = pytest.mark.slow


@pytest.mark.parametrize("layout, worlds", [("zero 1", (2, 2)), ("zero 2", (3, 1)), ("zero 3", (2, 2)), pytest.param("zero 1", (3, 1), marks=SLOW),
                                            pytest.param("zero 2", (2, 2), marks=SLOW), pytest.param("zero 3", (3, 1), marks=SLOW)])
def test_a_node_that_is_lost_for_good(undisturbed, tmp_path, layout, worlds):
    """Four ranks become three, or two."""
    data, expected = undisturbed(layout)
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    delay = random.Random(seed).random() * 0.1
    nodes = Nodes(data, tmp_path, layout, worlds)
    nodes.first.at_step(9, lambda: (nodes.note(), time.sleep(delay), nodes.end(1)))
    nodes.first.at_step(LAST - 5, nodes.note)
    text = nodes.check(expected, 1)
    assert f"kept {worlds[0]} workers" in text
