"""What an agent tells while it works: HTTP health and metrics in every state, and the log of events."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

HERE = pathlib.Path(__file__).resolve().parent


class Agent:
    """The HTTP port of one crun."""

    def __init__(self, port, **headers):
        self.url, self.headers = f"http://127.0.0.1:{port}", headers

    def get(self, path):
        """-> status, body"""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=self.headers), timeout=20) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def until(self, status, pattern, path="/readyz", seconds=60):
        """-> the body, once it is so. Health never fails meanwhile."""
        end, got = time.monotonic() + seconds, None
        while True:
            try:
                assert self.get("/healthz") == (200, "ok\n")
                got = self.get(path)
                if got[0] == status and re.search(pattern, got[1], re.M):
                    return got[1]
            except urllib.error.URLError as e:  # it does not listen yet
                got = e
            assert time.monotonic() < end, got
            time.sleep(0.01)

    def figures(self):
        status, text = self.get("/metrics")
        assert status == 200
        for line in text.splitlines():
            assert re.fullmatch(r'# (HELP|TYPE) crun_\w+ .+|crun_\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? \S+', line), line
        return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def shell(crun, text):
    return "sh", "-c", text.replace("TMP", str(crun.tmp))


WAIT_FOR = "until [ -e TMP/%s ]; do sleep 0.02; done"


def test_health_is_right_while_a_node_joins_runs_and_waits_for_the_others(crun):
    ports, meet = [crun.port(), crun.port()], crun.port()
    program = shell(crun, WAIT_FOR % "go-$RANK")
    common = ("--nnodes", 2, "--insecure", "--rdzv-endpoint", f"127.0.0.1:{meet}", "--rdzv-id", "states")
    nodes = [crun.start(*common, "--http-port", ports[0], *program)]
    first = Agent(ports[0])
    assert re.fullmatch(r"joining: 1 of 2 nodes; here: \S+; for \d+ s, given up in \d+ s\n", first.until(503, "^joining: 1 of 2 nodes"))
    joining = first.figures()
    assert joining['crun_state{state="joining"}'] == 1 and joining['crun_workers{state="waiting"}'] == 1
    assert joining["crun_ready"] == 0 and joining["crun_world_size"] == 0 and joining["crun_round"] == 0
    assert joining[f'crun_rendezvous_info{{kind="tcp",endpoint="127.0.0.1:{meet}",hosted="yes"}}'] == 1

    nodes.append(crun.start(*common, "--http-port", ports[1], *program))
    second = Agent(ports[1])
    for agent in (first, second):
        assert agent.until(200, "^ready$") == "ready\n"
        running = agent.figures()
        assert running["crun_ready"] == 1 and running["crun_world_size"] == 2 and running["crun_nodes"] == 2
        assert running["crun_round"] == 1 and running['crun_workers{state="running"}'] == 1
    assert second.figures()["crun_rendezvous_connected"] == 1

    done = {second.figures()["crun_group_rank"]: second, first.figures()["crun_group_rank"]: first}
    (crun.tmp / "go-0").touch()
    done[0].until(503, "^finishing: the workers of this node are done; other nodes still run$")
    waiting = done[0].figures()
    assert waiting['crun_workers{state="finished"}'] == 1 and waiting["crun_world_size"] == 2
    assert done[1].get("/readyz") == (200, "ready\n")
    (crun.tmp / "go-1").touch()
    assert [p.wait(60) for p in nodes] == [0, 0]
    for p in nodes:
        p.communicate()


def test_health_is_right_while_workers_stop_and_after_a_restart(crun):
    port = crun.port()
    script = f"""trap '{WAIT_FOR % "end"}; exit 0' TERM; touch TMP/up-$RANK-$CRUN_ROUND
        [ $RANK = 0 ] && [ $CRUN_ROUND = 1 ] && {{ {WAIT_FOR % "fail"}; exit 5; }}
        while :; do sleep 0.02; done"""
    p = crun.start("--max-restarts", 1, "--http-port", port, "--nproc-per-node", 2, *shell(crun, script))
    agent = Agent(port)
    agent.until(200, "ready")
    crun.wait_file("up-1-1")
    (crun.tmp / "fail").touch()
    agent.until(503, "^stopping: 1 of 2 workers have yet to end$")
    stopping = agent.figures()
    assert stopping['crun_workers{state="failed"}'] == 1 and stopping['crun_workers{state="stopping"}'] == 1
    assert stopping["crun_worker_failures_total"] == 1 and stopping["crun_restart_seconds_count"] == 0
    (crun.tmp / "end").touch()
    agent.until(200, "ready")
    agent.until(200, r"^crun_restart_seconds_count 1$", "/metrics")
    running = agent.figures()
    assert running["crun_round"] == 2 and running["crun_restarts_used"] == 1 and running["crun_max_restarts"] == 1
    phases = [running[f'crun_last_restart_phase_seconds{{phase="{x}"}}'] for x in ("detect", "stop", "rendezvous", "spawn")]
    assert running["crun_last_restart_seconds"] == pytest.approx(sum(phases), abs=0.001) and phases[1] > 0
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)


def test_metrics_count_output_and_tell_how_far_workers_are(crun):
    library = pathlib.Path(os.environ.get("CRUN_BUILD", HERE.parents[2] / "build")) / "common" / "crun" / "libcrun.so.0"
    if not library.exists():
        pytest.skip("libcrun.so is not built")
    program = f"""import ctypes, os, sys, time
