#!/usr/bin/env python3
"""Draw faults by a seed and sow them one at a time: how many do the fast tests see? usage: mutants_drawn.py [--seed N] [--count N] OUT

Each mutant is one change of one place, drawn in three steps so that no long file drowns the others: the area, the operator, the place. A change
that does not compile, or that leaves the object file as it was, is no fault: another place is drawn. The tests are those of the area in AREAS,
which take seconds; first the unit tests, then, where none of these fails, the slower ones.

The last line is the sum. The exit code is 1 where fewer than 90 % were caught, those of EQUIVALENT left out. A mutant that was missed wants a
test; where no test can tell it from the original, its text goes to EQUIVALENT with the reason."""
import argparse
import hashlib
import json
import pathlib
import random
import re
import sys
import time

import mutants

SHARE = 0.9

# Globs of the sources of an area, its unit tests, its slower tests.
AREAS = {
    "rendezvous, machine": (["common/rdzv/machine/*.c"], ["rdzv_elastic", "rdzv_scenarios", "rendezvousd_rdzv_verbs", "rdzv_log", "leader"], ["rdzv_sim"]),
    "rendezvous, leader": (["common/rdzv/leader/*.c"], ["leader", "keeper", "seats", "presence", "rdzv_log", "rendezvousd_jobs_seats", "rendezvousd_jobs", "rdzv_scenarios", "rendezvousd_rdzv_verbs"],
                           ["rdzv_sim", "rdzv_listed"]),
    "rendezvous, client": (["common/rdzv/client/*.c"], ["client", "election", "hosts", "lease"], [*(f"launcher_rdzv_client_tcp_{i}" for i in range(1, 5)), "rdzv_listed", "rdzv_elect"]),
    "agent": (["launcher/agent/machine/*.c"], ["launcher_agent", "launcher_farewell"], []),
    "layout and ownership": (["worker/parallel/layout.c", "worker/parallel/ownership.c"], ["layout", "ownership", "ddp", "zero", "reshard"], ["exact", "order of ranks"]),
    "liveness": (["worker/device/liveness.c"], ["worker/device/liveness"], ["exact"]),
    "schedule": (["worker/optim/schedule.c"], ["schedule"], []),
    "pipeline": (["worker/pipeline/*.c"], ["pipeline", "stage", "step", "simulate"], ["exact"]),
    "checkpoints": (["worker/ckpt/*.c"], ["ckpt", "safetensors", "ckpt_crash"], ["trainer/test_checkpoints.py"]),
    "tokens": (["common/auth/*.c"], ["auth"], ["rendezvousd/test_auth.py"]),
    "store": (["rendezvousd/store/*.c"], ["rendezvousd_keyspace", "rendezvousd_expiry"], ["store/test_clients.py"]),
}

# Files of rules (X_check.c) have no faults of their own: a rule that is looser says the same of what is right. tests/mutants.py proves them.
RULES = re.compile(r"_check\.c$")

# SHA-1 (the first ten digits) of "file, line as it was, line as it is sown": why no test can see it.
EQUIVALENT = {"3e5a8840b3": "snprintf() with no room writes nothing"}

# What only says something, or only gives memory back; of min and max the order says nothing.
NOT_CALLS = re.compile(r"(if|while|for|switch|return|sizeof|assert|free|\w+_free|defined|cJSON_Delete|log_\w+|trace\w*|f?printf|err_\w+|(\w+_)?(min|max)(_\w+)?)$")
MISTYPED = re.compile(rb"\[-W(incompatible-pointer-types|int-conversion|discarded-qualifiers)\]")
NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def blank(text):
    """The text with comments, strings, characters, assertions and lines of the preprocessor blanked: places stay where they are."""
    code = r"\bassert\([^\n]*\);|/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    return re.sub(code, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S | re.M)


def closing(code, at):
    """The place of the parenthesis that closes the one at AT, or -1."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] == "(") - (code[i] == ")")
        if depth == 0:
            return i
    return -1


def arguments(code, begin, end):
    """The places of a call's arguments: [(first, one past the last)]."""
    places, depth, first = [], 0, begin
    for i in range(begin, end):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if code[i] == "," and depth == 0:
            places.append((first, i))
            first = i + 1
    return places + [(first, end)]


def negated(text, code):
    for m in re.finditer(r"\b(?:if|while) (\()", code):
        end = closing(code, m.start(1))
        if end > 0:
            yield m.start(1), end + 1, f"(!{text[m.start(1):end + 1]})"


def bounds(text, code):
    for m in re.finditer(r" (<=?|>=?) ", code):
        before, behind = re.search(r"([\w>.-]*)$", code[:m.start()]).group(1), code[m.end():m.end() + 200]
        picked = re.match(r"([\w>.-]+) \? ([\w>.-]+) : ([\w>.-]+)", behind)
        if picked and {before, picked.group(1)} == {picked.group(2), picked.group(3)}:
            continue  # the smaller or the larger of two
        yield m.start(1), m.end(1), NEIGHBOUR[m.group(1)]


def removed(text, code):
    for m in re.finditer(r"^[ \t]+(\w+)(\()", code, re.M):
        end = closing(code, m.start(2))
        if not NOT_CALLS.match(m.group(1)) and end > 0 and code[end + 1:end + 2] == ";":
            yield m.start(1), end + 2, ";"


def swapped(text, code):
    for m in re.finditer(r"\b([a-z_]\w*)(\()", code):
        end = closing(code, m.start(2))
        if NOT_CALLS.match(m.group(1)) or end < 0 or re.search(r"(^|[;{}]\s*|\n)(static |const |struct |\w+ \**)+$", code[:m.start()][-80:]):
            continue
        v = arguments(code, m.end(2), end)
        for (a, b), (c, d) in zip(v, v[1:]):
            x, y = text[a:b].strip(), text[c:d].strip()
            if x and y and x != y:
                yield a, d, f"{y}, {x}"


