"""Same job, four homes."""
import shutil

import pytest

from cluster import free_port, masked

HOMES = ["tcp", "redis", "file", "static"]


def where(cluster, home):
    """Options of every node."""
    if home == "tcp":
        return ["--rdzv_endpoint", cluster.daemon(), "--rdzv_id", "job"]
    if home == "redis":
        if not shutil.which("redis-server"):
            pytest.skip("no redis-server")
        return ["--rdzv_endpoint", cluster.redis(), "--rdzv_id", "job"]
    if home == "file":
        shared = cluster.tmp / "shared"
        shared.mkdir()
        return ["--rdzv_endpoint", f"file://{shared}", "--rdzv_id", "job"]
    return ["--rdzv_backend", "static", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]


maps = {}


@pytest.mark.parametrize("home", HOMES)
def test_rank_maps_and_environments_are_the_same(cluster, home):
    args = where(cluster, home)
    for rank in (1, 0):
        cluster.node("--nnodes", 2, "--nproc_per_node", 3, "--node-rank", rank, "--local-addr", "127.0.0.1", *args)
    _, ranks = cluster.wait_round(6)
    cluster.finish()
    maps[home] = {r: masked(e) for r, e in ranks.items()}
    first = next(iter(maps.values()))
    for r in range(6):
        assert maps[home][r] == first[r]