lib = ctypes.CDLL({str(library)!r}); lib.crun_init(ctypes.create_string_buffer(4096))
if os.environ["RANK"] == "0":
    sys.stdout.write("x" * 999 + chr(10)); sys.stderr.write("y" * 99 + chr(10)); sys.stdout.flush(); sys.stderr.flush()
    lib.crun_progress(ctypes.c_uint64(41))
while not os.path.exists({str(crun.tmp / "end")!r}): time.sleep(0.02)
"""
    port = crun.port()
    p = crun.start("--http-port", port, "--nproc-per-node", 2, sys.executable, "-S", "-c", program)
    agent = Agent(port)
    agent.until(200, r'^crun_worker_step\{rank="0",local_rank="0"\} 41$', "/metrics")
    agent.until(200, r'^crun_log_bytes_total\{stream="stderr"\} 100$', "/metrics")
    agent.until(200, r'^crun_log_bytes_total\{stream="stdout"\} 1000$', "/metrics")
    got = agent.figures()
    age = 'crun_worker_progress_age_seconds{rank="0",local_rank="0"}'
    assert 0 <= got[age] < agent.figures()[age]
    assert 'crun_worker_step{rank="1",local_rank="1"}' not in got, "it said nothing of steps"
    (crun.tmp / "end").touch()
    p.communicate(timeout=60)
    assert p.returncode == 0


def test_a_free_port_is_told_and_workers_do_not_inherit_it(crun, worker):
    p = crun.start("--http-port", 0, *shell(crun, f"ls -l /proc/$$/fd > TMP/f; mv TMP/f TMP/fds; {WAIT_FOR % 'end'}"), text=True)
    told = p.stderr.readline()
    found = re.fullmatch(r"crun: health and metrics on http://127\.0\.0\.1:(\d+)/\n", told)
    assert found, told
    agent = Agent(int(found.group(1)))
    agent.until(200, "ready")
    assert agent.get("/nothing") == (404, "no such page: /, /api/jobs, /api/history, /api/job, /api/stacks, /healthz, /readyz, /metrics\n")
    assert Agent(found.group(1), Host="evil.example").get("/metrics")[0] == 421
    assert "socket:" not in crun.wait_file("fds")
    rc, _, err = crun_beside(crun, "--http-port", found.group(1), "true")
    assert rc == 69 and f"--http-port {found.group(1)}: another process listens there" in err
    (crun.tmp / "end").touch()
    p.communicate(timeout=60)
    assert p.returncode == 0


def crun_beside(crun, *args):
    """Beside another one, whose processes carry the same mark."""
    p = crun.start(*args)
    out, err = p.communicate(timeout=60)
    return p.returncode, out.decode(), err.decode()


def test_who_may_read_is_said_beyond_loopback(crun):
    rc, _, err = crun.run("--http-port", 0, "--http-bind", "0.0.0.0", "true")
    assert rc == 2 and "--http-bind 0.0.0.0: beyond loopback readers must show a token" in err
    rc, _, err = crun.run("--http-insecure", "true")
    assert rc == 2 and "--http-insecure without --http-port has no effect" in err
    tokens = crun.tmp / "tokens"
    tokens.write_text("grafana s3cret-s3cret-s3cret\n")
    tokens.chmod(0o600)
    port = crun.port()
    p = crun.start("--http-port", port, "--http-bind", "0.0.0.0", "--http-token-file", tokens, *shell(crun, WAIT_FOR % "end"))
    Agent(port).until(200, "ready")
    assert Agent(port).get("/metrics")[0] == 401
    assert "crun_ready 1" in Agent(port, Authorization="Bearer s3cret-s3cret-s3cret").get("/metrics")[1]
    (crun.tmp / "end").touch()
    p.communicate(timeout=60)
    rc, _, _ = crun.run("--http-port", port, "--http-bind", "0.0.0.0", "--http-insecure", "true")
    assert rc == 0


def test_every_metric_is_in_the_document(crun):
    p = crun.start("--http-port", (port := crun.port()), "--max-restarts", 1, *shell(crun, f"[ $CRUN_ROUND = 1 ] && exit 1; {WAIT_FOR % 'end'}"))
    agent = Agent(port)
    agent.until(200, "^crun_restart_seconds_count 1$", "/metrics")
    served = set(re.findall(r"^# TYPE (\w+ \w+)$", agent.get("/metrics")[1], re.M)) | {"crun_rendezvous_connected gauge"}
    (crun.tmp / "end").touch()
    p.communicate(timeout=60)
    written = re.findall(r"^- `(crun_\w+)` \((\w+)\):", (HERE.parents[2] / "docs/reference/metrics.md").read_text(), re.M)
    assert {" ".join(row) for row in written} == served


def test_nothing_is_loaded_where_nobody_asks(crun):
    p = crun.start(*shell(crun, "grep -c microhttpd /proc/$PPID/maps; " + WAIT_FOR % "end"), stdout=subprocess.PIPE)
    assert p.stdout.readline().split()[-1] == b"0"
    (crun.tmp / "end").touch()
    p.communicate(timeout=60)


# --- the log of events -----------------------------------------------------------------------------------------------


def test_a_worker_that_ends_at_once_is_logged_as_started_first(crun):
    """Those started first have ended before the last one's program runs."""
    path = crun.tmp / "events.jsonl"
    rc, _, err = crun.run("--event-log", path, "--nproc-per-node", 64, "true")
    assert rc == 0, err
    seen = {}
    for e in events(path):
        if "pid" in e and e["event"].startswith("worker_"):
            seen.setdefault(e["pid"], []).append(e["event"])
    assert len(seen) == 64 and set(map(tuple, seen.values())) == {("worker_started", "worker_exited")}


