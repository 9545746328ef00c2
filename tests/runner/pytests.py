"""The end-to-end tests: pytest's command, and what its plugin tells of each phase (tests/support/fixtures.py)."""
import json
import re
import subprocess
import sys

from runner.cases import Case


def command(what, results, scratch, marks, processes=0, left_out=None):
    spread = ["-n", str(processes), "--dist", "loadgroup"] if processes else []
    less = [f"--left-out={left_out}"] if left_out else []
    return [sys.executable, "-m", "pytest", *map(str, what), "-q", "-p", "no:cacheprovider", "-m", " and ".join(marks) or "not none",
            f"--basetemp={scratch}", f"--results={results}", *spread, *less]


def unknown(cases, env):
    """Those of FILE::FUNCTION[PARAMETERS] that pytest does not have, as they were given."""
    p = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *cases], capture_output=True, text=True, env=env, check=False)
    missing = set(re.findall(r"^ERROR: not found: (.*)$", p.stdout + p.stderr, re.M))
    return [c for c in cases if c in missing]


class Lines:
    """The lines of a file as they are added."""

    def __init__(self, path):
        self.path, self.at, self.part = path, 0, b""

    def new(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.at)
                text = f.read()
        except FileNotFoundError:
            return []
        self.at += len(text)
        *whole, self.part = (self.part + text).split(b"\n")
        return [json.loads(line) for line in whole]


class Results:
    """cases: {name: Case}, so far. marks: {mark of its processes: name}. count: how many there are, once pytest knows."""

    def __init__(self, path):
        self.lines, self.cases, self.marks, self.count, self.ended = Lines(path), {}, {}, 0, 0

    def new(self):
        """-> cases that have an outcome now"""
        settled = []
        for phase in self.lines.new():
            if "count" in phase:
                self.count = max(self.count, phase["count"])
                continue
            name = re.sub(r"@[^@\]]*$", "", phase["id"])  # the group that pytest-xdist adds
            c = self.cases.setdefault(name, Case(name, name, "passed"))
            c.seconds += phase["seconds"]
            c.cpu += phase.get("cpu", 0)
            if "mark" in phase:
                self.marks[phase["mark"]] = name
            before = c.outcome
            if phase["outcome"] == "failed":
                c.why = phase["why"] if c.outcome != "failed" else c.why + "\n" + phase["why"]
                c.outcome = "failed"
            elif phase["outcome"] == "skipped" and c.outcome != "failed":
                c.outcome, c.why = "skipped", phase["why"]
            self.ended += phase["when"] in ("teardown", "???")  # ???: of a worker that died
            if c.outcome != before:
                settled.append(c)
        return settled
