"""Output in a process of its own: a disk or a console that hangs reaches nobody else, and its death costs nothing but what it held."""

import os
import re
import signal
import subprocess
import time

import pytest

from held import stuck
from processes import children, comm, kill, state, wait

HERE = os.path.dirname(os.path.abspath(__file__))
WRITER = ("python3", "-S", "-E", os.path.join(HERE, "log_worker.py"))
STEADY = "i=0; while [ ! -e $TMPDIR/stop ]; do echo line-$i; i=$((i+1)); sleep 0.01; done; echo $i lines >&2"
GRACE = 1  # seconds
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def wait_text(path, text):
    wait(f"{text} in {path.name}", lambda: path.exists() and text in path.read_text())


def test_its_death_is_noticed_by_no_worker(crun):
    log = crun.tmp / "l" / "j" / "round-1" / "rank-0.out"
    p = crun.start("--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c", STEADY, stdout=open(crun.tmp / "out", "wb"))
    wait_text(log, "line-")
    outputs, err = [crun.output_of(p.pid)], b""
    for deaths in (1, 2, 3):
        kill(outputs[-1])
        outputs.append(crun.output_of(p.pid, *outputs))
        while err.count(b"is gone; another took over") < deaths:
            err += p.stderr.readline() or pytest.fail(err)
        size = log.stat().st_size
        wait("more lines", lambda: log.stat().st_size > size + 100)
    (crun.tmp / "stop").touch()
    err += p.stderr.read()
    assert p.wait(60) == 0 and err.count(b"is gone; another took over") == 3, err
    count = int(re.search(rb"(\d+) lines", err)[1])
    for path, prefix in ((crun.tmp / "out", "[default0]: "), (log, "")):
        lines = [l.removeprefix(prefix) for l in path.read_text().splitlines()]
        numbers = [int(l[5:]) for l in lines if re.fullmatch(r"line-\d+", l)]
        assert numbers == sorted(set(numbers)) and numbers[-1] == count - 1 and len(numbers) > count - 30, (path, len(numbers), count)


def test_a_stopped_one_holds_up_no_word_of_crun(crun):
    p = crun.start("--standalone", "sh", "-c", f"touch {crun.tmp}/up; exec sleep 100")
    crun.wait_file("up")
    output = crun.output_of(p.pid)
    os.kill(output, signal.SIGSTOP)
    assert b"was stopped by SIGSTOP" in p.stderr.readline()
    p.terminate()
    assert p.stderr.readline() == b"crun: stopped by SIGTERM\n"
    assert p.wait(timeout=60) == 143
    assert crun.processes() == []


def last_words(crun, how):
    """What a job says while its output process stands still, and what crun says: its end comes all the same."""
    with open(crun.tmp / "out", "wb") as out:
        p = crun.start("--standalone", "sh", "-c", "touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; echo last words",
                       stdout=out, extra_env={"HERE": str(crun.tmp)})
    crun.wait_file("up")
    output = crun.output_of(p.pid)
    with stuck(output, how):
        (crun.tmp / "go").touch()
        _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and crun.processes() == []
    return (crun.tmp / "out").read_bytes(), err.decode(), output


def test_a_stopped_one_is_named_and_loses_nothing(crun):
    out, err, output = last_words(crun, "stopped")
    assert out == b"last words\n"
    assert f"crun: its output process (pid {output}) was stopped by SIGSTOP: until SIGCONT nobody reads" in err


@pytest.mark.parametrize("how", ["stopped", "traced"])
def test_a_failure_beside_a_stuck_one_says_why_the_last_lines_are_missing(crun, how):
    with open(crun.tmp / "out", "wb") as out:
        p = crun.start("sh", "-c", "echo last words >&2; touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; exit 7", stdout=out, extra_env={"HERE": str(crun.tmp)})
    crun.wait_file("up")
    output = crun.output_of(p.pid)
    with stuck(output, how):
        (crun.tmp / "go").touch()
        _, err = p.communicate(timeout=60)
    err, letter = err.decode(), "T" if how == "stopped" else "t"
    assert p.returncode == 7 and "  culprit   rank 0 (local rank 0), pid " in err and "unknown" not in err, err
    assert re.search(rf"^  stderr    \(its last lines could not be had: crun's output process \(pid {output}, state {letter}.*\) did not answer within 1000 ms\)$", err, re.M), err


