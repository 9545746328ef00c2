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


@pytest.fixture
def net(cluster):
    """Three hosts for nodes, a fourth for the daemon; they share a token."""
    why = netns.available()
    if why:
        pytest.skip(why)
    n = netns.Net(4)
    token = cluster.tmp / "token"
    token.write_text("team a-secret-of-enough-bytes\n")
    token.chmod(0o600)
    cluster.env["CRUN_TOKEN_FILE"] = str(token)
    n.token = token
    yield n
    cluster.close()
    n.close()
