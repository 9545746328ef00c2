"""A trainer that nobody tells how many threads to take has one: several that share few cores wait for each other's cores, and are slower than one
(test_threads.py asks for others)."""
import os

import pytest


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        if "OMP_NUM_THREADS" not in os.environ:
            patch.setenv("OMP_NUM_THREADS", "1")
        yield
