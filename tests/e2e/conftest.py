"""What all end-to-end tests share: the build under test, a data set, running commands with a deadline."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build"))
CRUN = BUILD / "launcher" / "crun"
TRAINER = BUILD / "worker" / "trainer"


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes; run by ./dev test --slow")


def run(*args, timeout=120, **kw):
    """Run to the end and return the CompletedProcess with text output; never longer than timeout seconds."""
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([str(a) for a in args], timeout=timeout, text=True, check=False, **kw)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """make(size, train, test, classes=10) -> folder of a shapes data set, made once per test session."""
    made = {}

    def make(size, train, test, classes=10):
        key = (size, train, test, classes)
        if key not in made:
            out = tmp_path_factory.mktemp("shapes") / "set"
            p = run(TRAINER, "make-data", "shapes", "--out", out, "--classes", classes, "--train-images", train,
                    "--test-images", test, "--image-size", size, "--seed", 0)
            assert p.returncode == 0, p.stderr
            made[key] = out
        return made[key]

    return make


def worker_pid(run_id, rank):
    """Process id of a rank of a running job, None if there is none."""
    want = {f"TORCHELASTIC_RUN_ID={run_id}".encode(), f"RANK={rank}".encode()}
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if want <= set((p / "environ").read_bytes().split(b"\0")):
                return int(p.name)
        except OSError:
            pass
    return None
