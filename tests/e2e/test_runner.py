"""tests/run.py: what a lane's processes inherit and cost, what it makes of results, skips and second looks, which tests it chooses."""
import io
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import types

import pytest

from support import ROOT, run as run_program

sys.path.insert(0, str(ROOT / "tests"))
from runner import budget, choose, ctests, deadlines, emulated, inherit, look, procs, pytests, tell  # noqa: E402
from runner.cases import Case  # noqa: E402
from runner.lane import Job  # noqa: E402
import run as crun_tests  # noqa: E402

TAP = """1..4
ok 1 - adds
not ok 2 - subtracts
# 3 != 4
# no such units in this processor
not ok 3 # SKIP halves
ok 4 - last
"""


def outcomes(cases):
    return [(c.name, c.outcome) for c in cases]


# --- results ------------------------------------------------------------------------------------------------------------


def test_each_case_of_a_c_program_counts():
    cases = ctests.tap_cases("sums", TAP, passed=False)
    assert outcomes(cases) == [("sums: adds", "passed"), ("sums: subtracts", "failed"), ("sums: halves", "skipped"), ("sums: last", "passed")]
    assert "3 != 4" in cases[1].why and "no such units" in cases[2].why


def ended(code, late=False):
    return {"ended": "sums", "code": code, "seconds": 2.0, "cpu": 1.0, "late": late}


@pytest.mark.parametrize("code, late, how", [(-11, False, "signal 11"), (3, False, "exit status 3"), (-9, True, "it was ended after 2 s")])
def test_a_program_that_dies_between_two_cases_has_failed(code, late, how):
    cases = ctests.cases_of(ended(code, late), "1..2\nok 1 - adds\n")
    assert outcomes(cases) == [("sums: adds", "passed"), ("sums: its end", "failed")] and how in cases[1].why and cases[1].cpu == 1.0


def test_a_program_may_skip_everything_or_say_nothing():
    assert outcomes(ctests.cases_of(ended(0), "1..0 # SKIP no driver\n")) == [("sums", "skipped")]
    assert outcomes(ctests.cases_of(ended(0), "")) == [("sums", "passed")]


def test_results_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "results"
    results = pytests.Results(path)
    assert results.new() == []
    phase = {"id": "a.py::t@group", "seconds": 1, "why": "", "outcome": "passed"}
    path.write_text(json.dumps({"count": 2}) + "\n" + json.dumps({**phase, "when": "setup"}) + '\n{"id": "a.py')
    assert results.new() == [] and results.count == 2
    with open(path, "a", encoding="utf-8") as f:
        f.write('::t", "when": "call", "outcome": "failed", "seconds": 2, "why": "E   3 != 4"}\n')
        f.write(json.dumps({**phase, "when": "teardown", "cpu": 0.5, "mark": "7.0"}) + "\n")
    assert outcomes(results.new()) == [("a.py::t", "failed")]
    case = results.cases["a.py::t"]
    assert (case.outcome, case.seconds, case.cpu, results.marks, results.ended) == ("failed", 4, 0.5, {"7.0": "a.py::t"}, 1)


# --- the second look ------------------------------------------------------------------------------------------------------


class Again:
    """A run whose second looks find what is given, by unit."""

    def __init__(self, **found):
        self.found, self.asked = found, []

    def known(self, unit):
        return unit is not None

    def again(self, units, seconds):
        assert seconds > 0
        self.asked.append(units)
        return [case(u, self.found[u]) for u in units if u in self.found]


def case(name, outcome, why=""):
    return Case(name, name, outcome, why)


def look_again(run, cases):
    return look.second_look(run, cases, say=lambda *lines: None)


def test_what_passes_alone_is_unsteady_and_what_does_not_has_failed():
    run = Again(a="passed", b="failed")
    cases, unsteady = look_again(run, [case("a", "failed", "E   1 != 2"), case("b", "failed", "E   no file"), case("c", "passed")])
    assert run.asked == [["a", "b"]] and unsteady == ["a"]
    assert sorted(outcomes(cases)) == [("a", "passed"), ("b", "failed"), ("c", "passed")]


@pytest.mark.parametrize("second", ["skipped", None])
def test_a_second_look_that_sees_nothing_is_no_pass(second):
    cases, unsteady = look_again(Again(**{"a": second} if second else {}), [case("a", "failed")])
    assert unsteady == [] and outcomes(cases) == [("a", "failed")]


