"""rendezvousd as a service: readiness, limits, shutdown, HTTP, the status page."""
import base64
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from daemon import ALICE, BOB, DEADLINE, Client, Daemon, RespError, refused_start, until, write_tokens
from support import BUILD, ROOT, faulty_disk, free_port


def get(url, headers=None, method="GET", data=None):
    """(status, headers, body)"""
    request = urllib.request.Request(url, headers=headers or {}, method=method, data=data)
    try:
        with urllib.request.urlopen(request, timeout=30) as r:
            return r.status, r.headers, r.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.headers, e.read().decode()


# ---- readiness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path, abstract):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.settimeout(30)
    name = f"@rdzvd-{os.getpid()}" if abstract else str(tmp_path / "notify")
    s.bind("\0" + name[1:] if abstract else name)
    with Daemon(env={"NOTIFY_SOCKET": name}) as d:
        assert s.recv(100) == b"READY=1"
        d.p.send_signal(1)
        assert s.recv(100) == b"RELOADING=1" and s.recv(100) == b"READY=1"
        assert d.stop() == 0
    assert s.recv(100) == b"STOPPING=1"
    s.close()


def test_a_notify_socket_that_is_none_is_told_and_harmless():
    with Daemon(env={"NOTIFY_SOCKET": "nonsense"}) as d:
        assert d.stop() == 0
    assert "NOTIFY_SOCKET 'nonsense': expected a path, or a name that begins with '@'" in d.err


def test_a_descriptor_tells_readiness():
    r, w = os.pipe()
    with Daemon("--ready-fd", w, pass_fds=[w]) as d:
        os.close(w)
        assert os.read(r, 10) == b"\n" and os.read(r, 10) == b""  # closed
        with Client(d.port) as c:
            assert c("PING") == "PONG"
    os.close(r)


# ---- systemd's unit ------------------------------------------------------------------------------------------------------


def unit():
    """{section: {key: [values]}}"""
    sections, current = {}, None
    for line in (BUILD / "rendezvousd" / "daemon" / "rendezvousd.service").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, value = line.split("=", 1)
            current.setdefault(key, []).append(value)
    return sections


def test_the_unit_starts_restarts_and_confines_the_daemon():
    service = unit()["Service"]
    one = {key: values[0] for key, values in service.items()}
    assert (one["Type"], one["NotifyAccess"], one["Restart"], one["RestartSec"]) == ("notify", "main", "on-failure", "1")
    assert one["ExecReload"] == "/bin/kill -HUP $MAINPID" and one["ExecStart"].endswith("/bin/rendezvousd")
    assert (one["User"], one["UMask"], one["StateDirectoryMode"]) == ("rendezvousd", "0077", "0700")
    assert unit()["Install"]["WantedBy"] == ["multi-user.target"]
    assert int(one["LimitNOFILE"]) >= 10048  # what its clients and itself need
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectControlGroups",
                "RestrictNamespaces", "RestrictSUIDSGID", "MemoryDenyWriteExecute", "LockPersonality"):
        assert one[key] == "yes", key
    assert one["ProtectSystem"] == "strict" and one["CapabilityBoundingSet"] == "" and "AF_INET6" in one["RestrictAddressFamilies"]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]


def test_the_variables_of_the_unit_are_what_the_daemon_takes(tokens, tmp_path):
    env = dict(word.split("=", 1) for word in unit()["Service"]["Environment"][0].split())
    assert env["RENDEZVOUSD_STATE_DIR"] == "/var/lib/" + unit()["Service"]["StateDirectory"][0]
    state, port = tmp_path / "state", free_port()
    here = env | {"RENDEZVOUSD_TOKEN_FILE": str(tokens), "RENDEZVOUSD_STATE_DIR": str(state), "RENDEZVOUSD_HTTP_PORT": str(port), "RENDEZVOUSD_BIND": "127.0.0.1"}
    assert here.keys() == env.keys()
    with Daemon(env=here) as d:
        with pytest.raises(RespError, match="NOAUTH"), Client(d.port) as c:
            c("GET", "a")
        assert state.is_dir() and get(f"http://127.0.0.1:{port}/healthz")[0] == 200
        assert d.stop() == 0


