"""The C tests: what meson lists, as jobs of a lane, and what the programs say (TAP)."""
import json
import os
import pathlib
import random
import re
import subprocess

from runner import deadlines
from runner.cases import Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOW, EMULATED, GPU = "slow", "gpu-emulated", "gpu"  # suites of Meson


def tap_cases(program, log, passed):
    """What a program said of its cases. cmocka reports a skipped one as "not ok N # SKIP"."""
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


def meson(what, build):
    return json.loads(subprocess.run(["meson", "introspect", what, str(build)], check=True, capture_output=True, text=True).stdout)


class Program:
    """A test of Meson's."""

    def __init__(self, listed, targets, build):
        self.name, self.argv, self.env = listed["name"], listed["cmd"], listed["env"]
        self.suites = {s.rpartition(":")[2] for s in listed["suite"]}
        self.serial, self.first, self.timeout = not listed["is_parallel"], listed["priority"], listed["timeout"]
        needed = [targets[t] for t in listed["depends"] if t in targets]
        self.targets = sorted({os.path.relpath(f, build) for t in needed for f in t["filename"]})
        own = [t for t in needed if any(f in self.argv for f in t["filename"])]
        sources = {s for t in own for part in t["target_sources"] for s in part.get("sources", ())}
        run = {a for a in self.argv if a.endswith(".c")}  # of a room's program, the file whose tests are run
        if run:
            sources = run | {s for s in sources if not os.path.basename(s).startswith("test_")}  # and what its tests share
        sources |= {a for a in self.argv if a.endswith(".py")}
        self.sources = sorted({os.path.relpath(os.path.normpath(s), ROOT) for s in sources})
        named = [s for s in self.sources if not run or any(os.path.samefile(ROOT / s, r) for r in run)]
        self.path = next((s for s in named if os.path.basename(s).startswith("test_")), next(iter(named), ""))

    @property
    def cuda(self):
        return self.suites & {EMULATED, GPU} or "cuda" in self.name or self.path.startswith("tests/worker/device/cuda")

    def job(self, name, build, log, env, wait):
        return {"name": name, "argv": self.argv, "cwd": str(build), "log": str(log),
                "env": {**env, "MALLOC_PERTURB_": str(random.randrange(1, 256)), **self.env},  # as Meson does
                "seconds": deadlines.seconds(self.name, wait, SLOW in self.suites)}


class Programs:
    """All that the build has, by the name that tells them apart: two suites may have one of a name."""

    def __init__(self, build):
        self.build = build
        targets = {t["id"]: t for t in meson("--targets", build)}
        self.all = {}
        listed = sorted(meson("--tests", build), key=lambda t: (-t["priority"], -t["timeout"]))  # what may take longest begins first
        for test in listed:
            program = Program(test, targets, build)
            name = program.name if program.name not in self.all else f"{program.name} ({', '.join(sorted(program.suites))})"
            self.all[name] = program


def cases_of(event, log):
    """-> the cases of a program that a lane tells the end of; the cost is that of the last one"""
    code, late = event["code"], event["late"]
    passed = code == 0
    if not passed:
        how = f"it was ended after {event['seconds']:.0f} s" if late else f"signal {-code}" if code < 0 else f"exit status {code}"
        log = f"{log}\n{how}, {event['seconds']:.1f} s"
    cases = tap_cases(event["ended"], log, passed) or [Case(event["ended"], event["ended"], "passed")]  # one without TAP
    cases[-1].seconds, cases[-1].cpu = event["seconds"], event["cpu"]
    return cases
