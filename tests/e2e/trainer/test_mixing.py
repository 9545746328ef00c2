"""Augmentation, mixup, CutMix, erasing and repetitions: functions of the sample and the step, whatever the ranks, parts and restarts."""
import json
import pathlib

import numpy as np
import pytest

from metrics_file import loss_curve
from support import CRUN, TRAINER, run
from tensors import newest
from test_exactness import kill_after_a_checkpoint

MIXED = ["--augment", "trivial", "--random-erase", 0.3, "--mixup", 0.2, "--cutmix", 1, "--mix-group", 7, "--repeated-augmentation", 3]
STEPS, BATCH, IMAGES = 6, 24, 60


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, IMAGES, 10) / "train"


def command(data, world, *args):
    program = [TRAINER] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world, "trainer"]
    return [*program, "--train-data", data, "--arch", "mlp", "--image-size", 28, "--batch-size", BATCH, "--device", "ref", "--sync-bn",
            "--base-learning-rate", 0.01, "--lr-policy", "fixed", "--label-smoothing", 0.1, "--num-epochs", 2, "--max-steps", STEPS, *MIXED, *args]


def train(data, world, *args, code=0):
    p = run(*command(data, world, *args))
    assert p.returncode == code, p.stdout + p.stderr
    return p


def shown(log):
    """{(epoch, step): [(sample, how it is mixed), ...] in the order of the step}"""
    steps = {}
    for line in sorted((json.loads(text) for text in pathlib.Path(log).read_text().splitlines()), key=lambda m: m["rank"]):
        assert len(line["ids"]) == len(line["mix"])
        steps.setdefault((line["epoch"], line["step"]), []).extend(zip(line["ids"], map(json.dumps, line["mix"])))
    return steps


def test_losses_do_not_depend_on_the_number_of_ranks(data, tmp_path):
    losses, rows = {}, {}
    for world in (1, 2, 3):
        train(data, world, "--checkpoint-dir", tmp_path / str(world), "--check-replicas", 1, "--debug-batch-sha", tmp_path / f"{world}.log")
        losses[world], rows[world] = loss_curve(tmp_path / str(world)), shown(tmp_path / f"{world}.log")
    assert len(losses[1]) == STEPS and len(rows[1]) == STEPS
    for world in (2, 3):
        assert rows[world] == rows[1]
        worst = np.max(np.abs(losses[world] - losses[1]) / np.abs(losses[1]))
        print(f"world {world}: largest relative difference of {STEPS} losses {worst:.2e}")
        assert worst <= 1e-9
    mixed = [json.loads(how) for step in rows[1].values() for _, how in step]
    assert any(m[1] > 0 and m[0] < 1 for m in mixed) and any(m[1] > 0 and m[0] == 1 for m in mixed) and any(any(m[5]) for m in mixed)


def test_parts_and_threads_mix_alike(data, tmp_path):
    train(data, 1, "--debug-batch-sha", tmp_path / "one", "--loader-threads", 1)
    train(data, 1, "--debug-batch-sha", tmp_path / "more", "--loader-threads", 4)
    assert (tmp_path / "one").read_text() == (tmp_path / "more").read_text()
    train(data, 2, "--debug-batch-sha", tmp_path / "parts", "--accumulate", 2)
    for at, step in shown(tmp_path / "parts").items():
        assert sorted(step) == sorted(shown(tmp_path / "one")[at])


def test_both_labels_of_a_mixed_picture_are_hits_of_the_binary_loss(data, tmp_path):
    curves = {}
    for name, world, args in (("one", 1, []), ("two", 2, []), ("classes", 2, ["--model-parallel-size", 2, "--model-parallel-dim", 1]),
                              ("cpu", 1, ["--device", "cpu"]), ("split", 2, ["--device", "cpu", "--model-parallel-size", 2, "--model-parallel-dim", 1])):
        train(data, world, "--loss", "bce", "--checkpoint-dir", tmp_path / name, *args)
        curves[name] = loss_curve(tmp_path / name)
    for name, bound in (("two", 1e-9), ("classes", 1e-9), ("cpu", 1e-3), ("split", 1e-3)):
        worst = np.max(np.abs(curves[name] / curves["one"] - 1))
        print(f"{name}: largest relative difference {worst:.2e}")
        assert worst <= bound, name