def unsynced(text, code):
    for m in re.finditer(r"\b(fsync|fdatasync|folder_sync|file_sync\w*)(\()", code):
        end = closing(code, m.start(2))
        if end > 0 and not re.match(r"\s*\{", code[end + 1:end + 4]):
            yield m.start(), end + 1, "0"


OPERATORS = {"a condition negated": negated, "a bound moved by one": bounds, "a call removed": removed, "two arguments swapped": swapped,
             "no fsync": unsynced}


class Drawn(mutants.Copy):
    def __init__(self, out):
        super().__init__(out)
        self.known = {t["name"]: t for t in mutants.introspect(self.build, "tests")}
        self.objects = {}
        for target in mutants.introspect(self.build, "targets"):
            for group in target["target_sources"]:
                for source in group.get("sources", []):
                    self.objects.setdefault(source, []).append(target)

    def object_of(self, path):
        """The object file that is made of a source; the libraries of the product have one each."""
        name = str(path.relative_to(self.tree)).split("/", 1)
        found = [o for o in self.build.rglob(f"*{path.name}.o") if o.name.endswith(f"_{path.name}.o") or o.name == f"{path.name}.o"]
        found = [o for o in found if str(o.relative_to(self.build)).startswith(name[0])]
        return sorted(found)[0] if found else None

    def units(self, tests):
        missing = [t for t in tests if not mutants.node(t) and t not in self.known]
        if missing:
            raise SystemExit(f"mutants_drawn: no such tests in this build: {', '.join(missing)}")
        return self.run("meson", "test", "-C", self.build, "--no-rebuild", "--maxfail", "1", "--timeout-multiplier", mutants.PATIENCE, *tests)

    def check(self, unit, slow):
        """The tests pass on the tree as it is."""
        self.make(unit + slow) or self.give_up("the build")
        self.units(unit) or self.give_up(", ".join(unit))
        for test in slow:
            self.passes(test) or self.give_up(test)

    def sow(self, path, sown, unit, slow):
        """caught by what, "missed", or None where it is no fault."""
        text, obj = path.read_text(), self.object_of(path)
        said = pathlib.Path(self.log.name).stat().st_size
        before = hashlib.sha1(obj.read_bytes()).digest() if obj else b""
        try:
            path.write_text(sown)
            if obj and not self.run("ninja", "-C", self.build, obj.relative_to(self.build)):
                return None
            if obj and (hashlib.sha1(obj.read_bytes()).digest() == before or MISTYPED.search(pathlib.Path(self.log.name).read_bytes()[said:])):
                return None
            if not self.make(unit + slow):
                return None
            if not self.units(unit):
                return "caught by a unit test"
            by = next((t for t in slow if not self.passes(t)), None)
            return f"caught by {by}" if by else "missed"
        finally:
            path.write_text(text)


def draw(random_, sources, places):
    """(file, operator, begin, end, replacement)"""
    while True:
        area = random_.choice(sorted(AREAS))
        operator = random_.choice(sorted(OPERATORS))
        at = [(f, *p) for f in sources[area] for p in places[f][operator]]
        if at:
            return area, operator, *random_.choice(at)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def show(text):
    return " ".join(text.split())


def main():
    p = argparse.ArgumentParser(prog="mutants_drawn.py", description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=100, help="how many faults (default 100)")
    p.add_argument("--area", choices=sorted(AREAS), help="this one alone")
    p.add_argument("out", help="a folder for a copy of the tree and its build, both kept for the next time")
    args = p.parse_args()
    out = pathlib.Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    copy = Drawn(out)
    for name in [a for a in AREAS if args.area and a != args.area]:
        del AREAS[name]
    sources = {a: sorted(f for g in globs for f in copy.tree.glob(g) if not RULES.search(f.name)) for a, (globs, _, _) in AREAS.items()}
    places = {f: {name: list(op(f.read_text(), blank(f.read_text()))) for name, op in OPERATORS.items()} for v in sources.values() for f in v}
    sound = set()
    random_, seen, caught, missed, equivalent = random.Random(args.seed), set(), 0, [], 0
    while caught + len(missed) + equivalent < args.count:
        begun = time.monotonic()
        area, operator, path, begin, end, new = draw(random_, sources, places)
        if (path, begin, end, new) in seen:
            continue
        seen.add((path, begin, end, new))
        text = path.read_text()
        where, old = f"{path.relative_to(copy.tree)}:{line_of(text, begin)}", text[begin:end]
        name = hashlib.sha1(f"{path.relative_to(copy.tree)}\n{show(text[text.rfind(chr(10), 0, begin) + 1:end])}\n{show(new)}".encode()).hexdigest()[:10]
        if name in EQUIVALENT:
            equivalent += 1
            print(f"{name} {where}: {operator}: equivalent: {EQUIVALENT[name]}", flush=True)
            continue
        if area not in sound:
            copy.check(*AREAS[area][1:])
            sound.add(area)
        said = copy.sow(path, text[:begin] + new + text[end:], *AREAS[area][1:])
        if said is None:
            continue
        caught += said.startswith("caught")
        missed += [where] if said == "missed" else []
        print(f"{name} {where}: {operator}: {show(old)} -> {show(new)}: {said}, {time.monotonic() - begun:.1f} s", flush=True)
    print(f"{caught} of {caught + len(missed)} mutants caught, {len(missed)} missed, {equivalent} equivalent (seed {args.seed})")
    return int(caught < SHARE * (caught + len(missed)))


if __name__ == "__main__":
    sys.exit(main())
