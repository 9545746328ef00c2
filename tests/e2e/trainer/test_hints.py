"""Options that can be carried out and hardly are what was meant: a warning, once, that names the numbers."""
import shutil

import pytest

from support import CRUN, TRAINER, run


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 40, 20, 2)


def warnings(folder, *args, world=1, code=0):
    program = [TRAINER] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world, "trainer"]
    p = run(*program, "--train-data", folder, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--device", "ref", "--max-steps", 1, *args)
    assert p.returncode == code, p.stderr
    return [line for line in p.stderr.splitlines() if (" warn " in line or code) and "will not be saved" not in line]


def test_what_is_usual_gives_no_warning(data):
    assert warnings(data / "train", "--batch-size", 16, "--test-data", data / "val", "--accumulate", 4) == []


def test_the_folder_above_the_parts_of_a_data_set(data, tmp_path):
    told = warnings(data, "--batch-size", 16)
    assert len(told) == 1 and f"--train-data {data}: its classes are 'train', 'val': is --train-data {data}/train meant?" in told[0], told
    shutil.copytree(data / "train", tmp_path / "train")
    told = warnings(tmp_path, "--batch-size", 16, code=65)
    assert f"--train-data {tmp_path} holds one class, 'train': is --train-data {tmp_path}/train meant?" in told[-1], told


def test_a_batch_larger_than_the_set(data):
    told = warnings(data / "train", "--batch-size", 100)
    assert len(told) == 1 and f"--batch-size 100: --train-data {data}/train has 40 pictures: a step takes 40, an epoch 1 steps" in told[0], told
    assert warnings(data / "train", "--batch-size", 100, "--epoch-size", 100) == []


@pytest.mark.parametrize("world, batch, asked, parts", [(1, 8, 32, 8), (2, 8, 8, 4), (2, 9, 6, 5)])
def test_fewer_parts_than_asked_for(data, world, batch, asked, parts):
    told = warnings(data / "train", "--batch-size", batch, "--accumulate", asked, world=world)
    assert len(told) == 1 and f"--accumulate {asked}: a batch of {batch} pictures over {world} ranks is cut into {parts} parts" in told[0], told


def test_random_weights_that_are_evaluated(data, tmp_path):
    evaluate = "--test-data", data / "val", "--evaluate"
    told = warnings(data / "train", *evaluate, "--checkpoint-dir", tmp_path)
    assert len(told) == 1 and "random weights are evaluated: no checkpoint was taken up (--resume), and no --pretrained is given" in told[0], told
    assert warnings(data / "train", "--batch-size", 16, "--checkpoint-dir", tmp_path) == []
    assert warnings(data / "train", *evaluate, "--checkpoint-dir", tmp_path, "--resume", "auto") == []
    assert warnings(data / "train", *evaluate, "--pretrained", next(tmp_path.glob("step-*/model.safetensors"))) == []


@pytest.mark.parametrize("args, words", [
    (("--lr-milestones", "3,5"), ["--lr-milestones is of use with --lr-policy multistep only: this run has --lr-policy cosine"]),
    (("--lr-min", 0.01, "--lr-policy", "fixed"), ["--lr-min is of use with --lr-policy cosine only: this run has --lr-policy fixed"]),
    (("--lr-step", 5, "--lr-gamma", 0.5, "--lr-policy", "multistep"), ["--lr-step is of use with --lr-policy step only: this run has --lr-policy multistep"]),
    (("--lr-power", 3, "--lr-warmup", "caffe2", "--warmup-start", 0.3, "--lr-policy", "apex"),
     ["--lr-power is of use with --lr-policy poly and inv only: this run has --lr-policy apex",
      "--lr-warmup is of use with a policy without its own warm-up only: this run has --lr-policy apex",
      "--warmup-start is of use with --lr-warmup caffe2 and constant only: this run has --lr-policy apex"]),
    (("--warmup-start", 0.3), ["--warmup-start is of use with --lr-warmup caffe2 and constant only: this run has --lr-warmup linear"]),
    (("--beta2", 0.9, "--lars-eta", 0.1, "--optimizer", "lars"), ["--beta2 is of use with --optimizer adam and adamw only: this run has --optimizer lars"]),
    (("--adam-eps", 0.1, "--optimizer", "adamw", "--lr-policy", "inv", "--lr-gamma", 0.2, "--lr-power", 1, "--lr-warmup", "constant", "--warmup-start", 0.2), [])])
def test_options_of_another_policy_or_optimizer(data, args, words):
    told = warnings(data / "train", "--batch-size", 16, *args)
    assert len(told) == len(words) and all(w in line for w, line in zip(words, told)), told
