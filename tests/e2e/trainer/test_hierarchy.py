"""--allreduce hierarchical: sums inside of each node, between the nodes, and inside again. Several cruns are the nodes."""
import subprocess

import numpy as np
import pytest

from metrics_file import loss_curve, records
from support import CRUN, free_port, run
from tensors import load, newest

NET = ["trainer", "--train-data", "null", "--null-images", 72, "--num-labels", 11, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device", "ref", "--batch-size", 12, "--sync-bn",
       "--threads", 1, "--loader-threads", 1, "--max-steps", 5, "--num-epochs", 9, "--base-learning-rate", 0.01, "--lr-policy", "fixed"]


def one_node(ranks, folder, *args):
    p = run(CRUN, "--standalone", "--nproc_per_node", ranks, *NET, "--checkpoint-dir", folder, *args, timeout=300)
    assert p.returncode == 0, p.stdout + p.stderr


def nodes(sizes, folder, *args, seeds=None, works=True):
    """A crun for each size, all nodes of one job; what they print."""
    where = ["--nnodes", len(sizes), "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1", "--rdzv-id", folder.name]
    started = [subprocess.Popen([str(a) for a in [CRUN, *where, "--nproc_per_node", n, *NET, "--checkpoint-dir", folder, "--check-replicas", 1, "--seed", seed, *args]],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for n, seed in zip(sizes, seeds or [0] * len(sizes))]
    texts = [p.communicate(timeout=300)[0] for p in started]
    assert all((p.returncode == 0) == works for p in started), texts
    return "".join(texts)


def tensors(folder):
    return load(newest(folder) / "model.safetensors")


def close(a, b):
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys() and loss_curve(a) == pytest.approx(loss_curve(b), abs=1e-9)
    return max(np.abs(one[k] - two[k]).max() for k in one) <= 1e-9


CLASSES = ["--model-parallel-size", 2, "--model-parallel-dim", 1]


# Uneven nodes have as many parts as the smaller one has ranks; with one rank on a node nobody else has a part.
@pytest.mark.parametrize("sizes, more", [((2, 2), []), ((3, 2), ["--accumulate", 2]), ((3, 1), []), ((2, 2), [*CLASSES]), ((2, 2), ["--zero", 2, "--optimizer", "adam", "--adam-eps", 0.01]),
                                         ((2, 2), ["--stages", 2, "--microbatches", 3, "--clip-grad-norm", 0.5]), ((2, 2, 2), ["--bucket-mb", 1])],
                         ids=["2 + 2", "3 + 2, parts", "3 + 1", "classes", "zero 2", "stages", "2 + 2 + 2"])
def test_sums_by_node_are_those_of_one_process(tmp_path, sizes, more):
    """Within what another order of adding doubles changes."""
    both = [a for i, a in enumerate(more) if {"--accumulate", "--microbatches", "--optimizer", "--adam-eps", "--clip-grad-norm"} & {a, more[i - 1]}]
    one_node(1, tmp_path / "one", *both)
    nodes(sizes, tmp_path / "many", "--allreduce", "hierarchical", *more)
    assert close(tmp_path / "one", tmp_path / "many")


def sent(text_of):
    """What each rank was planned to send in a step, and what it sent."""
    event = [r["ranks"] for r in records(text_of) if r.get("event") == "mem-report"][-1]
    return [(r["sends"]["sum"], r["sent"]) for r in event]


@pytest.mark.parametrize("network", [["--arch", "mlp"], pytest.param(["--arch", "resnet18", "--image-size", 32], marks=pytest.mark.slow)], ids=["mlp", "resnet18"])
def test_bytes_are_as_planned_and_fewer_cross_than_in_one_ring(tmp_path, network):
    large = [*network, "--device", "cpu", "--no-sync-bn", "--mem-report", "--max-steps", 3]
    for name, more in ("flat", []), ("hierarchical", ["--allreduce", "hierarchical"]):
        nodes((2, 2), tmp_path / name, *large, *more)
        for planned, really in sent(tmp_path / name):
            assert planned * 0.999 <= really <= planned * 1.02
    # Either way a rank sends 1.5 times the gradients. In the ring all of that goes over the link between the nodes, from
    # one rank to the next; by node half of it goes to the other node's rank, and that of both ranks of a node together is
    # as much as one copy of the gradients.
    flat, by_node = (sent(tmp_path / name) for name in ("flat", "hierarchical"))
    assert [p for p, _ in by_node] == pytest.approx([p for p, _ in flat], rel=0.01)


def test_a_replica_that_differs_is_found(tmp_path):
    """A node of another seed begins with other weights."""
    text = nodes((2, 2), tmp_path / "many", "--allreduce", "hierarchical", seeds=[1, 2], works=False)
    assert "replicas differ: parameters of rank 2 are not those of rank 0" in text
