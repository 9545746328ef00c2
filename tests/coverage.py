#!/usr/bin/env python3
"""Which branches of the pure cores do their unit tests take? usage: coverage.py [--area NAME] [--list] BUILD

BUILD is made for it (./dev coverage: without optimization, without assertions, since each adds a branch that no test takes). The areas, their
files and their unit tests are those of mutants_drawn.py, but for areas that are no pure core, and for rules, one side of which no test takes. A line that begins with TRY() does not
count: it passes an error on.
Each file's share is printed; with --list also each line with a branch that no test takes, and how many of its branches those are."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import mutants
import mutants_drawn

ROOT = mutants.ROOT
PASSED_ON = re.compile(r"\s*(TRY\(|HASH_|DL_)")  # an error that is passed on; what uthash and utlist make of a line
SHELLS = {"checkpoints", "tokens", "store"}


def run_tests(build, tests):
    known = {t["name"]: t for t in mutants.introspect(build, "tests")}
    missing = [t for t in tests if t not in known]
    if missing:
        raise SystemExit(f"coverage: no such tests in this build: {', '.join(missing)}")
    programs = sorted({os.path.relpath(known[t]["cmd"][0], build) for t in tests})
    subprocess.run(["ninja", "-C", build, "--quiet", *programs], check=True)
    for old in build.rglob("*.gcda"):
        old.unlink()
    return subprocess.run(["meson", "test", "-C", build, "--no-rebuild", "--quiet", "--timeout-multiplier", str(mutants.PATIENCE), *tests], check=False).returncode


def read(build, files):
    """{file: {line: (branches, of them not taken)}}"""
    command = ["gcovr", "--root", ROOT, "--json", "-", "--exclude-unreachable-branches", *(f"--filter={ROOT / f}$" for f in files), build]
    found = json.loads(subprocess.run(command, cwd=build, stdout=subprocess.PIPE, check=True).stdout)["files"]
    covered = {}
    for f in found:
        text = (ROOT / f["file"]).read_text().splitlines()
        lines = [n for n in f["lines"] if n["branches"] and not PASSED_ON.match(text[n["line_number"] - 1])]
        covered[f["file"]] = {n["line_number"]: (len(n["branches"]), sum(b["count"] == 0 for b in n["branches"])) for n in lines}
    return covered


def show(covered, listed):
    branches = missed = 0
    for file, lines in sorted(covered.items()):
        n, lost = sum(b for b, _ in lines.values()), sum(m for _, m in lines.values())
        branches, missed = branches + n, missed + lost
        print(f"{100 * (n - lost) / n if n else 100:5.1f} %  {lost:4} of {n:4} not taken  {file}")
        text = (ROOT / file).read_text().splitlines()
        for line in (line for line, (_, m) in sorted(lines.items()) if m and listed):
            print(f"    {file}:{line}: {lines[line][1]} of {lines[line][0]}: {text[line - 1].strip()}")
    print(f"{branches - missed} of {branches} branches taken ({100 * (branches - missed) / branches:.1f} %)")


def main():
    areas = {a: v for a, v in mutants_drawn.AREAS.items() if a not in SHELLS}
    p = argparse.ArgumentParser(prog="coverage.py", description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--area", choices=sorted(areas), help="this one alone")
    p.add_argument("--list", action="store_true", help="the lines, too")
    p.add_argument("build", type=pathlib.Path)
    args = p.parse_args()
    chosen = {a: v for a, v in areas.items() if args.area in (None, a)}
    tests = sorted({t for _, unit, _ in chosen.values() for t in unit})
    failed = run_tests(args.build.resolve(), tests)
    files = [f.relative_to(ROOT) for globs, _, _ in chosen.values() for g in globs for f in sorted(ROOT.glob(g)) if not mutants_drawn.RULES.search(f.name)]
    show(read(args.build.resolve(), files), args.list)
    return failed


if __name__ == "__main__":
    sys.exit(main())