@pytest.mark.parametrize("args", [["--model-parallel-size", 2, "--model-parallel-dim", 1], ["--stages", 2, "--microbatches", 2]])
def test_the_last_layer_and_the_stages_take_two_labels(data, tmp_path, args):
    parts = ["--accumulate", 2] if "--stages" in args else []
    train(data, 1, "--checkpoint-dir", tmp_path / "one", *parts)
    train(data, 2, "--checkpoint-dir", tmp_path / "two", *args)
    worst = np.max(np.abs(loss_curve(tmp_path / "two") / loss_curve(tmp_path / "one") - 1))
    print(f"{' '.join(map(str, args))}: largest relative difference {worst:.2e}")
    assert worst <= 1e-9


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(data, tmp_path):
    train(data, 2, "--checkpoint-dir", tmp_path / "straight")
    train(data, 2, "--checkpoint-dir", tmp_path / "halved", "--max-steps", 2)  # in the middle of an epoch
    train(data, 2, "--checkpoint-dir", tmp_path / "halved", "--resume", "auto")
    one, other = newest(tmp_path / "straight"), newest(tmp_path / "halved")
    assert one.name == other.name
    for file in ("model.safetensors", "train.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_a_run_that_was_killed_goes_on_with_the_same_bits(data, tmp_path):
    """kill -9 of both ranks behind any checkpoint: batches of the whole run, losses and the last weights are those of a run that nobody killed."""
    long = ["--num-epochs", 12, "--max-steps", 30, "--checkpoint-every", 1]
    train(data, 2, "--checkpoint-dir", tmp_path / "whole", *long, "--debug-batch-sha", tmp_path / "whole.log")
    kill_after_a_checkpoint(command(data, 2, "--checkpoint-dir", tmp_path / "killed", *long, "--debug-batch-sha", tmp_path / "first.log"), tmp_path / "killed")
    begun = int(newest(tmp_path / "killed").name.split("-")[1])
    assert begun < 30
    train(data, 2, "--checkpoint-dir", tmp_path / "killed", *long, "--resume", "auto", "--debug-batch-sha", tmp_path / "second.log")
    assert list(shown(tmp_path / "second.log").items()) == list(shown(tmp_path / "whole.log").items())[begun:]
    assert np.array_equal(loss_curve(tmp_path / "whole"), loss_curve(tmp_path / "killed"))
    for file in ("model.safetensors", "train.safetensors"):
        assert (newest(tmp_path / "whole") / file).read_bytes() == (newest(tmp_path / "killed") / file).read_bytes(), file


def test_other_repetitions_in_the_middle_of_an_epoch_are_refused(data, tmp_path):
    train(data, 1, "--checkpoint-dir", tmp_path, "--max-steps", 2)
    p = train(data, 1, "--checkpoint-dir", tmp_path, "--resume", "auto", "--repeated-augmentation", 1, code=78)
    assert "--repeated-augmentation 3" in p.stderr and "change them at the end of an epoch" in p.stderr
    p = train(data, 1, "--checkpoint-dir", tmp_path, "--resume", "auto", "--mixup", 0.4, "--augment", "rand:m=5")
    assert "--mixup was 0.2 and is now 0.4" in p.stderr and "--augment was trivial and is now rand:n=2,m=5" in p.stderr


@pytest.mark.parametrize("args, text", [
    (["--sampler", "distributed"], "--mixup and --cutmix mix positions in a row: they need --sampler global"),
    (["--ignore-index", 3], "--ignore-index 3: an image of that class may be mixed with others"),
    (["--class-weights", "balanced"], "--class-weights: an image of two classes has no weight of one; leave --class-weights out"),
    (["--mixup", 0, "--cutmix", 0], "--mix-group 7: nothing is mixed without --mixup or --cutmix"),
    (["--crop-padding", 4], "--crop-padding 4: only --input cifar and plain put pixels around an image"),
    (["--augment", "autoaugment"], "expected none, trivial, rand, rand-timm, rand-big-vision or three, got 'autoaugment'"),
    (["--augment", "trivial:m=3"], "'m' is no part of trivial"),
    (["--color-jitter", "1,2"], "expected one number, or three: BRIGHTNESS,CONTRAST,SATURATION")])
def test_what_does_not_go_together_is_refused(data, args, text):
    assert text in train(data, 1, *args, code=2).stderr


def test_small_pictures_are_padded_and_mirrored_as_asked(shapes, tmp_path):
    """Of the set's own size: --crop-padding 0 and --no-hflip leave every picture as it is."""
    data = shapes(28, IMAGES, 10) / "train"
    def sha(name, *args):
        p = run(TRAINER, "--train-data", data, "--arch", "mlp", "--image-size", 28, "--batch-size", IMAGES, "--device", "ref", "--max-steps", 1,
                "--lr-policy", "fixed", "--base-learning-rate", 0.01, "--debug-batch-sha", tmp_path / name, *args)
        assert p.returncode == 0, p.stdout + p.stderr
        return json.loads((tmp_path / name).read_text())["sha256"]
    plain = sha("plain", "--input", "plain")
    assert sha("still", "--input", "cifar", "--crop-padding", 0, "--no-hflip") == plain
    assert len({plain, sha("flipped", "--input", "cifar", "--crop-padding", 0), sha("cifar", "--input", "cifar"), sha("padded", "--input", "plain", "--crop-padding", 2)}) == 4
