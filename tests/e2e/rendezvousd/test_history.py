"""What rendezvousd remembers of jobs, who may see it, and how figures get there: crun, its workers, its host."""
import base64
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from crun_run import Crun
from daemon import ALICE, BOB, Client, Daemon, until, write_tokens
from processes import children, comm, wait
from support import BUILD, LIBCRUN, ROOT, crc32c

ADMIN = ("admin", "admin-0123456789abcdef")
FAKE_NVML = str(BUILD / "tests" / "launcher")
JOIN = ("slots=2", "v=1", "max_restarts=3", "silence=600000")  # nobody beats


def basic(user):
    return {"Authorization": "Basic " + base64.b64encode(":".join(user).encode()).decode()}


def ask(d, path, headers=()):
    """-> (status, JSON or text)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(d.http + path, headers=dict(headers)), timeout=30) as r:
            text, status = r.read().decode(), r.status
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    return status, json.loads(text) if path.startswith("/api") else text


def api(d, path, headers=()):
    status, answer = ask(d, path, headers)
    assert status == 200, (path, status, answer)
    return answer


def finished(d, headers=()):
    return {j["run"]: j for j in api(d, "/api/history", headers)["jobs"]}


def begin(c, run, nodes=1, name="n"):
    """A job of one connection; -> its instance."""
    answer = c("RDZV.JOIN", run, f"{name}1", f"nnodes={nodes}:{nodes}", *JOIN)
    assert "kind=round" in c("RDZV.NEXT", run, f"{name}1", "0", "20000")
    return answer.split("instance=")[1].split()[0]


def end(c, run, code=7, text="rank%200%20broke", name="n", seq=1):
    assert c("RDZV.FAIL", run, f"{name}1", "1", f"code={code}", "rank=0", "fatal=1", f"text={text}") == "OK"
    while "kind=end" not in c("RDZV.NEXT", run, f"{name}1", str(seq), "20000"):
        seq += 1


def log_of(text):
    """A file of the state directory with one record (rendezvousd/state/state_log.h)."""
    head = f"{len(text.encode()):08x} 00000001"
    return f"rendezvousd-log 3\n{head} {crc32c((head + text).encode()):08x}\n{text}\n".encode()


# ---- with crun and real workers


@pytest.fixture
def crun(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return Crun(tmp_path)


def worker(crun, body):
    script = crun.tmp / "worker.py"
    script.write_text(f"import sys, os, time\nsys.path.insert(0, {str(ROOT / 'python')!r})\nimport crun\ninfo = crun.info()\n{body}")
    crun.env["LIBCRUN"] = str(LIBCRUN)
    return "/usr/bin/python3", script


STEPS = """
step = 0
while not os.path.exists({go!r}) or step < 3:
    step += 1
    time.sleep(0.05)
    crun.report(step, loss=2 / step, images_per_s=64.0, accuracy=0.5, eval_accuracy=0.25, total_steps=100000, wait_s=0.03 if info.rank else 0.0)
