"""The second look: what failed beside others runs once more, alone, by cause."""
import re
import time

SECONDS = 300  # what has not been seen again by then has failed


def cause(case):
    """The line that failed and what it said, without what differs from test to test: numbers, paths, texts. What a program printed is no part of it:
    unlike failures have the same first lines there."""
    lines = [line.strip() for line in case.why.splitlines() if line.strip()]
    if any(re.match(r"it was ended after|(E +)?Failed: Timeout", line) for line in lines):
        return "timeout"
    at = [line[1:].strip() for line in lines if re.match(r"> +\S", line)]  # pytest's, of the innermost function last
    said = [line[1:].strip() for line in lines if re.match(r"E +assert ", line)] or [line[1:].strip() for line in lines if re.match(r"E +\S", line)]
    said = [": ".join(at[-1:] + said[:1])] if said else [line for line in lines if re.search(r"\[ +ERROR +\]|: error: |Sanitizer: |[Aa]ssert", line)] or lines[-1:] or [""]
    words = re.sub(r"0x[0-9a-f]+|/[\w./@+-]+|'[^']*'|\"[^\"]*\"|\d+(\.\d+)?", "_", said[0])
    return words[:120]


def by_cause(units):
    """{unit: case} -> {cause: units}, those that hit most first"""
    groups = {}
    for unit, case in sorted(units.items()):
        groups.setdefault(cause(case), []).append(unit)
    return dict(sorted(groups.items(), key=lambda g: -len(g[1])))


def second_look(run, cases, say=print):
    """-> (cases as they count, units that are unsteady). One test of each cause runs first. Where it fails again, all of that cause have failed;
    where it passes, the others of that cause run, too."""
    failed = {c.unit: c for c in reversed(cases) if c.outcome == "failed" and run.known(c.unit)}
    if not failed:
        return cases, []
    groups, until = by_cause(failed), time.monotonic() + SECONDS
    say(f"a second look at {len(failed)} that failed, of {len(groups)} causes:")
    for words, units in groups.items():
        say(f"  {len(units)} × {words}: {units[0]}{', …' if len(units) > 1 else ''}")
    again = run.again([units[0] for units in groups.values()], SECONDS)
    passed = steady(again, failed)
    others = [u for units in groups.values() if units[0] in passed for u in units[1:]]
    if others and time.monotonic() < until:
        again += run.again(others, until - time.monotonic())
        passed = steady(again, failed)
    # What passes now counts as it came out now; the first words of what failed twice are kept.
    return [c for c in cases if c.unit not in passed] + [c for c in again if c.unit in passed], sorted(passed)


def steady(again, failed):
    """-> of these, what passed now. One that was skipped, or did not run, did not pass."""
    seen = {u: {c.outcome for c in again if c.unit == u} for u in failed}
    return {u for u, outcomes in seen.items() if "passed" in outcomes and "failed" not in outcomes}