def test_the_event_log_tells_of_a_restart_from_beginning_to_end(crun):
    path = crun.tmp / "events.jsonl"
    rc, _, err = crun.run("--event-log", path, "--rdzv-id", "job \"1\"", "--max-restarts", 1, "--nproc-per-node", 2, "sh", "-c",
                          "[ $RANK$CRUN_ROUND = 01 ] && sleep 0.3 && kill -9 $$; [ $CRUN_ROUND = 2 ] || sleep 60")
    assert rc == 0, err
    all_of = events(path)
    assert {e["run_id"] for e in all_of} == {'job "1"'} and len({e["node"] for e in all_of}) == 1
    assert all(a["mono_ns"] <= b["mono_ns"] for a, b in zip(all_of, all_of[1:]))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", e["time"]) for e in all_of)
    kinds = [e["event"] for e in all_of if e["event"] != "state"]
    assert kinds == ["agent_started", "round_started", "worker_started", "worker_started", "worker_exited", "stop", "worker_exited",
                     "round_ended", "round_started", *kinds[9:-2], "round_ended", "job_ended"]
    assert sorted(kinds[9:-2]) == ["restart", "worker_exited", "worker_exited", "worker_started", "worker_started"]
    of = lambda kind: [e for e in all_of if e["event"] == kind]
    culprit, other = of("worker_exited")[:2]
    assert (culprit["rank"], culprit["signal"], culprit["exit_code"], culprit["told_to_stop"]) == (0, "SIGKILL", 137, False)
    assert (other["rank"], other["signal"], other["told_to_stop"]) == (1, "SIGTERM", True)
    assert culprit["pid"] in {e["pid"] for e in of("worker_started")}
    restart, = of("restart")
    assert restart["restart"] == 1 and restart["cause"] == "rank 0 killed by SIGKILL"
    assert {"detect_s", "stop_s", "rendezvous_s", "spawn_s"} <= set(restart)
    assert of("stop")[0]["reason"] == "failure" and of("stop")[0]["grace_s"] == 25
    assert [(e["round"], e["reason"], e["restarts"]) for e in of("round_started")] == [(1, "start", 0), (2, "failure", 1)]
    end, = of("job_ended")
    assert (end["exit_code"], end["restarts"], end["round"]) == (0, 1, 2)
    states = of("state")
    assert [e["to"] for e in states[:4]] == ["joining", "running", "stopping", "joining"] and states[-1]["to"] == "over"
    at = lambda e: e["mono_ns"] / 1e9  # a state begins and ends between its events and those before them
    before = lambda e: at(all_of[all_of.index(e) - 1])
    assert before(states[2]) - at(states[1]) - 0.001 < states[2]["after_s"] < at(states[2]) - before(states[1]) + 0.001