"""


def test_figures_of_ranks_and_hosts_come_from_crun(crun):
    go = crun.tmp / "go"
    with Daemon("--http-port", "0") as d:
        args = ("--nnodes", 2, "--nproc_per_node", 2, "--rdzv_endpoint", d.address, "--rdzv_id", "r", "--log-dir", crun.tmp / "logs",
                *worker(crun, STEPS.format(go=str(go))))
        nodes = [crun.start(*args, extra_env={"LD_LIBRARY_PATH": FAKE_NVML}) for _ in range(2)]
        until(lambda: api(d, "/api/jobs")["jobs"], "the job is there")
        instance = api(d, "/api/jobs")["jobs"][0]["instance"]

        def whole():
            j = api(d, f"/api/job?instance={instance}")
            full = len(j["ranks"]) == 4 and all(r["step_ms"] and r["wait_ms"] is not None for r in j["ranks"]) and len(j["curve"]["t"]) > 1
            return full and len(j["hosts"]) == 2 and all(h["cpu"] is not None and h["gpus"] for h in j["hosts"]) and j
        j = until(whole, "ranks and hosts have told")
        ranks = {r["rank"]: r for r in j["ranks"]}
        assert sorted(ranks) == [0, 1, 2, 3] and all(r["step_ms"] > 49 for r in ranks.values())
        assert ranks[0]["wait_ms"] == 0 and ranks[3]["wait_ms"] > 25, "who is waited for can be told"
        assert j["total_steps"] == 100000 and j["accuracy"] == 0.5 and j["eval_accuracy"] == 0.25 and j["images_per_s"] == 64 and j["eta_s"] > 1000
        assert j["logs"] == str(crun.tmp / "logs" / "r") and j["private"] and j["curve"]["loss"][0] > j["curve"]["loss"][-1]
        for h in j["hosts"]:
            assert 0 <= h["cpu"] <= 1 and 0 < h["memory"] < h["memory_total"]
            assert h["gpus"] == [{"percent": 90 + i, "memory": 20480, "memory_total": 81920} for i in range(3)], "the fake NVML's"
        metrics = ask(d, "/metrics")[1]
        assert 'rendezvousd_job_images_per_second{run="r",principal="local"} 64\n' in metrics and 'rendezvousd_job_ranks{run="r",principal="local"} 4\n' in metrics
        go.touch()
        assert [p.wait(60) for p in nodes] == [0, 0], [p.communicate() for p in nodes]
        over = finished(d)["r"]
        assert (over["state"], over["exit_code"], over["cause"], over["world_size"]) == ("succeeded", 0, "", 4)
    assert crun.processes() == []


@pytest.mark.parametrize("code", [0, 9])
def test_the_last_figures_are_those_of_the_end(crun, code):
    """Steps that are faster than reports, and an evaluation behind the last one."""
    body = f"""
for step in range(1, 71):
    crun.report(step, loss=1 / step, total_steps=70)
