"""Same job, six homes."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from cluster import Cluster, free_port, joined, kill_and_wait, masked, wait
from daemon import ALICE, write_tokens
from support import CRUN, faulty_disk, run

HOMES = ["rendezvousd", "c10d", "static", "redis", "etcd", "file"]


def where(cluster, home):
    """Options of every node."""
    if home == "rendezvousd":
        return ["--rdzv_endpoint", cluster.daemon(), "--rdzv_id", "job"]
    if home == "redis":
        return ["--rdzv_endpoint", cluster.redis().url, "--rdzv_id", "job"]
    if home == "etcd":
        return ["--rdzv_endpoint", cluster.etcd().url, "--rdzv_id", "job"]
    if home == "file":
        shared = cluster.tmp / "shared"
        shared.mkdir()
        return ["--rdzv_endpoint", f"file://{shared}", "--rdzv_id", "job"]
    if home == "c10d":  # one of the nodes hosts
        return ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job"]
    return ["--rdzv_backend", "static", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]


@pytest.fixture
def clusters(tmp_path):
    """A cluster for each home."""
    made = {}
    for home in HOMES:
        (tmp_path / home).mkdir()
        made[home] = Cluster(tmp_path / home)
    yield made
    for c in made.values():
        c.close()


def test_rank_maps_and_environments_are_the_same(clusters):
    maps = {}
    for home, cluster in clusters.items():
        args = where(cluster, home)
        for rank in (1, 0):
            cluster.node("--nnodes", 2, "--nproc_per_node", 3, "--node-rank", rank, "--local-addr", "127.0.0.1", *args)
        _, ranks = cluster.wait_round(6)
        cluster.finish()
        maps[home] = {r: masked(e) for r, e in ranks.items()}
    for home in HOMES[1:]:
        for r in range(6):
            assert maps[home][r] == maps[HOMES[0]][r], f"rank {r}: {home} and {HOMES[0]}"


def fetched(node, path):
    """What it serves at its --http-port 0: status, text."""
    url = wait("its HTTP port", lambda: re.search(r"health and metrics on (http://\S+/)", node.text()))[1]
    try:
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.mark.parametrize("home", ["c10d", "list", "redis", "file"])
def test_the_node_that_hosts_a_job_serves_its_status_page(cluster, home):
    ends = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    args = ["--rdzv_endpoint", ends, "--rdzv_id", "job"] if home == "list" else where(cluster, home)
    nodes = [cluster.node("--nnodes", 2, "--node-rank", i, "--http-port", 0, *args) for i in range(2)]
    if "no HTTP" in nodes[0].text():
        pytest.skip("this build has no HTTP")
    cluster.wait_round(2)
    answers = sorted(fetched(n, "api/jobs") for n in nodes)
    assert [status for status, _ in answers] == [200, 404], answers
    job, = json.loads(answers[0][1])["jobs"]
    assert (job["run"], job["state"], job["node_count"]) == ("job", "running", 2)
    assert "the status page of job 'job' is served by the node that hosts its rendezvous" in answers[1][1]
    assert sum(fetched(n, "")[1].startswith("<!doctype html>") for n in nodes) == 1
    cluster.finish(*nodes)


def redis_cli(url, *words):
    return subprocess.run(["redis-cli", "-u", url, *words], check=True, capture_output=True, text=True, timeout=30).stdout.split()


def decisions(cluster, home, url):
    """Ids of the decisions in the log of the job."""
    if home == "file":
        return sorted(p.name for p in cluster.tmp.glob("shared/*/log/0*"))
    return [word for word in redis_cli(url, "xrange", "crun:{job}:decisions", "-", "+") if re.fullmatch("[0-9]+-[0-9]+", word)]


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli")
def test_an_id_in_a_redis_can_be_used_again_at_once(cluster):
    url = cluster.redis().url
    # With a silence of a minute: whoever waits for the dead shows it.
    args = ["--nnodes", 2, "--rdzv_endpoint", url, "--rdzv_id", "job", "--rdzv_conf", "keep_alive_interval=20"]
    for turn in range(2):
        start = time.monotonic()
        nodes = [cluster.node(*args, program=["true"]) for _ in range(2)]
        assert [n.wait(120) for n in nodes] == [0, 0]
        assert time.monotonic() - start < 45, f"turn {turn}"
        kept = {key: int(redis_cli(url, "pttl", key)[0]) for key in redis_cli(url, "keys", "*")}
        # -2: gone since it was listed
        assert all(ms == -2 or 0 <= ms <= (3600000 if key.endswith(":calls") else 600000) for key, ms in kept.items()), kept


@pytest.mark.long
def test_a_folder_that_is_full_ends_the_job_with_a_word(cluster):
    shared = cluster.tmp / "shared"
    shared.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", shared], check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system")
    try:
        for _ in range(2):
            cluster.node("--nnodes", 2, "--rdzv_endpoint", f"file://{shared}", "--rdzv_id", "job", "--rdzv_conf", "join_timeout=8")
        cluster.wait_round(2)
        with open(shared / "fill", "wb", 0) as f, pytest.raises(OSError):
            while True:
                f.write(b"x" * 4096)
        cluster.finish(code=69)
        assert any("No space left on device" in n.text() for n in cluster.nodes)
    finally:
        subprocess.run(["umount", "-l", shared], check=True)


def in_a_folder(cluster):
    return [*where(cluster, "file"), "--nnodes", "2:4", "--max-restarts", 3, "--rdzv-conf", "last_call_timeout=500ms"]


def test_new_nodes_in_a_folder_that_was_replaced_and_the_old_ones_are_one_job(cluster):
    """As by a mount over it: the old folder lives on, for those who have it open."""
    args, shared = in_a_folder(cluster), cluster.tmp / "shared"
    old = [cluster.node(*args) for _ in range(2)]
    first, _ = cluster.wait_round(2)
    shared.rename(cluster.tmp / "old")
    shared.mkdir()
    new = [cluster.node(*args) for _ in range(2)]
    cluster.wait_round(4, after=first)
    said = [line for n in old for line in n.text().splitlines() if "another one now" in line]
    assert said and all(f"the shared folder '{shared}' is another one now than when this node began" in line for line in said), said
    assert len(said) <= len(old), said
    cluster.finish(*old, *new)


def test_a_folder_that_is_away_and_made_again_costs_a_round(cluster):
    args, shared = in_a_folder(cluster), cluster.tmp / "shared"
    nodes = [cluster.node(*args) for _ in range(2)]
    first, _ = cluster.wait_round(2)
    shared.rename(cluster.tmp / "old")
    wait("the end of the workers", lambda: all("the workers here were ended" in n.text() for n in nodes))
    wait("a word about the folder", lambda: any(f"the shared folder '{shared}': No such file or directory" in n.text() for n in nodes))
    shared.mkdir()
    cluster.wait_round(2, after=first)
    cluster.finish(*nodes)


@pytest.mark.parametrize("home", ["redis", "file"])
def test_a_node_counts_itself_while_joining(cluster, home):
    node = cluster.node("--nnodes", 2, *where(cluster, home))
    wait("that it joins", lambda: "joining: " in node.text())
    node.terminate()
    assert node.wait() != 0
    assert "joining: 1 of 2 nodes" in node.text() and "joining: 0" not in node.text(), node.text()


@pytest.mark.parametrize("home", ["redis", "file"])
def test_a_node_that_missed_a_whole_round_is_in_the_next(cluster, home):
    """The first node leads: a leader that stands still holds up all others."""
    args = [*where(cluster, home), "--rdzv_conf", "keep_alive_max_attempt=600", "--nnodes", 3, "--max-restarts", 1]
    program = ["sh", "-c", """[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; touch $OUT/ran-$GROUP_RANK; [ $GROUP_RANK = 2 ] || exec sleep 600
                              while [ ! -e $OUT/ran-0 ]; do sleep 0.02; done; exit 3"""]

    def node(rank):
        return cluster.node(*args, "--node-rank", rank, program=program)

    def has_claimed():
        return cluster.servers[-1].cli("keys", "*claim*") if home == "redis" else list(cluster.tmp.glob("shared/*/claim/leader-*"))

    first = joined(node(0), 1, 3)
    wait("its claim", has_claimed)
    second = joined(node(1), 2, 3)
    os.kill(second.agent(), signal.SIGSTOP)
    third = node(2)
    wait("the end of the round", lambda: "stop as well" in first.text())
    os.kill(second.agent(), signal.SIGCONT)
    assert [n.wait() for n in (first, second, third)] == [0, 0, 0], "\n".join(n.text() for n in cluster.nodes)


@pytest.mark.parametrize("home", ["redis", "file"])
def test_an_id_whose_first_leader_was_killed_is_used_twice(cluster, home):
    args = [*where(cluster, home), "--nnodes", 2, "--max-restarts", 3]
    lone = cluster.node(*args)
    wait("a claim, and the first decision", lambda: len(decisions(cluster, home, args[1])) > 1)
    kill_and_wait(lone)
    if home == "redis":  # killed before the second decision, whenever that was
        redis_cli(args[1], "xdel", "crun:{job}:decisions", *decisions(cluster, home, args[1])[2:], "9-9")
    for turn in range(2):
        nodes = [cluster.node(*args, program=["sh", "-c", f"touch $OUT/ran-{turn}"]) for _ in range(2)]
        assert [n.wait() for n in nodes] == [0, 0], "\n".join(n.text() for n in nodes)
        assert (cluster.out / f"ran-{turn}").exists(), "\n".join(n.text() for n in nodes)


def test_a_stranger_at_the_port_of_a_leader_that_was_killed_ends_nobody(cluster):
    args, port = [*where(cluster, "redis"), "--nnodes", 2, "--local-addr", "127.0.0.1"], free_port()
    lone = cluster.node(*args, "--rdzv-conf", f"port={port}")
    wait("a claim, and the first decision", lambda: len(decisions(cluster, "redis", args[1])) > 1)
    kill_and_wait(lone)
    cluster.rendezvousd("--token-file", write_tokens(cluster.tmp / "theirs", ALICE), port=port)
    nodes = [cluster.node(*args, program=["true"]) for _ in range(2)]
    assert [n.wait() for n in nodes] == [0, 0], "\n".join(n.text() for n in nodes)


@pytest.mark.parametrize("again", [3, 0])
@pytest.mark.parametrize("home", ["rendezvousd", "c10d", "redis", "file"])
def test_a_killed_job_that_is_run_again_at_once_is_a_new_one(cluster, home, again):
    args = [*where(cluster, home), "--nnodes", 2, "--local-addr", "127.0.0.1", "--max-restarts"]
    old = [cluster.node(*args, 3) for _ in range(2)]
    cluster.wait_round(2)
    kill_and_wait(*old)
    new = [cluster.node(*args, again, program=["sh", "-c", "echo restarts=$TORCHELASTIC_RESTART_COUNT"]) for _ in range(2)]
    assert [n.wait() for n in new] == [0, 0], "\n".join(n.text() for n in new)
    assert all("restarts=0" in n.text() for n in new), "\n".join(n.text() for n in new)


def test_a_decision_in_a_folder_is_on_disk_before_it_has_its_number_and_that_before_anything_else(tmp_path):
    shared, log = tmp_path / "shared", tmp_path / "log"
    shared.mkdir()
    p = run(CRUN, "--nnodes", 1, "--rdzv-endpoint", f"file://{shared}", "--rdzv-id", "j", "--nproc_per_node", 1, "true", env=faulty_disk(log=log))
    assert p.returncode == 0, p.stderr
    told = [line.replace(f"{shared}/crun-j", "JOB") for line in log.read_text().splitlines()]
    links = [i for i, line in enumerate(told) if line.startswith("link ")]
    assert len(links) >= 3, told
    for number, i in enumerate(links, 1):
        draft, name = told[i].split()[1:]
        assert name == f"JOB/log/{number:08}" and told[i - 1] == f"fsync {draft}" and told[i + 1] == "fsync JOB/log", told
