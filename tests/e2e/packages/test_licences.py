"""Licences by REUSE's rules (https://reuse.software): REUSE.toml speaks for every file; those that leave the tree on their own have a line of their own."""
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from support import BUILD, CRUN, LIBCRUN, RENDEZVOUSD, ROOT, TRAINER, run

sys.path.insert(0, str(ROOT / "packaging"))
import deb  # noqa: E402

LINE = "SPDX-License-" + "Identifier: "  # in two parts: reuse reads this file, too
ALONE = ("common/include/crun.h", "python/crun/", "docs/examples/")  # copied into others' programs, or installed


def files():
    said = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    return [name for name in said.stdout.decode().split("\0") if name]


def of_every_file():
    table, = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    assert table["path"] == "**" and table["SPDX-FileCopyrightText"]
    return table["SPDX-License-Identifier"]


def test_one_licence_is_told_everywhere():
    licence = of_every_file()
    assert [p.name for p in (ROOT / "LICENSES").iterdir()] == [f"{licence}.txt"]
    assert (ROOT / "LICENSES" / f"{licence}.txt").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for name, pattern in (("meson.build", r"^  license: '(.*)',$"), ("packaging/deb.py", r"License: (\S+)\\n On Debian"), ("packaging/wheel.py", r"^License-Expression: (\S+)")):
        assert re.search(pattern, (ROOT / name).read_text(), re.M)[1] == licence, name


def test_what_leaves_the_tree_has_a_line_of_its_own():
    alone = [name for name in files() if name.startswith(ALONE) and pathlib.Path(name).suffix not in (".md", ".json", ".typed")]
    assert len(alone) > 30
    for name in alone:
        head = (ROOT / name).read_text().splitlines()[:2]
        assert [line for line in head if line.strip("/*# ") == LINE + of_every_file()], f"{name}: expected '{LINE}{of_every_file()}' in its first two lines"


def test_no_file_says_another_one():
    for name in files():
        path = ROOT / name
        if path.is_file() and path != pathlib.Path(__file__):
            said = set(re.findall(rb"SPDX-License-Ident[i]fier:[ \t]*([^\s*]+)", path.read_bytes()))
            assert said <= {of_every_file().encode()}, name


MADE_OF = {"crun-launcher": CRUN, "rendezvousd": RENDEZVOUSD, "crun-trainer": TRAINER, "libcrun0": LIBCRUN.resolve()}


@pytest.mark.parametrize("package, program", [(package, str(path.relative_to(BUILD))) for package, path in MADE_OF.items() if path != TRAINER or path.exists()])
def test_a_package_holds_the_licences_of_headers_that_are_code(package, program):
    """Of all objects that the program may be linked from."""
    objects = {line for line in run("ninja", "-C", BUILD, "-t", "inputs", program).stdout.splitlines() if line.endswith(".o")}
    assert objects
    owners = {"uthash.h": "uthash-dev", "utlist.h": "uthash-dev", "Random123": "librandom123-dev"}
    inside = set()
    for entry in run("ninja", "-C", BUILD, "-t", "deps").stdout.split("\n\n"):
        if entry.split(":", 1)[0].strip() in objects:
            inside |= {owners[name] for name in re.findall(r"/usr/include/([^/\s]+)", entry) if name in owners}
    assert inside == set(deb.INSIDE.get(package, [])) - {"libuv1-dev", "libhiredis-dev"}


@pytest.mark.slow
def test_reuse_finds_nothing(tmp_path):
    if run(sys.executable, "-m", "venv", tmp_path / "venv").returncode != 0:
        pytest.skip("no venv module that works")
    p = run(tmp_path / "venv/bin/python", "-m", "pip", "install", "--quiet", "reuse", timeout=600)
    if "No matching distribution found" in p.stderr:
        pytest.skip("no network: reuse cannot be downloaded")
    assert p.returncode == 0, p.stderr
    p = run(tmp_path / "venv/bin/reuse", "--root", ROOT, "lint", timeout=600)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
