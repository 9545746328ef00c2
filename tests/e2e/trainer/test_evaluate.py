"""--evaluate and --resume PATH: what they print, what they refuse, and that they write nothing they should not."""
import json
import os
import re
import shutil

import pytest

from support import CRUN, TRAINER, run


def command(data, *args):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "resnet18", "--image-size", 32,
            "--batch-size", 32, "--device", "cpu", "--amp", "off", "--threads", 1, *args]


def accuracy(p):
    assert p.returncode == 0, p.stderr
    return re.search(r"\* Acc@1 .*", p.stdout).group()


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(32, 160, 41)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluate") / "ck"
    p = run(*command(data, "--num-epochs", 2, "--checkpoint-dir", out))
    assert p.returncode == 0, p.stderr
    return out, accuracy(p)


def listing(folder):
    return sorted((p.relative_to(folder), p.stat().st_mtime_ns) for p in folder.rglob("*"))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluate_prints_what_training_printed_whatever_the_world(data, trained, world):
    out, expected = trained
    before = listing(out)
    p = run(CRUN, "--standalone", "--nproc_per_node", world,
            *command(data, "--evaluate", "--checkpoint-dir", out, "--resume", "auto"))
    assert accuracy(p) == expected
    assert re.search(r"Test: loss \d\.\d{4} Acc@1 .* \(41 images\)", p.stderr), p.stderr
    assert listing(out) == before


def test_the_best_five_of_four_classes_are_all(shapes):
    p = run(*command(shapes(28, 64, 40, 4), "--arch", "mlp", "--num-epochs", 1, "--max-steps", 1))
    acc1, acc5 = re.search(r"\* Acc@1 (.*) Acc@5 (.*)", p.stdout).groups()
    assert float(acc1) < 100 and acc5 == "100.000", p.stdout


def test_a_result_that_cannot_be_written_is_no_success(data, trained, tmp_path):
    for args in (("--resume", trained[0], "--evaluate"), ("--arch", "mlp", "--num-epochs", 1, "--checkpoint-dir", tmp_path)):
        with open("/dev/full", "w") as full:
            p = run(*command(data, *args), stdout=full)
        assert p.returncode == 73 and "the result cannot be written to standard output" in p.stderr.splitlines()[-1], p.stderr
    assert (tmp_path / "latest").exists()  # all else was done
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert '"event":"end"' in metrics, metrics


def test_latest_and_best_are_taken_as_the_checkpoints_they_name(data, trained, tmp_path):
    out, expected = trained
    assert accuracy(run(*command(data, "-e", "--resume", out / "latest"))) == expected
    best = out / os.readlink(out / "best")
    by_name = accuracy(run(*command(data, "-e", "--resume", best)))
    assert accuracy(run(*command(data, "-e", "--resume", out / "best"))) == by_name
    assert accuracy(run(*command(data, "-e", "--pretrained", out / "best"))) == by_name
    test_alone = [w for w in command(data, "-e", "--pretrained", out / "best")]
    at = test_alone.index("--train-data")
    assert accuracy(run(*test_alone[:at], *test_alone[at + 2:])) == by_name  # the classes are those of the test set
    for stray in (tmp_path / "best", tmp_path / "latest"):
        stray.write_text("step-00000099\n")  # as older versions wrote them
        p = run(*command(data, "-e", "--resume", stray))
        assert p.returncode == 2 and "step-00000099 is not there" in p.stderr, p.stderr
    old = tmp_path / "old"
    shutil.copytree(out, old, symlinks=True)
    for name in ("best", "latest"):
        (old / name).unlink()
        (old / name).write_text(os.readlink(out / name) + "\n")
    assert accuracy(run(*command(data, "-e", "--resume", old / "best"))) == by_name


def test_evaluate_takes_a_folder_a_step_and_a_link_to_one(data, trained, tmp_path):
    out, expected = trained
    link = tmp_path / "model_2.mdl"
    link.symlink_to(out / "step-00000010")
    for path in (out, out / "step-00000010", link):
        assert accuracy(run(*command(data, "-e", "--resume", path))) == expected
    of_first = [json.loads(m) for m in (out / "metrics.jsonl").read_text().splitlines() if "test_acc1" in m][0]
    p = run(*command(data, "-e", "--resume", out / "step-00000005", "--seed", 3))
    assert accuracy(p).startswith(f"* Acc@1 {of_first['test_acc1']:.3f} ")


