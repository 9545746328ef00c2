"""./dev test: the C tests (meson) and the end-to-end tests (pytest) side by side. What it does, in this order:

1. Three lanes at once: end-to-end tests that mostly wait, eight at a time; those that train, and C tests, one a core and one more
   each (both wait at times).
2. Alone, one after the other: what is bound to clocks, cgroups or namespaces (pytest's mark `serial`, meson's `is_parallel: false`).
3. A second look: what failed is run once more, alone. If it passes now, it is unsteady: it is named in the last lines, and counts as passed. More than
   three failures have no second look.
4. The sum. A skip that tests/skips.py does not expect on this machine counts as a failure.

usage: run.py --build DIR [--slow] [--parts NAME,...] [--patience N]
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import skips

ROOT = pathlib.Path(__file__).resolve().parent.parent
E2E = ROOT / "tests" / "e2e"
TRAINERS = ["trainer", "pytorch", "elastic/test_trainer.py"]  # below tests/e2e: they take whole cores
CORES = len(os.sched_getaffinity(0))
IDLE = 8  # tests that mostly wait, at a time
UNSTEADY = 3  # at most


class Case:
    """unit: what can be run again by itself, a C program or a test of pytest."""

    def __init__(self, name, unit, outcome, why="", seconds=0.0):
        self.name, self.unit, self.outcome, self.why, self.seconds = name, unit, outcome, why, seconds


# --- C tests -----------------------------------------------------------------------------------------------------------


def tap_cases(program, log, passed):
    """What a program said of its cases."""
    cases, said = [], []
    for line in log.splitlines():
        m = re.match(r"(not )?ok\b *\d* *-? *(.*)", line)
        skipped = re.match(r"1\.\.0\b.*# *SKIP *(.*)", line)
        if m:
            name, _, directive = m[2].partition("#")
            skip = directive.strip().upper().startswith("SKIP")
            outcome = "skipped" if skip else "failed" if m[1] else "passed"
            words = directive.strip()[4:].strip() if skip else ""
            cases.append(Case(f"{program}: {name.strip() or words}", program, outcome, " ".join([words, *said]) if skip else log))
            said = []
        elif skipped:
            cases.append(Case(program, program, "skipped", skipped[1]))
        else:
            said.append(line.lstrip("# "))
    if not passed and not any(c.outcome == "failed" for c in cases):
        cases.append(Case(f"{program}: its end", program, "failed", log))
    return cases


class Meson:
    def __init__(self, build, patience, slow, parts):
        self.build, self.patience = build, patience
        listed = json.loads(subprocess.run(["meson", "introspect", "--tests", str(build)], check=True, capture_output=True, text=True).stdout)
        listed = [t for t in listed if slow or not any(s.endswith("slow") for s in t["suite"])]
        self.unknown = [p for p in parts or () if not (E2E / p).exists() and not any(self.program(t).startswith(p) for t in listed)]
        if parts:
            listed = [t for t in listed if self.program(t).startswith(tuple(parts))]
        listed.sort(key=lambda t: (-t["priority"], -t["timeout"]))  # what waits begins first, then what may take longest
        self.serial = list(dict.fromkeys(t["name"] for t in listed if not t["is_parallel"]))
        self.parallel = list(dict.fromkeys(t["name"] for t in listed if t["name"] not in self.serial))  # two suites may have one of a name

    def program(self, test):
        """Its path below tests/."""
        paths = [os.path.relpath(a, self.build.resolve() / "tests") for a in test["cmd"] if a.startswith(str(self.build.resolve() / "tests"))]
        return paths[0] if paths else ""

    def command(self, lane, names, processes):
        return ["meson", "test", "-C", str(self.build), "--no-rebuild", "--num-processes", str(processes), "--timeout-multiplier", str(self.patience),
                "--logbase", f"tests-{lane}", *names]

    def cases(self, lane):
        found = []
        path = self.build / "meson-logs" / f"tests-{lane}.json"
        for line in path.read_text().splitlines() if path.exists() else []:
            t = json.loads(line)
            name = t["name"].split(" / ", 1)[-1]
            log = t.get("stdout", "") + t.get("stderr", "")
            passed = t["result"] in ("OK", "SKIP")
            found += tap_cases(name, log if passed else f"{log}\n{t['result']}, exit status {t.get('returncode')}, {t['duration']:.1f} s", passed)
            found[-1].seconds = t["duration"]
        return found


# --- end-to-end tests ----------------------------------------------------------------------------------------------------


class Pytest:
    def __init__(self, build, scratch, slow, logs):
        self.scratch, self.slow, self.logs = scratch, slow, logs

    def command(self, lane, what, processes=0, marks=""):
        marks = " and ".join(m for m in (marks, "" if self.slow else "not slow") if m)
        results = self.results(lane)
        results.unlink(missing_ok=True)
        spread = ["-n", str(processes), "--dist", "loadgroup"] if processes else []
        return [sys.executable, "-m", "pytest", *map(str, what), "-q", "-p", "no:cacheprovider", "-m", marks, f"--basetemp={self.scratch / lane}",
                f"--results={results}", *spread]

    def results(self, lane):
        return self.logs / f"{lane}.jsonl"

    def cases(self, lane):
        tests = {}
        path = self.results(lane)
        for line in path.read_text().splitlines() if path.exists() else []:
            phase = json.loads(line)
            name = re.sub(r"@[^@\]]*$", "", phase["id"])  # the group that pytest-xdist adds
            c = tests.setdefault(name, Case(name, name, "passed"))
            c.seconds += phase["seconds"]
            if phase["outcome"] == "failed":
                c.why = phase["why"] if c.outcome != "failed" else c.why + "\n" + phase["why"]
                c.outcome = "failed"
            elif phase["outcome"] == "skipped" and c.outcome != "failed":
                c.outcome, c.why = "skipped", phase["why"]
        return list(tests.values())


# --- lanes -------------------------------------------------------------------------------------------------------------


class Lane:
    """One command, what it says in a file. heavy: it leaves the processor to whoever has to answer in time."""

    def __init__(self, name, command, fine, cases, logs, env, heavy=False, broken=()):
        self.broken = broken  # exit codes that say that it broke off
        self.name, self.command, self.fine, self.read = name, ["nice", "-n", "10", *command] if heavy else command, fine, cases
        self.log, self.env = logs / f"{name}.log", env
        self.seconds, self.code, self.cases = 0.0, None, []

    def run(self):
        begun = time.monotonic()
        with open(self.log, "wb") as log:
            self.code = subprocess.run(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, cwd=ROOT, check=False).returncode
        self.seconds = time.monotonic() - begun
        self.cases = self.read(self.name)
        failed = sum(c.outcome == "failed" for c in self.cases)
        if self.code in self.broken or self.code < 0 or (self.code not in self.fine and not failed):  # tests are missing
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
            self.cases.append(Case(f"{self.name}: its end", None, "failed", f"{self.command[0]} ended with {self.code}\n{tail}"))
            failed = 1
        print(f"{self.name}: {len(self.cases)} cases in {self.seconds:.0f} s" + (f", {failed} failed" if failed else ""), flush=True)


def side_by_side(lanes):
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


# --- everything ----------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, args, scratch):
        self.args, self.build = args, pathlib.Path(args.build).resolve()
        self.logs = self.build / "test-logs"
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir()
        self.parts = args.parts.split(",") if args.parts else None
        self.meson = Meson(self.build, args.patience, args.slow, self.parts)
        if self.meson.unknown:
            sys.exit(f"run.py: --parts {','.join(self.meson.unknown)}: no test's path below tests/ begins so, and nothing of that name is in tests/e2e")
        self.pytest = Pytest(self.build, scratch, args.slow, self.logs)
        self.env = dict(os.environ, CRUN_BUILD=str(self.build), PYTHONDONTWRITEBYTECODE="1",
                        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1")
        self.env.setdefault("CRUN_TEST_WAIT", str(15 * args.patience))
        if self.parts:
            there = [E2E / p for p in self.parts if (E2E / p).exists()]
            self.trainers = [p for p in there if any(p.is_relative_to(E2E / t) for t in TRAINERS)]
            self.idle = [p for p in there if p not in self.trainers]
        else:
            self.idle = [E2E, *(f"--ignore={E2E / p}" for p in TRAINERS)]
            self.trainers = [E2E / p for p in TRAINERS]

    def c_lane(self, name, names, processes, heavy=False):
        return [Lane(name, self.meson.command(name, names, processes), (0,), self.meson.cases, self.logs, self.env, heavy)] if names else []

    def python_lane(self, name, what, processes=0, marks="", heavy=False):
        command = self.pytest.command(name, what, processes, marks)
        return [Lane(name, command, (0, 5), self.pytest.cases, self.logs, self.env, heavy, (2, 3, 4))] if what else []

    def first(self):
        """-> all cases"""
        together = [*self.python_lane("idle", self.idle, IDLE, "not serial"), *self.python_lane("trainers", self.trainers, CORES + 1, "not serial", heavy=True),
                    *self.c_lane("c", self.meson.parallel, CORES + 1, heavy=True)]
        side_by_side(together)
        alone = [*self.python_lane("serial", [E2E] if not self.parts else self.idle + self.trainers, 0, "serial"), *self.c_lane("c-serial", self.meson.serial, 1)]
        for lane in alone:
            lane.run()
        return [c for lane in together + alone for c in lane.cases]

    def known(self, unit):
        """Whether it can be run by itself."""
        return unit is not None and ("::" in unit or unit in self.meson.parallel + self.meson.serial)

    def again(self, units):
        """-> cases of these alone"""
        tests = [u for u in units if "::" in u]
        programs = [u for u in units if "::" not in u]
        lanes = [*self.python_lane("again", tests), *self.c_lane("c-again", programs, 1)]
        for lane in lanes:
            lane.run()
        return [c for lane in lanes for c in lane.cases]


def second_look(run, cases):
    """-> (cases as they count, units that are unsteady)"""
    failed = {c.unit for c in cases if c.outcome == "failed"}
    if not failed or len(failed) > UNSTEADY or not all(map(run.known, failed)):
        return cases, []
    print("a second look at:", *sorted(failed), sep="\n  ", flush=True)
    again = run.again(sorted(failed))
    seen = {u: [c.outcome for c in again if c.unit == u] for u in failed}
    steady = {u for u, outcomes in seen.items() if "passed" in outcomes and "failed" not in outcomes}
    # What passes now counts as it came out now; the first words of what failed twice are kept.
    return [c for c in cases if c.unit not in steady] + [c for c in again if c.unit in steady], sorted(steady)


def stolen():
    """Seconds of processors that the machine's host gave to others, since it started."""
    with open("/proc/stat", encoding="utf-8") as f:
        return int((f.readline().split() + ["0"] * 9)[8]) / os.sysconf("SC_CLK_TCK")