crun.report(70, eval_accuracy=0.75)
sys.exit({code})
"""
    with Daemon("--http-port", "0") as d:
        p = crun.start("--nnodes", 1, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "r", *worker(crun, body))
        assert p.wait(60) == code, p.communicate()
        over = finished(d)["r"]
        assert (over["step"], over["total_steps"], over["eval_accuracy"]) == (70, 70, 0.75) and round(over["loss"] * 70) == 1, over
    assert crun.processes() == []


def test_a_driver_that_hangs_holds_up_nothing(crun):
    go = crun.tmp / "go"
    with Daemon("--http-port", "0") as d:
        p = crun.start("--nnodes", 1, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "r", *worker(crun, STEPS.format(go=str(go))),
                       extra_env={"LD_LIBRARY_PATH": FAKE_NVML, "FAKE_NVML_HANGS": "1"})
        until(lambda: "job-gauges" in map(comm, children(p.pid)), "the process that measures is there")
        instance = until(lambda: api(d, "/api/jobs")["jobs"], "the job is there")[0]["instance"]
        j = until(lambda: (j := api(d, f"/api/job?instance={instance}"))["hosts"] and j["hosts"][0]["cpu"] is not None and j, "the host has told")
        assert j["hosts"][0]["gpus"] == []
        go.touch()
        assert p.wait(60) == 0, p.communicate()
    assert crun.processes() == []


FAILS = """
crun.report(41, loss=0.5)
print("first line of stderr", file=sys.stderr)
print("the <last> line of stderr & \\x1b[31mred", file=sys.stderr, flush=True)
sys.exit(9)
"""


def test_the_failure_report_of_a_job_reaches_the_history(crun):
    with Daemon("--http-port", "0", "--state-dir", crun.tmp / "state") as d:
        p = crun.start("--nnodes", 1, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "breaks", *worker(crun, FAILS))
        assert p.wait(60) == 9
        over = finished(d)["breaks"]
        assert (over["state"], over["exit_code"], over["rank"]) == ("failed", 9, 0) and "exited with code 9" in over["cause"]
        path = f"/api/job?instance={over['instance']}"
        f = api(d, path)["failure"]
        assert f["program"].endswith("python3") and f["failures"][0]["rank"] == 0 and f["failures"][0]["step"] == 41
        assert f["failures"][0]["stderr"][-1].startswith("the <last> line of stderr & ")
    with Daemon("--http-port", "0", "--state-dir", crun.tmp / "state") as d:
        assert api(d, path)["failure"] == f and finished(d)["breaks"] == over
    assert crun.processes() == []


# ---- what is kept


def test_a_curve_survives_the_daemon_and_goes_on(tmp_path):
    state = ("--http-port", "0", "--state-dir", tmp_path / "state")
    with Daemon(*state) as d, Client(d.port) as c:
        instance = begin(c, "r")
        for i in range(700):  # more than are kept
            c("RDZV.REPORT", "r", "n1", f"step={i}", "base=0", f"steps={i},{i}", f"loss={700 - i}")
        before = api(d, f"/api/job?instance={instance}")
        assert 256 <= len(before["curve"]["t"]) <= 512 and before["curve"]["at_step"][-1] == 699 and before["step"] == 699
        assert before["curve"]["loss"] == sorted(before["curve"]["loss"], reverse=True) and before["curve"]["t"] == sorted(before["curve"]["t"])
        assert d.stop() == 0
    with Daemon(*state) as d, Client(d.port) as c:
        after = api(d, f"/api/job?instance={instance}")
        assert after["curve"] == before["curve"] and after["state"] == "running"
        c("RDZV.NEXT", "r", "n1", "1", "0")
        c("RDZV.REPORT", "r", "n1", "step=700", "base=0", "steps=700,700", "loss=0")
        assert api(d, f"/api/job?instance={instance}")["curve"]["at_step"][-1] == 700
        end(c, "r")
        over = api(d, f"/api/job?instance={instance}")
        assert len(over["curve"]["t"]) <= 256 and over["exit_code"] == 7 and over["cause"] == "rank 0 broke"
        assert d.stop(signal.SIGKILL) == -signal.SIGKILL  # what is over is on disk
    with Daemon(*state) as d:
        assert api(d, f"/api/job?instance={instance}")["curve"] == over["curve"]
        assert [j["run"] for j in api(d, "/api/history")["jobs"]] == ["r"]


def test_a_restart_is_marked_where_the_curve_breaks():
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        instance = begin(c, "r")
        c("RDZV.REPORT", "r", "n1", "step=120", "base=0", "steps=120,120", "loss=1")
        c("RDZV.FAIL", "r", "n1", "1", "code=9", "rank=1", "text=rank%201%20broke")
        assert "kind=stop" in c("RDZV.NEXT", "r", "n1", "1", "20000")
        c("RDZV.JOIN", "r", "n1", "nnodes=1:1", "round=1", *JOIN)
        assert "round=2" in c("RDZV.NEXT", "r", "n1", "2", "20000")
        c("RDZV.REPORT", "r", "n1", "step=100", "base=0", "steps=100,100", "loss=1.1")
        j = api(d, f"/api/job?instance={instance}")
        assert j["restarts"] == 1 and j["curve"]["at_step"] == [120, 100]
        mark, = j["marks"]
        assert {k: mark[k] for k in ("step", "round", "rank", "exit_code", "why")} == {"step": 120, "round": 1, "rank": 1, "exit_code": 9, "why": "rank 1 broke"}
        assert j["curve"]["t"][0] <= mark["t"] <= j["curve"]["t"][1]


def test_the_newest_finished_jobs_are_kept_and_files_of_others_go(tmp_path):
    state = ("--http-port", "0", "--state-dir", tmp_path / "state", "--history", "3")
    files = tmp_path / "state" / "history" / "jobs"
    with Daemon(*state) as d, Client(d.port) as c:
        for i in range(5):
            begin(c, f"r{i}")
            end(c, f"r{i}")
        assert list(finished(d)) == ["r2", "r3", "r4"]
        assert [j["run"] for j in api(d, "/api/history?after=4")["jobs"]] == ["r4"]
        until(lambda: len(list(files.glob("*.log"))) == 3, "files of the others are gone")
    torn, damaged = (next(f for f in files.glob("*.log") if f'"{run}"'.encode() in f.read_bytes()) for run in ("r2", "r3"))
    torn.write_bytes(torn.read_bytes()[:-100])
    damaged.write_bytes(log_of("{}"))
    with Daemon(*state) as d:
        assert list(finished(d)) == ["r4"]
        d.stop()
    assert damaged.with_name(damaged.name + ".damaged").exists() and not torn.exists()
    with Daemon("--http-port", "0", "--state-dir", tmp_path / "state", "--history", "0") as d:
        assert list(finished(d)) == []
        until(lambda: not list(files.glob("*.log")), "none is kept")


def test_a_job_that_the_daemon_has_lost_is_said_to_be(tmp_path):
    state = ("--http-port", "0", "--state-dir", tmp_path / "state")
    with Daemon(*state) as d, Client(d.port) as c:
        begin(c, "r")
        d.stop()
    for f in (tmp_path / "state" / "jobs").glob("*.log"):
        f.unlink()
    with Daemon(*state) as d:
        assert finished(d)["r"]["state"] == "lost" and api(d, "/api/jobs")["jobs"] == []


# ---- who may see it


SAID = json.dumps({"program": "p", "failures": [{"rank": 0, "stderr": ["a secret of alice"]}]})


def test_reports_and_paths_are_for_their_principal_and_admins(tokens, tmp_path):
    admin = write_tokens(tmp_path / "http-tokens", ADMIN)
    with Daemon("--http-port", "0", "--token-file", tokens, "--http-token-file", admin) as d, Client(d.port) as a, Client(d.port) as a2, Client(d.port) as b:
        b.authenticate(*BOB)
        lives = begin(a2.authenticate(*ALICE), "alices")
        a2("RDZV.REPORT", "alices", "n1", "step=1", "base=0", "steps=1,1", "logs=/home/alice/logs")
        a.authenticate(*ALICE)
        over = begin(a, "alices-failed")
        end(a, "alices-failed")
        assert a("RDZV.POSTMORTEM", "alices-failed", "n1", SAID) == "OK"
        begin(b, "bobs")
        for who in (basic(ALICE), basic(ADMIN), {"Authorization": "Bearer " + ALICE[1]}):
            assert api(d, f"/api/job?instance={over}", who)["failure"]["failures"][0]["stderr"] == ["a secret of alice"]
            assert api(d, f"/api/job?instance={lives}", who)["logs"] == "/home/alice/logs"
            assert "alices-failed" in finished(d, who)
        assert {j["run"] for j in api(d, "/api/jobs", basic(ADMIN))["jobs"]} == {"alices", "alices-failed", "bobs"}
        for who, runs in ((basic(BOB), {"bobs"}), (basic(ALICE), {"alices", "alices-failed"})):
            jobs = api(d, "/api/jobs", who)
            assert {j["run"] for j in jobs["jobs"]} == runs and len(jobs["figures"]) == 1, "and nothing else of it"
        assert finished(d, basic(BOB)) == {}
        assert {j["run"] for j in api(d, "/api/jobs?principal=bob", basic(ADMIN))["jobs"]} == {"bobs"}
        for path in (f"/api/job?instance={over}", f"/api/job?instance={lives}", "/api/jobs?run=alices"):
            assert ask(d, path, basic(BOB))[0] == 404, path
        for path in ("/api/jobs", "/api/history", f"/api/job?instance={over}", "/metrics"):
            for headers in ({}, basic((ALICE[0], BOB[1])), basic((BOB[0], ALICE[1]))):
                status, text = ask(d, path, headers)
                assert status == 401 and "alice" not in text, path
        series = ask(d, "/metrics", basic(BOB))[1]
        assert 'rendezvousd_job_running{run="bobs"' in series and "alice" not in series
        assert 'run="alices"' in ask(d, "/metrics", basic(ADMIN))[1]
        nobody = api(d, "/api/jobs?page=1")
        assert nobody["reader"] == {"sees": "none", "wrong": False, "can_log_in": True} and "alice" not in json.dumps(nobody)
        assert api(d, "/api/jobs?page=1", basic((ALICE[0], "wrong-wrong-wrong-wrong")))["reader"]["wrong"] is True
        d.stop()
    assert "audit: refused peer=127.0.0.1:" in d.err and "reason=wrong secret over HTTP, as principal 'alice'" in d.err


def test_secrets_of_the_rendezvous_are_taken_from_this_host_only(tokens, tmp_path, namespace):
    name, _, ours = namespace
    both = write_tokens(tmp_path / "http-tokens", ADMIN, BOB)
    with Daemon("--http-port", "0", "--http-bind", "0.0.0.0", "--token-file", tokens, "--http-token-file", both) as d:
        port = d.http.rsplit(":", 1)[1]

        def from_there(user):
            p = subprocess.run(["ip", "netns", "exec", name, "python3", "-c", "import sys, urllib.request, urllib.error\n"
                                "r = urllib.request.Request(sys.argv[1], headers={'Authorization': sys.argv[2]})\n"
                                "try: print(urllib.request.urlopen(r, timeout=30).status)\nexcept urllib.error.HTTPError as e: print(e.code)",
                                f"http://{ours}:{port}/api/jobs", basic(user)["Authorization"]], capture_output=True, text=True, timeout=60, check=True)
            return int(p.stdout)
        assert from_there(ADMIN) == 200 and from_there(BOB) == 200 and from_there(ALICE) == 401
        d.http = f"http://127.0.0.1:{port}"
        assert ask(d, "/api/jobs", basic(ALICE))[0] == 200
        assert api(d, "/api/jobs?page=1", basic(BOB))["reader"]["sees"] == "own", "as an HTTP token, too"


def test_another_local_user_sees_nothing_where_there_are_no_tokens():
    if os.geteuid() != 0:
        pytest.skip("root may be another user")
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        begin(c, "mine")
        assert "mine" in json.dumps(api(d, "/api/jobs"))
        code = f"import os; os.setuid(65534); import urllib.request; print(urllib.request.urlopen({d.http + '/api/jobs?page=1'!r}).read().decode())"
        p = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(p.stdout)["reader"] == {"sees": "none", "wrong": False, "can_log_in": False} and "mine" not in p.stdout
    with Daemon("--http-port", "0", "--http-insecure") as d, Client(d.port) as c:
        instance = begin(c, "mine")
        c("RDZV.REPORT", "mine", "n1", "step=1", "base=0", "steps=1,1", "logs=/secret/path")
        code = code.replace(code.split("urlopen('")[1].split("'")[0], d.http + "/api/job?instance=" + instance)
        p = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(p.stdout)["private"] is False and "/secret/path" not in p.stdout, "the queue, and no more"


@pytest.mark.parametrize("text, says", [("not json", None), ("[1]", None), ("x" * 20000, "ERR failure report of 20000 bytes: expected at most 6144")])
def test_what_is_no_report_is_not_kept(text, says):
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        instance = begin(c, "r")
        assert c.error("RDZV.POSTMORTEM", "r", "n1", SAID) == "REFUSED run 'r' has not failed"
        end(c, "r")
        if says:
            assert c.error("RDZV.POSTMORTEM", "r", "n1", text) == says
        else:
            assert c("RDZV.POSTMORTEM", "r", "n1", text) == "OK"
        assert "failure" not in api(d, f"/api/job?instance={instance}")
        assert c("RDZV.POSTMORTEM", "r", "n1", SAID) == "OK"
        assert api(d, f"/api/job?instance={instance}")["failure"]["program"] == "p"
        assert c.error("RDZV.POSTMORTEM", "other", "n1", SAID).startswith("NOJOB ")


def test_a_job_that_succeeded_takes_no_report_of_a_failure():
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        instance = begin(c, "r")
        assert c("RDZV.DONE", "r", "n1", "1") == "OK"
        assert "kind=end" in c("RDZV.NEXT", "r", "n1", "1", "20000")
        assert c.error("RDZV.POSTMORTEM", "r", "n1", SAID) == "REFUSED run 'r' has not failed"
        assert "failure" not in api(d, f"/api/job?instance={instance}")


def test_malformed_figures_are_not_known(tmp_path):
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        instance = begin(c, "r")
        c("RDZV.REPORT", "r", "n1", "step=5", "base=0", "steps=5,x,,7", "step_ms=1,nan,-,3,4,5", "wait_ms=", "cpu=inf", "mem=1e999", "gpus=1:2,::,99:x:3:4,")
        j = api(d, f"/api/job?instance={instance}")
        assert [r["step"] for r in j["ranks"]] == [5, None, None, 7] and [r["step_ms"] for r in j["ranks"]] == [1, None, None, 3]
        assert j["hosts"][0]["cpu"] is None and j["hosts"][0]["memory"] is None and len(j["hosts"][0]["gpus"]) == 4
        assert c.error("RDZV.REPORT", "r", "n1", "logs=" + "x" * 20000).startswith("ERR report of 20005 bytes: expected at most 16384")


# ---- how much


@pytest.mark.slow
def test_a_thousand_finished_jobs_take_32_mb(tmp_path):
    """Each with a full curve, restarts and a failure report as long as it may be."""
    said = json.dumps({"program": "p", "failures": [{"rank": 0, "stderr": ["x" * 100] * 56}]})
    marks = 3
    many = ("--http-port", "0", "--state-dir", tmp_path / "state", "--max-jobs", "2000", "--max-jobs-per-principal", "2000")
    with Daemon(*many) as d, Client(d.port) as c:
        for n in range(1000):
            run = f"run-{n}"
            begin(c, run)
            for r in range(marks):
                c("RDZV.FAIL", run, "n1", str(r + 1), "code=9", "rank=1", "text=" + "x" * 100)
                c("RDZV.NEXT", run, "n1", str(2 * r + 1), "20000")
                c("RDZV.JOIN", run, "n1", "nnodes=1:1", f"round={r + 1}", *JOIN)
                c("RDZV.NEXT", run, "n1", str(2 * r + 2), "20000")
            for i in range(512):
                c.send("RDZV.REPORT", run, "n1", f"step={i}", "base=0", f"steps={i},{i}", f"loss={1 + i / 7}", "accuracy=0.5", "images_per_s=1234.5", "step_ms=12.25,13")
            for i in range(512):
                assert c.receive() == "OK"
            c("RDZV.FAIL", run, "n1", str(marks + 1), "code=7", "rank=0", "fatal=1", "text=broke")
            assert "kind=end" in c("RDZV.NEXT", run, "n1", str(2 * marks + 1), "20000")
            assert c("RDZV.POSTMORTEM", run, "n1", said) == "OK"
            c.close()
            c.__init__(d.port)
        assert len(api(d, "/api/history")["jobs"]) == 500 and len(api(d, "/api/history?after=500")["jobs"]) == 500
        one = api(d, "/api/job?instance=" + api(d, "/api/history?after=999")["jobs"][0]["instance"])
        assert len(one["curve"]["t"]) == 256 and len(one["marks"]) == marks and len(one["failure"]["failures"][0]["stderr"]) == 56

        wait("the end of the minute in which jobs that are over still answer", lambda: not api(d, "/api/jobs")["jobs"], 180)

        def rss():
            return int(next(line for line in open(f"/proc/{d.p.pid}/status", encoding="ascii") if line.startswith("VmRSS:")).split()[1]) << 10
        wait("32 MB", lambda: rss() <= 32e6, 60)  # memory goes back some seconds after it is not used any more
        print(f"\n1,000 finished jobs: {rss() / 1e6:.1f} MB of daemon")
        assert d.stop() == 0
    with Daemon(*many) as d:
        assert len(api(d, "/api/history")["jobs"]) == 500
        print(f"loaded again: {rss() / 1e6:.1f} MB")
        assert rss() <= 32e6


def test_the_page_is_small_and_asks_nobody_else():
    page = (ROOT / "rendezvousd" / "page" / "status_page.html").read_text()
    assert len(page.encode()) <= 60000 and page.count("<script") == 1
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page and "innerHTML" not in page
