"""The files that hosts of repositories read call parts of .ci/run that exist."""
import pathlib
import re

import pytest
import yaml

from support import ROOT, run

FILES = [".github/workflows/ci.yml", ".github/workflows/ubuntu-24.04.yml", ".gitlab-ci.yml", ".github/workflows/release.yml"]
PARTS = re.findall(r"^#   (\w+)  ", (ROOT / ".ci/run").read_text(), re.M)


def texts(node):
    if isinstance(node, dict):
        node = list(node.values())
    return [t for part in node for t in texts(part)] if isinstance(node, list) else [str(node)]


def jobs(file):
    """{job: (image, texts of it)}; a matrix of GitHub's is spread out."""
    whole = yaml.safe_load((ROOT / file).read_text())
    if file.startswith(".gitlab"):
        default = whole["default"]["image"]
        return {name: (job.get("image", default), texts(job["script"])) for name, job in whole.items() if isinstance(job, dict) and "script" in job}
    found = {}
    for name, job in whole["jobs"].items():
        for values in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
            filled = [re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda m: str(values[m[1]]), t) for t in texts([job["container"], job["steps"]])]
            found[values.get("part", name)] = filled[0], filled
    return found


def test_three_jobs_run_the_three_parts():
    assert set(PARTS) == {"quick", "whole", "debian13"}
    for file in (".github/workflows/ci.yml", ".gitlab-ci.yml"):
        of = jobs(file)
        assert {n: image for n, (image, _) in of.items() if n in PARTS} == {"quick": "debian:12", "whole": "debian:12", "debian13": "debian:13"}, file
        for part in PARTS:
            assert f".ci/run {part}" in of[part][1], file


@pytest.mark.parametrize("file", FILES)
def test_what_is_called_exists(file):
    called = [t for _, said in jobs(file).values() for t in said if t.startswith(".ci/run")]
    assert called and all(t.split()[0] == ".ci/run" and t.split()[1] in PARTS for t in called), called
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


@pytest.mark.parametrize("file", [".github/workflows/release.yml", ".gitlab-ci.yml"])
def test_a_tag_is_released_by_dev_without_a_key(file):
    said = [line for t in jobs(file)["release"][1] for line in t.split(" && ") if line.startswith("./dev release")]
    assert said == ["./dev release --only source,wheel,deb dist"]
    kinds = said[0].split()[3].split(",")
    p = run(ROOT / "dev", "release", "--help")
    assert all(re.search(rf"\b{kind}\b", p.stdout) for kind in kinds)


@pytest.mark.parametrize("file", FILES[1:3])
def test_what_nobody_has_run_is_marked_so(file):
    text = (ROOT / file).read_text()
    assert "ubuntu:24.04" in text and "Not run by us" in text
    for page in "README.md", "CONTRIBUTING.md", "dev":
        assert "not run by us" in pathlib.Path(ROOT, page).read_text(), page
