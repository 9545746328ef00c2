"""libcrun's binary interface is the one that programs were built for: common/crun/libcrun.abi, which abidw (libabigail) writes."""
import platform
import shutil

import pytest

from support import LIBCRUN, ROOT, run

KEPT, HEADER = ROOT / "common" / "crun" / "libcrun.abi", ROOT / "common" / "include" / "crun.h"
WRITE = f"""abidw --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --drop-private-types \\
    --header-file {HEADER.relative_to(ROOT)} --out-file {KEPT.relative_to(ROOT)} build/common/crun/libcrun.so"""


@pytest.fixture
def abidiff():
    if not shutil.which("abidiff"):
        pytest.skip("no abidiff (Debian's package: abigail-tools)")
    if "elf-amd-x86_64" in KEPT.read_text() and platform.machine() != "x86_64":
        pytest.skip("no x86-64")
    return lambda library: run("abidiff", "--drop-private-types", "--header-file2", HEADER, KEPT, library)


def test_it_is_the_one_that_is_kept(abidiff):
    p = abidiff(LIBCRUN)
    assert p.returncode == 0, f"{p.stdout}\nIf programs built before still run, keep the new one: {WRITE}"


def test_a_function_that_is_gone_is_found(abidiff, tmp_path):
    library = tmp_path / "libcrun.so.0"
    p = run("cc", "-g", "-shared", "-fPIC", "-Wl,-soname,libcrun.so.0", "-include", HEADER, "-x", "c", "-", "-o", library, input="void crun_finish(void) {}")
    assert p.returncode == 0, p.stderr
    p = abidiff(library)
    assert p.returncode & 8 and "crun_barrier" in p.stdout, "an incompatible change"
