"""The list of rooms in docs/design/rooms.md holds for the tree, and the check of it can fail."""

import pathlib
import re
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import rooms  # noqa: E402


def test_every_arrow_between_rooms_is_in_the_table():
    assert rooms.check(ROOT) == []


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by it: of two, one is refused where both are seen."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_tools_are_included_by_main_alone():
    """Nothing of crun leans on its tools, nor one of them on another: each could go."""
    including = {(here, there) for here, there in rooms.read_arrows(ROOT) if there.startswith("launcher/tools/")}
    assert including == {("launcher", f"launcher/tools/{tool}") for tool in ("chaos", "doctor", "explain", "stacks", "status", "topo")}


def test_uthash_is_included_by_way_of_its_own_header():
    """Which keeps it from ending the process where there is no memory."""
    including = [str(path) for path in rooms.sources(ROOT) if "<uthash.h>\n" in (ROOT / path).read_text()]
    assert including == ["common/base/seeded_hash.h"]


@pytest.fixture
def copy(tmp_path):
    for program in rooms.PROGRAMS:
        shutil.copytree(ROOT / program, tmp_path / program)
    (tmp_path / "docs/design").mkdir(parents=True)
    shutil.copy(ROOT / "docs/design/rooms.md", tmp_path / "docs/design")
    return tmp_path


def prepend(path, line):
    path.write_text(line + "\n" + path.read_text())


def test_an_include_that_the_table_does_not_allow_is_a_fault(copy):
    prepend(copy / "launcher/output/lines.c", '#include "launcher/agent/run.h"')
    faults = rooms.check(copy)
    assert ("launcher/output/lines.c includes launcher/agent/run.h: the table has no arrow from launcher/output to launcher/agent") in faults
    assert any(f.startswith("a circle: ") for f in faults)


def test_a_room_that_the_table_does_not_have_is_a_fault(copy):
    (copy / "common/more").mkdir()
    (copy / "common/more/more.c").write_text('#include "common/base/err.h"\n')
    assert "common/more/ is not in the list of docs/design/rooms.md" in rooms.check(copy)


def test_an_arrow_that_nobody_needs_is_a_fault(copy):
    table = copy / "docs/design/rooms.md"
    text, changes = re.subn(r"(?s)(- `launcher/observe/`: .*?May include:\*) ", r"\1 `launcher/hang`, ", table.read_text())
    assert changes == 1
    table.write_text(text)
    assert "the table allows launcher/observe to include launcher/hang, and nothing there does" in rooms.check(copy)


def test_a_room_with_too_many_files_is_a_fault(copy):
    for n in range(rooms.MOST):
        (copy / f"launcher/hang/more_{n}.h").write_text("")
    assert any(f.startswith("launcher/hang/ has ") for f in rooms.check(copy))


def test_a_file_that_does_not_say_what_it_does_is_a_fault(copy):
    prepend(copy / "worker/optim/schedule.c", '#include "common/base/err.h"')
    assert "worker/optim/schedule.c does not say in its first line what it does: expected /* ... */" in rooms.check(copy)
