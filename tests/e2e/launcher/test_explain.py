"""`crun explain`: every exit code and every refusal has a row, and the page is made of them."""

import pathlib
import re
import subprocess

import pytest

from crun_run import CRUN, REPO

ROOMS = ["launcher/base", "launcher/config", "launcher/place", "launcher/output", "launcher/remote", "launcher/hang", "common/auth", "common/args"]
REFUSAL = re.compile(r'err_set\(\s*\w+,\s*(?:ERR_USAGE|ERR_OUTPUT|-ENOENT|-EACCES),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')


def explain(*words):
    p = subprocess.run([CRUN, "explain", *words], capture_output=True, text=True, timeout=30)
    return p.returncode, p.stdout + p.stderr


def refusals():
    for room in ROOMS:
        for path in sorted(pathlib.Path(REPO, room).rglob("*.c")):
            for m in REFUSAL.finditer(path.read_text()):
                text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', m[1])).replace('\\"', '"')
                yield f"{path.name}: {text}", re.sub(r"%%|%[-0-9.*]*(?:l|ll|z)?[a-zA-Z]", "7", text)


def test_every_exit_code_has_a_row():
    codes = re.findall(r"X\(EXIT_\w+, (\d+),", pathlib.Path(REPO, "common/job/exitcode.h").read_text())
    assert len(codes) > 10
    for code in codes:
        rc, out = explain(code)
        assert rc == 0 and out.startswith(f"{code}: ") and "remedy: " in out and "worker's own" not in out, out
    assert "SIGKILL" in explain("137")[1] and "SIGTERM" in explain("143")[1] and "worker's own" in explain("41")[1]


def test_every_refusal_has_a_row():
    found = dict(refusals())
    assert len(found) > 60
    assert not (missing := [name for name, text in found.items() if explain("crun: " + text)[0] != 0]), missing


@pytest.mark.parametrize("args, words", [
    (["./missing"], "write a path"), (["/etc"], "chmod"), (["--nnodes", "3:2", "true"], "after 'expected'"), (["--logs_specs", "x", "true"], "plug-ins"),
    (["-m", "--no-python", "x"], "leave one of them out"), (["x.py"], "the same on every node")])
def test_what_crun_says_can_be_pasted(crun, args, words):
    _, _, err = crun.run(*args)
    rc, out = explain(err.splitlines()[0])
    assert rc == 0 and words in out, (err, out)


def test_what_is_unknown_is_said():
    rc, out = explain("the moon is full")
    assert rc == 1 and "nothing is known of" in out
    assert explain()[0] == 2 and explain("--help")[0] == 0


def test_the_page_is_up_to_date():
    assert pathlib.Path(REPO, "docs/reference/messages.md").read_text() == explain("--messages-markdown")[1], "run ./dev docs"
