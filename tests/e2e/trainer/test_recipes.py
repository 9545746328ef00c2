"""Recipes: whole in --print-config, the command line before them, each with a source and a result on the page that lists them."""
import pathlib
import re

import pytest

from support import TRAINER, run

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = {f.stem: f.read_text() for f in sorted((ROOT / "worker/config/recipes").glob("*.recipe"))}
PAGE = (ROOT / "docs/guide/recipes.md").read_text()


def config(*args):
    p = run(TRAINER, *args, "--train-data", "null", "--print-config")
    assert p.returncode == 0, p.stderr
    return {m[0]: (m[1], m[2]) for m in re.findall(r"^(\S+) = (.*?) +# (.*)$", p.stdout, re.M)}


def settings(text):
    return dict(re.findall(r"^(\S+) = (.*)$", text, re.M))


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_is_all_of_its_text_and_nothing_else(name):
    text, got, usual = FILES[name], config("--recipe", name), config()
    assert re.search(r"^# source: .*https://\S+", text, re.M) and re.search(r"^# published: \S", text, re.M)
    for option, value in settings(text).items():
        shown, where = got[option]
        assert where == f"recipe {name}", option
        assert shown == value or float(shown) == float(value), option
    assert {k: v for k, v in got.items() if k not in settings(text) and k != "recipe"} == {k: v for k, v in usual.items() if k not in settings(text) and k != "recipe"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_typed_goes_before_it(name):
    got = config("--recipe", name, "--batch-size", 77, "--lr", 0.5)
    assert got["batch-size"] == ("77", "command line") and got["base-learning-rate"] == ("0.5", "command line")
    assert got["num-epochs"] == (settings(FILES[name])["num-epochs"], f"recipe {name}") and got["recipe"] == (name, "command line")


def test_the_page_lists_them_all_with_what_was_published():
    rows = {m[0]: m[1] for m in re.findall(r"^\| `([\w-]+)` \|(.*)\|$", PAGE, re.M)}
    assert sorted(rows) == sorted(FILES)
    for name, text in FILES.items():
        figure = re.search(r"^# published: (?:no accuracy; )?([\d.]+)", text, re.M)[1]
        assert figure in rows[name], name


def test_a_recipe_trains(shapes, tmp_path):
    data = shapes(28, 48, 20)
    p = run(TRAINER, "--recipe", "torchvision-v1", "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
            "--batch-size", 16, "--num-epochs", 1, "--device", "ref", "--log-dir", tmp_path)
    assert p.returncode == 0, p.stderr


@pytest.mark.parametrize("program", ["caffe2", "imagenet", "mnist"])
def test_other_programs_options_have_none(program):
    p = run(TRAINER, program, "--recipe", "goyal")
    assert p.returncode == 2 and "unknown option '--recipe'" in p.stderr, p.stderr
