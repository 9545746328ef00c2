"""A model in stages: --stages, --schedule, --microbatches, --recompute, as processes over Gloo."""
import json

import numpy as np
import pytest

from command_lines import trained
from metrics_file import loss_curve, records
from support import CRUN, TRAINER, run
from tensors import newest

FIXED = ["--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--base-learning-rate", 0.01, "--lr-policy", "fixed", "--crop-scale", "0.6,1",
         "--batch-size", 32, "--num-epochs", 3, "--max-steps", 8, "--num-labels", 11, "--threads", 1, "--loader-threads", 1]
FILES = "model.safetensors", "train.safetensors"


def train(world, data, *args, code=0, timeout=300, device="ref"):
    p = run(CRUN, "--standalone", "--nproc_per_node", world, "trainer", "--train-data", data / "train", "--device", device, *FIXED, *args, timeout=timeout)
    assert p.returncode == code, p.stdout + p.stderr
    return p


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 148, 20)


def same_files(a, b):
    return all((newest(a) / file).read_bytes() == (newest(b) / file).read_bytes() for file in FILES)


RESNET = ["--arch", "resnet18", "--image-size", 32]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """of(data, *network) -> where one process left its checkpoint and its log, the options of that run"""
    known = {}

    def of(data, *network):
        both = [*network, "--microbatches", 4, "--max-steps", 4, "--test-data", data / "val"]
        if network not in known:
            known[network] = tmp_path_factory.mktemp("whole")
            train(1, data, *both, "--checkpoint-dir", known[network] / "ck", "--log-dir", known[network] / "log", device="cpu")
        return known[network], both

    return of


# The last one: two pieces of the model on each of two stages.
ALONE = {"gpipe": (2, ["--schedule", "gpipe"]), "1f1b": (3, []), "recompute": (2, ["--recompute"]), "named": (4, ["--stage-cut", "layer1.1,layer2,layer4"]),
         "interleaved": (2, ["--schedule", "interleaved"])}
LARGE = "named", "interleaved"  # need a network of many layers


@pytest.mark.parametrize("stages, more, net", [pytest.param(*row, RESNET if name in LARGE else [], id=name) for name, row in ALONE.items()] + [
    pytest.param(*row, RESNET, id=f"{name}-resnet18", marks=pytest.mark.slow) for name, row in ALONE.items() if name not in LARGE])
def test_stages_alone_have_the_bits_of_one_process(data, whole, tmp_path, stages, more, net):
    one, both = whole(data, *net)
    p = train(stages, data, *both, "--stages", stages, *more, "--checkpoint-dir", tmp_path / "many", "--log-dir", tmp_path / "many.log", device="cpu")
    assert f"pipeline: {stages} stages of 1 rank, 4 micro-batches" in p.stderr + p.stdout
    assert same_files(one / "ck", tmp_path / "many")
    one, many = records(one / "log"), records(tmp_path / "many.log")
    for name in "loss", "test_loss", "test_acc1", "parameters":
        assert [r[name] for r in one if name in r] == [r[name] for r in many if name in r] != []


# data x tensor x stages, ZeRO, clipping, averages; with seven ranks one is spare
@pytest.mark.parametrize("world, more", [
    (4, ["--stages", 2]), (6, ["--stages", 3, "--zero", 2, "--optimizer", "adam", "--adam-eps", 0.01, "--clip-grad-norm", 0.5]),
    (7, ["--arch", "mlp", "--stages", 3, "--model-parallel-size", 2, "--model-parallel-dim", "1", "--zero", 1, "--optimizer", "lars", "--ema", 0.9]),
    (4, ["--stages", 2, "--schedule", "interleaved", "--zero", 2, "--recompute"]), (4, ["--stages", 2, "--zero", 3])],
    ids=["2 x 2", "zero 2", "tensor", "interleaved", "zero 3"])
