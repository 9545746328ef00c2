"""The wheel: made twice from two folders, its tag, installed into a fresh environment, used, removed; and in a fresh Debian 11."""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from debian import copy_of_the_tree
from support import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.serial]
sys.path.insert(0, str(ROOT / "packaging"))
import elf  # noqa: E402


def made(tree, out):
    """-> path of the wheel"""
    p = subprocess.run([tree / "dev", "wheel", out], env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True, text=True, timeout=1800, check=False)
    if p.returncode and "subproject" in p.stdout + p.stderr and re.search(r"could not get|urlopen error|WrapException", p.stdout + p.stderr, re.I):
        pytest.skip("no network: sources cannot be downloaded")
    if p.returncode and "No matching distribution found for ziglang" in p.stderr:
        pytest.skip("no network: the compiler cannot be downloaded")
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    wheel, = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return made(ROOT, tmp_path_factory.mktemp("wheel"))


def test_another_folder_makes_the_same_bytes(wheel, tmp_path):
    again = made(copy_of_the_tree(tmp_path / "elsewhere"), tmp_path / "again")
    assert again.name == wheel.name and again.read_bytes() == wheel.read_bytes()


def test_its_programs_need_glibc_alone_and_its_tag_says_which(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path)
        licenses = {n.rsplit("/", 1)[-1] for n in z.namelist() if "/licenses/" in n}
    programs = [p for p in tmp_path.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    assert len(programs) == 3 and licenses == {"LICENSE", "LICENSE.cJSON", "LICENSE.hiredis", "LICENSE.libuv", "LICENSE.libuv-extra", "LICENSE.uthash"}
    glibc = elf.glibc_release(programs)
    assert glibc <= (2, 28)
    assert wheel.name.endswith(f"-py3-none-manylinux_{glibc[0]}_{glibc[1]}_{elf.machine(programs[0])}.whl")


@pytest.fixture
def environment(wheel, tmp_path):
    venv = tmp_path / "venv"
    if run(sys.executable, "-m", "venv", venv).returncode != 0:
        pytest.skip("no venv module that works")
    p = run(venv / "bin/python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    assert p.returncode == 0, p.stderr
    return venv


def test_auditwheel_grants_its_tag(environment, wheel):
    p = run(environment / "bin/python", "-m", "pip", "install", "--quiet", "auditwheel", timeout=600)
    if "No matching distribution found" in p.stderr:
        pytest.skip("no network: auditwheel cannot be downloaded")
    assert p.returncode == 0, p.stderr
    said = run(environment / "bin/auditwheel", "show", wheel)
    granted = re.search(r'platform\s+tag:\s*"(\w+)"', said.stdout)  # the file's name, with a tag in it, is told as well
    assert granted and granted[1] == wheel.name.split("-none-")[1].removesuffix(".whl"), said.stdout + said.stderr


JOB = """
import crun, sys

def rank(add):
    crun.report(1)
    crun.barrier()
    return crun.info().rank + add

if __name__ == "__main__":
    assert crun.find_program() == sys.argv[1], crun.find_program()
    print(crun.launch(rank, (5,), nproc=2))
"""


def test_installed_used_and_removed(environment, tmp_path):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "STARTED_BY_TEST": os.environ["STARTED_BY_TEST"]}
    job = tmp_path / "job.py"
    job.write_text(JOB)
    p = run(environment / "bin/python", job, environment / "bin/crun", env=env)
    assert (p.returncode, p.stdout) == (0, "{0: 5, 1: 6}\n"), p.stderr
    p = run(environment / "bin/crun", "--nproc-per-node", 2, "--no-log-prefix", "sh", "-c", "echo $RANK", env=env)
    assert sorted(p.stdout.split()) == ["0", "1"], p.stderr
    assert run(environment / "bin/crun-launcher", "--version", env=env).stdout == run(environment / "bin/crun", "--version", env=env).stdout != ""
    assert run(environment / "bin/crun-launch", "--help", env=env).stdout.startswith("Usage: crun-launch ")
    torchrun = tmp_path / "torchrun"
    torchrun.symlink_to(environment / "bin/crun-launcher")
    assert "torchrun-compat = on" in run(torchrun, "--print-config", "true", env=env).stdout
    assert run(environment / "bin/rendezvousd", "--version", env=env).stdout.startswith("rendezvousd ")
    assert run(environment / "bin/python", "-m", "pip", "uninstall", "-y", "crun-launcher").returncode == 0
    left = [p for p in environment.rglob("*") if p.is_file() and re.search(r"crun|rendezvousd", p.name)]
    assert left == [] and not list(environment.glob("lib/*/site-packages/crun"))


def test_libraries_are_looked_for_beside_python_then_in_the_system(environment, tmp_path):
    """The environment's lib/ comes first: one there that is no library is what the sentence is about."""
    (environment / "lib" / "libhwloc.so.15").write_text("no library")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    p = run(environment / "bin/crun", "topo", env=env)
    assert p.returncode != 0 and f"{environment}/bin/../lib/libhwloc.so.15" in p.stderr and p.stderr.count("\n") == 1


def test_in_debian_11_one_node_several_and_tls_with_openssl_1_1(wheel, debian):
    root = debian("bullseye")
    folder = root.put("wheel", wheel, pathlib.Path(__file__).with_name("in_old_root.sh"))
    (folder / "job.py").write_text(JOB)
    p = root.run("sh", "/wheel/in_old_root.sh", timeout=1200)
    assert p.returncode == 0 and p.stdout.endswith("well\n"), p.stdout[-2000:] + p.stderr[-6000:]
