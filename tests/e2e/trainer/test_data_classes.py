"""Which class a label means: of folders and of data bases, whose classes are not always all of training's, nor in its order."""
import json
import pathlib
import shutil
import tempfile

import pytest

from support import TRAINER, run


def make_db(src, dst, *args):
    p = run(TRAINER, "make-db", "--src", src, "--dst", dst, *args)
    assert p.returncode == 0, p.stderr
    return dst


@pytest.fixture(scope="module")
def pictures(shapes):
    return shapes(32, 100, 200)


@pytest.fixture(scope="module")
def some(pictures, tmp_path_factory):
    """A test set of three of the ten classes."""
    out = tmp_path_factory.mktemp("some") / "val"
    for kind in sorted((pictures / "val").iterdir())[3:9:2]:
        shutil.copytree(kind, out / kind.name)
    return out


def losses_of(train, test, images=60):
    """Of the test set after each of two epochs of a network whose answers differ from class to class by then."""
    with tempfile.TemporaryDirectory() as out:
        p = run(TRAINER, "--train-data", train, "--test-data", test, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--threads", 1,
                "--batch-size", 50, "--num-epochs", 2, "--input", "plain", "--log-dir", out)
        assert p.returncode == 0 and "left out" not in p.stderr, p.stderr
        lines = [json.loads(line) for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]
    found = [m["test_loss"] for m in lines if "test_loss" in m]
    assert len(found) == 2 and all(m["test_images"] == images for m in lines if "test_images" in m), lines
    return found


@pytest.mark.parametrize("kind", ["lmdb", "leveldb"])
def test_a_test_data_base_of_some_classes_has_trainings_labels(pictures, some, tmp_path, kind):
    db = make_db(some, tmp_path / "db", "--db-type", kind)
    assert losses_of(pictures / "train", db) == losses_of(pictures / "train", some)


def test_a_class_that_training_lacks_is_refused_in_a_data_base_too(pictures, some, tmp_path):
    db = make_db(pictures / "val", tmp_path / "db")
    p = run(TRAINER, "--train-data", some, "--test-data", db, "--arch", "mlp", "--max-steps", 1)
    lacking = sorted(d.name for d in (pictures / "val").iterdir())[0]
    assert p.returncode == 65 and f"'{db}' has a class '{lacking}' that the training data lacks" in p.stderr, p.stderr


def test_a_test_folder_finds_its_classes_among_training_records_in_any_order(pictures, some, tmp_path):
    """classes.txt is in the order of the labels, whatever that is: turned round, each picture is of another class, in training and in the test."""
    names = sorted(d.name for d in (pictures / "train").iterdir())
    db = make_db(pictures / "train", tmp_path / "db")
    expected = losses_of(db, some)
    (db / "classes.txt").write_text("".join(f"{name}\n" for name in names[::-1]))
    for name in (d.name for d in some.iterdir()):
        (tmp_path / "turned").mkdir(exist_ok=True)
        (tmp_path / "turned" / names[::-1][names.index(name)]).symlink_to(some / name)
    assert losses_of(db, tmp_path / "turned") == pytest.approx(expected, rel=1e-6)


def test_training_records_without_names_take_test_records_by_number(pictures, tmp_path):
    train, test = make_db(pictures / "train", tmp_path / "train"), make_db(pictures / "val", tmp_path / "val")
    (train / "classes.txt").unlink()
    p = run(TRAINER, "--train-data", train, "--test-data", test, "--num-labels", 10, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--max-steps", 1)
    assert p.returncode == 0 and "left out" not in p.stderr, p.stderr


def test_test_records_made_of_ones_without_names_are_taken_by_number(pictures, tmp_path):
    """make-db writes numbers for names then. Where training knows such a name, they are names all the same."""
    nameless = make_db(pictures / "val", tmp_path / "nameless")
    (nameless / "classes.txt").unlink()
    test = make_db(nameless, tmp_path / "test", "--num-labels", 10)
    assert (test / "classes.txt").read_text().split() == [str(i) for i in range(10)]
    assert losses_of(pictures / "train", test, images=200) == losses_of(pictures / "train", pictures / "val", images=200)
    train = make_db(pictures / "train", tmp_path / "train")
    (train / "classes.txt").write_text("".join(f"{i}\n" for i in range(1, 11)))
    p = run(TRAINER, "--train-data", train, "--test-data", test, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--max-steps", 1)
    assert p.returncode == 65 and f"'{test}' has a class '0' that the training data lacks" in p.stderr, p.stderr


def test_numbers_beyond_trainings_classes_are_left_out(pictures, some, tmp_path):
    nameless = make_db(pictures / "val", tmp_path / "nameless")
    (nameless / "classes.txt").unlink()
    test = make_db(nameless, tmp_path / "test", "--num-labels", 10)
    p = run(TRAINER, "--train-data", some, "--test-data", test, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--max-steps", 1)
    assert p.returncode == 0 and "of a set of 3 classes" in p.stderr, p.stderr


def test_empty_lines_name_no_class(pictures, tmp_path):
    db = make_db(pictures / "val", tmp_path / "db")
    names = (db / "classes.txt").read_text()
    (db / "classes.txt").write_text(names + "\n\n")
    args = TRAINER, "--train-data", db, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--max-steps", 1
    p = run(*args)
    assert p.returncode == 0 and " 10 classes" in p.stdout + p.stderr, p.stdout + p.stderr
    (db / "classes.txt").write_text(names.replace("\n", "\n\n", 1))
    p = run(*args)
    assert p.returncode == 65 and f"line 2 of '{db}/classes.txt' is empty" in p.stderr, p.stderr


def test_a_class_name_that_is_no_line_is_refused_by_make_db(some, tmp_path):
    shutil.copytree(some, tmp_path / "set")
    (tmp_path / "set" / "two\nlines").mkdir()
    shutil.copy(next(some.glob("*/*.jpg")), tmp_path / "set" / "two\nlines")
    p = run(TRAINER, "make-db", "--src", tmp_path / "set", "--dst", tmp_path / "db")
    assert p.returncode == 65 and "a line break in its name, behind 'two'" in p.stderr, p.stderr
    assert not (tmp_path / "db").exists()
