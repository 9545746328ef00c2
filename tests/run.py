"""./dev test: the C tests (of Meson) and the end-to-end tests (of pytest) side by side. docs/design/testing.md says what it does; tests/runner has its parts."""
import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from runner import budget, choose, ctests, deadlines, emulated, inherit, look, procs, pytests, tell
from runner.cases import Case

ROOT = pathlib.Path(__file__).resolve().parent.parent
E2E = ROOT / "tests" / "e2e"
TRAINERS = ["trainer", "pytorch", "elastic/test_trainer.py"]  # below tests/e2e: they take whole cores
CORES = procs.CORES
IDLE = 12  # tests that mostly wait, at a time
NO_TEST = 5  # pytest's exit status where a lane has none


class Lane:
    """A process of runner/lane.py: jobs, so many at a time, and what has come of them."""

    def __init__(self, name, run, at_once=1, heavy=False):
        self.name, self.run, self.at_once, self.heavy, self.jobs = name, run, at_once, heavy, []
        self.folder = run.logs / name
        self.folder.mkdir(exist_ok=True)
        self.lines, self.pytest, self.ended = pytests.Lines(self.folder / "jobs.jsonl"), None, {}
        self.programs, self.c_cases, self.orphans, self.cpu, self.process, self.begun = 0, [], [], 0.0, None, 0.0

    def add_pytest(self, what, marks, processes=0):
        """Nothing where what is empty."""
        if not what:
            return self
        results = self.folder / "pytest.jsonl"
        self.pytest = pytests.Results(results)
        argv = pytests.command(what, results, self.run.scratch / self.name, marks, processes, self.run.left_out)
        self.jobs.append({"name": "pytest", "argv": argv, "cwd": str(ROOT), "env": self.run.env, "seconds": None, "log": str(self.folder / "pytest.log")})
        return self

    def add_programs(self, names):
        for name in names:
            log = self.folder / (re.sub(r"\W+", "_", name) + ".log")
            self.jobs.append(self.run.programs[name].job(name, self.run.build, log, self.run.env, self.run.wait))
            self.programs += 1
        return self

    def start(self):
        spec = {"jobs": self.jobs, "at_once": self.at_once, "heavy": self.heavy, "load": self.run.env["CRUN_TEST_LOAD"], "results": str(self.lines.path)}
        (self.folder / "spec.json").write_text(json.dumps(spec))
        self.begun = time.monotonic()
        self.process = subprocess.Popen([sys.executable, "-S", "-E", str(ROOT / "tests/runner/lane.py"), str(self.folder / "spec.json")],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.folder / "lane.log", "wb"), cwd=ROOT, env=self.run.env)

    def count(self):
        """Tests in this lane; 0 while pytest still collects them."""
        if self.pytest and not self.pytest.count and "pytest" not in self.ended:
            return 0
        return self.programs + (self.pytest.count if self.pytest else 0)

    def done(self):
        return sum(n != "pytest" for n in self.ended) + (self.pytest.ended if self.pytest else 0)

    def new(self):
        """-> cases that have an outcome now"""
        cases = self.pytest.new() if self.pytest else []
        for event in self.lines.new():
            if "ended" in event:
                name = event["ended"]
                self.ended[name] = event
                if name != "pytest":
                    log = next(j["log"] for j in self.jobs if j["name"] == name)
                    found = [c for c in ctests.cases_of(event, pathlib.Path(log).read_text(errors="replace")) if c.name not in self.run.without]
                    self.c_cases += found
                    cases += found
            elif "orphan" in event:
                self.orphans.append(event)
            elif "lane_cpu" in event:
                self.cpu = event["lane_cpu"]
        return cases

    def is_over(self):
        return self.process.poll() is not None

    def end(self):
        """At once, with all that runs in it."""
        if self.process and not self.is_over():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)

    def broken(self, complete=True):
        """-> a failed case where tests are missing: a job did not run, or pytest broke off"""
        missing = [j["name"] for j in self.jobs if j["name"] not in self.ended] if complete else []
        code = self.ended.get("pytest", {"code": 0})["code"]
        failed = any(c.outcome == "failed" for c in (self.pytest.cases if self.pytest else {}).values())
        if not missing and (code in (0, NO_TEST) or (code == 1 and failed)):
            return []
        log = self.folder / ("pytest.log" if code else "lane.log")
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else ""
        why = f"these did not run: {', '.join(missing)}" if missing else f"pytest ended with {code}"
        return [Case(f"{self.name}: its end", None, "failed", f"{tail}\n{why}")]

    def cases(self):
        return [*(self.pytest.cases.values() if self.pytest else ()), *self.c_cases]

    def costs(self):
        """-> {unit: CPU seconds}, orphans too"""
        found = {}
        for c in self.cases():
            found[c.unit] = found.get(c.unit, 0) + c.cpu
        marks = self.pytest.marks if self.pytest else {}
        for o in self.orphans:
            unit = marks.get(o["orphan"], o["orphan"])
            if unit in found:
                found[unit] += o["cpu"]
        return found


