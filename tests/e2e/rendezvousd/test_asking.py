"""crun stacks, logs, drain and stop: what the principal of a job asks of its nodes, wherever they meet."""
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from cluster import Cluster
from daemon import ALICE, BOB, Client, Daemon, RespError, write_tokens
from processes import children, comm, state, wait
from support import CRUN, ROOT, free_port, run

# Rank 2 sleeps, all others read: two stacks.
WORKER = ("sh", "-c", 'echo "rank $RANK of a job"; [ $RANK != 2 ] || exec sleep 600; exec 9<>"$0.$RANK"; exec cat <&9')


@pytest.fixture
def cluster(tmp_path):
    if not shutil.which("eu-stack"):
        pytest.skip("no eu-stack")
    c = Cluster(tmp_path)
    yield c
    c.close()


def worker(tmp_path):
    for rank in range(4):
        fifo = tmp_path / f"fifo.{rank}"
        if not fifo.exists():
            subprocess.run(["mkfifo", fifo], check=True)
    return (*WORKER, tmp_path / "fifo")


def begin(cluster, *args, nodes=2):
    """Cruns of one job, whose workers all run their last program."""
    started = [cluster.node("--nproc-per-node", 4 // nodes, "--no-log-prefix", "--log-dir", cluster.tmp / "logs", "--nnodes", nodes, *args,
                            program=worker(cluster.tmp)) for _ in range(nodes)]
    await_rest(started)
    return started


def await_rest(nodes):
    """All four are where they stay."""

    def look():
        workers = [pid for n in nodes for pid in children(n.agent()) if comm(pid) in ("cat", "sleep")] if all(n.pid and children(n.pid) for n in nodes) else []
        return len(workers) == 4 and all(state(pid) == "S" for pid in workers)

    wait("four workers at rest", look)


def crun(cluster, *args, code=0):
    p = run(CRUN, *args, timeout=60, env=cluster.env)
    assert p.returncode == code, (args, p)
    return p.stderr if code else p.stdout


def check_stacks(cluster, *args):
    """The odd one first, then those that are alike. On a busy machine a tool may not have the time that it takes, or a node answers late: that is said, and asked again."""
    for attempt in range(6):
        out = crun(cluster, "stacks", *args)
        heads = [line for line in out.splitlines() if not line.startswith("    ")]
        if len(heads) == 2 and heads[1].startswith("ranks 0-1,3") and "    (" not in out:
            break
    assert len(heads) == 2 and heads[0].startswith("rank 2 (pid ") and heads[1].startswith("ranks 0-1,3"), out
    odd, others = out.split("ranks 0-1,3")
    assert re.search(r"^    \S*nanosleep\S* \(libc", odd, re.M) and re.search(r"^    \S*read\S* \(libc", others, re.M), out


def homes(cluster):
    """Name of a home -> options of a node, the word that names it to others."""
    port = free_port()
    return {"rendezvousd": lambda: ("--rdzv-backend", "rendezvousd", "--rdzv-endpoint", cluster.daemon()),
            "host": lambda: ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"),
            "list": lambda: ("--rdzv-endpoint", f"127.0.0.1:{port},127.0.0.1:{free_port()}"),
            "redis": lambda: ("--rdzv-endpoint", cluster.redis().url),
            "folder": lambda: ("--rdzv-endpoint", f"file://{cluster.tmp}/home")}


@pytest.mark.parametrize("home", ["rendezvousd", "host", "list", "redis", "folder"])
def test_all_ranks_of_all_nodes_are_asked_wherever_they_meet(cluster, home):
    (cluster.tmp / "home").mkdir()
    options = homes(cluster)[home]()
    at = ("--rdzv-endpoint", options[-1])
    nodes = begin(cluster, "--rdzv-id", "j", *options) if home != "list" else [
        *begin_listed(cluster, options)]
    check_stacks(cluster, *at, "j")
    check_stacks(cluster, str(nodes[1].process.pid))
    out = crun(cluster, "logs", *at, "j", "3")
    assert re.fullmatch(r"rank 3 on \S+: \S+rank-3.out\n  stdout:\n    \| rank 3 of a job\n", out), out
    assert crun(cluster, "logs", *at, "j").count("of a job") == 4
    assert "no rank 4 in its present round" in crun(cluster, "logs", *at, "j", "4", code=1)
    if home in ("rendezvousd", "redis"):
        crun(cluster, "stop", *at, "j")
        for n in nodes:
            assert n.wait() == 143 and "stopped the job (crun stop)" in n.text(), n.text()
    else:
        crun(cluster, "drain", *at, "j")
        for n in nodes:
            assert n.wait() in (75, 143), n.text()


def begin_listed(cluster, options):
    started = [cluster.node("--nproc-per-node", 2, "--no-log-prefix", "--log-dir", cluster.tmp / "logs", "--nnodes", 2, "--node-rank", i, "--rdzv-id", "j", *options,
                            program=worker(cluster.tmp)) for i in range(2)]
    await_rest(started)
    return started


def test_a_job_that_meets_nobody_is_looked_at_by_its_process_id(cluster):
    node, = begin(cluster, "--standalone", nodes=1)
    pid = node.process.pid
    check_stacks(cluster, str(pid))
    groups = json.loads(crun(cluster, "stacks", "--json", str(pid)))["groups"]
    assert [[r["rank"] for r in g["ranks"]] for g in groups] == [[2], [0, 1, 3]] and groups[0]["frames"]
    assert "expected RUN|PID" in crun(cluster, "stacks", code=2)
    assert f"no crun of yours has process id {os.getpid()} here, and as the name of a job: " in crun(cluster, "stacks", str(os.getpid()), code=69)
    node.terminate()