def test_losses_are_those_of_one_rank(data, tmp_path, world, more):
    both = ["--microbatches", 4, "--test-data", data / "val"]
    both += [a for i, a in enumerate(more) if {"--arch", "--optimizer", "--adam-eps", "--clip-grad-norm", "--ema"} & {a, more[i - 1]}]
    train(1, data, *both, "--log-dir", tmp_path / "one")
    train(world, data, *both, *more, "--sync-bn", "--check-replicas", 1, "--log-dir", tmp_path / "many")
    one, many = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "many")
    assert len(one) == len(many) == 8
    worst = np.max(np.abs(one - many) / np.abs(one))
    print(f"{world} ranks, {more}: largest relative difference of 8 losses {worst:.2e}")
    assert worst <= 1e-9
    tests = [[(r["test_loss"], r["test_acc1"], r["test_acc5"]) for r in records(tmp_path / which) if "test_loss" in r] for which in ("one", "many")]
    assert tests[0] and np.allclose(*tests, rtol=1e-9)


TENSOR = ["--model-parallel-size", 2, "--model-parallel-dim", "1"]
FEATURES = ["--model-parallel-size", 2, "--model-parallel-dim", "0"]
CHAIN = [(1, []), (2, ["--stages", 2]), (4, ["--stages", 2, "--zero", 1]), (3, ["--stages", 3, "--schedule", "gpipe"]), (4, ["--stages", 2, *TENSOR]), (2, ["--zero", 1]),
         (4, ["--stages", 4]), (6, ["--stages", 3, "--zero", 2]), (2, ["--stages", 2, "--schedule", "interleaved", "--recompute"]),
         (5, ["--stages", 2, *TENSOR, "--zero", 1]), (2, TENSOR), (4, ["--stages", 2, "--zero", 3]), (3, ["--model-parallel-size", 3, "--model-parallel-dim", "1"]),
         (4, [*FEATURES, "--zero", 2]), (5, ["--zero", 3]), (4, [*TENSOR, "--zero", 3]), (4, ["--stages", 2, "--schedule", "interleaved", "--zero", 3]),
         (8, ["--stages", 2, *TENSOR, "--zero", 3]), (5, ["--stages", 2, *FEATURES, "--zero", 1]), (6, ["--stages", 3, "--zero", 3, "--recompute"])]


@pytest.mark.parametrize("chain", [CHAIN[1::2], pytest.param(CHAIN, marks=pytest.mark.slow)], ids=["every other", "all"])
def test_checkpoints_go_from_layout_to_layout(data, tmp_path, chain):
    """Taken up and saved without a step: the same bytes over all layouts. Trained on from there: the same run."""
    adam = ["--arch", "mlp", "--optimizer", "adam", "--ema", 0.9, "--microbatches", 2]
    train(4, data, *adam, "--stages", 2, "--checkpoint-dir", tmp_path / "0", "--max-steps", 3, "--checkpoint-sync")
    for i, (world, layout) in enumerate(chain):
        how = ["--checkpoint-sync"] if i % 3 == 0 else []
        train(world, data, *adam, *layout, *how, "--resume", tmp_path / str(i), "--checkpoint-dir", tmp_path / str(i + 1), "--max-steps", 3)
        assert same_files(tmp_path / str(i + 1), tmp_path / "0"), layout
    train(1, data, *adam, "--log-dir", tmp_path / "alone")
    train(4, data, *adam, *CHAIN[2][1], "--resume", tmp_path / str(len(chain)), "--checkpoint-dir", tmp_path / "end", "--log-dir", tmp_path / "on")
    assert np.max(np.abs(loss_curve(tmp_path / "on") / loss_curve(tmp_path / "alone")[3:] - 1)) <= 1e-9


def test_a_checkpoint_is_evaluated_in_stages(data, tmp_path):
    train(1, data, "--checkpoint-dir", tmp_path / "c", "--max-steps", 2)
    line = ["--evaluate", "--resume", tmp_path / "c", "--test-data", data / "train", "--batch-size", 8]
    say = [[text for text in train(world, data, *line, *more).stderr.splitlines() if "Test: loss" in text][-1].split("Test: ")[1]
           for world, more in ((1, []), (2, ["--stages", 2]), (4, ["--stages", 2, "--schedule", "interleaved", "--microbatches", 2]))]
    assert say[0] == say[1] == say[2] and "(148 images)" in say[0]