@pytest.mark.parametrize("first, asked", [("failed", [["t0"]]), ("passed", [["t0"], [f"t{n}" for n in range(1, 30)]])])
def test_of_many_that_fail_alike_one_goes_first(first, asked):
    many = [case(f"t{n}", "failed", f"E   assert {n} == 0, /tmp/x{n}/out") for n in range(30)]
    run = Again(t0=first, **{f"t{n}": "passed" for n in range(1, 30)})
    _, unsteady = look_again(run, many)
    assert [sorted(a) for a in run.asked] == [sorted(a) for a in asked] and len(unsteady) == (30 if first == "passed" else 0)


def test_a_failure_that_no_test_had_is_not_looked_at_again():
    run, cases = Again(), [Case("idle: its end", None, "failed")]
    assert look_again(Unknowing(), cases) == (cases, []) and run.asked == []


class Unknowing(Again):
    def known(self, unit):
        return False


def test_what_a_program_printed_makes_no_two_failures_alike():
    first, other = (case(n, "failed", f">  assert {n} == 0, err\nE  AssertionError: crun: OMP_NUM_THREADS is not set\nE  assert 1 == 0") for n in ("rc", "count"))
    assert look.cause(first) != look.cause(other)


@pytest.mark.parametrize("why, same", [("x\nE       Failed: Timeout >120.0s\n", "Failed: Timeout >240.0s"), ("E   assert 'a b' == 7", "E   assert \"c\" == 8.5"),
                                       ("ok 1\nit was ended after 120 s, 120.1 s", "Failed: Timeout >3s"), ("# x\nsignal 11, 3.2 s", "signal 11, 1.0 s"),
                                       (">  assert p.wait() == 0, err\nE  AssertionError: crun: said this\nE  assert 1 == 0", ">  assert p.wait() == 0, err\nE  AssertionError: crun: and that\nE  assert 7 == 0")])
def test_what_differs_from_test_to_test_is_no_part_of_a_cause(why, same):
    assert look.cause(case("a", "failed", why)) == look.cause(case("b", "failed", same)) != look.cause(case("c", "failed", "E   other"))


# --- what is said -----------------------------------------------------------------------------------------------------------


def told(*args):
    out = []
    return tell.tell(*args, say=out.append), "\n".join(out).splitlines()


def test_the_last_lines_name_what_failed_and_sum_up():
    well, lines = told([case("a::t", "passed"), case("b", "failed", "3 != 4"), case("c", "skipped", "no such tool")], ["a::t"], 70)
    assert not well and lines[-3:] == ["  a::t", "failed: b", "1 passed, 1 failed, 1 skipped"]
    assert lines.index("skipped: c: no such tool") < lines.index("=== failed: b") < lines.index("3 != 4")


def test_time_that_the_host_gave_to_others_is_told(monkeypatch):
    monkeypatch.setattr(procs, "CORES", 2)
    for lost, said in ((35.0, "1:10, 25 % of the processors' time went to other guests of their host"), (1.0, "1:10")):
        assert said in told([case("a", "passed")], [], 70, lost)[1]


def test_a_skip_that_is_not_expected_here_has_failed_at_once(monkeypatch):
    here = {"tool": True}
    monkeypatch.setattr(tell.skips, "ROWS", [("no such tool", lambda: here["tool"]), ("no such right", lambda: False)])
    cases = [case("a", "skipped", "no such tool"), case("b", "skipped", "no such right"), case("c", "skipped", "no such thing")]
    for c in cases:
        tell.judge_skip(c)
    here["tool"] = False  # somebody installs it in the middle of the run
    assert [c.outcome for c in cases] == ["skipped", "failed", "failed"] and "tests/skips.py does not expect it: no such thing" in cases[2].why


def test_a_failure_is_told_with_its_first_words():
    out = io.StringIO()
    progress = tell.Progress(types.SimpleNamespace(share=0, cpu=0), out)
    progress.settled(case("a::t", "failed", "def t():\n>  assert x\nE   AssertionError: 3 != 4\n\nt.py:7"))
    assert out.getvalue() == "0:00 failed: a::t: AssertionError: 3 != 4\n"


# --- lanes ------------------------------------------------------------------------------------------------------------------

SEES = """import os, resource, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
old = os.umask(0)
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
except OSError:
    terminal = None
print([status[s].strip() for s in ("SigIgn", "SigBlk")], oct(old), os.read(0, 1), terminal, resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
      resource.getrlimit(resource.RLIMIT_CORE)[0], sorted(os.environ))"""


