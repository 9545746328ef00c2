"""Ctrl-Z, and SIGTSTP that somebody sends: crun, its workers and whatever is below them stand still until they go on."""

import json
import os
import re
import signal
import time

import pytest

from processes import children, state, wait
from test_terminal import Shell


@pytest.fixture
def shell(crun):
    s = Shell(crun.env)
    yield s
    s.close()


def ups(shell, n):
    """pids that so many lines "up PID" name"""
    return [int(re.search(r"up (\d+)\r?\n", shell.until(r"up \d+\r?\n"))[1]) for _ in range(n)]


def pause(shell, pids):
    shell.type("\x1a")
    shell.until("Stopped ")
    shell.until("ready> ")
    wait("their stop", lambda: {state(pid) for pid in pids} == {"T"})


def go_on(shell, pids):
    shell.run("fg")
    wait("them to go on", lambda: {state(pid) for pid in pids} == {"S"})


def end(crun, shell):
    """-> what came since"""
    shell.type("\x03")
    text = shell.until("ready> ")
    assert "stopped by SIGINT" in text and shell.code() == 130, text
    crun.wait_processes(1)
    assert crun.processes() == [shell.p.pid]
    return text


def events(crun):
    """Of the file --event-log $TMPDIR/events, whole lines."""
    return [json.loads(line) for line in (crun.tmp / "events").read_text().rpartition("\n")[0].splitlines()]


SLEEPS = "sh -c 'echo up $$; exec sleep 1000'"


@pytest.mark.parametrize("options", ["", "--pty all", "--stdin-rank 1"])
def test_ctrl_z_stops_the_workers_too_and_fg_lets_all_go_on(crun, shell, options):
    shell.run(f"$CRUN --nproc_per_node 2 {options} {SLEEPS}")
    pids = ups(shell, 2)
    pause(shell, pids)
    go_on(shell, pids)
    assert "was stopped by" not in end(crun, shell)


def test_a_job_that_is_paused_ends_when_it_is_told(crun, shell):
    shell.run(f"$CRUN --nproc_per_node 2 --event-log $TMPDIR/events {SLEEPS}")
    pids = ups(shell, 2)
    pause(shell, pids)
    shell.run("bg")
    wait("them to go on", lambda: {state(pid) for pid in pids} == {"S"})
    guardian, = children(shell.p.pid)
    shell.run("kill -TSTP %1")
    wait("their stop", lambda: {state(pid) for pid in [guardian, *pids]} == {"T"})
    shell.run("kill %1")
    wait("its end", lambda: crun.processes() == [shell.p.pid])
    shell.run("true")
    shell.until("Exit 143 ")
    found = events(crun)
    assert [e["signal"] for e in found if e.get("meaning") == "pause"] == ["SIGTSTP", "SIGCONT", "SIGTSTP", "SIGCONT"], found
    assert not [e for e in found if e["event"] == "restart"], found


@pytest.mark.parametrize("options", ["", "--hang-timeout 60"])
def test_the_workers_of_a_crun_that_is_a_worker_stand_still(crun, shell, options):
    shell.run(f"$CRUN --nproc_per_node 2 $CRUN --nproc_per_node 2 {options} {SLEEPS}")
    pids = ups(shell, 4)
    pause(shell, pids)
    go_on(shell, pids)
    assert "was stopped by" not in end(crun, shell)


def test_a_paused_job_whose_workers_are_cruns_ends_when_it_is_told(crun, shell):
    shell.run(f"$CRUN --nproc_per_node 2 $CRUN --nproc_per_node 2 {SLEEPS}")
    pause(shell, ups(shell, 4))
    shell.run("kill %1")
    wait("its end", lambda: crun.processes() == [shell.p.pid])
    shell.run("true")
    text = shell.until("Exit 143 ")
    assert "does not take signals" not in text and "given up" not in text, text


