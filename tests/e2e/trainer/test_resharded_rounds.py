"""ZeRO with second owners where the number of ranks changes: parts go to other owners, no step is lost, no checkpoint is read."""
import json
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from metrics_file import loss_curve
from daemon import Daemon
from outlived_job import IMAGES, Job, check_no_step_is_lost, listens
from processes import WAIT, wait
from support import free_port
from tensors import newest

LAST = 24
ADAM = ["--optimizer", "adam", "--base-learning-rate", 0.001, "--ema", 0.9]
LARS = ["--optimizer", "lars", "--lars-eta", 0.05]
RULES = {"zero 0": ADAM, "zero 1": ADAM, "zero 2": [*LARS, "--accumulate", 2], "zero 3": [*ADAM, "--clip-grad-norm", 0.5]}
CUT = {name: ["--zero", name[-1], *([] if name[-1] == "0" else ["--replicate-state", 1]), *rule] for name, rule in RULES.items()}
TENSOR = ["--model-parallel-size", 2, "--model-parallel-dim", 1]
STAGES = ["--stages", 2, "--microbatches", 2]
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
    """A job of several crun, each of so many ranks; the first one is the host, unless a daemon is. The first of self.jobs has rank 0."""

    def __init__(self, data, path, layout, worlds, options=(), daemon=None, least=1, device="ref", last=LAST, env=lambda world: {}):
        self.data, self.path, self.port = data, path, daemon.port if daemon else free_port()
        self.options = [*FIXED, *CUT[layout], "--max-steps", last, "--log-dir", path / "logs", *options]
        self.device, self.last, self.env = device, last, env  # of a node of so many ranks
        self.crun = ["--nnodes", f"{least}:{len(worlds)}", "--rdzv_endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf", "join_timeout=60"]
        self.worlds, self.jobs, self.pids = worlds, [], []
        for k, world in enumerate(worlds):
            self.start(world)
            if k == 0:
                wait("the host", lambda: listens(self.port))
        if daemon:  # it orders nodes by their ids
            wait("rank 0", lambda: any("[default0]" in job.text() for job in self.jobs))
            self.jobs.sort(key=lambda job: "[default0]" not in job.text())
        self.first = self.jobs[0]
        if not daemon:
            self.first.at(f"{sum(worlds)} ranks, {len(worlds)} nodes")

    def start(self, world):
        run_id = self.jobs[0].run_id if self.jobs else None
        self.jobs.append(Job(self.data, self.path / "out", *self.options, crun=self.crun, world=world, device=self.device, run_id=run_id,
                             more=self.env(world)))
        return self.jobs[-1]

    def note(self):
        """Who is there, of the first node."""
        self.pids.append([self.first.pid(r) for r in range(self.worlds[0])])

    def end(self, *nodes):
        """They die, with all that runs on them."""
        for k in nodes:
            self.jobs[k].end_node()

    def finish(self, of=0):
        """-> what the node `of` has said, which is there until the end."""
        try:
            return self.jobs[of].finish()
        finally:
            for job in self.jobs:
                job.p.wait(timeout=60)
                job.reader.join(timeout=10)

    def check_end(self, expected, bound=BOUND):
        losses = loss_curve(self.path / "logs")
        assert len(losses) == len(expected) == self.last
        worst = np.max(np.abs(losses - expected) / np.abs(expected))
        print(f"largest relative difference of {self.last} losses {worst:.1e}")
        assert worst <= bound
        assert json.loads((newest(self.path / "out") / "manifest.json").read_text())["meta"]["updates"] == self.last

    def check(self, expected, recoveries, bound=BOUND):
        text = self.finish()
        check_no_step_is_lost(text, recoveries)
        self.check_end(expected, bound)
        assert all(pids == self.pids[0] for pids in self.pids), "ranks of the first node stayed"
        return text


SLOW = pytest.mark.slow


def at_random(most):
    """-> seconds up to `most`, of a seed that is said."""
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed).random() * most


@pytest.mark.parametrize("layout, worlds", [("zero 1", (2, 2)), ("zero 2", (3, 1)), ("zero 3", (2, 2)), pytest.param("zero 1", (3, 1), marks=SLOW),
                                            pytest.param("zero 2", (2, 2), marks=SLOW), pytest.param("zero 3", (3, 1), marks=SLOW)])
def test_a_node_that_is_lost_for_good(undisturbed, tmp_path, layout, worlds):
    """Four ranks become three, or two."""
    data, expected = undisturbed(layout)
    delay = at_random(0.1)
    nodes = Nodes(data, tmp_path, layout, worlds)
    nodes.first.from_step(9, lambda: (nodes.note(), time.sleep(delay), nodes.end(1)))
    nodes.first.at_step(LAST - 5, nodes.note)
    assert f"kept {worlds[0]} workers" in nodes.check(expected, 1)


@pytest.mark.parametrize("layout", ["zero 1", "zero 3"])
def test_the_node_of_rank_0_is_lost_for_good(undisturbed, tmp_path, layout):
    """Ranks 2 and 3 are ranks 0 and 1 then; their processes began with the old numbers."""
    data, expected = undisturbed(layout)
    delay = at_random(0.1)
    with Daemon() as daemon:
        nodes = Nodes(data, tmp_path, layout, (2, 2), daemon=daemon)
        pids = []
        nodes.first.from_step(9, lambda: (pids.append([nodes.jobs[1].pid(r) for r in (2, 3)]), time.sleep(delay), nodes.end(0)))
        nodes.jobs[1].at_recovery()
        nodes.jobs[1].at_step(LAST - 5, lambda: pids.append([nodes.jobs[1].pid(r) for r in (2, 3)]))
        text = nodes.finish(of=1)
    assert pids[0] == pids[1] and "resumed from" not in text
    nodes.check_end(expected)