def spec(tmp_path, *jobs, env=None, **more):
    """-> the path of what lane.py is given"""
    whole = [{"name": str(n), "argv": argv, "cwd": str(tmp_path), "env": env or dict(os.environ), "seconds": seconds, "log": str(tmp_path / f"log{n}")} for n, (argv, seconds) in enumerate(jobs)]
    path = tmp_path / "spec"
    path.write_text(json.dumps({"jobs": whole, "at_once": 2, "heavy": False, "load": str(tmp_path / "load"), "results": str(tmp_path / "results"), **more}))
    return path


def lane(tmp_path, *jobs, **more):
    """-> its events"""
    p = subprocess.run([sys.executable, "-S", "-E", ROOT / "tests/runner/lane.py", spec(tmp_path, *jobs, **more)], capture_output=True, text=True, timeout=60, check=False)
    assert (p.returncode, p.stderr) == (0, "")
    return [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]


def odd_parent():
    for signo in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(signo, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_what_a_lanes_process_inherits_is_set_whoever_starts_it(tmp_path):
    env = inherit.environment({"PATH": os.environ["PATH"], "HOME": "/", "RANK": "3", "MASTER_ADDR": "elsewhere", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                               "CRUN_LOG_LEVEL": "debug", "TORCHELASTIC_RUN_ID": "x", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "LC_ALL": "de_DE", "TZ": "Asia/Tokyo", "CRUN_TEST_WAIT": "7"})
    begin = f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from runner import inherit; inherit.settle(); sys.argv = ['lane.py', sys.argv[1]]; runpy.run_path({str(ROOT / 'tests/runner/lane.py')!r}, run_name='__main__')"
    subprocess.run([sys.executable, "-c", begin, spec(tmp_path, ([sys.executable, "-I", "-c", SEES], 60), env=env)], timeout=60, check=True, preexec_fn=odd_parent)
    names = sorted({*env} - {"OMP_NUM_THREADS"})
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
    assert (tmp_path / "log0").read_text() == f"['{1 << 12 | 1 << 24:016x}', '{0:016x}'] 0o22 b'' None True 0 {names}\n"
    assert set(names) <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "CRUN_TEST_WAIT"} and env["LC_ALL"] == "C.UTF-8"


def test_an_empty_environment_is_enough():
    env = inherit.environment({})
    assert env["PATH"] and env["HOME"].startswith("/")


BURNS = "import time\nwhile time.process_time() < 0.3: pass"


def test_what_an_orphan_costs_counts(tmp_path):
    leaves = ["setsid", "sh", "-c", f'{sys.executable} -S -c "$1" & exit 0', "sh", BURNS]
    events = lane(tmp_path, (leaves, 60))
    orphans = [e["cpu"] for e in events if "orphan" in e]
    assert max(orphans) >= 0.3 and events[-1]["lane_cpu"] >= 0.3
    assert next(e["cpu"] for e in events if "ended" in e) < 0.3


def test_a_program_that_loops_is_ended_with_what_it_started(tmp_path):
    events = lane(tmp_path, (["sh", "-c", "sleep 1000 & echo $! >child; wait"], 0.3), (["true"], 60))
    assert {(e["ended"], e["code"], e["late"]) for e in events if "ended" in e} == {("0", -9, True), ("1", 0, False)}
    assert not os.path.exists(f"/proc/{(tmp_path / 'child').read_text().strip()}")


def test_a_job_beside_others_has_twice_its_time_also_when_they_are_gone():
    job = Job.__new__(Job)
    with subprocess.Popen(["sleep", "1000"]) as p:
        job.spec, job.pid, job.late, job.beside_others = {"seconds": 1000}, p.pid, False, False
        for others, since, late in (True, 900, False), (False, 1900, False), (False, 2100, True):
            job.begun = time.monotonic() - since
            job.end_if_late(others)
            assert job.late == late
        assert p.wait(60) == -9


def test_a_lane_that_is_ended_leaves_nothing(tmp_path):
    path = spec(tmp_path, (["sh", "-c", "setsid sleep 1000 & echo $! >child; mv child there; wait"], 60))
    p = subprocess.Popen([sys.executable, "-S", "-E", ROOT / "tests/runner/lane.py", path])
    deadline_of(lambda: (tmp_path / "there").exists())
    p.terminate()
    assert p.wait(30) == 0 and not os.path.exists(f"/proc/{(tmp_path / 'there').read_text().strip()}")


