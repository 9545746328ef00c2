"""The tests of tests/e2e/pytorch with the torch of this environment."""
import os
import pathlib
import sys
from importlib import util

os.environ["CRUN_TORCH_PYTHON"] = sys.executable
path = pathlib.Path(__file__).resolve().parents[1] / "e2e" / "pytorch" / "test_pytorch.py"
spec = util.spec_from_file_location("pytorch_tests", path)
tests = util.module_from_spec(spec)
spec.loader.exec_module(tests)
globals().update({name: getattr(tests, name) for name in dir(tests) if name.startswith("test_") or name in ("torch", "processes")})