def test_evaluate_without_test_data_is_a_wrong_command_line(data):
    p = run(TRAINER, "--train-data", data / "train", "-e")
    assert p.returncode == 2 and "--evaluate needs --test-data" in p.stderr


def test_resume_from_a_path_that_is_not_there_ends_with_2(data, tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        p = run(CRUN, "--standalone", "--nproc_per_node", 2, *command(data, "--resume", path))
        assert p.returncode == 2
        assert f"no checkpoint found at '{path}'" in p.stderr


def test_resume_auto_in_an_empty_folder_starts_over(data, tmp_path):
    p = run(*command(data, "--num-epochs", 1, "--max-steps", 1, "--checkpoint-dir", tmp_path, "--resume", "auto"))
    assert p.returncode == 0 and "resumed" not in p.stderr


def test_a_run_resumed_from_a_path_goes_on_as_the_unbroken_one(data, trained, tmp_path):
    out, expected = trained
    p = run(*command(data, "--num-epochs", 2, "--resume", out / "step-00000005", "--checkpoint-dir", tmp_path))
    assert accuracy(p) == expected and "resumed from step 5" in p.stderr
    for name in ("model", "train"):
        file = f"step-00000010/{name}.safetensors"
        assert (tmp_path / file).read_bytes() == (out / file).read_bytes()


@pytest.mark.parametrize("size, batches, steps, place", [
    (200, (10, 20), 10, "step 5 of 10"),    # longer than the set of 160
    (200, (10, 16), 18, "step 11 of 12"),
    (40, (32, 10), 1, "step 4 of 4"),       # rounded down to one batch: that epoch is over
    (0, (32, 20), 3, "step 4 of 8"),
    (0, (50, 20), 4, "step 8 of 8"),        # the last batch was short
])
def test_another_batch_size_goes_on_at_the_same_place_of_the_epoch(data, tmp_path, size, batches, steps, place):
    def train(batch, *args):
        return run(*command(data, "--arch", "convnet", "--image-size", 28, "--device", "ref", "--epoch-size", size, "--batch-size",
                            batch, "--num-epochs", 2, "--checkpoint-dir", tmp_path, "--eval-every", 0, *args))
    assert train(batches[0], "--max-steps", steps).returncode == 0
    p = train(batches[1], "--max-steps", steps + 1, "--resume", "auto")
    assert p.returncode == 0, p.stderr
    assert f"resumed from step {steps} (epoch 1, {place})" in p.stderr, p.stderr


def test_an_older_step_of_the_same_folder_is_refused(data, trained):
    out, _ = trained
    p = run(*command(data, "--resume", out / "step-00000005", "--checkpoint-dir", out))
    assert p.returncode == 2 and "holds a newer checkpoint, of step 10" in p.stderr


def test_a_checkpoint_of_another_net_style_is_refused(data, trained, tmp_path):
    """The tensors are the same, and the numbers would be wrong without a word."""
    for more in (["-e"], ["--checkpoint-dir", tmp_path / "ck", "--num-epochs", 3]):
        p = run(*command(data, "--resume", trained[0], "--net-style", "caffe2", *more))
        assert p.returncode == 78 and "--net-style torch, this run of caffe2" in p.stderr, p.stderr


def test_a_damaged_checkpoint_named_by_its_path_is_refused_with_the_tensor(data, trained, tmp_path):
    shutil.copytree(trained[0] / "step-00000010", tmp_path / "step-00000010")
    file = tmp_path / "step-00000010" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1000] ^= 1
    file.write_bytes(raw)
    p = run(*command(data, "-e", "--resume", tmp_path / "step-00000010"))
    assert p.returncode == 65 and re.search(r"tensor '\S+' in .*model.safetensors is damaged", p.stderr), p.stderr
