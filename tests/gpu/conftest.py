"""What the GPU tests share: they are skipped, with trainer's own sentence, where trainer finds no GPU."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

tests = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(tests / "support"), str(tests / "e2e"), str(tests / "e2e" / "trainer")]

from support import TRAINER, run  # noqa: E402


def why_no_gpu():
    p = run(TRAINER, "gpu-info", timeout=120)
    return None if p.returncode == 0 else (p.stderr.strip().splitlines() or ["trainer gpu-info says nothing"])[-1]


def pytest_collection_modifyitems(items):
    why = why_no_gpu() if items else None
    for item in items:
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def tell(**line):
    """A line for all.py, which is there also when the run is killed."""
    path = os.environ.get("CRUN_GPU_LINES")
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        why = report.longrepr[2] if report.skipped else str(report.longrepr).splitlines()[-1] if report.failed else ""
        tell(name=report.nodeid.split("::")[-1], outcome=report.outcome, why=why, text=report.longreprtext[-8000:] if report.failed else "")


@pytest.fixture(scope="session")
def gpu():
    """trainer gpu-info --json"""
    p = run(TRAINER, "gpu-info", "--json", timeout=120)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.fixture(scope="session")
def nccl(gpu):
    if not gpu["nccl"]:
        pytest.skip("this build has no NCCL (nccl.h was missing)")


@pytest.fixture
def two_hosts(tmp_path):
    """NCCL refuses a GPU twice on a host; each rank says that it is a host of its own, and the traffic goes over loopback."""
    wrapper = tmp_path / "rank"
    wrapper.write_text('#!/bin/sh\nNCCL_HOSTID=p$$ NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_DEBUG=WARN exec "$@"\n')
    wrapper.chmod(0o755)
    return [wrapper]


@pytest.fixture(scope="session")
def keep():
    """keep(name, value): a result that gpu-test.json has among its figures."""
    return lambda name, value: tell(figure=name, value=value)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """make(size, train, test) -> folder of a shapes data set of ten classes, made once."""
    made = {}

    def make(size, train, test):
        if (size, train, test) not in made:
            made[size, train, test] = tmp_path_factory.mktemp("shapes") / "set"
            subprocess.run([str(a) for a in (TRAINER, "make-data", "shapes", "--out", made[size, train, test], "--classes", 10, "--train-images", train,
                                             "--test-images", test, "--image-size", size, "--seed", 0)], check=True, timeout=300)
        return made[size, train, test]

    return make
