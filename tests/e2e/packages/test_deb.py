"""Debian's packages, for each release that they are for: made twice in a fresh root of it, installed into another one, beside the container runtime crun, used and purged."""
import pathlib
import re
import shutil

import pytest

from debian import copy_of_the_tree
from support import run

pytestmark = [pytest.mark.slow, pytest.mark.serial]
HERE = pathlib.Path(__file__).parent
NAMES = {"crun-launcher", "rendezvousd", "libcrun0", "libcrun-dev", "crun-trainer", "python3-crun-launcher"}
NVCC = pathlib.Path("/usr/local/cuda/bin/nvcc")
CUDA = "crun-trainer-cuda"  # made where nvcc and cuDNN are


def made(root, tree, folder, cuda):
    """-> {name: bytes} of the packages that one command makes in this root from this tree in this folder. cuda: with this machine's CUDA, where it has one."""
    shutil.copytree(tree, root.folder / folder, symlinks=True)
    bound = str(NVCC.resolve().parents[1]) if cuda and NVCC.exists() else ""
    p = root.run("sh", "-exc", f"""
        export SOURCE_DATE_EPOCH=1700000000 CRUN_GPU_ARCHS=90 PATH=$PATH:{bound}/bin
        apt-get update -qq
        /{folder}/dev deb /{folder}.debs""", bound=bound, timeout=3600)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    packages = {path.name: path.read_bytes() for path in (root.folder / f"{folder}.debs").iterdir()}
    has_module = (root.folder / folder / "build-deb/worker/device/cuda/trainer-cuda.so").exists()
    assert has_module <= bool(bound) and any(name.startswith(CUDA) for name in packages) == has_module
    assert (f"{CUDA} is left out: the build has no GPU module (its summary says what was not found: nvcc, cuDNN, cuBLASLt)" in p.stderr) != has_module
    return packages


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def release(request):
    return request.param


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """One copy: who works on the tree meanwhile changes nothing here."""
    return copy_of_the_tree(tmp_path_factory.mktemp("tree") / "tree")


@pytest.fixture(scope="module")
def builds(release, debian, tree):
    """([packages, the same from another folder], their folder)"""
    root = debian(release)
    twice = [made(root, tree, "src", True), made(root, tree, "elsewhere", False)]
    return twice, root.folder / "src.debs"


@pytest.fixture
def debs(builds):
    return builds[1]


def test_another_folder_makes_the_same_bytes(builds):
    """nvcc alone writes other bytes there."""
    first, again = builds[0]
    assert {name: data for name, data in first.items() if not name.startswith(CUDA)} == again


def test_fields_name_what_is_linked_and_what_is_opened(debs):
    fields = {}
    for path in debs.glob("*.deb"):
        text = run("dpkg-deb", "--field", path).stdout
        fields[path.name.split("_")[0]] = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line[0] != " ")
    assert set(fields) - {CUDA} == NAMES
    for name in ("crun-launcher", "rendezvousd"):
        assert "libc6 (>= " in fields[name]["Depends"] and "libssl3" in fields[name]["Depends"] and "libmicrohttpd12" in fields[name]["Recommends"]
    assert "libhwloc15" in fields["crun-launcher"]["Recommends"] and "libdnnl" in fields["crun-trainer"]["Depends"]
    assert "libssl3" in fields["crun-trainer"]["Recommends"], "--debug-batch-sha opens libcrypto"
    assert fields["libcrun-dev"]["Depends"] == f"libcrun0 (= {fields['libcrun0']['Version']})"
    if CUDA in fields:
        assert f"crun-trainer (= {fields[CUDA]['Version']})" in fields[CUDA]["Depends"] and "libc6 (>= " in fields[CUDA]["Depends"]
        names = r"cuda-cudart-(\d+)-\d, libcublas-\1-\d, libcudnn9-cuda-\1(, libnccl2)?, cuda-drivers \| nvidia-driver"
        assert re.fullmatch(names, ", ".join(sorted(fields[CUDA]["Suggests"].split(", "), key=lambda n: ("driver" in n, n)))), fields[CUDA]["Suggests"]
    owned = "".join(run("dpkg-deb", "--contents", path).stdout for path in debs.glob("*.deb"))
    for theirs in ("./usr/bin/crun\n", "man1/crun.1.gz", "libcrun.a", "./usr/share/doc/crun/"):
        assert theirs not in owned


def test_installed_used_and_purged_in_a_fresh_debian(debs, release, debian):
    root = debian(release)
    root.put("debs", *debs.iterdir(), HERE / "in_root.sh")
    p = root.run("sh", "/debs/in_root.sh")
    assert p.returncode == 0 and p.stdout.endswith("well\n"), p.stdout[-2000:] + p.stderr[-6000:]
