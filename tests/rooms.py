#!/usr/bin/env python3
"""The rooms of the tree: which folder may include which.

docs/design/rooms.md has the list of rooms ("- `room/`: purpose. *May include:* rooms"). `python3 tests/rooms.py` checks the
tree against it and prints what is wrong; `--table` prints files, lines and lengths of functions for each room.

What is checked: each folder with C files is a room of the table with a meson.build of its own; no #include goes from
one room to another without an arrow in the table; no arrow is unused; the arrows form no circle; no room has more than
MOST files; each .c, .cc and .cu file begins with a comment that says what it does."""

import pathlib
import re
import statistics
import sys

PROGRAMS = ("common", "launcher", "rendezvousd", "worker")
SOURCE = {".c", ".h", ".cc", ".hh", ".cu", ".cuh", ".def"}
MOST = 30
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
ROW = re.compile(r"^- `([\w/]+)/`: (.*?)\n  \*May include:\* (.*?)(?=\n- |\n\n)", re.M | re.S)


def sources(root):
    """Each source file of the product, as a path relative to root."""
    for program in PROGRAMS:
        for path in sorted((root / program).rglob("*")):
            if path.suffix in SOURCE:
                yield path.relative_to(root)


def read_table(root):
    """{room: rooms that it may include}. A program (`common`) stands for all of its rooms."""
    text = (root / "docs/design/rooms.md").read_text()
    return {room: set(re.findall(r"`([\w/]+)`", arrows)) for room, _, arrows in ROW.findall(text)}


def read_arrows(root):
    """{(from, to): [(file, included file)]} of the includes between rooms."""
    arrows = {}
    for path in sources(root):
        for included in INCLUDE.findall((root / path).read_text()):
            if not (root / included).is_file():
                continue  # generated, or of another project
            here, there = str(path.parent), str(pathlib.PurePath(included).parent)
            if here != there:
                arrows.setdefault((here, there), []).append((str(path), included))
    return arrows


def find_circle(arrows):
    """A list of rooms that lead back to the first one, or None."""
    targets = {}
    for here, there in arrows:
        targets.setdefault(here, set()).add(there)
    done = set()

    def visit(room, way):
        if room in way:
            return way[way.index(room):] + [room]
        if room in done:
            return None
        for there in sorted(targets.get(room, ())):
            circle = visit(there, way + [room])
            if circle:
                return circle
        done.add(room)
        return None

    for room in sorted(targets):
        circle = visit(room, [])
        if circle:
            return circle
    return None


def is_allowed(table, here, there):
    allowed = table.get(here, set())
    return there in allowed or (there.split("/")[0] in allowed and there.split("/")[0] != here.split("/")[0])


def without_first_words(root):
    return [path for path in sources(root) if path.suffix in {".c", ".cc", ".cu"} and not (root / path).read_text().startswith(("/* ", "// "))]


def check(root):
    """A list of sentences, one for each fault."""
    table, arrows = read_table(root), read_arrows(root)
    faults = [f"{path} does not say in its first line what it does: expected /* ... */" for path in without_first_words(root)]
    rooms = {}
    for path in sources(root):
        rooms.setdefault(str(path.parent), []).append(path)
    for room in sorted(rooms):
        files = [p for p in (root / room).iterdir() if p.is_file()]
        if room not in table:
            faults.append(f"{room}/ is not in the list of docs/design/rooms.md")
        if len(files) > MOST:
            faults.append(f"{room}/ has {len(files)} files (expected at most {MOST})")
        if not (root / room / "meson.build").is_file() and room != "common/include":
            faults.append(f"{room}/ has no meson.build")
    faults += [f"{room}/ stands in the list of docs/design/rooms.md, but has no files" for room in table if room not in rooms]
    for (here, there), files in sorted(arrows.items()):
        if not is_allowed(table, here, there):
            faults += [f"{path} includes {included}: the table has no arrow from {here} to {there}" for path, included in files]
    for room, allowed in sorted(table.items()):
        for there in sorted(allowed):
            if not any(h == room and (t == there or t.startswith(there + "/")) for h, t in arrows):
                faults.append(f"the table allows {room} to include {there}, and nothing there does")
    circle = find_circle(arrows)
    if circle:
        faults.append("a circle: " + " -> ".join(circle))
    return faults


def functions(text):
    """Lengths in lines of the functions of a C file: from the line of the opening brace in column 0 to the closing one."""
    start = None
    for number, line in enumerate(text.splitlines()):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield number - start + 1
            start = None


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p))] if values else 0


def print_table(root):
    rooms = {}
    for path in sources(root):
        rooms.setdefault(str(path.parent), []).append((root / path).read_text())
    print(f"{'room':32} {'files':>5} {'lines':>6} {'functions':>9} {'median':>6} {'p90':>4}")
    total = [0, 0, []]
    for room, texts in sorted(rooms.items()):
        lengths = [n for text in texts for n in functions(text)]
        lines = sum(text.count("\n") for text in texts)
        median = int(statistics.median(lengths)) if lengths else 0
        print(f"{room:32} {len(texts):5} {lines:6} {len(lengths):9} {median:6} {percentile(lengths, 0.9):4}")
        total = [total[0] + len(texts), total[1] + lines, total[2] + lengths]
    print(f"{'all':32} {total[0]:5} {total[1]:6} {len(total[2]):9} {int(statistics.median(total[2])):6} {percentile(total[2], 0.9):4}")


if __name__ == "__main__":
    top = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--table"]:
        print_table(top)
        sys.exit(0)
    found = check(top)
    print("\n".join(found) if found else "every arrow between rooms is in the table, and there is no circle")
    sys.exit(1 if found else 0)
