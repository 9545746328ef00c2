"""./dev release: notes, sums, signatures and SBOMs of made-up artefacts; in the slow lane the source and the wheel, twice."""
import json
import os
import shutil
import subprocess
import sys

import pytest

from support import CRUN, LIBCRUN, ROOT, run

sys.path.insert(0, str(ROOT / "packaging"))
import release  # noqa: E402
import sbom  # noqa: E402

CHANGES = "# Changes\n\n## Unreleased\n\n- new\n\n## 0.2.0 (2026-01-01)\n\n- old\n"


def test_notes_are_the_part_of_that_version():
    assert release.notes(CHANGES, "0.2.0") == "# crun-launcher, what comes after 0.2.0\n\n- new\n"
    assert release.notes(CHANGES.replace("- new\n", ""), "0.2.0") == "# crun-launcher 0.2.0\n\n- old\n"
    with pytest.raises(release.Refused, match="has no part '## 0.3.0'"):
        release.notes("# Changes\n", "0.3.0")


def test_each_difference_is_named(tmp_path):
    for folder, files in {"a": {"same": "1", "other": "2", "alone": "3"}, "b": {"same": "1", "other": "x"}}.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert release.differences(tmp_path / "a", tmp_path / "b") == ["alone", "other"]


def test_sums_are_signed_with_an_ssh_key_and_verify(tmp_path):
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    out = tmp_path / "out"
    out.mkdir()
    (out / "artefact").write_text("made")
    release.sums(out)
    assert run("sha256sum", "--check", "SHA256SUMS", cwd=out).returncode == 0
    key = tmp_path / "key"
    assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).returncode == 0
    release.sign(out, str(key))
    (tmp_path / "allowed").write_text(f"maintainer {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-n", "crun-release", "-I", "maintainer", "-f", tmp_path / "allowed", "-s", out / "SHA256SUMS.sig"]
    assert run(*verify, stdin=open(out / "SHA256SUMS", "rb")).returncode == 0
    assert run(*verify, stdin=open(out / "artefact", "rb")).returncode != 0
    with pytest.raises(release.Refused, match="does not sign"):
        release.sign(out, "nobody's key")


def test_a_kind_that_is_not_there_is_refused():
    p = run(ROOT / "dev", "release", "--only", "rpm")
    assert p.returncode == 2 and "there is no rpm; there are source, wheel, deb" in p.stderr


@pytest.fixture
def deb(tmp_path, monkeypatch):
    """A package with crun and libcrun as they are built here."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "DEBIAN").mkdir()
    shutil.copy(CRUN, root / "usr/bin/crun")
    shutil.copy(LIBCRUN, root / "usr/bin/libcrun.so.0")
    owners = {sbom.owner(path) for path in sbom.loaded(CRUN).values() if path}
    machine = run("dpkg", "--print-architecture").stdout.strip()
    (root / "DEBIAN/control").write_text(f"Package: crun-launcher\nVersion: 1\nArchitecture: {machine}\nMaintainer: nobody <a@b.invalid>\n"
                                         f"Depends: {', '.join(sorted(owners))}\nDescription: a test\n")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert run("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, tmp_path / "crun-launcher_1.deb").returncode == 0
    return tmp_path / "crun-launcher_1.deb"


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not installed")
def test_an_sbom_names_what_ldd_loads_and_dpkg_owns(deb):
    path = sbom.write(deb)
    told = json.loads(path.read_text())
    names = {p["name"]: p for p in told["packages"]}
    assert {"crun-launcher", "libc6", "libuv", "uthash"} <= set(names) and told["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert names["uthash"]["versionInfo"] == sbom.dpkg_version("uthash-dev")
    assert [f["fileName"] for f in told["files"]] == ["./usr/bin/crun", "./usr/bin/libcrun.so.0"]
    assert sbom.check(deb) == []
    again = path.read_bytes()
    assert sbom.write(deb).read_bytes() == again
    told["packages"] = [p for p in told["packages"] if p["name"] != "libc6"]
    told["files"] = told["files"][:1]
    path.write_text(json.dumps(told))
    said = sbom.check(deb)
    assert any("libcrun.so.0 is not in its SBOM" in s for s in said) and any("of the package libc6, which its SBOM does not name" in s for s in said)


@pytest.mark.slow
@pytest.mark.serial
def test_source_and_wheel_are_made_twice_with_equal_bytes(tmp_path):
    if os.geteuid() != 0 or not shutil.which("faketime"):
        pytest.skip("needs root and faketime")
    if run("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no").stdout:
        pytest.skip("the tree differs from its commit")
    p = run(ROOT / "dev", "release", "--only", "source,wheel", tmp_path, timeout=3600)
    if "no network" in p.stderr or "No matching distribution found" in p.stderr:
        pytest.skip("no network: sources or the compiler cannot be downloaded")
    assert p.returncode == 0, p.stderr
    made, = tmp_path.iterdir()
    names = sorted(path.name.split("-")[0] for path in made.iterdir())
    assert names == ["NOTES.md", "SHA256SUMS", "crun", "crun", "crun_launcher", "crun_launcher"]
    check_with_spdx_tools(tmp_path, made)


def check_with_spdx_tools(tmp_path, made):
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", venv).returncode == 0
    p = run(venv / "bin/python", "-m", "pip", "install", "--quiet", "spdx-tools", timeout=600)
    if "No matching distribution found" in p.stderr:
        pytest.skip("no network: spdx-tools cannot be downloaded")
    for path in made.glob("*.spdx.json"):
        p = subprocess.run([venv / "bin/pyspdxtools", "-i", path], capture_output=True, text=True, check=False)
        assert p.returncode == 0, p.stdout + p.stderr