@pytest.mark.parametrize("args, says", [
    (["--stages", 3], "2 ranks cannot hold a model over 3 stages of tensor groups of 1: that takes at least 3"),
    (["--stages", 2, "--stage-cut", "layer9"], "--stage-cut: convnet has no layer 'layer9' (possible: layer1.1, "),
    (["--stages", 2, "--stage-cut", "layer1.1,fc"], "2 parts take 1 names"),
    (["--stages", 2, "--schedule", "interleaved", "--microbatches", 3], "--schedule interleaved with 3 micro-batches: expected a multiple of the 2 stages"),
    (["--stages", 2, "--stage-chunks", 2], "2 chunks a stage: only --schedule interleaved takes more than 1"),
    (["--stages", 2, "--schedule", "interleaved", "--microbatches", 2, "--stage-chunks", 8], "convnet has places for"),
    (["--recompute"], "--recompute: the model is in one piece; --stages N cuts it"),
    (["--schedule", "gpipe"], "--schedule gpipe: the model is in one piece")])
def test_what_cannot_be_is_refused(data, tmp_path, args, says, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in (p := train(2, data, *args, code=2)).stdout + p.stderr


def plan(*args):
    p = run(TRAINER, "plan", "--train-data", "null", "--null-images", 96, "--num-labels", 1000, "--arch", "resnet18", "--image-size", 64, "--batch-size", 32,
            "--device", "cpu", "--threads", 1, *args, timeout=120)
    assert p.returncode == 0, p.stderr
    return p.stdout


def test_a_plan_says_what_each_stage_holds_and_sends():
    line = ["--world-size", 4, "--stages", 2, "--microbatches", 8]
    ranks = json.loads(plan(*line, "--json"))["ranks"]
    assert [r["stage"] for r in ranks] == [0, 0, 1, 1]
    whole = json.loads(plan("--json"))["ranks"][0]["memory"]["parameters"]
    assert abs(ranks[0]["memory"]["parameters"] + ranks[2]["memory"]["parameters"] - whole) < 4096
    back, labels = ranks[2]["sends"]["stages"], 8 * 2 * 12  # micro-batches x samples x (label, weight, number)
    assert ranks[0]["sends"]["stages"] == back + labels and back > 0
    kept = {name: json.loads(plan(*line, *more, "--json"))["ranks"][0]["memory"]["activations"]
            for name, more in {"gpipe": ["--schedule", "gpipe"], "1f1b": [], "recompute": ["--recompute"]}.items()}
    assert kept["gpipe"] > 2 * kept["1f1b"] and kept["1f1b"] > kept["recompute"], kept  # eight sets of activations, two, one
    text = plan(*line)
    assert "2 data x 1 tensor x 2 stages" in text and "stage groups: 0 2; 1 3" in text and "stage 0: input to " in text and "other stages" in text


def test_caffe2s_model_parallel_is_two_stages(data, tmp_path):
    p = trained(tmp_path, f"caffe2 --train_data {data}/train --num_gpus 2 --model_parallel --batch_size 32 --arch convnet --image_size 28 --num-channels 1 --input plain "
                          "--num_epochs 1 --max-steps 2 --loader-threads 1 --use_cpu")
    assert "pipeline: 2 stages of 2 ranks, 1 micro-batches" in p.stderr_text and "up to 16 per rank (2 ranks" in p.stderr_text


@pytest.mark.long
def test_a_run_in_stages_stops_in_good_order_and_goes_on(data, tmp_path):
    line = ["--stages", 2, "--microbatches", 4, "--checkpoint-dir", tmp_path / "c", "--max-steps", 8]
    train(4, data, *line, "--max-time", 0.001, code=75)
    train(4, data, *line, "--resume", "auto", "--log-dir", tmp_path / "on")
    train(4, data, *line[:-4], "--max-steps", 8, "--checkpoint-dir", tmp_path / "whole")
    assert same_files(tmp_path / "c", tmp_path / "whole")


def test_a_timeline_shows_passes_in_their_order(data, tmp_path):
    train(2, data, "--stages", 2, "--microbatches", 3, "--timeline", tmp_path / "t.json", "--timeline-steps", "2,1", "--max-steps", 3)
    events = [e for e in json.loads((tmp_path / "t.json").read_text()) if e.get("cat") == "pipeline"]
    passes = {rank: [e["name"] for e in sorted(events, key=lambda e: e["ts"]) if e["pid"] == rank and not e["name"].startswith("wait")] for rank in (0, 1)}
    assert passes[0] == ["forward 0", "forward 1", "backward 0", "forward 2", "backward 1", "backward 2"]
    assert passes[1] == ["forward 0", "backward 0", "forward 1", "backward 1", "forward 2", "backward 2"]
