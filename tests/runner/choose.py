"""Which tests belong to what a developer names: a source file or folder, a test's path or name."""
import difflib
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
E2E = ROOT / "tests" / "e2e"
NAMED = 12  # at most, in what is said of a choice
sys.path.insert(0, str(ROOT / "tests"))
import rooms  # noqa: E402

FOLDERS = {  # of tests/e2e, by program
    "common": ["launcher", "elastic", "rendezvousd", "store", "trainer"], "launcher": ["launcher", "elastic"], "rendezvousd": ["rendezvousd", "store"],
    "worker": ["trainer", "elastic"], "python": ["packages", "launcher"], "packaging": ["packages"], "docs": ["docs", "test_docs.py"]}


class Refused(Exception):
    """What was asked for cannot be done; its text is a sentence for the user."""


@functools.lru_cache
def text_of(path):
    return path.read_text(errors="replace")


@functools.lru_cache
def e2e_files():
    return sorted(E2E.rglob("test_*.py"))


def files_named(name):
    """Those of end-to-end tests that have this name or the end of this path, with test_ and .py or without."""
    names = {f"/{name}", f"/{name}.py", f"/test_{name}", f"/test_{name}.py"}
    return [f for f in e2e_files() if str(f).endswith(tuple(names))]


def functions(path):
    return re.findall(r"^[ \t]*(?:async )?def (test_\w+)\(", text_of(path), re.M)


def function_of(case):
    """case: what pytest has after a file's '::': [CLASS::]FUNCTION[PARAMETERS]."""
    return case.partition("[")[0].rpartition("::")[2]


def has_test(path, case):
    """Whether the function is there; of its parameters only pytest knows."""
    return path in e2e_files() and function_of(case) in functions(path)


class Chosen:
    """programs: names of C tests. e2e: what pytest is given."""

    def __init__(self, programs=(), e2e=()):
        self.programs, self.e2e = set(programs), {str(e) for e in e2e}

    def __bool__(self):
        return bool(self.programs or self.e2e)

    def add(self, other):
        self.programs |= other.programs
        self.e2e |= other.e2e

    def tell(self):
        names = sorted(self.programs) + sorted(e.removeprefix(f"{E2E}/") for e in self.e2e)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{len(self.programs)} C programs, {len(self.e2e)} end-to-end files or folders: {', '.join(names[:NAMED])}{more}"


