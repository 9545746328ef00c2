import os
import shutil
import sys

import pytest

from crun_run import Crun
from debian import Root
from support import LIBCRUN, ROOT, run


@pytest.fixture
def crun(tmp_path):
    """crun whose workers have the module and libcrun of the tree."""
    if not LIBCRUN.exists():
        pytest.skip("libcrun.so is not built")
    c = Crun(tmp_path)
    c.env |= {"LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
    yield c
    c.close()


@pytest.fixture
def script(tmp_path):
    """script(text, name) -> its path"""
    def write(text, name="job.py"):
        path = tmp_path / name
        path.write_text(text)
        return path
    return write


@pytest.fixture
def alone(tmp_path):
    """Environment of a process without crun that has the module, and no library unless it is given one."""
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "STARTED_BY_TEST")}
    return {**keep, "PYTHONPATH": str(ROOT / "python"), "LIBCRUN": "/nowhere/libcrun.so.0", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(tmp_path)}


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """debian(suite) -> a fresh Root"""
    made = []

    def fresh(suite):
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            pytest.skip("needs root and debootstrap")
        made.append(tmp_path_factory.mktemp(suite) / "root")
        p = run("debootstrap", "--variant=minbase", suite, made[-1], timeout=1800)
        if p.returncode != 0:
            pytest.skip(f"debootstrap reaches no mirror here: {p.stdout[-300:]}")
        shutil.copy("/etc/resolv.conf", made[-1] / "etc/resolv.conf")
        return Root(made[-1])

    yield fresh
    for folder in made:
        shutil.rmtree(folder)
