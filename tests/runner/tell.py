"""What a run says: what it begins, how far it is, each failure at once; at the end the failures in full, and the sum."""
import re
import sys
import time

import skips
from runner import procs


def first_words(why):
    """The line of a failure that says most."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    best = [line for line in lines if re.match(r"E +\S", line) or re.search(r"\[ +ERROR +\] --- (?!Test)", line)]
    return (best or lines[-1:] or [""])[0].removeprefix("E").strip()[:160]


class Progress:
    """A line every few seconds: on a terminal in the same place."""

    def __init__(self, others, out=sys.stdout):
        self.others, self.out, self.begun, self.failed = others, out, time.monotonic(), 0
        self.terminal = out.isatty()
        self.every, self.next, self.wiped = (1, 0.0, True) if self.terminal else (15, time.monotonic() + 15, True)

    def elapsed(self):
        seconds = time.monotonic() - self.begun
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"

    def say(self, *lines):
        if not self.wiped:
            print("\r\033[K", end="", file=self.out)
            self.wiped = True
        print(*lines, sep="\n", flush=True, file=self.out)

    def settled(self, case):
        """A case has failed, or was skipped where that is not expected."""
        self.failed += 1
        self.say(f"{self.elapsed()} failed: {case.name}: {first_words(case.why)}")

    def tick(self, lanes):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + self.every
        parts = ", ".join(f"{lane.name} {lane.done()}/{lane.count() or '?'}" for lane in lanes)
        busy = f", others use {100 * self.others.share:.0f} % of the cores" if self.others.share >= procs.BUSY else ""
        line = f"{self.elapsed()} {parts}; {self.others.cpu:.0f} CPU-s; {self.failed} failed{busy}"
        if self.terminal:
            print(f"\r\033[K{line}", end="", flush=True, file=self.out)
            self.wiped = False
        else:
            self.say(line)


def judge_skip(case):
    """A skip that this machine is no reason for is a failure: said as soon as it is known, for the machine may change."""
    if case.outcome == "skipped" and not skips.expected(case.name, case.why):
        case.outcome, case.why = "failed", f"skipped where tests/skips.py does not expect it: {case.why}"


def tell(cases, unsteady, seconds, lost=0.0, more=(), say=print):
    """Print everything that matters; -> whether all is well. more: sentences on what the run cost."""
    skipped = [c for c in cases if c.outcome == "skipped"]
    for c in skipped:
        say(f"skipped: {c.name}: {c.why.removeprefix('Skipped: ')[:200]}")
    failed = [c for c in cases if c.outcome == "failed"]
    for c in failed:
        say(f"\n=== failed: {c.name}\n{c.why[-6000:]}")
    share = 100 * lost / (seconds * procs.CORES)
    say(f"\n{seconds // 60:.0f}:{seconds % 60:02.0f}" + (f", {share:.0f} % of the processors' time went to other guests of their host" if share >= 5 else ""))
    for line in more:
        say(line)
    if unsteady:
        say(f"unsteady: {len(unsteady)}, failed beside others and passed alone:")
        for name in unsteady:
            say(f"  {name}")
    for c in failed:
        say(f"failed: {c.name}")
    say(f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return not failed
