"""Options that can be carried out and hardly are what was meant: a warning, once, that names the numbers."""
import re
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
    (("--lr-min", 0.01, "--lr-policy", "fixed"), ["--lr-min is of use with --lr-policy cosine and timm only: this run has --lr-policy fixed"]),
    (("--lr-step", 5, "--lr-gamma", 0.5, "--lr-policy", "multistep"), ["--lr-step is of use with --lr-policy step only: this run has --lr-policy multistep"]),
    (("--lr-power", 3, "--lr-warmup", "caffe2", "--warmup-start", 0.3, "--lr-policy", "apex"),
     ["--lr-power is of use with --lr-policy poly and inv only: this run has --lr-policy apex",
      "--lr-warmup is of use with a policy without its own warm-up only: this run has --lr-policy apex",
      "--warmup-start is of use with --lr-warmup caffe2 and constant only: this run has --lr-policy apex"]),
    (("--ema-every", 4), ["--ema-every is of use with --ema only: this run has no --ema"]),
    (("--warmup-start", 0.3), ["--warmup-start is of use with --lr-warmup caffe2 and constant only: this run has --lr-warmup linear"]),
    (("--beta2", 0.9, "--lars-eta", 0.1, "--optimizer", "lars"), ["--beta2 is of use with --optimizer adam, adamw and lamb only: this run has --optimizer lars"]),
    (("--adam-eps", 0.1, "--optimizer", "adamw", "--lr-policy", "inv", "--lr-gamma", 0.2, "--lr-power", 1, "--lr-warmup", "constant", "--warmup-start", 0.2), [])])
def test_options_of_another_policy_or_optimizer(data, args, words):
    told = warnings(data / "train", "--batch-size", 16, *args)
    assert len(told) == len(words) and all(w in line for w, line in zip(words, told)), told


def words(data, *args):
    p = run(TRAINER, "--train-data", data, "--batch-size", 32, "--device", "ref", "--amp", "off", *args)
    assert p.returncode == 0, p.stderr
    return p.stderr


def test_a_rate_ten_times_the_usual_is_told(shapes):
    data = shapes(28, 96, 30, 3) / "train"
    net = ["--arch", "convnet", "--max-steps", 1, "--max-loss", 0]
    high = "times what is usual with "
    assert f"the learning rate rises to 2, 20 {high}sgd, momentum 0.9 and batches of 32: is it meant?" in words(data, *net, "--lr", 2)
    assert f"the learning rate rises to 0.02, 20 {high}adam" in words(data, *net, "--optimizer", "adam", "--lr", 0.02)
    for usual in ["--lr", 0.9], ["--lr", 2, "--momentum", 0], ["--lr", 30, "--optimizer", "lars"], ["--lr", 0.1]:
        assert high not in words(data, *net, *usual)


def test_a_longer_run_tells_its_rates_and_a_finished_one_that_nothing_is_left(shapes, tmp_path):
    data = shapes(28, 96, 30, 3) / "train"
    args = [data, "--arch", "convnet", "--lr", 0.01, "--checkpoint-dir", tmp_path, "--resume", "auto", "--num-epochs"]
    assert "the rate goes" not in words(*args, 2)
    said = words(*args, 2)
    assert "nothing is left to do: the run ends at --num-epochs 2; more epochs would go on\n" in said and "the rate goes" not in said
    said = words(*args, 4)
    was, now, meant = map(float, re.search(r"the rate goes from ([\d.e-]+) to ([\d.e-]+): with today's options the last step's would have been ([\d.e-]+)\n", said).groups())
    assert was < 0.002 and 0.004 < now < meant < 0.01 and "nothing is left" not in said


def test_batch_statistics_of_few_values_are_told(shapes):
    data = shapes(28, 96, 30, 3) / "train"
    net = ["--arch", "resnet18", "--image-size", 32, "--max-steps", 1, "--lr", 0.01, "--procs", 2, "--batch-size"]
    few = "batch statistics in layer4."
    said = words(data, *net, 2)
    assert f"{few}0.bn1 are of 1 value a channel, so what it makes does not depend on its input: a larger batch, or --sync-bn, helps" in said, said
    assert f"{few}0.bn1 are of 2 values a channel: a larger batch helps" in words(data, *net, 2, "--sync-bn")
    assert few not in words(data, *net, 16)


def test_the_small_network_has_its_own_size(shapes):
    assert "28 x 28" in words(shapes(28, 96, 30, 3) / "train", "--arch", "convnet", "--max-steps", 1)


@pytest.mark.parametrize("names, odd", [(["0", "1", "10", "2"], "'10' is class 2"), (["00", "01", "02", "10"], "'10' is class 3"), (["0", "1", "2", "3"], None), (["a", "1", "10", "2"], None)], ids=str)
def test_classes_that_are_numbers_in_another_order(shapes, tmp_path, names, odd):
    """As ImageNetV2 has them: weights of others mean 2 by class 2."""
    kinds = sorted((shapes(28, 96, 30, 3) / "train").iterdir()) * 2
    for name, kind in zip(names, kinds):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / name).symlink_to(kind)
    command = [TRAINER, "--train-data", tmp_path / "d", "--arch", "convnet", "--batch-size", 16, "--device", "ref", "--max-steps", 1]
    assert "byte order" not in run(*command, "--checkpoint-dir", tmp_path / "ck").stderr
    for how in ([], ["--evaluate", "--test-data", tmp_path / "d"]):
        p = run(*command[:-2], *(how or command[-2:]), "--pretrained", tmp_path / "ck")
        assert p.returncode == 0 and (f"byte order of their names: {odd}, which" in p.stderr if odd else "byte order" not in p.stderr), p.stderr
