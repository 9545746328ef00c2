import pytest

import servers


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    s = servers.start_rendezvousd(tmp_path_factory.mktemp("rendezvousd"))
    yield s
    s.stop()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    s = servers.start_redis(tmp_path_factory.mktemp("redis"))
    yield s
    s.stop()