class Run:
    def __init__(self, args, scratch, worth):
        self.args, self.scratch, self.build = args, scratch, pathlib.Path(args.build).resolve()
        self.logs = self.build / "test-logs"
        self.chosen, self.left_out, self.dear = None, args.without, []  # dear: what --quick leaves out
        self.without = set(pathlib.Path(args.without).read_text().splitlines()) if args.without else set()
        self.env = {**inherit.environment(os.environ), "CRUN_BUILD": str(self.build), "PYTHONPYCACHEPREFIX": str(self.build / "pycache"),
                    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1", "CRUN_TEST_LOAD": str(scratch / "others"), **dict(s.split("=", 1) for s in args.set)}
        self.wait = float(self.env.setdefault("CRUN_TEST_WAIT", f"{deadlines.one_wait(args.patience, worth):.0f}"))
        self.programs = ctests.Programs(self.build).all
        self.others = self.progress = None
        self.lanes, self.lock = [], open(self.build / "test-logs.lock", "wb")

    def choose(self, here):
        """Raises choose.Refused."""
        chooser, args = choose.Chooser(self.programs), self.args
        if args.quick:
            listed = budget.read()
            if listed is None:
                raise choose.Refused(f"--quick: {budget.PATH} is not there; a whole ./dev test --write-budget writes it")
            self.dear = budget.too_dear(listed, [n for n, p in self.programs.items() if not p.cuda])
        if args.names or args.changed or args.last_failed:
            self.chosen = choose.Chosen()
        for name in args.names:
            named = chooser.named(name, here)
            named.e2e -= set(self.unknown(named.e2e))
            if not named:
                raise choose.Refused(f"{name}: no test has these parameters; ./dev test '{name.partition('[')[0]}' runs it with all that there are")
            self.chosen.add(named)
        if args.changed:
            more, without = chooser.changed()
            self.chosen.add(more)
            if without:
                print("changed, and no test belongs to it:", *without, file=sys.stderr)
        if args.last_failed:
            self.add_failed(chooser)
        if self.chosen is not None and not self.chosen:
            raise choose.Refused("nothing differs that a test belongs to" if args.changed else "nothing failed in the last run")
        if args.parts:
            self.chosen = self.of_parts(args.parts.split(","))

    def of_parts(self, parts):
        paths = {n: p.path.removeprefix("tests/") for n, p in self.programs.items()}
        for p in parts:
            if not (E2E / p).exists() and not any(path.startswith(p) for path in paths.values()):
                raise choose.Refused(f"--parts {p}: no test's path below tests/ begins so, and nothing of that name is in tests/e2e")
        return choose.Chosen([n for n, path in paths.items() if path.startswith(tuple(parts))], [E2E / p for p in parts if (E2E / p).exists()])

    def add_failed(self, chooser):
        path = self.logs / "failed"
        if not path.exists():
            raise choose.Refused(f"--last-failed: {path} is not there: no run has ended in this build")
        units = path.read_text().splitlines()
        found, gone = chooser.still_there(units)
        lost = self.unknown(found.e2e)
        found.e2e -= set(lost)
        gone += [t.removeprefix(f"{ROOT}/") for t in lost]
        if units and not found:
            raise choose.Refused(f"--last-failed: what failed in the last run is no longer there: {', '.join(gone)}; ./dev test PATH|NAME runs others")
        if gone and not self.args.targets:
            print("failed in the last run, and is no longer there:", *gone, file=sys.stderr)
        self.chosen.add(found)

    def unknown(self, tests):
        """Those with [PARAMETERS] that pytest does not have. Nobody is asked before the build, which they may need."""
        cases = sorted(t for t in tests if "[" in t)
        return pytests.unknown(cases, self.env) if cases and not self.args.targets else []

    def marks(self):
        """What pytest is asked for."""
        if self.args.gpu_emulated:
            return ["gpu_emulated", "not slow"]
        return [] if self.args.slow else ["not slow"] if self.chosen else ["not slow", "(not gpu_emulated or daily)"]

    def wants(self, name, program):
        if name in self.without or (self.chosen and name not in self.chosen.programs):
            return False
        if self.args.gpu_emulated:
            return ctests.EMULATED in program.suites
        if self.args.quick and (program.cuda or name in self.dear):
            return False
        return self.args.slow or ctests.SLOW not in program.suites and (bool(self.chosen) or ctests.EMULATED not in program.suites)

    def wanted(self):
        return {n: p for n, p in self.programs.items() if self.wants(n, p)}

    def targets(self):
        """What ninja has to build."""
        if not self.chosen or self.chosen.e2e:
            return ["all"]
        return sorted({t for p in self.wanted().values() for t in p.targets})

    def begin(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise choose.Refused(f"another run uses {self.build}: wait for its end") from None
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir()
        self.others = procs.Others(self.scratch / "others")
        self.others.start()
        self.progress = tell.Progress(self.others)
        if self.args.quick:
            self.left_out = self.scratch / "left-out"
            self.left_out.write_text("".join(f"{name}\n" for name in self.dear))

    def first(self):
        """-> all cases"""
        wanted, marks = self.wanted(), self.marks()
        if self.chosen:
            there = sorted(self.chosen.e2e)
            trainers = [p for p in there if any(pathlib.Path(p.partition("::")[0]).is_relative_to(E2E / t) for t in TRAINERS)]
            idle, serial = [p for p in there if p not in trainers], there
        else:
            idle, trainers, serial = [E2E, *(f"--ignore={E2E / p}" for p in TRAINERS)], [E2E / p for p in TRAINERS], [E2E]
        lanes = [
            Lane("idle", self).add_pytest(idle, ["not serial", *marks], 4 if self.chosen else IDLE),
            Lane("trainers", self, heavy=True).add_pytest(trainers, ["not serial", *marks], CORES + 1),
            Lane("c", self, CORES + 1, heavy=True).add_programs([n for n, p in wanted.items() if not p.serial]),
            Lane("serial", self).add_pytest(serial, ["serial", *marks]).add_programs([n for n, p in wanted.items() if p.serial])]
        return self.carry_out([lane for lane in lanes if lane.jobs])

    def carry_out(self, lanes, seconds=None):
        """Side by side, for so long at most. -> their cases"""
        self.lanes += lanes
        until = time.monotonic() + seconds if seconds else None
        begun = [f"{lane.name} ({lane.programs} C programs)" if lane.programs else lane.name for lane in lanes]
        self.progress.say(f"{self.progress.elapsed()} begins: {', '.join(begun)}; logs in {self.logs}")
        for lane in lanes:
            lane.start()
        running, cases = list(lanes), []
        while running:
            time.sleep(0.2)
            over = [lane for lane in running if lane.is_over()]  # asked before what it said is read
            self.take_in(running)
            for lane in over:
                running.remove(lane)
                cases += self.finish(lane, complete=until is None)
            self.progress.tick(lanes)
            if until and time.monotonic() > until:
                for lane in running:
                    lane.end()
        return cases

    def take_in(self, lanes):
        for case in (c for lane in lanes for c in lane.new()):
            tell.judge_skip(case)
            if case.outcome == "failed":
                self.progress.settled(case)

    def finish(self, lane, complete):
        broken = lane.broken(complete)
        for case in broken:
            self.progress.settled(case)
        cases = lane.cases() + broken
        failed = sum(c.outcome == "failed" for c in cases)
        self.progress.say(f"{self.progress.elapsed()} {lane.name}: {len(cases)} cases in {time.monotonic() - lane.begun:.0f} s, {lane.cpu:.0f} CPU-s"
                          + (f", {failed} failed" if failed else ""))
        return cases

    def known(self, unit):
        """Whether it can be run by itself."""
        return unit is not None and ("::" in unit or unit in self.programs)

    def again(self, units, seconds):
        """-> cases of these alone"""
        lane = Lane(f"again-{len(self.lanes)}", self)
        lane.add_pytest([f"{ROOT}/{u}" for u in units if "::" in u], [])  # no Path: parameters may have //
        lane.add_programs([u for u in units if "::" not in u])
        return self.carry_out([lane], seconds)

    def end(self):
        for lane in self.lanes:
            lane.end()

    def costs(self, worth):
        """-> CPU seconds of lanes and of tests, calibrated; those of a second look do not count"""
        first = [lane for lane in self.lanes if not lane.name.startswith("again")]
        tests = {}
        for lane in first:
            tests.update({unit: cpu * worth for unit, cpu in lane.costs().items()})
        return {lane.name: lane.cpu * worth for lane in first}, tests

    def is_whole(self):
        args = self.args
        return not (self.chosen or args.slow or args.gpu_emulated or args.quick or args.set or args.patience != 4)

    def write_logs(self, cases, tests):
        (self.logs / "durations").write_text("".join(f"{c.seconds:8.2f} {c.name}\n" for c in sorted(cases, key=lambda c: -c.seconds)))
        (self.logs / "cpu").write_text("".join(f"{s:8.2f} {name}\n" for name, s in sorted(tests.items(), key=lambda t: -t[1])))
        (self.logs / "failed").write_text("".join(f"{u}\n" for u in sorted({c.unit for c in cases if c.outcome == "failed" and c.unit})))


def stolen():
    """Seconds of processors that the machine's host gave to others, since it started."""
    return procs.machine()[1]


def judge(run, lanes, tests):
    """-> (what is said of the costs, whether they are within the budget or nobody judges). In part of a run nothing is judged."""
    listed = budget.read()
    if not run.is_whole() or listed is None or run.args.write_budget:
        return [f"CPU: {sum(lanes.values()):.0f} s"], True
    said, fits = budget.judge(lanes, tests, listed)
    return said, fits or not os.environ.get("CI")


def parse():
    p = argparse.ArgumentParser(prog="./dev test", description="Build and run the tests; the last line is N passed, N failed, N skipped.")
    p.add_argument("names", nargs="*", metavar="PATH|NAME", help="only what belongs to a source file or folder, or a test by its path or name")
    p.add_argument("--changed", action="store_true", help="only what belongs to files that differ from origin/main (main), committed or not")
    p.add_argument("--last-failed", action="store_true", help="only what failed in the last run")
    p.add_argument("--quick", action="store_true", help=f"by tests/budget: end-to-end tests below {budget.LEAST} CPU seconds, and the cheapest C tests without CUDA, {budget.QUICK} together")
    p.add_argument("--gpu-emulated", action="store_true", help="the suite that runs the GPU engine on an emulated GPU")
    p.add_argument("--slow", action="store_true", help="all tests, also those of minutes and gpu-emulated")
    p.add_argument("--asan", action="store_true", help="under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/")
    p.add_argument("--tsan", action="store_true", help="those of programs with threads, under ThreadSanitizer, in build-tsan/")
    p.add_argument("--write-budget", action="store_true", help="write tests/budget from a whole run that is green")
    for name, kw in {"--build": {}, "--from": {"dest": "here", "default": os.getcwd()}, "--parts": {}, "--without": {}, "--patience": {"type": float, "default": 4},
                     "--set": {"action": "append", "default": []}, "--targets": {"action": "store_true"}, "--check": {"action": "store_true"}}.items():
        p.add_argument(name, help=argparse.SUPPRESS, **kw)  # what ./dev gives
    args = p.parse_args()
    several = [o for o in ("quick", "gpu_emulated", "slow") if getattr(args, o)]
    if len(several) > 1:
        p.error(f"--{several[0].replace('_', '-')} and --{several[1].replace('_', '-')} exclude each other")
    if args.write_budget and (several or args.names or args.changed or args.last_failed or args.asan or args.tsan):
        p.error("--write-budget needs a whole run: give it alone")
    if not args.build and not args.check:
        p.error("--build DIR is missing: start this as ./dev test")
    return args


def in_a_session_of_its_own():
    """Everything happens in a child that no terminal's keys and no caller's settings reach; this process passes on what asks it to end."""
    ours = os.getpid()
    pid = os.fork()
    if pid == 0:
        inherit.settle()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != ours:
            os._exit(1)
        for signo in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signo, signal.default_int_handler)
        return
    for signo in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signo, lambda number, frame: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def main():
    args = parse()
    if args.check:
        return
    in_a_session_of_its_own()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="crun-tests."))
    worth = 1 if args.targets else budget.calibrate()
    run = Run(args, scratch, worth)
    try:
        run.choose(pathlib.Path(args.here))
        if args.targets:
            print("\n".join(run.targets()))
            shutil.rmtree(scratch)
            return
        begun, lost = time.monotonic(), stolen()
        run.begin()
        if run.chosen and not args.parts:
            run.progress.say(run.chosen.tell())
        cases, unsteady = look.second_look(run, run.first(), run.progress.say)
    except choose.Refused as e:
        shutil.rmtree(scratch)
        print(f"dev: test: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        run.end()
        shutil.rmtree(scratch, ignore_errors=True)
        print("dev: test: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        run.end()
    lanes, tests = run.costs(worth)
    run.write_logs(cases, tests)
    said, fits = judge(run, lanes, tests)
    if worth < 0.9:
        said.append(f"a second of this processor counts as {worth:.2f} s of tests/budget")
    green = bool(cases) and all(c.outcome != "failed" for c in cases)
    if green and args.gpu_emulated and not run.chosen:
        said.append(emulated.write_seen())
    if green and args.write_budget:
        budget.write(budget.with_room(lanes), budget.with_room(tests))
        said.append(f"{budget.PATH} is written; commit it")
    well = tell.tell(cases, unsteady, time.monotonic() - begun, stolen() - lost, said) and fits
    if well:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        print(f"what the failed tests left behind: {scratch}", file=sys.stderr)
    sys.exit(0 if well and cases else 1)


if __name__ == "__main__":
    main()