def deadline_of(condition):
    from processes import wait
    return wait("it", condition)


@pytest.mark.parametrize("others", ["0.05", "0.9"])
def test_heavy_tests_leave_the_processor_to_others(tmp_path, others):
    (tmp_path / "load").write_text(others)
    lane(tmp_path, ([sys.executable, "-S", "-c", "import os; print(os.sched_getscheduler(0), os.nice(0) >= 10)"], 60), heavy=True)
    policy = os.SCHED_IDLE if others == "0.05" and os.geteuid() == 0 else os.SCHED_OTHER
    assert (tmp_path / "log0").read_text() == f"{policy} True\n"


# --- deadlines ---------------------------------------------------------------------------------------------------------------

HANGS = """import os
from fixtures import *

def test_waits_for_a_line_that_never_comes():
    os.read(os.pipe()[0], 1)

def test_after_it():
    pass

def test_left_out():
    pass
"""


def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path):
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text("from fixtures import *")
    (tmp_path / "less").write_text("test_hangs.py::test_left_out\n")
    results = tmp_path / "results"
    env = dict(os.environ, CRUN_TEST_WAIT="1", PYTHONPATH=str(ROOT / "tests" / "support"), CRUN_TEST_LOAD=str(tmp_path / "none"))
    p = run_program(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--results={results}", f"--left-out={tmp_path / 'less'}", tmp_path, env=env)
    lines = list(map(json.loads, results.read_text().splitlines()))
    calls = [r for r in lines if r.get("when") == "call"]
    assert [r["outcome"] for r in calls] == ["failed", "passed"] and lines[0] == {"count": 2}, p.stdout
    assert "Timeout >2.0s" in calls[0]["why"]


def test_a_deadline_follows_the_load_and_the_table():
    assert deadlines.seconds("tests/e2e/launcher/test_run.py::test_x", 60) == 120 and deadlines.seconds("buf", 150) == 300
    assert deadlines.seconds("buf", 60, busy=True) == 240 and deadlines.seconds("buf", 60, slow=True) == 3600
    assert deadlines.one_wait(4, 1.3) == 60 and deadlines.one_wait(10, 1) == 150 and deadlines.one_wait(4, 0.4) == 150, "a slow processor"
    assert deadlines.seconds("layouts on cuda", 60) == 600


# --- the budget ---------------------------------------------------------------------------------------------------------------


def test_what_grew_is_named_and_ci_fails_above_a_quarter(tmp_path):
    path = tmp_path / "budget"
    budget.write({"c": 60, "idle": 40}, {"slow one": 30, "small": 0.1, "other one": 5, "t.py::x[a b]": 0.5, "t.py::y": 0.1}, path)
    listed = budget.read(path)
    assert listed == {"total": {"": 100}, "lane": {"c": 60, "idle": 40}, "test": {"slow one": 30, "other one": 5, "t.py::x[a b]": 0.5}}
    assert budget.judge({"c": 60, "idle": 40}, {"slow one": 30}, listed) == (["CPU: 100 s of the 100 s in tests/budget (1.00)"], True)
    said, fits = budget.judge({"c": 80, "idle": 40}, {"slow one": 49, "small": 1.3, "t.py::x[a b]": 0.5}, listed)
    assert fits and said[1:4] == ["  lane c: 80 s of 60", "  grew by 19.0 s to 49.0: slow one", "  grew by 1.0 s to 1.3: small"] and len(said) == 5
    assert not budget.judge({"c": 90, "idle": 40}, {}, listed)[1]


def test_the_quick_part_has_the_cheapest_tests_that_its_budget_holds(monkeypatch):
    """95 are listed, so that 5 belong to what is not."""
    monkeypatch.setattr(budget, "QUICK", 36)
    listed = {"total": {"": 100}, "lane": {}, "test": {"dear": 30, "cuda": 2, "b": 21, "a": 10, "t.py::x": 12, "t.py::y": 20}}
    assert budget.too_dear(listed, ["dear", "a", "b", "not listed"]) == ["cuda", "dear", "t.py::x", "t.py::y"]
    monkeypatch.setattr(budget, "QUICK", 35)
    assert budget.too_dear(listed, ["dear", "a", "b"]) == ["b", "cuda", "dear", "t.py::x", "t.py::y"]


def test_the_smallest_of_three_measures_counts():
    steps = iter([3, 1, 2])
    assert budget.calibrate(lambda: [None for _ in range(next(steps) * 20000)]) > 0 and next(steps, None) is None


# --- which tests -----------------------------------------------------------------------------------------------------------------

GUARDIAN, BUF, CLIENT = "tests/launcher/guard/test_guardian.c", "tests/common/base/test_buf.c", "tests/e2e/launcher/test_hang.py"
CASE = re.search(r"^def (test_\w+)", (ROOT / CLIENT).read_text(), re.M)[1]


@pytest.fixture(scope="module")
def chooser():
    programs = {name: types.SimpleNamespace(name=name, sources=[source], path=source) for name, source in (("launcher_guardian", GUARDIAN), ("buf", BUF), ("schedule", "tests/worker/optim/test_schedule.c"))}
    return choose.Chooser(programs)


@pytest.mark.parametrize("what, programs, e2e", [
    ("launcher/guard/lease.c", {"launcher_guardian"}, []), ("launcher/guard", {"launcher_guardian"}, []), (GUARDIAN, {"launcher_guardian"}, []), ("guardian", {"launcher_guardian"}, []),
    ("tests/common", {"buf"}, []), ("worker/optim/schedule.c", {"schedule"}, []), (CLIENT, set(), [CLIENT]), ("hang", set(), [CLIENT]), ("launcher/hang/hang_save.c", set(), [CLIENT]),
    *((what, set(), [f"{CLIENT}::{CASE}"]) for what in (f"{CLIENT}::{CASE}", f"test_hang.py::{CASE}", f"test_hang::{CASE}", f"hang::{CASE}", f"launcher/test_hang.py::{CASE}", CASE)),
    (f"test_hang.py::{CASE}[a::b]", set(), [f"{CLIENT}::{CASE}[a::b]"]), (f"{CASE}[a]", set(), [f"{CLIENT}::{CASE}[a]"]), ("test_hang.py", set(), [CLIENT]), ("launcher/test_hang.py", set(), [CLIENT]),
    ("test_every_arrow_between_rooms_is_in_the_table", set(), ["tests/e2e/test_rooms.py::test_every_arrow_between_rooms_is_in_the_table"]),
    ("tests/runner/look.py", set(), ["tests/e2e/test_runner.py"]), ("tests/common/meson.build", {"buf"}, []), ("tests/support/flood.py", set(), ["tests/e2e/rendezvousd/test_starve.py"]), ("docs/guide/hangs.md", set(), ["tests/e2e/docs", "tests/e2e/test_docs.py"])])
def test_tests_are_found_by_source_and_by_name(chooser, what, programs, e2e):
    chosen = chooser.named(what, ROOT)
    assert chosen.programs == programs and {str(ROOT / e) for e in e2e} <= chosen.e2e and (e2e or not chosen.e2e), chosen.tell()


def test_a_path_is_that_of_the_folder_it_is_typed_in(chooser):
    assert chooser.named("lease.c", ROOT / "launcher/guard").programs == {"launcher_guardian"}


def test_a_name_that_nothing_has_is_refused_with_those_near_it(chooser):
    with pytest.raises(choose.Refused, match="^launcher_gardian is no file of this tree, and no test of that name; near it: launcher_guardian"):
        chooser.named("launcher_gardian", ROOT)


@pytest.mark.parametrize("what, near", [("launcher/nosuch.c", []), ("nosuch.c", []), ("launcher/guard/leese.c", ["launcher/guard/lease.c"]), ("launcher/lease.h", ["launcher/guard/lease.h"]),
                                        ("launcher/gaurd", ["launcher/guard"]), ("docs/guide/hang.md", ["docs/guide/hangs.md"]), ("test_hagn.py", ["test_hang"])])
def test_of_a_path_that_is_not_there_only_a_like_one_is_named(chooser, what, near):
    assert chooser.near(what)[:1] == near


@pytest.mark.parametrize("what, why", [
    (f"{CLIENT}::{CASE[:-1]}", f"^{CLIENT} has no test {CASE[:-1]}; it has {CASE}, .*[.]{{3}}$"), ("test_hang.py::test_nosuch[x]", f"^{CLIENT} has no test test_nosuch; it has test_"),
    ("test_hagn.py::test_x", "^test_hagn.py is no file of end-to-end tests; near it: test_hang"), (f"{BUF}::adds", f"^{BUF}::adds: only files of end-to-end tests, .* give {BUF} alone$"),
    ("xyzzy", "^xyzzy is no file of this tree, and no test of that name; ./dev test PATH runs")])
def test_a_test_that_is_not_there_is_refused_with_what_there_is(chooser, what, why):
    with pytest.raises(choose.Refused, match=why):
        chooser.named(what, ROOT)


def test_of_what_failed_the_tests_that_are_gone_are_left_out(chooser):
    there = [f"{CLIENT}::{CASE}", f"{CLIENT}::{CASE}[tcp://x]", CLIENT]
    found, gone = chooser.still_there([*there, "buf", f"{CLIENT}::test_nosuch", "tests/e2e/test_gone.py::test_x", "gone"])
    assert found.programs == {"buf"} and found.e2e == {f"{ROOT}/{t}" for t in there} and gone == [f"{CLIENT}::test_nosuch", "tests/e2e/test_gone.py::test_x", "gone"]


def test_pytest_says_which_parameters_there_are_no_more(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text("import pytest\n@pytest.mark.parametrize('x', ['tcp://a', 'b'])\ndef test_x(x):\n    pass\n")
    assert pytests.unknown([f"{file}::test_x[{p}]" for p in ("tcp://a", "tcp://c", "b", "d e")], dict(os.environ)) == [f"{file}::test_x[tcp://c]", f"{file}::test_x[d e]"]


@pytest.mark.parametrize("failed, said", [([f"{CLIENT}::test_nosuch"], f"what failed in the last run is no longer there: {CLIENT}::test_nosuch; ./dev test PATH|NAME runs others"),
                                          ([], "nothing failed in the last run")])
def test_a_last_run_of_which_nothing_is_left_is_said_in_a_sentence(tmp_path, failed, said):
    (tmp_path / "test-logs").mkdir()
    (tmp_path / "test-logs/failed").write_text("".join(f"{f}\n" for f in failed))
    run = types.SimpleNamespace(logs=tmp_path / "test-logs", args=types.SimpleNamespace(names=[], changed=False, quick=False, parts=None, last_failed=True, targets=False), programs={})
    for name in ("add_failed", "unknown"):
        setattr(run, name, getattr(crun_tests.Run, name).__get__(run))
    with pytest.raises(choose.Refused, match=re.escape(said)):
        crun_tests.Run.choose(run, ROOT)


@pytest.mark.parametrize("args, why", [(["--quick", "--slow"], "--quick and --slow exclude each other"), (["--write-budget", "buf"], "--write-budget needs a whole run"),
                                       (["--fast"], "unrecognized arguments: --fast")])
def test_what_cannot_be_asked_for_is_refused_before_a_build(args, why):
    p = run_program(sys.executable, "-S", ROOT / "tests/run.py", "--check", *args)
    assert p.returncode == 2 and p.stdout == "" and p.stderr.splitlines()[-1].startswith(f"./dev test: error: {why}"), p.stderr


# --- the suite gpu-emulated ------------------------------------------------------------------------------------------------------


def test_the_emulated_suite_was_seen_until_one_of_its_rooms_changes(tmp_path):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", tmp_path, *args], check=True, capture_output=True)

    git("init", "-q")
    for room in [*emulated.ROOMS, "launcher"]:
        (tmp_path / room).mkdir(parents=True, exist_ok=True)
        (tmp_path / room / "a.c").write_text("int a;\n")
    git("add", "-A")
    git("commit", "-qm", "x")
    seen = tmp_path / "seen"
    assert not emulated.is_seen(tmp_path, seen) and emulated.write_seen(tmp_path, seen) == "seen is written; commit it"
    assert emulated.is_seen(tmp_path, seen)
    (tmp_path / "launcher/a.c").write_text("int b;\n")
    assert emulated.is_seen(tmp_path, seen)
    (tmp_path / "worker/device/a.c").write_text("int b;\n")
    assert not emulated.is_seen(tmp_path, seen) and "not written" in emulated.write_seen(tmp_path, seen)
    git("commit", "-qam", "x")
    assert not emulated.is_seen(tmp_path, seen)


def test_a_tree_without_git_has_not_been_seen(tmp_path):
    assert emulated.hashes(tmp_path) is None


def test_every_room_of_the_emulated_suite_is_there():
    assert all(pathlib.Path(ROOT / room).is_dir() for room in emulated.ROOMS)
