import contextlib
import sys

import pytest

from cluster import Cluster
from support import ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
import netns  # noqa: E402


@pytest.fixture
def cluster(tmp_path):
    c = Cluster(tmp_path)
    yield c
    c.close()


@contextlib.contextmanager
def hosts_with_a_token(cluster, count):
    why = netns.available()
    if why:
        pytest.skip(why)
    n = netns.Net(count)
    token = cluster.tmp / "token"
    token.write_text("team a-secret-of-enough-bytes\n")
    token.chmod(0o600)
    cluster.env["CRUN_TOKEN_FILE"] = str(token)
    n.token = token
    yield n
    cluster.close()
    n.close()


@pytest.fixture
def net(cluster):
    """Three hosts for nodes, a fourth for the daemon; they share a token."""
    with hosts_with_a_token(cluster, 4) as n:
        yield n


@pytest.fixture
def wide_net(cluster):
    """One more for nodes."""
    with hosts_with_a_token(cluster, 5) as n:
        yield n
