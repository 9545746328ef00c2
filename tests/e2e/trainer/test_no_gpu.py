"""trainer where there is no GPU: one sentence, at once."""
import os
import shlex
import subprocess
import time

import pytest

from support import TRAINER, run

NOWHERE = dict(os.environ, CRUN_CUDA_MODULE="/nowhere/trainer-cuda.so")


@pytest.mark.parametrize("command", [["gpu-info"], ["gpu-info", "--json"]])
def test_gpu_info_says_what_is_missing(command):
    began = time.monotonic()
    p = run(TRAINER, *command, env=NOWHERE)
    assert (p.returncode, p.stdout) == (69, "")
    assert p.stderr.startswith("trainer gpu-info: ") and "/nowhere/trainer-cuda.so" in p.stderr and p.stderr.count("\n") == 1
    assert time.monotonic() - began < 10


MODULE = """
struct cuda_module { int abi; const char *version; const void *device, *nccl; int (*count)(void *e); int (*properties)(int i, char **r, void *e); };
const struct cuda_module %s = {%d, "%s", 0, 0, 0, 0};
"""


def tiny_module(folder, symbol, abi, version):
    """A library that cc makes on the spot."""
    source, library = folder / "tiny.c", folder / "tiny.so"
    source.write_text(MODULE % (symbol, abi, version))
    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def a_missing_file(folder):
    return folder / "missing.so", "No such file"


def a_file_that_is_no_library(folder):
    path = folder / "text.so"
    path.write_text("this is no library\n")
    return path, "cannot be loaded"


def a_library_that_is_no_module(folder):
    return tiny_module(folder, "something_else", 1, "0"), "is no GPU module of trainer"


def a_module_of_another_abi(folder):
    version = run(TRAINER, "--version").stdout.split()[-1]
    return tiny_module(folder, "trainer_cuda_module", 1000, version), "(ABI 1000)"


def a_module_of_another_version(folder):
    return tiny_module(folder, "trainer_cuda_module", 1, "0.0.0-other"), "trainer 0.0.0-other"


@pytest.mark.parametrize("make", [a_missing_file, a_file_that_is_no_library, a_library_that_is_no_module, a_module_of_another_abi,
                                  a_module_of_another_version], ids=lambda f: f.__name__)
def test_a_gpu_module_that_will_not_do_ends_training_in_one_sentence(tmp_path, make):
    path, why = make(tmp_path)
    p = run(TRAINER, "--device", "cuda", "--train-data", "null", "--image-size", "32", "--epochs", "1",
            env=dict(os.environ, CRUN_CUDA_MODULE=str(path)))
    assert (p.returncode, p.stdout) == (69, ""), p.stderr
    assert str(path) in p.stderr and why in p.stderr and p.stderr.count("\n") == 1, p.stderr


def test_all_libraries_that_the_module_wants_and_are_not_there_are_in_one_sentence(tmp_path):
    """dlopen names the first alone. One that is in the module's own folders is there."""
    cc = shlex.split(os.environ.get("CC", "cc"))
    folders = {"one": tmp_path / "gone", "two": tmp_path / "gone", "three": tmp_path / "kept"}
    for name, folder in folders.items():
        folder.mkdir(exist_ok=True)
        source = folder / f"{name}.c"
        source.write_text(f"int {name}(void) {{ return 0; }}\n")
        subprocess.run([*cc, "-shared", "-fPIC", "-o", folder / f"lib{name}.so.1", f"-Wl,-soname,lib{name}.so.1", source], check=True)
    module = tmp_path / "module.c"
    module.write_text("int one(void), two(void), three(void);\nint all(void) { return one() + two() + three(); }\n")
    subprocess.run([*cc, "-shared", "-fPIC", "-o", tmp_path / "module.so", module, *(folder / f"lib{name}.so.1" for name, folder in folders.items()),
                    f"-Wl,--enable-new-dtags,-rpath,/nowhere:{folders['three']}"], check=True)
    for library in folders["one"].glob("*.so.1"):
        library.unlink()
    p = run(TRAINER, "gpu-info", env=dict(os.environ, CRUN_CUDA_MODULE=str(tmp_path / "module.so")))
    assert p.returncode == 69 and p.stderr.count("\n") == 1
    assert "the GPU module needs libone.so.1 and libtwo.so.1, which are not installed here" in p.stderr, p.stderr
