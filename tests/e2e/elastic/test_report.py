"""When a job of several nodes fails, group rank 0 reports for all of them."""
import contextlib
import json
import os
import pathlib
import resource
import signal
import time

import pytest

from cluster import free_port, joined, wait
from processes import state
from servers import Wire

FAST = "last_call_timeout=200ms,keep_alive_max_attempt=20"


def home(cluster, kind):
    """The options of a rendezvous of this kind."""
    if kind == "daemon":
        return ["--rdzv_endpoint", cluster.daemon()]
    if kind == "redis":
        return ["--rdzv_endpoint", cluster.redis().url]
    if kind == "file":
        (cluster.tmp / "meet").mkdir()
        return ["--rdzv_endpoint", f"file://{cluster.tmp}/meet"]
    return ["--rdzv_endpoint", f"127.0.0.1:{free_port()}"]


def is_led(where):
    """Over a Redis or a folder one of the nodes leads, the first one that asks: is there one?"""
    kind, _, place = where[1].partition("://")
    if kind == "file":
        return any(pathlib.Path(place).glob("*/claim/leader-*"))
    if kind != "redis":
        return True
    with contextlib.closing(Wire(int(place.rpartition(":")[2]))) as w:
        return w.ask("KEYS", "*claim*") != b"*0\r\n"


def start(cluster, script, n=2, args=(), kind="daemon"):
    """n nodes; -> those in the order of their group ranks, when all have ended."""
    where = home(cluster, kind)
    nodes = [cluster.node(*where, "--rdzv_id", "job", "--rdzv_conf", FAST, "--nnodes", n, "--node-rank", i, *args,
                          program=["sh", "-c", f"cd $OUT; echo $$ > pid-$RANK.new; mv pid-$RANK.new pid-$RANK; {script}"])
             for i in range(n)]
    return nodes


def end(nodes):
    return [(n.wait(), n.text()) for n in nodes]


def twin(path):
    with open(path, encoding="utf-8", errors="strict") as f:
        return json.load(f)


@pytest.mark.parametrize("kind", ["daemon", "hosted", "redis", "file"])
def test_a_culprit_of_another_node_is_reported_by_group_rank_0(cluster, kind):
    file = cluster.tmp / "why.json"
    nodes = start(cluster, """while [ ! -e pid-3 ]; do sleep 0.02; done; [ $RANK = 3 ] || exec sleep 60
                  printf 'one\\nbad \\377 byte\\nlast words\\n' >&2; exit 7""",
                  args=["--nproc_per_node", 2, "--failure-file", file], kind=kind)
    (rc0, first), (rc1, second) = end(nodes)
    assert (rc0, rc1) == (7, 7), first + second
    pid = (cluster.out / "pid-3").read_text().strip()
    assert f"failed: rank 3 exited with code 7\n  job       job, round 1, 0 of 0 restarts used\n" in first
    assert f"  culprit   rank 3 (local rank 1), pid {pid} on {os.uname().nodename}\n" in first
    assert "    | one\n" in first and first.rstrip().endswith("    | last words")
    assert "then " not in first and "unheard" not in first, "the others were stopped by crun itself"
    assert "culprit" not in second and second.count("the job failed: rank 3 on ") == 1
    why = twin(file)
    assert (why["run_id"], why["exit_code"], why["unheard_nodes"]) == ("job", 7, 0)
    assert [f["rank"] for f in why["failures"]] == [3]
    assert why["failures"][0]["stderr"] == ["one", "bad ? byte", "last words"]


def test_failures_of_two_nodes_stand_in_their_order(cluster):
    nodes = start(cluster, """while [ ! -e pid-0 ] || [ ! -e pid-1 ] || [ ! -e pid-2 ]; do sleep 0.02; done
                  [ $RANK = 0 ] && exec sleep 60
                  [ $RANK = 2 ] && { echo from two >&2; touch go; exit 5; }
                  while [ ! -e go ]; do :; done; exit 6""", n=3, args=["--log-dir", cluster.tmp / "logs", "--shutdown-timeout", 3])
    ended = end(nodes)
    why = twin(cluster.tmp / "logs" / "job" / "failure.json")
    codes = {1: 6, 2: 5}
    first = why["failures"][0]["rank"]
    assert [rc for rc, _ in ended] == [codes[first]] * 3, ended
    assert why["exit_code"] == codes[first] and 0 not in [f["rank"] for f in why["failures"]]
    text = ended[0][1]
    assert f"culprit   rank {first} " in text
    for f in why["failures"][1:]:
        assert f"then      rank {f['rank']} (pid {f['pid']} on " in text
    assert all("culprit" not in t for _, t in ended[1:])


@pytest.mark.parametrize("record", ['{"message": {"message": "it broke", "extraInfo": {"timestamp": "1700000000", "py_callstack": "x"}}}',
                                    '{"message": "it broke", "timestamp": 1700000000}'])
def test_an_error_record_of_either_format_is_shown(cluster, record):
    (rc, text), _ = end(start(cluster, f"""[ $RANK = 1 ] || exec sleep 60
                              echo '{record}' > $TORCHELASTIC_ERROR_FILE; exit 4"""))
    assert rc == 4 and "  message   it broke (" in text, text