# ---- limits -------------------------------------------------------------------------------------------------------------


def test_few_descriptors_harm_nobody_who_is_there():
    with Daemon(prefix=["/bin/sh", "-c", "ulimit -n 80; exec \"$0\" \"$@\""]) as d, Client(d.port) as old:
        assert old("SET", "a", "1") == "OK"
        crowd = []
        refused = 0
        for _ in range(300):
            crowd.append(socket.create_connection(("127.0.0.1", d.port), timeout=30))
        for s in crowd[50:]:
            s.settimeout(30)
            try:
                refused += s.recv(100) in (b"-ERR max number of clients reached\r\n", b"")
            except ConnectionError:
                refused += 1
        assert refused == 250
        assert old("GET", "a") == "1"
        stat = pathlib.Path(f"/proc/{d.p.pid}/stat")
        cpu = lambda: sum(map(int, stat.read_text().rsplit(")", 1)[1].split()[11:13]))  # noqa: E731
        before = cpu()
        time.sleep(1)
        print(f"{cpu() - before} ticks of 1/100 s used in an idle second")
        assert cpu() - before < 20  # it does not spin
        for s in crowd:
            s.close()

        def comes_in():
            with Client(d.port) as c:
                try:
                    return c("PING") == "PONG"
                except (RespError, EOFError, ConnectionError):
                    return False
        until(comes_in, "there is room again")
        assert d.stop() == 0
    assert "only 80 files may be open (ulimit -n), 10048 are needed: 32 clients instead of 10000" in d.err


def test_logs_of_jobs_take_no_descriptors_of_clients(tokens, tmp_path):
    with Daemon("--token-file", tokens, "--max-clients-per-principal", "64", "--state-dir", tmp_path / "state", prefix=["/bin/sh", "-c", "ulimit -n 112; exec \"$0\" \"$@\""]) as d:
        agents = [Client(d.port).authenticate(*ALICE) for _ in range(60)]
        for i, a in enumerate(agents):
            a("RDZV.JOIN", f"j{i}", "n", "v=1 nnodes=1 slots=1")
            assert "kind=round" in a("RDZV.NEXT", f"j{i}", "n", "0", "20000")
        assert len(list((tmp_path / "state" / "jobs").glob("*.log"))) == 60
        for a in agents:
            a.close()
        assert d.stop() == 0
    assert "112 files may be open (ulimit -n), 10048 are needed: 64 clients instead of 10000" in d.err
    assert "will not outlive this daemon" not in d.err


def test_logs_of_jobs_are_on_disk_before_their_names_and_with_each_decision(tokens, tmp_path):
    log, jobs = tmp_path / "log", tmp_path / "state" / "jobs"
    with Daemon("--token-file", tokens, "--state-dir", tmp_path / "state", "--history", "0", env=faulty_disk(log=log)) as d:
        with Client(d.port).authenticate(*ALICE) as a:
            a("RDZV.JOIN", "j", "n", "v=1 nnodes=1 slots=1")
            assert "kind=round" in a("RDZV.NEXT", "j", "n", "0", "20000")
        assert d.stop() == 0
    told = [line.replace(str(jobs), "JOBS") for line in log.read_text().splitlines() if str(jobs) in line]
    new, name = told[1].split()[1:]
    assert told[:3] == [f"fsync {new}", f"rename {new} {name}", "fsync JOBS"] and name.startswith("JOBS/"), told
    assert f"fsync {name}" in told[3:], told  # what was appended