@pytest.mark.parametrize("layout", ["zero 1", pytest.param("zero 2", marks=SLOW), "zero 3"])
def test_a_node_that_comes_back_is_given_parts_between_two_steps(undisturbed, tmp_path, layout):
    """Four ranks, then two, then four again."""
    data, expected = undisturbed(layout)
    nodes = Nodes(data, tmp_path, layout, (2, 2))
    nodes.first.at_step(5, lambda: (nodes.note(), nodes.end(1)))
    nodes.first.at_recovery(do=nodes.note)
    nodes.first.at_step(15, lambda: nodes.start(2))
    nodes.first.at_recovery("a node has come; the workers here stay, and go on with it")
    nodes.first.at_recovery(do=nodes.note)
    text = nodes.check(expected, 2)
    assert "restart 1/50" in text and "restart 2/" not in text, "no restart is used up by a node that comes"
    assert nodes.jobs[2].p.returncode == 0, nodes.jobs[2].text()


@pytest.mark.parametrize("layout", ["zero 1", pytest.param("zero 3", marks=SLOW)])
def test_another_node_takes_the_place_of_that_of_rank_0(undisturbed, tmp_path, layout):
    """As many ranks as before; those that stay may have other numbers."""
    data, expected = undisturbed(layout)
    with Daemon() as daemon:
        nodes = Nodes(data, tmp_path, layout, (2, 2), daemon=daemon, least=2)
        pids = []
        nodes.first.at_step(9, lambda: (pids.append([nodes.jobs[1].pid(r) for r in (2, 3)]), nodes.end(0), nodes.start(2)))
        nodes.jobs[1].at_recovery("kept 2 workers")
        text = nodes.finish(of=1)
        assert all(nodes.jobs[k].p.returncode == 0 for k in (1, 2)) and "resumed from" not in text + nodes.jobs[2].text()
        assert "goes on from step" in text + nodes.jobs[2].text()
    nodes.check_end(expected)


@pytest.mark.parametrize("layout", ["zero 1", pytest.param("zero 0", marks=SLOW), pytest.param("zero 3", marks=SLOW)])
def test_a_replica_of_two_whose_ranks_share_a_layer_is_lost(undisturbed, tmp_path, layout):
    data, expected = undisturbed(layout)
    nodes = Nodes(data, tmp_path, layout, (2, 2), TENSOR)
    nodes.first.at_step(9, lambda: (nodes.note(), nodes.end(1)))
    nodes.first.at_step(LAST - 5, nodes.note)
    assert "from the newest checkpoint: no two ranks have the same part of the last layer" in nodes.check(expected, 1)


@pytest.mark.parametrize("layout, delay", [("zero 1", 0.0), ("zero 3", 0.05), pytest.param("zero 1", 0.1, marks=SLOW), pytest.param("zero 2", 0.02, marks=SLOW),
                                           pytest.param("zero 3", 0.0, marks=SLOW), pytest.param("zero 3", 0.2, marks=SLOW)])
def test_a_rank_that_dies_while_parts_go_to_other_owners(undisturbed, tmp_path, layout, delay):
    """Of the old layout, or of the new one, all of the state is there, or all go back to a checkpoint: losses tell."""
    data, expected = undisturbed(layout)
    nodes = Nodes(data, tmp_path, layout, (3, 1), ["--checkpoint-every", 4])
    killed = threading.Event()

    def lose_a_rank(victim):
        wait("the next round", lambda: "restart 1/50" in nodes.first.text())
        time.sleep(delay)
        os.kill(victim, signal.SIGKILL)
        killed.set()

    def lose_a_node_and_a_rank():
        nodes.end(1)
        threading.Thread(target=lose_a_rank, args=[nodes.first.pid(1)]).start()

    nodes.first.at_step(9, lose_a_node_and_a_rank, saved=4)
    nodes.first.at_step(LAST - 5, lambda: killed.wait(WAIT))  # it does not end before
    text = nodes.finish()
    nodes.check_end(expected)
    assert "restart 2/50" in text, text
    assert "goes on from step" in text or "resumed from step" in text


def test_a_part_that_is_lost_with_both_owners_comes_from_the_checkpoint(undisturbed, tmp_path):
    """In the same process: rank 0 alone is left of four."""
    data, expected = undisturbed("zero 1")
    nodes = Nodes(data, tmp_path, "zero 1", (1, 3), ["--checkpoint-every", 5])
    nodes.first.at_step(12, lambda: (nodes.note(), nodes.end(1)), saved=5)
    nodes.first.at_step(LAST - 5, nodes.note)
    text = nodes.finish()
    assert nodes.pids[0] == nodes.pids[1], "rank 0 stayed"
    assert text.count("resumed from step") == 1 and "goes on from step" not in text
    assert "are lost together: all ranks go back to the newest checkpoint" in text
    nodes.check_end(expected)
