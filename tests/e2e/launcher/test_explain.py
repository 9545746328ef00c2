"""`crun explain`: every exit code and every message of the three programs has a row, and the page is made of them."""

import fnmatch
import pathlib
import re
import subprocess

import pytest

from crun_run import CRUN, REPO
from messages import messages


def explain(*words):
    p = subprocess.run([CRUN, "explain", *words], capture_output=True, text=True, timeout=30)
    return p.returncode, p.stdout + p.stderr


def test_every_exit_code_has_a_row():
    codes = re.findall(r"X\(EXIT_\w+, (\d+),", pathlib.Path(REPO, "common/job/exitcode.h").read_text())
    assert len(codes) > 10
    for code in codes:
        rc, out = explain(code)
        assert rc == 0 and out.startswith(f"{code}: ") and "remedy: " in out and "worker's own" not in out, out
    assert "SIGKILL" in explain("137")[1] and "SIGTERM" in explain("143")[1] and "worker's own" in explain("41")[1]


def rows():
    """The patterns of the page, as `crun explain` uses them."""
    patterns = re.findall(r"^[- ] `(.*)`\\?$", explain("--messages-markdown")[1], re.M)
    return [re.compile(fnmatch.translate(f"*{p}*")) for p in patterns]


def test_every_message_of_the_programs_has_a_row():
    found, known = messages(), rows()
    assert len(found) > 1200 and len(known) > 600
    assert not (missing := [where for text, where in found.items() if not any(r.match(text) for r in known)]), missing


def test_a_message_without_a_row_would_be_seen():
    assert not any(r.match("the moon is full, expectedly") for r in rows())


@pytest.mark.parametrize("args, words", [
    (["./missing"], "write a path"), (["/etc"], "chmod"), (["--nnodes", "3:2", "true"], "after 'expected'"), (["--logs_specs", "x", "true"], "plug-ins"),
    (["-m", "--no-python", "x"], "leave one of them out"), (["x.py"], "the same on every node")])
def test_what_crun_says_can_be_pasted(crun, args, words):
    _, _, err = crun.run(*args)
    rc, out = explain(err.splitlines()[0])
    assert rc == 0 and words in out, (err, out)


def test_what_is_unknown_is_said():
    rc, out = explain("the moon is full")
    assert rc == 1 and "is not known" in out
    assert explain()[0] == 2 and explain("--help")[0] == 0


def test_the_page_is_up_to_date():
    assert pathlib.Path(REPO, "docs/reference/messages.md").read_text() == explain("--messages-markdown")[1], "run ./dev docs"
