"""Fixtures and marks of all end-to-end tests."""
import pytest

from support import TRAINER, run


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes; run by ./dev test --slow")


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
