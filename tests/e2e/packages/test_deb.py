"""Debian's packages: made twice from two folders, installed into a fresh Debian of this release, beside the container runtime crun, purged."""
import os
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

from support import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.serial]
NAMES = {"crun-launcher", "rendezvousd", "libcrun0", "libcrun-dev", "crun-trainer", "python3-crun-launcher"}
CUDA = "crun-trainer-cuda"  # where nvcc and cuDNN are; nvcc writes other bytes in another folder


def copy_of_the_tree(folder):
    """What git has here, and what it would take."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["xargs", "-0", "cp", "--parents", "-t", folder], input=names, cwd=ROOT, check=True)
    return folder


def made(tree, out):
    p = subprocess.run([tree / "dev", "deb", out], env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "CRUN_GPU_ARCHS": "90"}, capture_output=True, text=True, timeout=3600, check=False)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    has_module = (tree / "build-deb" / "worker" / "device" / "cuda" / "trainer-cuda.so").exists()
    assert bool(list(out.glob(f"{CUDA}_*.deb"))) == has_module and (f"{CUDA} is left out: " in p.stderr) != has_module
    return contents(out)


def contents(out):
    return {path.name: path.read_bytes() for path in out.glob("*.deb") if not path.name.startswith(CUDA)}


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    if not shutil.which("dpkg-buildflags"):
        pytest.skip("no dpkg-dev")
    out = tmp_path_factory.mktemp("debs")
    made(ROOT, out)
    return out


def test_another_folder_makes_the_same_bytes(debs, tmp_path):
    again = made(copy_of_the_tree(tmp_path / "elsewhere"), tmp_path / "again")
    assert contents(debs) == again


def test_fields_name_what_is_linked_and_what_is_opened(debs):
    fields = {}
    for path in debs.glob("*.deb"):
        text = run("dpkg-deb", "--field", path).stdout
        fields[path.name.split("_")[0]] = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line[0] != " ")
    assert set(fields) - {CUDA} == NAMES
    for name in ("crun-launcher", "rendezvousd"):
        assert "libc6 (>= " in fields[name]["Depends"] and "libssl3" in fields[name]["Depends"] and "libmicrohttpd12" in fields[name]["Recommends"]
    assert "libhwloc15" in fields["crun-launcher"]["Recommends"] and "libdnnl" in fields["crun-trainer"]["Depends"]
    assert fields["libcrun-dev"]["Depends"] == f"libcrun0 (= {fields['libcrun0']['Version']})"
    if CUDA in fields:
        assert f"crun-trainer (= {fields[CUDA]['Version']})" in fields[CUDA]["Depends"] and "libc6 (>= " in fields[CUDA]["Depends"]
        names = r"cuda-cudart-(\d+)-\d, libcublas-\1-\d, libcudnn9-cuda-\1(, libnccl2)?, cuda-drivers \| nvidia-driver"
        assert re.fullmatch(names, ", ".join(sorted(fields[CUDA]["Suggests"].split(", "), key=lambda n: ("driver" in n, n)))), fields[CUDA]["Suggests"]
    owned = "".join(run("dpkg-deb", "--contents", path).stdout for path in debs.glob("*.deb"))
    for theirs in ("./usr/bin/crun\n", "man1/crun.1.gz", "libcrun.a", "./usr/share/doc/crun/"):
        assert theirs not in owned


@pytest.fixture
def fresh(tmp_path):
    """The root of a Debian of this release with nothing in it."""
    if os.geteuid() != 0 or not shutil.which("debootstrap") or platform.freedesktop_os_release()["ID"] != "debian":
        pytest.skip("needs root, debootstrap and Debian")
    root = tmp_path / "root"
    p = run("debootstrap", "--variant=minbase", platform.freedesktop_os_release()["VERSION_CODENAME"], root, timeout=1800)
    if p.returncode != 0:
        pytest.skip(f"debootstrap reaches no mirror here: {p.stdout[-300:]}")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    yield root
    shutil.rmtree(root)


def test_installed_used_and_purged_in_a_fresh_debian(debs, fresh):
    (fresh / "debs").mkdir()
    for path in debs.glob("*.deb"):
        shutil.copy(path, fresh / "debs")
    shutil.copy(pathlib.Path(__file__).with_name("in_root.sh"), fresh / "debs" / "in_root.sh")
    # A mount and a pid namespace of its own: whatever happens, nothing stays mounted, and nothing runs on.
    p = run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
            'mount -t proc proc "$1/proc" && exec chroot "$1" env -i STARTED_BY_TEST="$STARTED_BY_TEST" PATH=/usr/sbin:/usr/bin:/sbin:/bin sh /debs/in_root.sh', "sh", fresh, timeout=1800)
    assert p.returncode == 0 and p.stdout.endswith("well\n"), p.stdout[-2000:] + p.stderr[-6000:]