def test_memory_of_all_key_spaces_together_has_a_limit(tokens):
    with Daemon("--token-file", tokens, "--max-memory", "1M", "--max-memory-per-principal", "900K") as d, Client(d.port) as a, Client(d.port) as b:
        a.authenticate(*ALICE)
        b.authenticate(*BOB)
        for i in range(7):
            assert a("SET", i, "x" * 100_000) == "OK"
        assert b("SET", "0", "x" * 100_000) == "OK"  # within its own limit, and within that of all
        with pytest.raises(RespError, match="^OOM "):
            for i in range(1, 4):
                b("SET", i, "x" * 100_000)
        assert a("DEL", 0, 1, 2, 3) == 4
        assert b("SET", "3", "x" * 100_000) == "OK"


def test_the_end_is_orderly():
    with Daemon() as d, Client(d.port) as c:
        assert c("SET", "a", "x" * 8_000_000) == "OK"
        c.send("GET", "a")  # more than the socket holds: it is still being written when the signal comes
        until(lambda: c.s.recv(1, socket.MSG_PEEK), "the reply begins")
        d.p.terminate()
        assert len(c.receive()) == 8_000_000
        assert c.closed()
        assert d.p.wait(DEADLINE) == 0  # no second signal: that would end it at once


# ---- HTTP ----------------------------------------------------------------------------------------------------------------


def samples(text):
    """Prometheus' text format, strictly: name -> value; every sample after its HELP and TYPE, no name twice."""
    values, typed, helped, seen = {}, {}, set(), set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if m := re.fullmatch(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+", line):
            assert m[1] not in helped
            helped.add(m[1])
        elif m := re.fullmatch(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)", line):
            assert m[1] in helped and m[1] not in typed
            typed[m[1]] = m[2]
        else:
            m = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\})?) (\S+)', line)
            assert m, line
            whole = re.sub("_(bucket|sum|count)$", "", m[1])
            name = whole if typed.get(whole) == "histogram" else m[1]
            seen.add(name)
            assert name in typed and (typed[name] == "counter") == name.endswith("_total")
            assert m[1] + m[2] not in values
            values[m[1] + m[2]] = float(m[3])
    assert set(typed) == helped == seen
    return values


def test_http_tells_health_metrics_and_jobs(tokens):
    alice = {"Authorization": "Bearer " + ALICE[1]}
    with Daemon("--http-port", "0", "--token-file", tokens) as d, Client(d.port) as c:
        assert get(d.http + "/healthz")[::2] == (200, "ok\n")
        assert get(d.http + "/readyz")[::2] == (200, "ready\n")
        status, headers, text = get(d.http + "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        m = samples(text)
        assert m["rendezvousd_connections"] == 1 and m["rendezvousd_unauthenticated_connections"] == 1
        c.authenticate(*ALICE)
        c("RDZV.JOIN", "j1", "n1", "slots=2", "v=1", "nnodes=1:1", "max_restarts=3", "silence=600000")
        m = samples(get(d.http + "/metrics")[2])
        assert m["rendezvousd_authentications_total"] == 1 and m["rendezvousd_unauthenticated_connections"] == 0
        assert m["rendezvousd_jobs"] == 1 and m["rendezvousd_joins_total"] == 1 and m["process_resident_memory_bytes"] > 1e6
        status, headers, text = get(d.http + "/api/jobs", alice)
        j = json.loads(text)
        assert status == 200 and headers["Content-Type"] == "application/json"
        assert j["now_ms"] > 0 and j["jobs"][0]["run"] == "j1" and j["jobs"][0]["principal"] == "alice"
        one = json.loads(get(d.http + "/api/jobs?run=j1", alice)[2])
        assert one["run"] == "j1" and one["node_count"] == len(one["nodes"]) == 1
        one = json.loads(get(d.http + "/api/jobs?run=j1&from=1", alice)[2])
        assert one["node_count"] == 1 and one["nodes"] == []
        assert get(d.http + "/api/jobs?run=j2", alice)[0] == 404 and get(d.http + "/api/jobs?from=1", alice)[0] == get(d.http + "/api/jobs?run=j1&from=x", alice)[0] == 400
        status, headers, text = get(d.http + "/")
        assert status == 200 and text.startswith("<!doctype html>") and "default-src 'none'" in headers["Content-Security-Policy"]
        assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)  # nothing from elsewhere
        assert get(d.http + "/metrics", method="HEAD")[::2] == (200, "")
        assert get(d.http + "/x")[0] == 404
        assert get(d.http + "/", method="POST", data=b"x" * 100000)[0] == 405
        assert get(d.http + "/api/jobs", method="DELETE")[0] == 405


