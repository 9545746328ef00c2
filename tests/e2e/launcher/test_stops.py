"""How long workers may take to stop, and what cannot be stopped."""

import os
import re
import signal
import subprocess
import time

import pytest

from hung_fs import HungFs

DEAF = "trap '' TERM; touch $HERE/up-$CRUN_ROUND-$RANK; while :; do sleep 0.05; done"


def deaf(crun, *args):
    return crun.start(*args, "sh", "-c", DEAF, extra_env={"HERE": str(crun.tmp)})


def ends_after(p, start, seconds):
    """-> exit code; the grace of that many seconds is the one that was given, and is named. start: a moment before it began."""
    err = p.communicate(timeout=60)[1].decode()
    assert seconds <= time.monotonic() - start < 15, err
    assert f"did not end within {seconds} s of SIGTERM" in err
    return p.returncode


OTHERS = {"failure": ["--resize-timeout", "90", "--drain-timeout", "90"], "resize": ["--shutdown-timeout", "90"],
          "drain": ["--shutdown-timeout", "90", "--resize-timeout", "2m"]}


def test_the_grace_of_a_failure(crun):
    p = crun.start("--nproc_per_node", 2, "--shutdown-timeout", "0.4", *OTHERS["failure"], "sh", "-c",
                   f"[ $RANK = 0 ] || {{ {DEAF}; }}; while [ ! -e $HERE/go ]; do sleep 0.01; done; exit 3", extra_env={"HERE": str(crun.tmp)})
    crun.wait_file("up-1-1")
    start = time.monotonic()
    (crun.tmp / "go").touch()
    assert ends_after(p, start, 0.4) == 3


def test_the_grace_of_a_drain(crun):
    p = deaf(crun, "--nproc_per_node", 2, "--drain-timeout", "0.4", *OTHERS["drain"])
    for r in (0, 1):
        crun.wait_file(f"up-1-{r}")
    start = time.monotonic()
    p.terminate()
    assert ends_after(p, start, 0.4) == 143


def test_the_grace_of_a_resize(crun):
    job = ["--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{crun.port()}", "--run-id", "grace", "--insecure", "--rdzv-conf",
           "last_call_timeout=200ms"]
    grace = ["--resize-timeout", "0.4", "--drain-timeout", "0.2", *OTHERS["resize"]]
    first = deaf(crun, *job, *grace)
    crun.wait_file("up-1-0")
    second = deaf(crun, *job, *grace)
    crun.wait_file("up-2-1")
    for p in first, second:
        p.terminate()
    err = first.communicate(timeout=60)[1].decode()
    second.communicate(timeout=60)
    assert "did not end within 0.4 s" in err, err
    assert crun.processes() == []


@pytest.mark.parametrize("option", ["--resize-timeout", "--drain-timeout"])
def test_a_wrong_grace_is_refused(crun, option):
    rc, _, err = crun.run(option, "soon", "true")
    assert rc == 2 and option[2:] in err and "'soon'" in err and "same" in err


@pytest.fixture
def hung(tmp_path):
    try:
        fs = HungFs(tmp_path / "hung")
    except OSError as e:
        pytest.skip(f"no FUSE file system can be mounted here: {e}")
    yield fs
    fs.release()


def hang(hung, crun, *options):
    """One of two workers hangs in the kernel, then the other one fails."""
    p = crun.start("--nproc_per_node", 2, "--shutdown-timeout", "0.2", *options, "sh", "-c",
                   f"[ $RANK = 1 ] && exec stat {crun.tmp}/hung/file; while [ ! -e {crun.tmp}/go ]; do sleep 0.01; done; exit 3",
                   stderr=subprocess.PIPE)
    assert hung.asked.wait(60)
    (crun.tmp / "go").touch()
    return p


def test_a_worker_the_kernel_does_not_end_is_named_and_left(crun, hung):
    p = hang(hung, crun, "--kill-timeout", "0.5", "--max-restarts", "5")
    start = time.monotonic()
    err = p.stderr.read().decode()  # its end: the hung worker holds its own pipes, not crun's
    assert p.wait(60) == 71 and time.monotonic() - start < 10, err
    told = re.search(r"still there 0.5 s after SIGKILL: (\d+) \(stat, state D in (\w+)\)", err)
    assert told and crun.processes() == [int(told[1])], err
    assert "restart" not in err.replace("of 5 restarts", ""), "no round beside a process of the last one"
    assert re.search(r"culprit +rank 0", err)
    hung.release()
    crun.wait_processes_gone(10)


THREAD = "import os, threading, sys, time; threading.Thread(target=os.stat, args=sys.argv[1:]).start(); time.sleep(1000)"  # its first thread obeys SIGKILL


@pytest.mark.parametrize("program", ["stat", f"python3 -S -E -c '{THREAD}'"], ids=["process", "thread"])
def test_what_the_kernel_does_not_end_is_left_when_the_agent_is_given_up(crun, hung, program):
    p = crun.start("--nproc_per_node", 2, "sh", "-c", f"[ $RANK = 1 ] && exec {program} {crun.tmp}/hung/file; exec sleep 1000")
    assert hung.asked.wait(60)
    agent = crun.agent_of(p.pid)
    os.kill(agent, signal.SIGSTOP)
    start = time.monotonic()
    p.terminate()
    err = p.stderr.read().decode()
    assert p.wait(60) == 71 and 5 <= time.monotonic() - start < 15, err
    assert f"its agent (pid {agent}, state T" in err and "did not take SIGTERM within 5 s: it and the workers were ended (exit code 71)" in err
    told = re.search(r"still there [0-9.]+ s after SIGKILL: (\d+) \((?:stat|python3), state D in (\w+)\); the kernel does not end them", err)
    assert told and set(crun.processes()) <= {int(told[1])}, err  # without its first thread it shows no environment
    hung.release()
    crun.wait_processes_gone(10)


@pytest.mark.slow
def test_the_guardian_gives_up_on_it_too(crun, hung):
    p = hang(hung, crun, "--shutdown-timeout", "90")
    os.kill(crun.agent_of(p.pid), signal.SIGKILL)
    err = p.stderr.read().decode()
    assert p.wait(90) == 71 and re.search(r"still there 3\d s after SIGKILL: \d+ \(stat, state D in \w+\)", err), err