def tell(cases, unsteady, seconds, lost=0.0):
    """Print everything that matters; -> whether all is well"""
    skipped = [c for c in cases if c.outcome == "skipped"]
    unexpected = [c for c in skipped if not skips.expected(c.name, c.why)]
    for c in skipped:
        if c not in unexpected:
            print(f"skipped: {c.name}: {c.why.removeprefix('Skipped: ')[:200]}")
    failed = [c for c in cases if c.outcome == "failed"]
    for c in failed:
        print(f"\n=== failed: {c.name}\n{c.why[-6000:]}")
    for c in unexpected:
        print(f"\n=== failed: {c.name}\nskipped where tests/skips.py does not expect it: {c.why}")
    share = 100 * lost / (seconds * CORES)
    print(f"\n{seconds // 60:.0f}:{seconds % 60:02.0f}" + (f", {share:.0f} % of the processors' time went to other guests of their host" if share >= 5 else ""))
    for c in failed + unexpected:
        print(f"failed: {c.name}")
    if unsteady:
        print(f"unsteady: {len(unsteady)}, failed beside others and passed alone:", *unsteady, sep="\n  ")
    bad = len(failed) + len(unexpected)
    print(f"{len(cases) - bad - (len(skipped) - len(unexpected))} passed, {bad} failed, {len(skipped) - len(unexpected)} skipped", flush=True)
    return bad == 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--slow", action="store_true")
    p.add_argument("--parts", help="what paths below tests/ begin with, and paths below tests/e2e, comma-separated; all by default")
    p.add_argument("--patience", type=float, default=4, help="times meson's 30 s for a C program")
    args = p.parse_args()
    for signo in (signal.SIGINT, signal.SIGQUIT):  # a shell starts what it puts in the background with both ignored
        signal.signal(signo, signal.default_int_handler if signo == signal.SIGINT else signal.SIG_DFL)
    begun, lost = time.monotonic(), stolen()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="crun-tests."))
    run = Run(args, scratch)
    cases, unsteady = second_look(run, run.first())
    well = tell(cases, unsteady, time.monotonic() - begun, stolen() - lost) if cases else False
    if well:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        print(f"what the failed tests left behind: {scratch}", file=sys.stderr)
    slowest = sorted(cases, key=lambda c: -c.seconds)
    (run.logs / "durations").write_text("".join(f"{c.seconds:8.2f} {c.name}\n" for c in slowest))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