@pytest.mark.parametrize("options", ["--nproc_per_node 2", "</dev/null", ""])
def test_sessions_below_a_worker_stand_still(crun, shell, options):
    shell.run(f"$CRUN {options} sh -c 'setsid sleep 1000 & echo up $!; wait'")
    pids = ups(shell, 2 if "2" in options else 1)
    guardian, = children(shell.p.pid)
    if options:
        pause(shell, pids)
    else:  # what the worker with the terminal does at a key is its own matter
        os.kill(guardian, signal.SIGTSTP)
        shell.until(r"Stopped .*\r\nready> ")
        wait("their stop", lambda: {state(pid) for pid in [guardian, *pids]} == {"T"})
    go_on(shell, pids)
    end(crun, shell)


def test_a_worker_with_the_terminal_stands_still_when_crun_alone_is_told(crun, shell):
    shell.run(f"$CRUN {SLEEPS}")
    pid, = ups(shell, 1)
    guardian, = children(shell.p.pid)
    os.kill(guardian, signal.SIGTSTP)
    shell.until(r"Stopped .*\r\nready> ")
    wait("their stop", lambda: [state(guardian), state(pid)] == ["T", "T"])
    os.kill(guardian, signal.SIGCONT)
    wait("them to go on", lambda: [state(guardian), state(pid)] == ["S", "S"])
    shell.run("fg")
    wait("its terminal", lambda: os.tcgetpgrp(shell.fd) == guardian)
    assert "was stopped by" not in end(crun, shell)


def test_a_worker_of_a_round_that_begins_meanwhile_stands_still(crun, shell):
    shell.run(f"$CRUN --max-restarts 9 {SLEEPS} </dev/null")
    pid, = ups(shell, 1)
    agent = crun.agent_of(children(shell.p.pid)[0])
    pause(shell, [pid])
    os.kill(pid, signal.SIGKILL)
    wait("the next one", lambda: [state(p) for p in children(agent) if p != pid] == ["T"])
    pid, = children(agent)
    go_on(shell, [pid])
    assert "was stopped by" not in end(crun, shell)


def test_no_spare_is_started_meanwhile(crun, shell):
    shell.run(f"$CRUN --nproc_per_node 2 --max-restarts 3 --warm-spares 1 {SLEEPS}")
    pids = ups(shell, 2)
    agent = crun.agent_of(children(shell.p.pid)[0])
    pause(shell, pids)
    time.sleep(4)  # it would be started after 3 s without a step
    assert {state(p) for p in children(agent)} == {"T"}
    go_on(shell, pids)
    wait("the spare", lambda: len(children(agent)) == 3)
    end(crun, shell)


@pytest.mark.parametrize("outer", ["", "$CRUN --nproc_per_node 1 </dev/null"])
def test_a_pause_is_no_hang(crun, shell, outer):
    """The hang comes, as the workers give no sign of life; but the pause does not count."""
    for seconds in (2, 8, 32):  # a machine may stand still for so long before the pause
        shell.run(f"{outer} $CRUN --nproc_per_node 2 --hang-timeout {seconds} --event-log $TMPDIR/events {SLEEPS}")
        pids, paused = ups(shell, 2), time.monotonic()
        shell.type("\x1a")
        shell.until("ready> ")
        wait("their stop, or end", lambda: {state(pid) for pid in pids} in ({"T"}, {None}))  # pylint: disable=cell-var-from-loop
        if state(pids[0]) == "T":
            break
    time.sleep(2 * seconds)
    assert [state(pid) for pid in pids] == ["T", "T"]
    resumed = time.monotonic()
    shell.run("fg")
    shell.until("ready> ")
    found = [e for e in events(crun) if e["mono_ns"] / 1e9 > paused]
    assert [e["mono_ns"] / 1e9 - resumed >= seconds for e in found if e["event"] == "hang"] == [True], found


def test_where_no_shell_could_let_it_go_on_it_is_not_stopped(crun):
    """As the kernel has it for orphaned process groups."""
    p = crun.start("--nproc_per_node", 2, "sh", "-c", "touch $HERE/up-$RANK; exec sleep 1000", extra_env={"HERE": str(crun.tmp)}, start_new_session=True)
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    os.kill(p.pid, signal.SIGTSTP)
    p.terminate()
    p.communicate(timeout=60)
    assert p.returncode == 143
