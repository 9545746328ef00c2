"""The data sets of the end-to-end tests, for the comparison with PyTorch."""
import os
import pathlib
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: threads that spin while they wait take a busy machine's cores

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import support  # noqa: E402
from importlib import util  # noqa: E402

spec = util.spec_from_file_location("e2e_fixtures", pathlib.Path(support.__file__).with_name("conftest.py"))
fixtures = util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
shapes = fixtures.shapes
tmp_path = fixtures.tmp_path
pytest_configure = fixtures.pytest_configure
pytest_runtest_makereport = fixtures.pytest_runtest_makereport