class Chooser:
    def __init__(self, programs):
        self.programs = programs  # {name: ctests.Program}
        self.rooms = set(rooms.read_table(ROOT))

    def with_source(self, fits):
        return [name for name, p in self.programs.items() if any(fits(s) for s in p.sources)]

    def including(self, pattern):
        """C tests that include a header whose path matches."""
        seek = re.compile(rf'#\s*include\s+"(?:{pattern})"')
        return self.with_source(lambda s: s.startswith("tests/") and s.endswith((".c", ".cc")) and (ROOT / s).exists() and seek.search(text_of(ROOT / s)))

    def importing(self, stem):
        """End-to-end tests that use a module of tests/support or beside them."""
        seek = re.compile(rf"^\s*(?:from {stem} import|import {stem}\b)", re.M)
        return [f for f in e2e_files() if seek.search(text_of(f))]

    def naming(self, program, room, stem):
        """End-to-end tests of this program whose name has the room's or the file's as words, or whose text has the room's path."""
        folders = FOLDERS.get(program, [])
        files = [f for f in e2e_files() if f.relative_to(E2E).parts[0] in folders]
        names = {room.rpartition("/")[2], stem} - {"", program, "main", "base"}
        by_name = [f for f in files if any(f"_{n}_" in f"_{f.stem}_" or f"_{n}s_" in f"_{f.stem}_" for n in names)]
        by_text = [f for f in files if "/" in room and f"{room}/" in text_of(f)]
        return by_name + by_text

    def of_product(self, path):
        """path: of a file or folder of the product, relative to the tree."""
        program = path.parts[0]
        if (ROOT / path).is_dir():
            inside = sorted(r for r in self.rooms if r == str(path) or r.startswith(f"{path}/"))
            chosen, stem = Chosen(), ""
            header = "|".join(rf"{re.escape(r)}/[^/\"]+" for r in inside) or "none"
        else:
            inside, stem = [str(path.parent)], path.stem
            own = (ROOT / path).with_suffix(".h")
            header = re.escape(str(path.with_suffix(".h"))) if own.exists() else rf"{re.escape(inside[0])}/[^/\"]+"
            chosen = Chosen()
        for room in inside:
            chosen.add(Chosen(self.with_source(lambda s, r=room: s.rpartition("/")[0] == f"tests/{r}"), self.naming(program, room, stem)))
        chosen.add(Chosen(self.including(header)))
        if not chosen.e2e and not chosen.programs:
            chosen.add(Chosen(e2e=[E2E / f for f in FOLDERS.get(program, [])]))
        return chosen

    def of_path(self, path):
        """path: of a file or folder that is there, relative to the tree."""
        at = ROOT / path
        if path.parts[:2] == ("tests", "e2e") and (at.is_dir() or at.name.startswith("test_")):
            return Chosen(e2e=[at])
        if path.parts[:2] in (("tests", "run.py"), ("tests", "runner"), ("tests", "skips.py")):
            return Chosen(e2e=[E2E / "test_runner.py"])
        if path.parts[:1] == ("tests",):
            path = path.parent if path.name == "meson.build" and len(path.parts) > 2 else path
            programs = self.with_source(lambda s: s == str(path) or s.startswith(f"{path}/"))
            return Chosen(programs, self.importing(path.stem) if path.suffix == ".py" else ())
        if path.parts[0] in rooms.PROGRAMS:
            return self.of_product(path)
        program = "docs" if path.suffix == ".md" else path.parts[0]
        return Chosen(e2e=[E2E / f for f in FOLDERS.get(program, [])] or [f for f in e2e_files() if f'"{path.name}"' in text_of(f)])

    def of_name(self, name):
        stems = {name, f"test_{name}"}
        programs = [n for n, p in self.programs.items() if name in (n, n.rpartition("/")[2]) or pathlib.PurePath(p.path).stem in stems]
        return Chosen(programs, files_named(name) + [f"{f}::{name}" for f in e2e_files() if has_test(f, name)])

    def of_case(self, what, file, path, case):
        """file: as it was typed before '::'; path: where it is, if it is a path."""
        files = [path] if path else files_named(file)
        found = [f for f in files if has_test(f, case)]
        if found:
            return Chosen(e2e=[f"{f}::{case}" for f in found])
        if not files:
            raise self.refused(what, f"{file} is no file of end-to-end tests", file.removesuffix(".py"))
        if files[0] not in e2e_files():
            raise Refused(f"{what}: only files of end-to-end tests, tests/e2e/.../test_NAME.py, have tests after '::'; give {file} alone")
        name, cases = function_of(case), functions(files[0])
        near = difflib.get_close_matches(name, cases, 3, 0.5) or cases[:3]
        raise Refused(f"{files[0].relative_to(ROOT)} has no test {name}; it has {', '.join(near)}{', ...' if len(near) < len(cases) else ''}")

    def still_there(self, units):
        """-> (what is chosen of tests that were there once, those that are gone)"""
        programs = [u for u in units if u in self.programs]
        parts = {u: u.partition("::") for u in units}
        e2e = [u for u, (file, of, case) in parts.items() if ROOT / file in e2e_files() and (not of or has_test(ROOT / file, case))]
        return Chosen(programs, [f"{ROOT}/{u}" for u in e2e]), [u for u in units if u not in programs and u not in e2e]

    def near(self, name):
        """What a mistyped name may mean, at most three, nearest first. The part before the suffix decides: in a short name that would weigh too much."""
        sought, known = pathlib.PurePath(name), {}
        for said in (*self.programs, *(f.stem for f in e2e_files()), *(m for f in e2e_files() for m in functions(f)), *self.rooms,
                     *(str(p) for p in rooms.sources(ROOT)), *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))):
            known.setdefault(pathlib.PurePath(said).stem, set()).add(said)
        for n, p in self.programs.items():
            known.setdefault(pathlib.PurePath(p.path).stem, set()).add(n)
        close = difflib.get_close_matches(sought.stem, known, 3, 0.65)
        found = [(difflib.SequenceMatcher(None, name, said).ratio(), said) for stem in close for said in sorted(known[stem])]
        if any(pathlib.PurePath(said).suffix == sought.suffix for _, said in found):
            found = [(n, said) for n, said in found if pathlib.PurePath(said).suffix == sought.suffix]
        return [said for _, said in sorted(found, key=lambda f: -f[0])[:3]]

    def named(self, what, here):
        """what: as it was typed in the folder here. Raises Refused."""
        file, of, case = what.partition("::")
        path = next((p for p in ((here / file).resolve(), (ROOT / file).resolve()) if p.exists() and p.is_relative_to(ROOT) and p != ROOT), None)
        if of:
            return self.of_case(what, file, path, case)
        chosen = self.of_path(path.relative_to(ROOT)) if path else self.of_name(what)
        if chosen:
            return chosen
        if path:
            raise Refused(f"no test belongs to {what}")
        raise self.refused(what, f"{what} is no file of this tree, and no test of that name", what)

    def refused(self, what, why, name):
        near = [n for n in self.near(name) if n != what]
        return Refused(why + (f"; near it: {', '.join(near)}" if near else "; ./dev test PATH runs what belongs to a file or folder"))

    def changed(self):
        """-> (what belongs to the files that differ from the main branch, files without a test)"""
        chosen, without = Chosen(), []
        for file in changed_files():
            path = pathlib.Path(file)
            while not (ROOT / path).exists():  # it was removed
                path = path.parent
            found = self.of_path(path) if path.parts else Chosen()
            chosen.add(found)
            without += [] if found else [file]
        return chosen, without


def changed_files():
    """Relative to where this branch left origin/main, or main where there is no such remote; the working tree's, too."""
    def git(*args):
        p = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)
        return p.stdout.split("\0")[:-1] if "-z" in args else p.stdout.strip() if p.returncode == 0 else ""

    base = next((b for b in (git("merge-base", "HEAD", m) for m in ("origin/main", "main")) if b), "HEAD")
    return sorted({*git("diff", "-z", "--name-only", base), *git("ls-files", "-z", "--others", "--exclude-standard")})
