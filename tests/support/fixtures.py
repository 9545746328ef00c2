"""Hooks and fixtures of all end-to-end tests, for a conftest.py to import: marks, results for tests/run.py, what each test may leave behind."""
import itertools
import json
import os
import resource
import shutil
import sys

import pytest

from processes import end_all
from support import ROOT, TRAINER, locked, run

sys.path.append(str(ROOT / "tests"))
from runner import deadlines, procs  # noqa: E402

START, FAILED, MARK = pytest.StashKey(), pytest.StashKey(), pytest.StashKey()
MARKS = {
    "slow": "minutes; run by ./dev test --slow",
    "serial": "bound to clocks, cgroups or namespaces: ./dev test runs one at a time, beside tests that leave the processor to it",
    "gpu_emulated": "the GPU engine on an emulated GPU: run by ./dev test --gpu-emulated and --slow, and by CI where the engine changed",
    "daily": "one of gpu_emulated that every run has",
    "long": "seconds: begun before the others, for they end sooner then",
}


def pytest_addoption(parser):
    parser.addoption("--results", help="append a line of JSON here for each phase of each test (tests/run.py)")
    parser.addoption("--left-out", help="a file of tests, one a line, that do not run")


def pytest_configure(config):
    for name, what in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    path = config.getoption("--results", None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path))


def deadline(item):
    """Seconds until a test that hangs ends as failed, with the stacks of its threads (pytest-timeout)."""
    wait = float(os.environ.get("CRUN_TEST_WAIT", 60))
    return deadlines.seconds(item.nodeid, wait, item.get_closest_marker("slow") is not None, procs.others_work(os.environ.get("CRUN_TEST_LOAD")))


def shared_fixture(item):
    """Whether it uses what is made once for a module: such tests of a module stay together (pytest-xdist)."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(d[-1].scope == "module" for d in definitions if d)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("--left-out", None):
        with open(config.getoption("--left-out"), encoding="utf-8") as f:
            less = set(f.read().splitlines())
        items[:] = [item for item in items if item.nodeid not in less]
    for item in items:
        if shared_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))

    def turn(item):
        if item.get_closest_marker("long"):
            return 0
        return 1 if item.get_closest_marker("xdist_group") else 2

    items.sort(key=turn)


# --- results --------------------------------------------------------------------------------------------------------


class Results:
    """Lines of JSON: id, when, outcome, why, seconds; with the last phase cpu, the processor's seconds, and mark, which its processes have. Once: count."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8", buffering=1)

    def pytest_collection_finish(self, session):
        if session.items:  # pytest-xdist's workers collect
            print(json.dumps({"count": len(session.items)}), file=self.file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        print(json.dumps({"count": len(ids)}), file=self.file)

    def tell(self, report, when, seconds):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        line = {"id": report.nodeid, "when": when, "outcome": report.outcome, "why": why, "seconds": round(seconds, 3)}
        print(json.dumps({**line, **dict(getattr(report, "user_properties", ()))}), file=self.file)

    def pytest_runtest_logreport(self, report):
        self.tell(report, report.when, report.duration)

    def pytest_collectreport(self, report):
        if not report.passed:
            self.tell(report, "collect", 0)


def cpu_seconds():
    return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(deadline(item)))  # before pytest-timeout looks
    item.stash[START] = cpu_seconds()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if report.when == "teardown":
        report.user_properties = [("cpu", round(cpu_seconds() - item.stash[START], 2)), ("mark", item.stash.get(MARK, None))]


# --- fixtures -------------------------------------------------------------------------------------------------------

numbers = itertools.count()


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Every process that a test starts has gone when it ends, as have theirs: fails the test that passed otherwise."""
    mark = f"STARTED_BY_TEST={os.getpid()}.{next(numbers)}"
    name, value = mark.split("=")
    os.environ[name] = request.node.stash[MARK] = value
    yield
    del os.environ[name]
    left = end_all(mark, seconds=0 if request.node.stash.get(FAILED, False) else 10)
    assert not left or request.node.stash.get(FAILED, False), f"left behind: {left}"


@pytest.fixture
def tmp_path(tmp_path, request):
    """pytest's, gone once the test has passed: checkpoints of all tests together are gigabytes."""
    yield tmp_path
    if not request.node.stash.get(FAILED, False):
        shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """make(size, train, test, classes=10) -> folder of a shapes data set, made once for all tests (and all of pytest-xdist's workers)."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shapes"
    root.mkdir(exist_ok=True)

    def make(size, train, test, classes=10):
        out = root / f"{size}-{train}-{test}-{classes}"
        with locked(root / f"{out.name}.lock"):
            if not out.exists():
                made = out.with_suffix(".new")
                p = run(TRAINER, "make-data", "shapes", "--out", made, "--classes", classes, "--train-images", train, "--test-images", test,
                        "--image-size", size, "--seed", 0)
                assert p.returncode == 0, p.stderr
                made.rename(out)
        return out

    return make
