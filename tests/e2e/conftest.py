"""What all end-to-end tests share is in tests/support."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # GPUs that are not there obey it, too

from fixtures import *  # noqa: E402, F401, F403
