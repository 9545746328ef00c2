"""The tools around the GPU engine, where no GPU is needed: what they are asked wrongly they refuse in a sentence, before they build or begin anything."""
import os
import re
import subprocess

import pytest

from support import BUILD, ROOT, run

pytestmark = pytest.mark.gpu_emulated

BUDGET = BUILD / "tests/bench/gpu/gpu_budget"
SEAMS = BUILD / "tests/conformance/chance_tests"


@pytest.fixture
def dev(tmp_path):
    """./dev, with tools that fail."""
    for name in ("meson", "ninja", "clang-format", "apt-get", "sudo"):
        (tmp_path / name).write_text("#!/bin/sh\necho a build begins >&2\nexit 70\n")
        (tmp_path / name).chmod(0o755)
    return lambda *args: run(ROOT / "dev", *args, timeout=60, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})


@pytest.mark.parametrize("command", ["gpu-pack", "gpu-test", "gpu-bench", "fmt", "test", "wheel", "nightly"])
@pytest.mark.parametrize("args", [["--help"], ["-h"], ["more", "--help"]])
def test_help_comes_before_a_build(dev, command, args):
    p = dev(command, *args)
    assert p.returncode == 0 and p.stderr == "", p.stderr
    assert p.stdout.startswith(f"usage: ./dev {command} [")


@pytest.mark.parametrize("args, why", [
    (["gpu-pack", "--xz"], "gpu-pack takes no option"), (["wheel", "dist", "--xz"], "wheel takes no option"),
    (["docs", "guide"], "docs takes no argument"), (["setup", "-y"], "setup takes no argument"),
    (["fmt", "worker"], "fmt takes --check alone"), (["fmt", "--check", "worker"], "fmt takes --check alone")])
def test_dev_refuses_what_it_does_not_know(dev, args, why):
    p = dev(*args)
    assert (p.returncode, p.stderr) == (2, f"dev: {why}\n")


@pytest.mark.parametrize("args, why", [
    (["256"], "'256' is none of arch=, batch=, nodes=, fused=, check=, table="), (["batches=7"], "'batches=7' is none of "), (["batch=0"], "batch=0 (expected 1 to 1000000)"),
    (["batch="], "batch= (expected 1 to 1000000)"), (["batch=7x"], "batch=7x (expected 1 to 1000000)"), (["nodes=7"], "nodes=7 (expected 0 to 1)"),
    (["arch=vgg16"], "unknown architecture 'vgg16'"), (["check=1", "batch=64"], "check=1 (expected arch=resnet50 batch=256, whose aims it checks)"),
    (["check=1", "arch=resnet18"], "check=1 (expected arch=resnet50 batch=256, ")])
def test_gpu_budget_refuses_what_it_does_not_know(args, why):
    p = subprocess.run([BUDGET, *args], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and p.stdout == "" and p.stderr.startswith(f"gpu_budget: {why}") and p.stderr.count("\n") == 1, p.stderr


@pytest.mark.skipif(not SEAMS.exists(), reason="cuDNN is not built in")
@pytest.mark.parametrize("args", [["11"], ["20", "30"], ["3", "3"], ["5", "4"], ["-1", "1"], ["x"], ["0", "12"], ["0", "1", "2"]])
def test_seams_that_are_none_are_refused(args):
    p = subprocess.run([SEAMS, "device_seams", *args], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and p.stdout == "" and p.stderr == "usage: device_seams [FIRST [END]], 0 <= FIRST < END <= 11\n", p.stdout + p.stderr


def test_every_missing_part_of_cuda_is_named_and_looked_for_again(tmp_path):
    """A toolkit of nvcc and what is put into it, and a compiler that finds two of the headers there alone."""
    cuda = tmp_path / "cuda"
    cc = f'for a; do case "$a" in cudnn_graph.h | cublasLt.h) [ -e {cuda}/include/$a ] || exit 1; esac; done\nexec cc "$@"'
    for path, text in ((cuda / "bin/nvcc", "exit 1"), (tmp_path / "cc", cc)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    env = {**os.environ, "CC": str(tmp_path / "cc"), "PATH": f"{cuda}/bin:{os.environ['PATH']}"}
    p = run("meson", "setup", tmp_path / "build", ROOT, "-Dtests=disabled", timeout=300, env=env)
    assert p.returncode == 0 and "cublasLt with cublasLt.h, cudnn with cudnn_graph.h" in p.stdout, p.stdout
    for folder in ("include", "lib64"):
        (cuda / folder).mkdir()
    (cuda / "include/cublasLt.h").touch()
    assert run("cc", "-shared", "-o", cuda / "lib64/libcublasLt.so", "-x", "c", "/dev/null").returncode == 0
    p = run("meson", "setup", "--reconfigure", tmp_path / "build", ROOT, "-Dcuda=enabled", timeout=300, env=env)
    error, = re.findall("-Dcuda=enabled: not found: .*", p.stdout)
    assert p.returncode == 1 and "cudnn with cudnn_graph.h (looked in " in error and "cublasLt" not in error, p.stdout