def test_one_that_a_debugger_holds_is_killed_and_named(crun):
    out, err, output = last_words(crun, "traced")
    assert out == b"" and re.search(rf"crun: its output process .*{output}.* did not end within 2 s and was killed", err), err


def check_log(data, rank, width):
    """Numbered lines of log_worker.steady() and crun's notes -> (lines there, bytes told as missing); nothing torn, nothing twice."""
    numbers, missing = [], 0
    for line in data.decode().splitlines():
        note = re.fullmatch(r"crun: (\d+) bytes are missing here \(.*\)", line)
        if note:
            missing += int(note[1])
        else:
            assert re.fullmatch(rf"{rank:03d} \d{{8}} [a-z]{{{width - 14}}}", line), line[:80]
            numbers.append(int(line[4:12]))
    assert numbers == sorted(set(numbers))
    return len(numbers), missing


def hang_under_load(crun, disk, workers, seconds, rate):
    """Two nodes; the disk of both logs hangs while all workers write."""
    width, port, logs = 1000, crun.port(), crun.tmp / "disk"
    nodes = [crun.start("--nnodes", 2, "--nproc-per-node", workers, "--rdzv-endpoint", f"127.0.0.1:{port}", "--insecure", "--run-id", "j", "-r", 3,
                        "--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=3", "--max-restarts", 3, "--log-dir", logs / f"n{n}",
                        "sh", "-c", f"{' '.join(WRITER)} steady {rate} {seconds + 2} {width}; echo $CRUN_ROUND > $TMPDIR/done-$RANK",
                        stderr=open(crun.tmp / f"err{n}", "wb"), stdout=subprocess.DEVNULL, extra_env=ONE_THREAD) for n in (0, 1)]
    wait("lines", lambda: len(disk.files) >= 4 * workers and all(b"\n" in d for n, d in disk.files.items() if n.endswith(".out")))
    disk.pause()
    time.sleep(seconds)
    disk.resume()
    for p in nodes:
        assert p.wait(timeout=120) == 0
    for rank in range(2 * workers):
        assert crun.wait_file(f"done-{rank}") == "1\n", "a worker was restarted"
    missing = 0
    for name, data in disk.files.items():
        if not name.endswith(".out"):
            continue
        rank = int(re.search(r"rank-(\d+)", name)[1])
        (wrote,) = re.findall(rb"^wrote (\d+)$", bytes(disk.files[name[:-3] + "err"]), re.M)
        there, lost = check_log(bytes(data), rank, width)
        assert there * width + lost == int(wrote) * width, name
        missing += lost
    err = "".join((crun.tmp / f"err{n}").read_text() for n in (0, 1))
    hung = err.count("the disk of the log files has not answered for 1000 ms")  # a busy machine's own disk may be one that hangs
    assert hung >= 2 and err.count("answers again after") == hung, err
    assert "restart" not in err and "nothing was heard" not in err, err
    return missing


@pytest.mark.long
def test_a_log_disk_that_hangs_costs_no_heartbeat(crun, disk):
    hang_under_load(crun, disk, workers=2, seconds=4, rate=200000)  # longer than a node may be silent


@pytest.mark.slow
def test_a_log_disk_that_hangs_for_a_minute(crun, disk):
    assert hang_under_load(crun, disk, workers=8, seconds=60, rate=1000000) > 0


