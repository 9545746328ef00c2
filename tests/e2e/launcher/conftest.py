import pytest

from crun_run import WORKER, Crun
from pausing_fs import PausingFs
from support import needs_tables_of_threads


@pytest.fixture
def crun(tmp_path):
    c = Crun(tmp_path)
    yield c
    c.close()


@pytest.fixture
def disk(crun):
    """A disk that can hang, at crun.tmp/disk."""
    needs_tables_of_threads()
    try:
        fs = PausingFs(crun.tmp / "disk")
    except OSError as e:
        pytest.skip(f"no FUSE here: {e}")
    yield fs
    fs.close()


@pytest.fixture
def worker():
    return WORKER
