"""`crun chaos`: each fault meets whom it names, and nothing of it is left when the tool ends, however it ends."""
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

from chaos_tool import ChaosTool, clock_env
from crun_run import CRUN
from processes import children, comm, state, wait
from support import ROOT, tmpfs
from test_libcrun import LIBCRUN, build

sys.path.insert(0, str(ROOT / "tests" / "fault"))
import netns  # noqa: E402

SLEEPS = ["sleep", "1000"]


@pytest.fixture
def job(crun):
    """A crun with three workers that sleep, restarted as often as need be; -> its pid"""
    p = crun.start("--nproc_per_node", 3, "--max-restarts", 1000, "--restart-backoff", 0, "--shutdown-timeout", 1, *SLEEPS,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait("its workers", lambda: len(workers(p.pid)) == 3)
    yield p.pid
    if p.poll() is None:
        p.kill()
    p.wait()


@pytest.fixture
def tool(tmp_path):
    started = []

    def start(plan, *targets, seed=1, **kw):
        started.append(ChaosTool(tmp_path / f"chaos-{len(started)}", plan, seed, *targets, **kw))
        return started[-1]

    yield start
    for t in started:
        if t.p.poll() is None:
            t.p.kill()
        t.p.wait()


def workers(guardian):
    return [pid for pid in children(children(guardian)[0]) if comm(pid) == "sleep"] if children(guardian) else []


def variable(pid, name):
    return re.search(rf"(?:^|\0){name}=([^\0]*)".encode(), pathlib.Path(f"/proc/{pid}/environ").read_bytes())[1].decode()


def all_below(pid):
    found = [pid]
    for p in found:
        found += children(p)
    return found


def run_plan(tool, plan, *targets, **kw):
    t = tool(plan, *targets, **kw)
    assert t.wait() == 0, t.text()
    return t.deeds()


# --- whom it meets ---


@pytest.mark.parametrize("who", ["guardian", "agent", "deputy", "output"])
def test_processes_of_crun_are_found(job, tool, who):
    t = tool(f"at 0 stop {who} for 100s", job)
    (deed,) = t.wait_deeds(1)
    pid = int(deed.met)
    assert pid == (job if who == "guardian" else children(job)[0]) if who in ("guardian", "agent") else comm(pid) == f"job-{who}"
    wait("its stop", lambda: state(pid) == "T")
    assert t.end() == 128 + signal.SIGTERM
    assert state(pid) != "T"


def test_a_worker_is_found_by_its_rank(job, tool):
    t = tool("at 0 kill worker rank 2", job)
    assert t.wait() == 0
    (deed,) = t.deeds()
    pid = int(re.fullmatch(r"(\d+) \(rank 2 of node 0\)", deed.met)[1])
    wait("another one", lambda: len(workers(job)) == 3 and pid not in workers(job))


@pytest.mark.skipif(not os.path.exists(LIBCRUN), reason="libcrun.so is not built")
def test_a_spare_that_took_a_place_is_found_by_the_rank_it_has_now(crun, tmp_path, tool):
    rounds = build("rounds.c", tmp_path / "rounds")
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 9, "--restart-backoff", 0, "--hold-timeout", 60, "--warm-spares", 1, *rounds, 100000,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spare = int(wait("a spare", lambda: [d for d in run_plan(tool, "at 0 stop spare for 1ms", p.pid) if d.met != "nobody"])[0].met)
    wait("rank 1", lambda: run_plan(tool, "at 0 kill worker rank 1", p.pid)[0].met != "nobody")
    wait("it in that place", lambda: f"{spare} (rank 1 of node 0)" in run_plan(tool, "at 0 stop worker rank 1 for 1ms", p.pid)[0].met)
    p.kill()
    p.wait()


def test_a_node_ends_at_once(job, tool):
    everybody = all_below(job)
    (deed,) = run_plan(tool, "at 0 kill node", job)
    assert re.fullmatch(rf"\d+ processes of {job}", deed.met)
    wait("their end", lambda: all(state(pid) in (None, "Z") for pid in everybody))


@pytest.mark.parametrize("deed", ["kill node", "stop node for 100s"])
def test_a_node_of_many_processes_is_met_whole(crun, tool, deed):
    p = crun.start("--nproc_per_node", 1, "sh", "-c", f"i=0; while [ $i -lt 700 ]; do sleep 1000 & i=$((i+1)); done; : > {crun.tmp}/up-0; wait",
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    crun.wait_file("up-0")
    everybody = all_below(p.pid)
    t = tool(f"at 0 {deed}", p.pid)
    (met,) = t.wait_deeds(1)
    assert len(everybody) > 700 and int(met.met.split()[0]) >= len(everybody), met
    wait("their end", lambda: all(state(pid) in (("T",) if "stop" in deed else (None, "Z")) for pid in everybody))


def test_a_node_stands_still_and_goes_on(job, tool):
    everybody = all_below(job)
    t = tool("at 0 stop node for 100s", job)
    t.wait_deeds(1)
    wait("their stop", lambda: all(state(pid) == "T" for pid in everybody))
    t.kill()
    wait("their going on", lambda: all(state(pid) == "S" for pid in everybody))


def test_a_node_goes_on_where_the_tool_is_killed_as_it_strikes(crun, tool):
    p = crun.start("--nproc_per_node", 40, *SLEEPS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait("its workers", lambda: len(workers(p.pid)) == 40)
    everybody = all_below(p.pid)
    for _ in range(5):
        t = tool("at 0 stop node for 100s", p.pid)
        while state(p.pid) != "T" and t.p.poll() is None:  # at once: most of them are still to come
            pass
        t.kill()
        wait("their going on", lambda: all(state(pid) == "S" for pid in everybody))


def test_a_slow_process_runs_and_halts_by_turns(job, tool):
    t = tool("at 0 slow worker rank 0 by 2 for 100s", job)
    (deed,) = t.wait_deeds(1)
    pid = int(deed.met.split()[0])
    for _ in range(3):
        wait("a halt", lambda: state(pid) == "T")
        wait("a run", lambda: state(pid) == "S")
    t.end()
    wait("a run", lambda: state(pid) == "S")


def test_two_that_hold_one_process_each_have_their_time(job, tool):
    t = tool("at 0 stop agent for 100s\nat 0 slow agent by 2 for 10ms\nat 20ms stop agent for 10ms\nat 40ms stop deputy for 100s", job)
    t.wait_deeds(4)
    agent = children(job)[0]
    wait("its stop", lambda: state(agent) == "T")
    t.end()
    assert state(agent) != "T"


def test_other_processes_go_by_words_of_ones_own(tool, tmp_path):
    other = subprocess.Popen(SLEEPS)
    (tmp_path / "pid").write_text(f"{other.pid}\n")
    (deed,) = run_plan(tool, "at 0 terminate server", f"server={tmp_path / 'pid'}")
    assert deed.met == str(other.pid) and other.wait() == -signal.SIGTERM
    (deed,) = run_plan(tool, "at 0 terminate server", f"server={tmp_path / 'pid'}")
    assert deed.met == "nobody"


def test_what_is_no_crun_is_not_touched(tool):
    other = subprocess.Popen(SLEEPS)
    t = tool("at 0 kill guardian", other.pid)
    assert t.wait() == 2
    assert f"process {other.pid} runs /usr/bin/sleep: expected this crun, which alone is touched" in t.text()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_file_that_is_older_than_its_process_tells_of_nobody(job, tool, tmp_path):
    stale = tmp_path / "pid"
    stale.write_text(str(job))
    os.utime(stale, (1, 1))
    assert run_plan(tool, "at 0 kill guardian", stale)[0].met == "nobody"
    wait("a run", lambda: state(job) == "S")


def test_it_ends_with_the_last_of_those_that_were_given_by_their_pids(crun, tool):
    p = crun.start("sleep", "1000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t = tool("at 0 kill node\nat 20s kill agent\nat 6d kill agent", p.pid)
    p.wait()
    assert t.wait() == 0 and len(t.lines()) == 1


@pytest.mark.parametrize("plan", ["for 6d\nevery 1d\ndraw 1 kill agent\nat 0 kill node", "at 0 kill node\nat 6d kill agent"])
def test_it_does_not_wait_for_the_end_of_its_plan_then(crun, tool, plan):
    p = crun.start("sleep", "1000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t = tool(plan, p.pid)
    p.wait()
    assert t.wait() == 0 and len(t.lines()) >= 1


# --- what is no process ---


@pytest.fixture
def port():
    """A host in a network namespace: -> (it, what `link=` says of it)."""
    why = netns.available()
    if why:
        pytest.skip(why)
    net = netns.Net(1)
    yield net.hosts[0], f"link={net.switch}:{net.hosts[0].port_of_switch}"
    net.close()


def is_up(host):
    return "LOWER_UP" in netns.ip("link", "show", "eth0", ns=host.ns).stdout


@pytest.mark.parametrize("killed", [False, True])
def test_a_link_is_cut_and_comes_back(tool, port, killed):
    host, link = port
    assert is_up(host)
    t = tool("at 0 cut for 100s\nat 0 cut for 1ms\nat 50ms cut for 100s", link)
    t.wait_deeds(3)
    wait("the cut", lambda: not is_up(host))
    t.kill() if killed else t.end()
    wait("the link", lambda: is_up(host))


def test_a_link_whose_routes_would_be_lost_is_refused(tool, port):
    host, _ = port
    t = tool("at 0 cut for 1s", f"link={host.ns}:eth0")
    assert t.wait() == 2 and "has an address, and its routes would be lost" in t.text()
    assert is_up(host)


@pytest.fixture
def small_disk(tmp_path):
    """A folder whose disk has one MiB."""
    with tmpfs(tmp_path / "disk", 1) as folder:
        yield folder


def room(folder):
    s = os.statvfs(folder)
    return s.f_bavail * s.f_frsize


@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_is_full_for_a_while(tool, small_disk, killed):
    t = tool("at 0 fill for 100s", f"folder={small_disk}")
    (deed,) = t.wait_deeds(1)
    assert deed.met == f"1048576 bytes of {small_disk}" and room(small_disk) == 0 and list(small_disk.iterdir()) == []
    t.kill() if killed else t.end()
    wait("the room", lambda: room(small_disk) == 1 << 20)


def test_one_bit_of_one_file_is_wrong(tool, tmp_path):
    (tmp_path / "f" / "step-1").mkdir(parents=True)
    for name in "a.bin", "b.bin", "other":
        (tmp_path / "f" / "step-1" / name).write_bytes(bytes(1000))
    (deed,) = run_plan(tool, "at 0 corrupt step-*/*.bin", f"folder={tmp_path / 'f'}")
    path, at, bit = re.fullmatch(r"(.*) byte (\d+) bit (\d)", deed.met).groups()
    assert pathlib.Path(path).name in ("a.bin", "b.bin")
    assert pathlib.Path(path).read_bytes() == bytes(int(at)) + bytes([1 << int(bit)]) + bytes(999 - int(at))
    assert sum(any(f.read_bytes()) for f in (tmp_path / "f" / "step-1").iterdir()) == 1
    assert run_plan(tool, "at 0 corrupt *.txt", f"folder={tmp_path / 'f'}")[0].met == "nobody"


@pytest.mark.parametrize("folder", ["f/", "link", "link//"])
def test_a_folder_goes_by_any_of_its_names(tool, tmp_path, folder):
    (tmp_path / "f" / "step-1").mkdir(parents=True)
    (tmp_path / "f" / "step-1" / "a.bin").write_bytes(bytes(1000))
    (tmp_path / "link").symlink_to("f")
    assert "a.bin byte" in run_plan(tool, "at 0 corrupt step-*/*.bin", f"folder={tmp_path}/{folder}")[0].met


def read_clock(file):
    return struct.unpack("q", file.read_bytes())[0] / 1e9


@pytest.mark.parametrize("killed", [False, True])
def test_the_clock_of_a_worker_jumps_and_is_right_again(tool, tmp_path, killed):
    file, code = tmp_path / "clock", "import time\nwhile True: print(-float(input()) + time.time(), flush=True)"
    p = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **clock_env(file)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ahead():
        print(time.time(), file=p.stdin, flush=True)
        return round(float(p.stdout.readline()) / 1800) * 1800

    assert ahead() == 0
    t = tool("at 0 clock by -1h for 100s\nat 0 clock by 1h for 1ms\nat 50ms clock by 3h for 100s", f"clock={file}")
    t.wait_deeds(3)
    assert ahead() == 7200 == read_clock(file)
    t.kill() if killed else t.end()
    wait("the right time", lambda: ahead() == 0)
    p.kill()
    p.communicate()


# --- the tool itself ---


def test_another_watcher_takes_the_place_of_one_that_is_killed(job, tool):
    t = tool("at 0 stop agent for 100s", job)
    t.wait_deeds(1)
    agent, first = children(job)[0], t.watcher()
    os.kill(first, signal.SIGKILL)
    wait("another watcher", lambda: children(t.p.pid) and t.watcher() != first and comm(t.watcher()) == "chaos-undo")
    assert state(agent) == "T"
    watcher = t.kill()
    wait("its going on", lambda: state(agent) != "T")
    wait("the end of the watcher", lambda: state(watcher) in (None, "Z"))


def test_a_watcher_that_is_stopped_holds_up_no_end(job, tool):
    t = tool("at 0 stop agent for 1s", job)
    t.wait_deeds(1)
    watcher = t.watcher()
    wait("its name", lambda: comm(watcher) == "chaos-undo")
    os.kill(watcher, signal.SIGSTOP)
    assert t.wait() == 0, t.text()
    assert state(watcher) is None and state(children(job)[0]) != "T"


def test_the_trace_is_the_sequence_that_a_dry_run_prints(job, tool):
    plan = "for 2s\nevery 50ms\ndraw 3 kill worker\ndraw 2 stop worker for 1ms..30ms\ndraw 1 slow worker by 3 for 50ms\ndraw 1 stop agent for 20ms and kill worker"
    dry = tool(plan, job, seed=5, options=["--dry-run"])
    assert dry.wait() == 0
    t = tool(plan, job, seed=5)
    assert t.wait() == 0
    drawn = dry.text().splitlines()
    assert len(drawn) > 20 and [line["at"] + " " + line["what"] for line in t.lines()] == drawn[1:]
    assert any(d.met != "nobody" for d in t.deeds())
    other = tool(plan, job, seed=6, options=["--dry-run"])
    assert other.wait() == 0 and other.text() != dry.text()


@pytest.mark.parametrize("args, says", [
    (["--plan", "/nowhere", "1"], "/nowhere: No such file or directory"),
    (["--plan", "-"], "no TARGET: expected the pid of a crun, or a file that holds one, for each node"),
    (["--plan", "-", "1"], "the plan is empty: expected lines of text"),
    (["1"], "option '--plan' is required"),
    (["--plan", "-", "--seed", "x", "1"], "--seed"),
])
def test_a_wrong_command_line_is_one_sentence(args, says):
    p = subprocess.run([CRUN, "chaos", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 2 and p.stdout == "" and says in p.stderr and p.stderr.count("\n") == 1 and p.stderr.startswith("crun chaos: "), p


def test_a_fifo_that_nobody_writes_to_is_neither_plan_nor_target(tool, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    p = subprocess.run([CRUN, "chaos", "--plan", tmp_path / "fifo", "1"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (p.returncode, p.stderr) == (2, f"crun chaos: {tmp_path}/fifo is not a regular file, but a named pipe\n")
    t = tool("at 0 kill worker", tmp_path / "fifo")
    assert t.wait() == 2 and t.text().startswith(f"crun chaos: TARGET 0: the file {tmp_path}/fifo holds no pid"), t.text()


def test_a_plan_that_is_no_plan_but_a_large_file_is_said(tool):
    t = tool("x" * ((1 << 20) + 1), 1)
    assert t.wait() == 2 and f"{t.plan} has more than 1048576 bytes: expected a plan, which is shorter" in t.text()


def test_a_target_that_is_nobody_is_refused(tool, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = tmp_path / "words"
    words.write_text("no number\n")
    for target, says in ((ended.pid, f"TARGET 0: there is no process {ended.pid}"),
                         (tmp_path / "none", f"TARGET 0: expected a pid, or a file that holds one: {tmp_path}/none: No such file or directory"),
                         (words, f"TARGET 0: the file {words} holds no pid"), (1, "TARGET 0: process 1 "),
                         (f"server={ended.pid}", f"TARGET 0, server: there is no process {ended.pid}")):
        t = tool("at 0 kill " + ("server" if str(target).startswith("server") else "worker"), target)
        assert t.wait() == 2 and t.text().startswith(f"crun chaos: {says}") and t.text().count("\n") == 1, t.text()


@pytest.mark.parametrize("target, says", [("folder=/nowhere", "TARGET 0: folder: /nowhere: No such file"), ("folder=/etc/passwd", "is no folder"),
                                          ("link=none0", "TARGET 0: link: 'none0': No such device"), ("clock=/etc/passwd", "expected a new file, or one")])
def test_what_a_target_names_has_to_be_there(tool, target, says):
    word = target.split("=")[0]
    deed = {"folder": "fill for 1s", "link": "cut for 1s", "clock": "clock by 1 for 1s"}[word]
    t = tool(f"at 0 {deed}", target)
    assert t.wait() == 2 and says in t.text()