@pytest.fixture
def hung(crun, disk):
    """A job whose log disk hangs, with the output process in it -> (Popen, agent, output process, pids of workers)."""
    p = crun.start("--nproc-per-node", 2, "--log-dir", crun.tmp / "disk", "--run-id", "j", "--shutdown-timeout", GRACE, "sh", "-c",
                   f"touch {crun.tmp}/up-$RANK; trap '' TERM; while :; do echo line; sleep 0.01; done", stdout=open(crun.tmp / "out", "wb"))
    for rank in (0, 1):
        crun.wait_file(f"up-{rank}")
    agent = crun.agent_of(p.pid)
    wait("lines", lambda: all(disk.files.get(f"j/round-1/rank-{r}.out") for r in (0, 1)))
    disk.pause()
    assert disk.asked.wait(30)
    yield p, agent, crun.output_of(p.pid), children(agent)
    disk.resume()
    p.communicate(timeout=60)


@pytest.mark.parametrize("victims", ["guardian", "agent", "guardian agent", "guardian output", "agent output"])
def test_with_it_hung_no_worker_outlives_a_half(crun, disk, hung, victims):
    p, agent, output, workers = hung
    kill(*({"guardian": p.pid, "agent": agent, "output": output}[v] for v in victims.split()))
    wait("the end of the workers", lambda: all(state(w) in (None, "Z") for w in workers))
    assert not disk.going.is_set(), "while the disk hangs"


@pytest.mark.long
def test_with_it_hung_another_takes_over_at_once(crun, disk, hung):
    p, agent, output, workers = hung
    kill(output)
    another = crun.output_of(p.pid, output)
    said = b""
    while b"another took over" not in said:
        said += p.stderr.readline() or pytest.fail(said)
    assert f"(pid {output}) is gone; another took over (pid {another})".encode() in said
    assert state(output) in ("Z", "D"), "the disk holds it"
    size = (crun.tmp / "out").stat().st_size
    wait("more lines", lambda: (crun.tmp / "out").stat().st_size > size + 100)
    assert children(agent) == workers
    p.terminate()
    p.wait(timeout=60)
    err = p.stderr.read().decode()
    assert f"crun: its output process {output} (job-output, state D" in err, err


@pytest.mark.long
def test_with_it_hung_a_signal_ends_the_job(crun, hung):
    p, _, output, _ = hung
    p.terminate()
    p.wait(timeout=60)
    err = p.stderr.read().decode()
    assert f"crun: its output process {output} (job-output, state D" in err, err


@pytest.mark.long
def test_with_it_hung_a_failure_is_reported_all_the_same(crun, disk):
    p = crun.start("--log-dir", crun.tmp / "disk", "--run-id", "j", "sh", "-c",
                   f"echo bad >&2; until [ -e {crun.tmp}/go ]; do echo line; sleep 0.01; done; exit 7", stdout=subprocess.DEVNULL)
    wait("lines", lambda: disk.files.get("j/round-1/rank-0.out"))
    disk.pause()
    assert disk.asked.wait(30)
    (crun.tmp / "go").touch()
    assert p.wait(timeout=60) == 7
    err = os.read(p.stderr.fileno(), 65536).decode()
    assert "    | bad\n" in err and "its error record was not read within a second" in err, err
    assert "the failure report is not written after 1000 ms" in err and "(job-output, state D" in err, err
    disk.resume()
    p.communicate(timeout=60)


@pytest.mark.long
def test_a_disk_that_hangs_at_the_start_is_a_warning(crun, disk):
    disk.pause()
    p = crun.start("--log-dir", crun.tmp / "disk", "--run-id", "j", "sh", "-c", f"echo line; touch {crun.tmp}/up; echo said >&2")
    crun.wait_file("up")
    err = b""
    while b"has not answered" not in err:
        err += p.stderr.readline() or pytest.fail(err)
    disk.resume()
    err += p.communicate(timeout=60)[1]
    assert p.returncode == 0 and b"the disk of the log files has not answered for 1000 ms" in err, err
    assert disk.files["j/round-1/rank-0.out"] == b"line\n" and disk.files["j/round-1/rank-0.err"] == b"said\n"
