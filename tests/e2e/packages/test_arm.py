"""What ./dev arm-test leaves out is in docs/design/arm.md, by name and with its reason; and the files of a cross-build agree with it."""
import configparser
import re
import sys

from support import ROOT, run

sys.path.insert(0, str(ROOT / "tests"))
import arm  # noqa: E402


def test_the_page_names_what_is_not_run():
    page = (ROOT / "docs/design/arm.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", page, re.M))
    assert rows == arm.NOT_RUN
    assert all(f"| {why} | {meaning} |\n" in page for why, meaning in arm.REASONS.items()) and set(rows.values()) == set(arm.REASONS)


def test_each_of_them_is_a_test_of_the_tree():
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.c"))
    for name in arm.NOT_RUN:
        program, _, case = name.partition(": ")
        assert f"({case})" in sources if case else (ROOT / f"tests/{program.replace('_', '/', 1)}").parent.is_dir(), name


def test_the_cross_file_is_of_aarch64():
    text = (ROOT / "packaging/cross/aarch64.txt").read_text()
    found = configparser.ConfigParser()
    found.read_string(text)
    assert found["host_machine"]["cpu_family"] == "'aarch64'" and "QEMU_LD_PREFIX=' + root" in found["binaries"]["exe_wrapper"]


def test_a_machine_that_is_neither_is_refused():
    p = run("env", "CRUN_MACHINE=riscv64", ROOT / "dev", "wheel")
    assert p.returncode == 2 and "CRUN_MACHINE is 'riscv64': expected" in p.stderr and p.stderr.count("\n") == 1