def test_gpu_and_core_are_named(cluster, tmp_path):
    file = tmp_path / "why.json"
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no cores here")
    where = home(cluster, "hosted")
    nodes = [cluster.node(*where, "--nnodes", 2, "--node-rank", i, "--rdzv_id", "job", "--failure-file", file, "--nproc_per_node", 2,
                          prefix=["env", "-C", tmp_path], env={"CUDA_VISIBLE_DEVICES": "6,GPU-5"},
                          program=["sh", "-c", "ulimit -c unlimited; [ $RANK = 3 ] || exec sleep 60; kill -SEGV $$"])
             for i in range(2)]
    (rc, text), _ = end(nodes)
    assert rc == 139, text
    f = twin(file)["failures"][0]
    assert f["gpu"] == "GPU-5" and f["signal"] == "SIGSEGV"
    if "core dumped" not in f["ending"]:
        return  # a disk or a pattern that takes none
    first = pathlib.Path("/proc/sys/kernel/core_pattern").read_text()[:1]
    if first == "|":  # a program has it
        assert "core" not in f and "  core  " not in text
        return
    assert f"  core      {f['core']}\n" in text
    if first != "/":
        assert f["core"].startswith(f"{tmp_path}/") and os.path.exists(f["core"])


@pytest.mark.parametrize("kind", ["daemon", "hosted", "redis", "file"])
def test_a_group_rank_0_that_missed_the_round_hears_of_it_all_the_same(cluster, kind):
    file = cluster.tmp / "logs" / "job" / "failure.json"
    where = home(cluster, kind)

    def node(rank):
        return cluster.node(*where, "--rdzv_id", "job", "--rdzv_conf", FAST, "--nnodes", 3, "--node-rank", rank,
                            "--log-dir", cluster.tmp / "logs", "--failure-file", cluster.tmp / "why.json",
                            program=["sh", "-c", """[ $RANK = 2 ] || { echo $$ > $OUT/pid; exec sleep 60; }
                                                   while [ ! -s $OUT/pid ]; do sleep 0.02; done; echo last words >&2; exit 7"""])

    second = joined(node(1), 1, 3)
    wait("a leader that is not stopped", lambda: is_led(where))
    first = joined(node(0), 2, 3)
    os.kill(first.agent(), signal.SIGSTOP)
    third = node(2)
    worker = int(wait("a worker", lambda: (cluster.out / "pid").exists() and (cluster.out / "pid").read_text()))
    wait("the news to reach the second node", lambda: not os.path.exists(f"/proc/{worker}"))
    os.kill(first.agent(), signal.SIGCONT)
    (rc, text), *others = end([first, second, third])
    assert (rc, [rc for rc, _ in others]) == (7, [7, 7]), text
    assert "  culprit   rank 2 (local rank 0)" in text and text.rstrip().endswith("    | last words") and "unheard" not in text, text
    assert not any("culprit" in t for _, t in others), others
    for path in (file, cluster.tmp / "why.json"):
        why = twin(path)
        assert (why["exit_code"], why["unheard_nodes"], [f["rank"] for f in why["failures"]]) == (7, 0, [2])


def test_without_group_rank_0_a_node_reports_for_itself(cluster):
    nodes = start(cluster, """while [ ! -e pid-1 ] || [ ! -e pid-0 ]; do sleep 0.02; done
                  [ $RANK = 0 ] && exec sleep 60
                  trap '' TERM; while [ ! -e killed ]; do sleep 0.02; done; exit 3""", args=["--shutdown-timeout", 20])
    wait("the workers", lambda: (cluster.out / "pid-0").exists() and (cluster.out / "pid-1").exists())
    os.kill(nodes[0].agent(), 19)
    cluster.say("killed")
    wait("the end", lambda: nodes[1].process.poll() is not None)
    os.kill(nodes[0].agent(), 18)
    text = nodes[1].text()
    nodes[0].wait()
    assert nodes[1].process.returncode == 3 and "culprit   rank 1 " in text, text


def test_a_node_that_stands_still_for_a_moment_is_heard(cluster):
    nodes = start(cluster, "while [ ! -e go ]; do sleep 0.02; done; exit $((4 + RANK))")
    pids = [cluster.out / f"pid-{r}" for r in (0, 1)]
    wait("the workers", lambda: all(p.exists() for p in pids))
    agent = nodes[1].agent()
    os.kill(agent, signal.SIGSTOP)
    cluster.say("go")
    wait("the failure", lambda: not os.path.exists(f"/proc/{int(pids[0].read_text())}"))
    wait("the end of its own worker", lambda: state(int(pids[1].read_text())) == "Z")
    time.sleep(1)  # of the 3 s that it is waited for
    os.kill(agent, signal.SIGCONT)
    (rc, text), (rc1, second) = end(nodes)
    assert (rc, rc1) == (4, 4) and "culprit   rank 0 " in text and "then      rank 1 " in text and "unheard" not in text, text
    assert "culprit" not in second and second.count("the job failed: rank 0 on ") == 1, second


def test_each_restart_has_its_line_where_no_worker_failed(cluster):
    nodes = start(cluster, """while [ ! -e pid-1 ] || [ ! -e pid-0 ]; do sleep 0.02; done
                  [ $CRUN_ROUND = 2 ] && exit 0; [ $RANK = 1 ] || exec sleep 60; exit 9""", args=["--max-restarts", 1])
    for rc, text in end(nodes):
        assert rc == 0, text
        assert text.count("restart 1/1 (rank 1 ") == 1 and ": detect " in text and "culprit" not in text, text
