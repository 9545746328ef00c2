"""tests/budget: what the tests may cost, in seconds of a processor on which a fixed piece of work takes UNIT seconds.

A line of the file: seconds, kind (total, lane, test), name. Tests below LEAST are not listed. ./dev test --write-budget writes it from a whole run."""
import pathlib
import time
import zlib

PATH = pathlib.Path(__file__).resolve().parents[1] / "budget"
UNIT = 0.3
LEAST = 0.3  # also the most that an end-to-end test of ./dev test --quick may cost
QUICK = 230  # what ./dev test --quick may cost
ROOM = 1.2  # times what was measured: where others use the machine, and on slower ones, ranks wait for one another longer, and that costs
WARNS, FAILS = 1.0, 1.25  # times the total


def fixed_work():
    text = b"".join(b"%d %x\n" % (n * n % 1000003, n) for n in range(200000))
    zlib.compress(text, 9)


def calibrate(work=fixed_work):
    """-> what a second of this processor is worth here: the best of three"""
    best = None
    for _ in range(3):
        begun = time.process_time()
        work()
        took = time.process_time() - begun
        best = took if best is None else min(best, took)
    return UNIT / best


def read(path=PATH):
    """-> {kind: {name: seconds}}, None without a file"""
    if not path.exists():
        return None
    found = {"total": {}, "lane": {}, "test": {}}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            seconds, kind, name = (line.split(maxsplit=2) + [""])[:3]
            found[kind][name] = float(seconds)
    return found


def with_room(measured):
    return {name: ROOM * seconds for name, seconds in measured.items()}


def write(lanes, tests, path=PATH):
    """lanes, tests: {name: seconds}, calibrated"""
    rows = [(sum(lanes.values()), "total", ""), *((s, "lane", n) for n, s in sorted(lanes.items())),
            *((s, "test", n) for n, s in sorted(tests.items(), key=lambda t: (-t[1], t[0])) if s >= LEAST)]
    path.write_text("# CPU seconds of ./dev test: see docs/design/testing.md. Written by ./dev test --write-budget.\n"
                    + "".join(f"{s:8.1f} {kind} {name}".rstrip() + "\n" for s, kind, name in rows))


def judge(lanes, tests, budget):
    """-> (sentences, whether CI may pass)"""
    total, allowed = sum(lanes.values()), budget["total"][""]
    share = total / allowed
    said = [f"CPU: {total:.0f} s of the {allowed:.0f} s in tests/budget ({share:.2f})"]
    if share <= WARNS:
        return said, True
    said += [f"  lane {n}: {s:.0f} s of {budget['lane'].get(n, 0):.0f}" for n, s in lanes.items() if s > budget["lane"].get(n, 0)]
    grown = sorted(((s - budget["test"].get(n, LEAST), n, s) for n, s in tests.items()), reverse=True)
    said += [f"  grew by {more:.1f} s to {s:.1f}: {n}" for more, n, s in grown[:10] if more > 0]
    said.append(f"  {'above' if share > FAILS else 'below'} {FAILS} times the budget, where CI fails: make tests cheaper, or ./dev test --write-budget")
    return said, share <= FAILS


def too_dear(budget, programs):
    """Names of tests that --quick leaves out: all that are listed, but for the cheapest of `programs`. Those, and what is not listed, cost QUICK."""
    tests = budget["test"]
    left, cost = QUICK - (budget["total"][""] - sum(tests.values())), {n: tests[n] for n in tests.keys() & set(programs)}
    kept = set()
    for name in sorted(cost, key=lambda n: (cost[n], n)):
        left -= cost[name]
        if left < 0:
            break
        kept.add(name)
    return sorted(tests.keys() - kept)
