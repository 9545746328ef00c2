import pytest

from crun_run import WORKER, Crun


@pytest.fixture
def crun(tmp_path):
    c = Crun(tmp_path)
    yield c
    c.close()


@pytest.fixture
def worker():
    return WORKER