def test_nobody_else_may_ask_or_end_a_job(cluster):
    """Not even that it is there is told to another principal."""
    tokens = write_tokens(cluster.tmp / "tokens", ALICE, BOB)
    alice, bob = write_tokens(cluster.tmp / "alice", ALICE), write_tokens(cluster.tmp / "bob", BOB)
    at = ("--rdzv-endpoint", cluster.daemon("--token-file", tokens))
    node, = begin(cluster, "--rdzv-id", "j", "--rdzv-backend", "rendezvousd", *at, "--token-file", alice, nodes=1)
    for command in ("stacks", "logs", "drain", "stop"):
        refused = crun(cluster, command, *at, "--token-file", bob, "j", code=1)
        assert "run 'j' is unknown here" in refused and "NOJOB" not in refused, refused
    check_stacks(cluster, *at, "--token-file", alice, "j")
    assert node.process.poll() is None
    crun(cluster, "stop", *at, "--token-file", alice, "j")
    assert node.wait() == 143 and "principal 'alice' stopped the job (crun stop)" in node.text()


def test_the_status_page_asks_for_its_readers_own_jobs(cluster):
    """It answers at once, as all pages do: to wait, until the nodes have."""
    tokens = write_tokens(cluster.tmp / "tokens", ALICE, BOB)
    d = cluster.rendezvousd("--http-port", "0", "--token-file", tokens)
    begin(cluster, "--rdzv-id", "j", "--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--token-file", write_tokens(cluster.tmp / "alice", ALICE), nodes=1)

    def get(who, path):
        shown = {"Authorization": "Basic " + base64.b64encode(":".join(who).encode()).decode()} if who else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(d.http + path, headers=shown), timeout=30) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    assert get(BOB, "/api/stacks?run=j")[0] == 404 and get(None, "/api/stacks?run=j")[0] == 401 and get(ALICE, "/api/stacks")[0] == 400
    assert get(ALICE, "/api/stacks?run=j") == (200, {"wait": True})
    assert get(BOB, "/api/stacks?run=j")[0] == 409  # nor does it tell whose question waits
    answer = wait("the answer", lambda: (lambda r: r if "nodes" in r else None)(get(ALICE, "/api/stacks?run=j")[1]))
    assert answer["run"] == "j" and [r["rank"] for r in json.loads(answer["nodes"][0]["text"])["ranks"]] == [0, 1, 2, 3]
    assert get(ALICE, "/api/stacks?run=j") == (200, {"wait": True})  # a new question


def test_the_page_groups_as_the_command_does():
    """Its own script, in Node."""
    if not shutil.which("node"):
        pytest.skip("no node")
    page = (ROOT / "rendezvousd/page/status_page.html").read_text()
    functions = "".join(re.search(rf"^function {name}\(.*?^}}\n", page, re.M | re.S)[0] for name in ("ranges", "stacksText"))
    ranks = [{"rank": r, "frames": ["f (a.py:1)", "main (a.py:9)"] if r != 5 else ["g (a.py:2)"], "why": ""} for r in range(8)] + [{"rank": 8, "frames": [], "why": "no tool"}]
    answer = {"nodes": [{"id": "n1+1-a", "text": json.dumps({"ranks": ranks})}, {"id": "n2+2-b", "why": "it did not answer"}]}
    p = run("node", "-e", functions + f"console.log(stacksText({json.dumps(answer)}))", timeout=30)
    assert p.stdout == ("rank 5:\n    g (a.py:2)\nrank 8:\n    (no tool)\nranks 0-4,6-7:\n    f (a.py:1)\n    main (a.py:9)\nn2: it did not answer\n"), p


def test_a_node_that_stands_still_is_named_and_the_others_answer(cluster):
    at = ("--rdzv-endpoint", cluster.daemon())
    nodes = begin(cluster, "--rdzv-id", "j", "--rdzv-backend", "rendezvousd", "--rdzv-conf", "keep_alive_interval=20", *at)
    agent = nodes[1].agent()
    os.kill(agent, signal.SIGSTOP)
    out = crun(cluster, "stacks", *at, "--timeout", "8", "j")  # the other one's tool has most of it
    assert len(re.findall(r"^ranks? ", out, re.M)) in (1, 2) and re.search(r"^\S+: it did not answer within 8000 ms", out, re.M), out
    os.kill(agent, signal.SIGCONT)


def test_questions_have_bounds():
    with Daemon() as d, Client(d.port) as c, Client(d.port) as node:
        node("RDZV.JOIN", "j", "n1", "slots=1", "v=1", "nnodes=1")
        assert "kind=round" in node("RDZV.NEXT", "j", "n1", "0", "5000")
        for words, why in ((("stacks", "1000", "RANK"), "expected RDZV.ASK run"), (("gossip", "1000"), "expected RDZV.ASK run"), (("logs", "99"), "timeout 99: expected 100 to 60000 ms"),
                           (("logs", "60001"), "timeout '60001': expected a number from 0 to 60000"), (("logs", "1000", "RANK", "-1"), "rank '-1': expected a number")):
            with pytest.raises(RespError, match=why):
                c("RDZV.ASK", "j", *words)
        with pytest.raises(RespError, match="answer of 262145 bytes: expected at most 262144"):
            node("RDZV.ANSWER", "j", "n1", "1", "x" * 262145)
