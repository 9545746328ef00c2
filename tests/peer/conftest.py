"""The data sets of the end-to-end tests, for the comparison with PyTorch."""
import os
import pathlib
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: threads that spin while they wait take a busy machine's cores

tests = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(tests / "support"), str(tests / "e2e"), str(tests / "e2e" / "pytorch")]

from fixtures import *  # noqa: E402, F401, F403