def test_the_event_log_is_added_to_and_mends_a_torn_line(crun):
    path = crun.tmp / "events.jsonl"
    path.write_text('{"event":"old"}\n{"event":"to')
    for _ in range(2):
        assert crun.run("--event-log", path, "true")[0] == 0
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"event":"old"}', '{"event":"to']
    kinds = [json.loads(line)["event"] for line in lines[2:]]
    assert kinds.count("agent_started") == kinds.count("job_ended") == 2 and kinds[-1] == "job_ended"


def test_signals_and_the_code_of_a_stopped_job_are_in_the_event_log(crun):
    path = crun.tmp / "events.jsonl"
    p = crun.start("--event-log", path, *shell(crun, "trap 'exit 75' TERM; touch TMP/up; while :; do sleep 0.02; done"))
    crun.wait_file("up")
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 75
    found = {e["event"]: e for e in events(path)}
    assert (found["signal"]["signal"], found["signal"]["meaning"]) == ("SIGTERM", "stop")
    assert found["stop"]["reason"] == "drain" and found["job_ended"]["exit_code"] == 75


def test_a_node_that_comes_is_in_the_event_log(crun):
    path, meet = crun.tmp / "events.jsonl", crun.port()
    common = ("--nnodes", "1:2", "--insecure", "--rdzv-endpoint", f"127.0.0.1:{meet}", "--rdzv-id", "grow", "--rdzv-conf", "last_call_timeout=0.1")
    program = shell(crun, "touch TMP/up-$WORLD_SIZE-$RANK; " + WAIT_FOR % "end")
    nodes = [crun.start("--event-log", path, *common, *program)]
    crun.wait_file("up-1-0")
    nodes.append(crun.start(*common, *program))
    crun.wait_file("up-2-0")
    crun.wait_file("up-2-1")
    (crun.tmp / "end").touch()
    assert [p.wait(60) for p in nodes] == [0, 0]
    for p in nodes:
        p.communicate()
    change, = [e for e in events(path) if e["event"] == "members_changed"]
    assert (change["nodes_before"], change["nodes"], change["world_size_before"], change["world_size"]) == (1, 2, 1, 2)
    assert [e["reason"] for e in events(path) if e["event"] == "round_started"] == ["start", "resize"]


def test_an_event_log_on_a_full_disk_is_told_once_and_the_job_goes_on(crun):
    rc, out, err = crun.run("--event-log", "/dev/full", "--log-prefix=off", "echo", "worked")
    assert (rc, out) == (0, "worked\n")
    assert err == "crun: the event log /dev/full is incomplete from here on: No space left on device; the job goes on\n"
    rc, _, err = crun.run("--event-log", crun.tmp / "none" / "x", "true")
    assert rc == 73 and f"cannot write the event log {crun.tmp}/none/x (--event-log): No such file or directory" in err


def test_torchruns_event_handler_console_writes_the_lines_to_stderr(crun):
    rc, out, err = crun.run("--event_log_handler", "console", "true")
    assert rc == 0 and [json.loads(line)["event"] for line in err.splitlines()][-1] == "job_ended"
    assert crun.run("--event_log_handler", "dynamic_rendezvous", "true") == (0, "", "")
