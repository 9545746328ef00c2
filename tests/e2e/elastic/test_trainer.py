"""The trainer on two nodes, over each home; and resized in mid-run."""
import json
import re

import numpy as np
import pytest

from cluster import wait
from support import TRAINER
from test_homes import HOMES, clusters, where  # noqa: F401

TRAIN = ["--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device", "ref", "--batch-size", 64, "--lr-policy", "fixed",
         "--base-learning-rate", 0.01, "--crop-scale", "0.6,1", "--sync-bn", "--threads", 1]


def losses(folder):
    """By step: a restart repeats the steps since the last checkpoint."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = {m["step"]: m["loss"] for m in lines if "lr" in m}
    return np.array([steps[s] for s in sorted(steps)])


def program(data, out, steps, *more):
    return [TRAINER, *TRAIN, "--train-data", data / "train", "--num-epochs", 1000, "--max-steps", steps, "--checkpoint-dir", out, *more]


def column(folder, name):
    """As it is written, for each step."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [re.search(rf'"{name}":([^,}}]+)', line)[1] for line in lines if '"lr"' in line]


def test_losses_are_the_same_to_the_byte_over_every_home(clusters, shapes):  # noqa: F811
    data, steps = shapes(28, 148, 20), 6
    columns = {}
    for home, cluster in clusters.items():
        args = where(cluster, home)
        out = cluster.tmp / "trained"
        nodes = [cluster.node("--nnodes", 2, "--node-rank", r, *args, program=program(data, out, steps)) for r in (0, 1)]
        for n in nodes:
            assert n.wait(240) == 0, n.text()
        columns[home] = column(out, "step"), column(out, "loss")
    expected = columns[HOMES[0]]
    assert expected[0] == [str(s) for s in range(1, steps + 1)] and len(set(expected[1])) == steps, expected
    assert all(c == expected for c in columns.values()), columns


def test_ranks_meet_where_no_route_leads_out(cluster, net):
    """Hosts of a network of their own, as many clusters are: there is no default route to tell a host's address by."""
    where = ["--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{net.hosts[0].addr}:29400", "--rdzv_id", "job"]
    nodes = [cluster.node(*where, "--local-addr", host.addr, program=[TRAINER, "comm-test", "--call", "all_reduce", "-e", 64], prefix=host.prefix()) for host in net.hosts[:2]]
    for n in nodes:
        assert n.wait(120) == 0, n.text()


alone = {}


@pytest.fixture
def one_node(cluster, shapes, tmp_path):
    """Losses of 20 steps on one node."""
    data = shapes(28, 148, 20)
    if not alone:
        n = cluster.node("--standalone", program=program(data, tmp_path / "one", 20))
        assert n.wait(120) == 0, n.text()
        alone["losses"] = losses(tmp_path / "one")
    assert len(alone["losses"]) == 20
    return data, alone["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("home", HOMES)
def test_two_nodes_train_as_one(cluster, one_node, tmp_path, home):
    data, expected = one_node
    args = where(cluster, home)
    nodes = [cluster.node("--nnodes", 2, "--node-rank", r, *args, program=program(data, tmp_path / "two", 20)) for r in (0, 1)]
    for n in nodes:
        assert n.wait(240) == 0, n.text()
    worst = np.max(np.abs(losses(tmp_path / "two") - expected) / expected)
    print(f"{home}: largest relative difference of 20 losses {worst:.1e}")
    assert worst <= 1e-10


@pytest.mark.slow
def test_a_resized_job_trains_on(cluster, shapes, tmp_path):
    """1 -> 2 -> 1 nodes: no restart is used up, no step is lost, the losses are those of one node."""
    data, steps = shapes(28, 148, 20), 120
    ref = cluster.node("--standalone", program=program(data, tmp_path / "one", steps))
    assert ref.wait(240) == 0, ref.text()
    size = ["--nnodes", "1:2", "--rdzv_endpoint", cluster.daemon(), "--rdzv_id", "job", "--rdzv_conf", "last_call_timeout=100ms"]
    out = tmp_path / "elastic"

    def reached(step):
        try:
            return len(losses(out)) >= step
        except (OSError, json.JSONDecodeError):
            return False

    first = cluster.node(*size, program=program(data, out, steps))
    wait("10 steps", lambda: reached(10))
    second = cluster.node(*size, program=program(data, out, steps))
    wait("the second round", lambda: "goes on from step" in first.text())
    done = len(losses(out))
    wait("more steps", lambda: reached(min(done + 10, steps)))
    second.terminate()
    assert second.wait(60) == 75, second.text()
    assert first.wait(240) == 0, first.text()
    got, expected = losses(out), losses(tmp_path / "one")
    assert len(got) == len(expected) == steps
    worst = np.max(np.abs(got - expected) / expected)
    print(f"resized twice: largest relative difference of {steps} losses {worst:.1e}")
    assert worst <= 1e-9


def weights(folder):
    return max(folder.glob("step-*")).joinpath("model.safetensors").read_bytes()


@pytest.mark.serial
@pytest.mark.parametrize("noticed", [0, 1], ids=["the node of rank 0", "the other node"])
def test_a_notice_of_five_seconds_leads_to_a_checkpoint_that_is_gone_on_from(cluster, shapes, tmp_path, noticed):
    """Both nodes stop after the same step and exit with 75; started again, they end with the bytes of a run that nothing disturbed."""
    data, endless = shapes(28, 148, 20), 1000000
    size = ["--nnodes", 2, "--rdzv_endpoint", cluster.daemon(), "--drain-timeout", "5s"]

    def start(out, run_id, steps, *more):
        return [cluster.node(*size, "--rdzv_id", run_id, "--node-rank", r, *(["--preemption-file", tmp_path / f"notice-{r}"] if more else []),
                             program=program(data, out, steps, "--resume", "auto", "--warmup-epochs", 0)) for r in (0, 1)]

    def train(out, run_id, steps):
        for n in (nodes := start(out, run_id, steps)):
            assert n.wait(240) == 0, n.text()
        return "".join(n.text() for n in nodes)

    out = tmp_path / "preempted"
    nodes = start(out, "first", endless, "noticed")
    wait("5 steps", lambda: (out / "metrics.jsonl").exists() and len(column(out, "loss")) >= 5)
    (tmp_path / f"notice-{noticed}").touch()
    assert [n.wait(60) for n in nodes] == [75, 75], [n.text() for n in nodes]
    assert "a preemption notice; start it again" in nodes[noticed].text()
    step = int(max(out.glob("step-*")).name[5:])
    assert f"resumed from step {step} " in train(out, "second", step + 4)
    train(tmp_path / "whole", "whole", step + 4)
    assert weights(out) == weights(tmp_path / "whole")
