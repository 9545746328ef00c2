"""Fixtures and marks of all end-to-end tests."""
import shutil

import pytest

from support import TRAINER, run

failed = pytest.StashKey()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes; run by ./dev test --slow")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    item.stash[failed] = item.stash.get(failed, False) or report.failed


@pytest.fixture
def tmp_path(tmp_path, request):
    """pytest's, gone once the test has passed: checkpoints of all tests together are gigabytes."""
    yield tmp_path
    if not request.node.stash.get(failed, False):
        shutil.rmtree(tmp_path, ignore_errors=True)


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
