"""A node that cannot start its workers: the job ends with its code on every node, unless the others are enough without it."""
import re

import pytest

from cluster import free_port, wait


def program(cluster, kind):
    """A file that may be executed, and cannot."""
    path = cluster.tmp / kind
    path.write_bytes(b"\x7fELF nothing" if kind == "garbage" else b"#!/no/such/interpreter\n")
    path.chmod(0o755)
    return path


def pair(cluster, bad, bad_args=(), hosts="good", args=()):
    """-> (rc, text) of a good node and of a bad one."""
    common = ["--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "job", "--nnodes", 2, *args]
    nodes = {}
    for who in ("good", "bad") if hosts == "good" else ("bad", "good"):
        node = cluster.node(*common, *(bad_args if who == "bad" else ()),
                            program=[bad] if who == "bad" else ["sh", "-c", "exec sleep 60"])
        nodes[who] = node
        if len(nodes) == 1:
            wait("a host", lambda: "joining: 1 of 2 nodes" in node.text())
    return [(nodes[who].wait(), nodes[who].text()) for who in ("good", "bad")]


@pytest.mark.parametrize("hosts", ["good", "bad"])
@pytest.mark.parametrize("kind,code,why", [("garbage", 126, "Exec format error"), ("interpreter", 127, "it, or the interpreter it names, is not found")])
def test_a_program_that_cannot_be_executed_on_one_node_ends_the_job_with_its_code(cluster, kind, code, why, hosts):
    (good, text), (bad, bad_text) = pair(cluster, program(cluster, kind), hosts=hosts, args=["--max-restarts", 3])
    assert (good, bad) == (code, code), text + bad_text
    assert re.search(rf"the job failed: program '.*' cannot be executed: {why}, reported by \S+ \(exit code {code}\)", text), text
    assert bad_text.count("cannot be executed") == 1 and "start it again" not in text + bad_text
    assert "restart 1/3" not in text


def test_a_log_folder_that_cannot_be_written_on_one_node_ends_the_job_with_its_code(cluster):
    (cluster.tmp / "logs" / "job").mkdir(parents=True)
    (cluster.tmp / "logs" / "job" / "round-1").touch()
    (good, text), (bad, bad_text) = pair(cluster, "true", ["--log-dir", cluster.tmp / "logs"])
    assert (good, bad) == (73, 73), text + bad_text


@pytest.mark.parametrize("where", ["daemon", "file"])
def test_several_nodes_that_cannot_start_end_a_job_that_needs_one_of_them(cluster, where):
    """75 would have it started again, for ever."""
    (cluster.tmp / "meet").mkdir()
    endpoint = cluster.daemon() if where == "daemon" else f"file://{cluster.tmp}/meet"
    common = ["--rdzv_endpoint", endpoint, "--rdzv_id", "job", "--nnodes", "2:3", "--max-restarts", 3]
    good = cluster.node(*common, program=["sh", "-c", "exec sleep 60"])
    bad = [cluster.node(*common, program=[program(cluster, "garbage")]) for _ in range(2)]
    assert [n.wait() for n in (good, *bad)] == [126, 126, 126], "\n".join(n.text() for n in (good, *bad))
    assert "cannot be executed: Exec format error, reported by" in good.text() and "start it again" not in good.text()


@pytest.mark.parametrize("host", [True, False])
def test_enough_others_go_on_without_a_node_that_cannot_start(cluster, host):
    where = cluster.daemon() if not host else f"127.0.0.1:{free_port()}"
    common = ["--rdzv_endpoint", where, "--rdzv_id", "job", "--nnodes", "1:2", "--rdzv_conf", "last_call_timeout=60,keep_alive_max_attempt=20"]
    good = cluster.node(*common, program=["sh", "-c", "[ $WORLD_SIZE = 1 ] && exit 0; exec sleep 60"])
    wait("the good node", lambda: "joining: 1 of 1 to 2 nodes here; it begins in " in good.text())
    bad = cluster.node(*common, program=[program(cluster, "garbage")])
    assert (good.wait(), bad.wait()) == (0, 126), good.text() + bad.text()
