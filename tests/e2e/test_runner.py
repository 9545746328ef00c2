"""tests/run.py: what it makes of results, of a second look and of skips."""
import json
import os
import sys

import pytest

from support import ROOT, run as run_program

sys.path.insert(0, str(ROOT / "tests"))
import run as runner  # noqa: E402

TAP = """1..4
ok 1 - adds
not ok 2 - subtracts
# 3 != 4
# no such units in this processor
ok 3 # SKIP halves
ok 4 - last
"""


def outcomes(cases):
    return [(c.name, c.outcome) for c in cases]


def test_each_case_of_a_c_program_counts():
    cases = runner.tap_cases("sums", TAP, passed=False)
    assert outcomes(cases) == [("sums: adds", "passed"), ("sums: subtracts", "failed"), ("sums: halves", "skipped"), ("sums: last", "passed")]
    assert "3 != 4" in cases[1].why and "no such units" in cases[2].why


def test_a_program_that_dies_between_two_cases_has_failed():
    assert outcomes(runner.tap_cases("sums", "1..2\nok 1 - adds\n", passed=False)) == [("sums: adds", "passed"), ("sums: its end", "failed")]
    assert outcomes(runner.tap_cases("gpu", "1..0 # SKIP no driver\n", passed=True)) == [("gpu", "skipped")]


class Again:
    """A run whose second look finds what is given."""

    def __init__(self, *cases):
        self.cases, self.asked = list(cases), []

    def known(self, unit):
        return unit is not None

    def again(self, units):
        self.asked += units
        return self.cases


def case(name, outcome, why=""):
    return runner.Case(name, name, outcome, why)


def test_what_passes_alone_is_unsteady_and_what_does_not_has_failed():
    run = Again(case("a::t", "passed"), case("b", "failed"))
    cases, unsteady = runner.second_look(run, [case("a::t", "failed"), case("b", "failed"), case("c", "passed")])
    assert run.asked == ["a::t", "b"] and unsteady == ["a::t"]
    assert sorted(outcomes(cases)) == [("a::t", "passed"), ("b", "failed"), ("c", "passed")]


@pytest.mark.parametrize("second", ["skipped", None])
def test_a_second_look_that_sees_nothing_is_no_pass(second):
    run = Again(*[case("a::t", second)] if second else [])
    cases, unsteady = runner.second_look(run, [case("a::t", "failed")])
    assert unsteady == [] and outcomes(cases) == [("a::t", "failed")]


@pytest.mark.parametrize("failed", [[], [f"t::{i}" for i in range(4)], [None]])
def test_nothing_many_and_what_cannot_be_run_by_itself_have_no_second_look(failed):
    run, cases = Again(), [runner.Case(str(n), n, "failed") for n in failed]
    assert runner.second_look(run, cases) == (cases, []) and run.asked == []


def test_the_last_lines_name_the_unsteady_and_sum_up(capsys):
    assert runner.tell([case("a::t", "passed"), case("b", "passed")], ["a::t"], 70)
    *_, unsteady, name, last = capsys.readouterr().out.splitlines()
    assert unsteady.startswith("unsteady: 1, ") and name == "  a::t" and last == "2 passed, 0 failed, 0 skipped"


def test_time_that_the_host_gave_to_others_is_told(capsys, monkeypatch):
    monkeypatch.setattr(runner, "CORES", 2)
    for lost, said in ((35.0, "1:10, 25 % of the processors' time went to other guests of their host"), (1.0, "1:10")):
        runner.tell([case("a", "passed")], [], 70, lost)
        assert said in capsys.readouterr().out.splitlines()


def test_a_skip_that_is_not_expected_here_has_failed(capsys, monkeypatch):
    monkeypatch.setattr(runner.skips, "ROWS", [("no such tool", lambda: True), ("no such right", lambda: False)])
    cases = [case("a", "skipped", "no such tool"), case("b", "skipped", "no such right"), case("c", "skipped", "no such thing")]
    assert not runner.tell(cases, [], 1)
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "0 passed, 2 failed, 1 skipped" and "failed: b\nfailed: c" in out and "skipped: a: no such tool" in out


HANGS = """import os
from fixtures import *

def test_waits_for_a_line_that_never_comes():
    os.read(os.pipe()[0], 1)

def test_after_it():
    pass
"""


def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path):
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text("from fixtures import *")
    results = tmp_path / "results"
    env = dict(os.environ, CRUN_TEST_WAIT="0.2", PYTHONPATH=str(ROOT / "tests" / "support"))
    p = run_program(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--results={results}", tmp_path, env=env)
    calls = [r for r in map(json.loads, results.read_text().splitlines()) if r.get("when") == "call"]
    assert [r["outcome"] for r in calls] == ["failed", "passed"], p.stdout
    assert "Timeout >3.0s" in calls[0]["why"]
