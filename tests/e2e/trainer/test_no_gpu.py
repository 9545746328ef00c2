"""trainer where there is no GPU: one sentence, at once."""
import os
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
