import subprocess

import pytest

import servers


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    s = servers.Rendezvousd(cwd=tmp_path_factory.mktemp("rendezvousd"), log=subprocess.DEVNULL)
    yield s
    s.stop()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    s = servers.Redis(tmp_path_factory.mktemp("redis"), "appendonly no", "hz 100")
    yield s
    s.stop()
