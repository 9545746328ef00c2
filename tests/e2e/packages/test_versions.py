"""meson.build has the version, and everything else agrees with it; CHANGELOG.md names the versions of what programs of different releases share."""
import json
import re
import subprocess

import pytest

from support import BUILD, CRUN, LIBCRUN, RENDEZVOUSD, ROOT, TRAINER, run

VERSION = re.search(r"^  version: '(\d+\.\d+\.\d+)',$", (ROOT / "meson.build").read_text(), re.M)[1]
CHANGES = (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("program", [CRUN, RENDEZVOUSD, TRAINER], ids=lambda p: p.name)
def test_programs(program):
    assert run(program, "--version").stdout == f"{program.name} {VERSION}\n"


def test_what_is_built_for_others():
    """Packages, wheel and image are named by the first of these; C programs read the second; test_module.py has Python's."""
    assert json.loads((BUILD / "meson-info" / "intro-projectinfo.json").read_text())["version"] == VERSION
    assert f"\nVersion: {VERSION}\n" in next(BUILD.glob("meson-*/crun.pc")).read_text()
    for example in ("jobset", "jobset-lease", "rendezvousd", "trainingruntime"):
        assert f"image: crun-launcher:{VERSION}\n" in (ROOT / f"docs/examples/{example}.yaml").read_text()


def test_the_newest_of_the_changes_is_this_one():
    assert re.findall(r"^## (\d+\.\d+\.\d+)", CHANGES, re.M)[0] == VERSION


def test_a_tag_on_this_commit_is_of_this_version():
    p = subprocess.run(["git", "-C", ROOT, "-c", f"safe.directory={ROOT}", "tag", "--points-at", "HEAD"], capture_output=True, text=True, check=False)
    tags = [t for t in p.stdout.split() if re.fullmatch(r"v\d.*", t)]
    assert tags in ([], [f"v{VERSION}"])
    if tags:
        assert CHANGES.split("\n## ")[1].startswith(VERSION)  # and not "Unreleased"


@pytest.mark.parametrize("what, row, header, name", [
    ("page", "the page that crun shares with each worker", "common/crun/crun_page.h", "CRUN_PAGE_VERSION"),
    ("protocol", r"the requests of a rendezvous \(`RDZV\.\*`", "common/rdzv/wire/rdzv_wire.h", "RDZV_PROTOCOL"),
    ("log", "the log of a rendezvous", "common/rdzv/leader/leader.h", "LEADER_FORMAT")])
def test_versions_of_what_is_shared(what, row, header, name):
    told = re.search(rf"^\| {row}[^|]*\| (\d+) \|", CHANGES, re.M)[1]
    assert re.search(rf"#define {name} (\d+)u?\b", (ROOT / header).read_text())[1] == told


def test_the_soname():
    said = run("readelf", "-dW", LIBCRUN).stdout
    soname = re.search(r"\(SONAME\).*\[(.*)\]", said)[1]
    assert f"`{soname}`" in CHANGES and soname == "libcrun.so.0"