def test_http_without_tokens_answers_addresses_only():
    with Daemon("--http-port", "0") as d:
        port = d.http.rsplit(":", 1)[1]
        for host, status in (("127.0.0.1", 200), (f"localhost:{port}", 200), ("[::1]:80", 200), ("rebound.example", 421), ("127.0.0.1.example", 421)):
            assert get(d.http + "/api/jobs", {"Host": host})[0] == status, host
        assert get(d.http + "/healthz", {"Host": "rebound.example"})[0] == 200
    with Daemon("--http-port", "0", "--http-insecure") as d:
        assert get(d.http + "/api/jobs", {"Host": "any.example"})[0] == 200


def test_http_tokens(tmp_path, namespace):
    t = write_tokens(tmp_path / "http-tokens", ALICE)

    def basic(user, secret):
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()}
    with Daemon("--http-port", "0", "--http-bind", "0.0.0.0", "--http-token-file", t) as d:
        url = "http://127.0.0.1:" + d.http.rsplit(":", 1)[1]
        assert get(url + "/healthz")[0] == get(url + "/readyz")[0] == 200
        wrong = [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer " + BOB[1]}, {"Authorization": f"Bearer {ALICE[1]}x"},
                 {"Authorization": ALICE[1]}, basic(BOB[0], ALICE[1]), basic(ALICE[0], ""), {"Authorization": "Basic !!!"}, {"Authorization": "Basic "},
                 basic(*(["x" * 5000] * 2))]
        for headers in wrong:
            status, h, _ = get(url + "/api/jobs", headers)
            assert status == 401 and h["WWW-Authenticate"].startswith("Basic "), headers
        for headers in ({"Authorization": "Bearer " + ALICE[1]}, {"Authorization": "bearer  " + ALICE[1]}, basic(*ALICE)):
            for path in ("/", "/metrics", "/api/jobs"):
                assert get(url + path, headers)[0] == 200
        write_tokens(t, BOB)
        d.p.send_signal(1)
        until(lambda: get(url + "/metrics", basic(*BOB))[0] == 200, "bob's token is taken")
        assert get(url + "/metrics", basic(*ALICE))[0] == 401


def test_noise_and_idlers_on_the_http_port_harm_nobody():
    with Daemon("--http-port", "0") as d:
        host, port = d.http[len("http://"):].split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
        for i, s in enumerate(idle):
            s.sendall([b"GET / HT", b"\x16\x03\x01\x02\x00", b"A" * 40000, b"GET / HTTP/1.1\r\nX: " + b"y" * 40000][i % 4])
        assert get(d.http + "/healthz")[0] == 200
        with Client(d.port) as c:
            assert c("PING") == "PONG"
        for s in idle:
            s.close()


def test_a_probe_is_answered_whoever_holds_the_http_port():
    """For each one more than 128 the oldest is closed, here before it has been silent for its 10 s."""
    with Daemon("--http-port", "0") as d:
        host, port = d.http[len("http://"):].split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(300)]
        for s in idle:
            s.sendall(b"GET /api/jobs HT")
        for path in ("/healthz", "/readyz"):
            assert get(d.http + path)[0] == 200
        for s in idle[200:]:
            s.setblocking(False)
            with pytest.raises(BlockingIOError):
                s.recv(1)
        assert idle[0].recv(1) == b""
        for s in idle:
            s.close()
        assert d.stop() == 0


def test_the_http_port_hears_again_when_all_of_its_connections_have_gone_at_once():
    """All that it serves at a time (128), gone while the daemon was stopped: it sees it in one turn."""
    with Daemon("--http-port", "0") as d:
        host, port = d.http[len("http://"):].split(":")
        there = [http.client.HTTPConnection(host, int(port), timeout=DEADLINE) for _ in range(128)]
        for c in there:
            c.request("GET", "/healthz")
            assert c.getresponse().read() == b"ok\n"
        d.p.send_signal(signal.SIGSTOP)
        until(lambda: pathlib.Path(f"/proc/{d.p.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it is stopped")
        for c in there:
            c.close()
        d.p.send_signal(signal.SIGCONT)
        assert get(d.http + "/healthz")[0] == 200


# ---- the page, in a browser ----------------------------------------------------------------------------------------------


def browser():
    found = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
    if not found:
        pytest.skip("no Chromium is installed")
    return found


def dom(url, tmp_path, ms=2500):
    """The page's document after `ms` of its own time."""
    p = subprocess.run([browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile",
                        f"--virtual-time-budget={ms}", "--dump-dom", url], capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == 0, p.stderr
    return p.stdout


def test_the_page_shows_jobs_in_a_browser_and_escapes_what_they_say(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    with Daemon("--http-port", "0") as d, Client(d.port) as c, Client(d.port) as c2:
        assert "No jobs." in dom(d.http + "/", tmp_path)
        c("RDZV.JOIN", "resnet-" + evil, "node1", "slots=4", "v=1", "nnodes=2:2", "max_restarts=3", "silence=600000")
        c2("RDZV.JOIN", "resnet-" + evil, "node2", "slots=4", "v=1", "nnodes=2:2", "max_restarts=3", "silence=600000")
        c("RDZV.NEXT", "resnet-" + evil, "node1", "0", "5000")
        c("RDZV.REPORT", "resnet-" + evil, "node1", "step=12", "images_per_s=31.5", "loss=2.25")
        page = dom(d.http + "/", tmp_path)
        assert "resnet-&lt;img src=x onerror=alert(1)&gt;" in page and evil not in page
        for word in ("running", "node1", "node2", "0–3", "4–7", "31.5", "2.25", "0 of 3", 'role="img"', 'aria-expanded="true"'):
            assert word in page, word


def test_a_request_in_flight_at_the_end_does_not_hold_it_up():
    with Daemon("--http-port", "0") as d:
        host, port = d.http[len("http://"):].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as s:
            s.sendall(b"GET / HTTP/1.1\r\n")
            began = time.monotonic()
            assert d.stop() == 0
            assert time.monotonic() - began < 10


def readiness_at_the_end():
    """-> what /readyz answered from when the daemon was ready until it was gone"""
    with Daemon("--http-port", "0", "--max-request", "32M") as d, Client(d.port) as slow:
        assert slow("SET", "a", "x" * 30_000_000) == "OK"
        slow.send("GET", "a")  # never read: it has a second to take it
        until(lambda: slow.s.recv(1, socket.MSG_PEEK), "the reply begins")
        seen = set()

        def watch():
            while True:
                try:
                    seen.add(get(d.http + "/readyz")[0])
                except OSError:
                    return
        t = threading.Thread(target=watch)
        t.start()
        until(lambda: 200 in seen, "it was ready")
        assert d.stop() == 0
        t.join(30)
        return seen


def test_readiness_ends_before_the_daemon_does():
    """It has a second for that, in which this process may have stood still."""
    assert any(readiness_at_the_end() == {200, 503} for _ in range(5))


def test_the_page_on_operating_names_every_metric():
    page = (ROOT / "docs/reference/metrics.md").read_text()
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        c("RDZV.JOIN", "j1", "n1", "slots=2", "v=1", "nnodes=1:1", "max_restarts=3", "silence=600000")
        for step in (1, 2):
            c("RDZV.REPORT", "j1", "n1", f"step={step}", "loss=1", "accuracy=1", "eval_accuracy=1", "images_per_s=1", "total_steps=9", "base=0", "steps=1,1", "step_ms=1,1",
              "metrics=tokens:3:tokens/s")
        told = {name.split("{")[0] for name in samples(get(d.http + "/metrics")[2])}
    assert told == set(re.findall(r"`((?:rendezvousd|process)_[a-z_]+)`", page.split("## rendezvousd")[1]))


def test_a_descriptor_that_is_none_is_told_and_harmless():
    with Daemon("--ready-fd", "77") as d:
        assert d.stop() == 0
    assert "--ready-fd 77 cannot be written: Bad file descriptor" in d.err


def test_one_damaged_job_log_is_set_aside_and_the_others_go_on(tokens, tmp_path):
    state = ("--state-dir", tmp_path / "state", "--token-file", tokens, "--http-port", "0")
    with Daemon(*state) as d, Client(d.port) as a, Client(d.port) as b:
        for run, c in (("sound", a), ("broken", b)):
            c.authenticate(*ALICE)
            c("RDZV.JOIN", run, "n1", "slots=1", "v=1", "nnodes=1:1", "max_restarts=3", "silence=600000")
            assert "kind=round" in c("RDZV.NEXT", run, "n1", "0", "20000")  # told: it is on disk
            assert c("RDZV.FAIL", run, "n1", "1", "code=1", "text=no") == "OK"
            assert "kind=stop" in c("RDZV.NEXT", run, "n1", "1", "20000")
        d.stop(signal.SIGKILL)
    log = next(f for f in (tmp_path / "state" / "jobs").glob("*.log") if b"run=broken" in f.read_bytes())
    text = bytearray(log.read_bytes())
    text[len(text) // 4] ^= 1
    log.write_bytes(text)
    with Daemon(*state) as d, Client(d.port) as a:
        a.authenticate(*ALICE)
        assert '"run":"sound"' in a("RDZV.STATUS") and a.error("RDZV.STATUS", "broken").startswith("NOJOB ")
        assert "\nrendezvousd_damaged_logs 1\n" in get(d.http + "/metrics")[2]
        assert d.stop() == 0
    assert not log.exists() and log.with_name(log.name + ".damaged").read_bytes() == text
    assert f"job log 'jobs/{log.name}' of the state directory is damaged: record 1 at byte 18 is damaged, and more follow" in d.err


@pytest.mark.parametrize("folder", ["jobs", "history/jobs"])
def test_a_log_of_another_version_is_refused_by_name_and_left_as_it_is(tokens, tmp_path, folder):
    state = ("--state-dir", tmp_path / "state", "--token-file", tokens)
    with Daemon(*state) as d, Client(d.port) as c:
        c.authenticate(*ALICE)
        c("RDZV.JOIN", "r", "n1", "slots=1", "v=1", "nnodes=1:1", "silence=600000")
        assert "kind=round" in c("RDZV.NEXT", "r", "n1", "0", "20000")
        assert d.stop() == 0
    log, = (tmp_path / "state" / folder).glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"rendezvousd-log 3\n", b"rendezvousd-log 4\n"))

    def files():
        return {f: f.read_bytes() for f in (tmp_path / "state").rglob("*") if f.is_file() and (folder == "jobs" or f.name != "epoch")}

    before = files()
    said, code = refused_start(*state)
    assert said.startswith(f"rendezvousd: job log '{log}': its format is 4, but this rendezvousd reads formats 2 and 3: ") and code == 65
    assert files() == before


def test_every_command_that_says_try_help_has_it():
    with Daemon() as d, Client(d.port) as c:
        for name in ("CLIENT", "COMMAND"):
            assert f"Try {name} HELP." in c.error(name, "nosuch")
            assert c(name, "HELP")[0].startswith(f"{name} <subcommand>") and c(name, "HELP")[-1] == "HELP"
        assert {"ID", "SETNAME", "GETNAME", "LIST"} <= set(c("CLIENT", "HELP"))
