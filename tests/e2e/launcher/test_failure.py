"""Restarts, reports, stops."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from crun_run import BUILD
from daemon import Daemon
from processes import pending, wait, watched
from support import free_port


def test_restarts_are_counted_and_every_rank_is_told(crun):
    script = """echo "round $CRUN_ROUND count $TORCHELASTIC_RESTART_COUNT why $CRUN_RESTART_REASON prev $CRUN_PREV_RANK port $MASTER_PORT"
                touch $TMPDIR/said-$CRUN_ROUND-$RANK
                while [ ! -e $TMPDIR/said-$CRUN_ROUND-0 ]; do sleep 0.01; done
                [ $CRUN_ROUND -ge 3 ] && exit 0
                [ $RANK = 1 ] && exit 5
                exec sleep 10"""
    rc, out, err = crun.run("--log-prefix=off", "--nproc_per_node", 2, "--max-restarts", 3, "sh", "-c", script)
    assert rc == 0, err
    lines = [l.split(" port ") for l in out.splitlines()]
    said = sorted(l[0] for l in lines)
    assert said == sorted([
        "round 1 count 0 why start prev -1", "round 1 count 0 why start prev -1",
        "round 2 count 1 why failure prev 0", "round 2 count 1 why failure prev 1",
        "round 3 count 2 why failure prev 0", "round 3 count 2 why failure prev 1",
    ])
    ports = [{l[1] for l in lines if l[0].startswith(f"round {r} ")} for r in (1, 2, 3)]
    assert all(len(p) == 1 for p in ports) and ports[0] != ports[1] != ports[2]
    took, = re.findall(r"restart 1/3 \(rank 1 exited with code 5\): detect .* ms, stop (.*) ms, rendezvous .* ms, spawn .* ms", err)
    assert float(took) > 0, "to stop rank 0 takes some time"
    assert "restart 2/3" in err and "restart 3/3" not in err and "failed:" not in err


def test_a_fifo_in_place_of_the_error_record_holds_nobody_up(crun):
    rc, _, err = crun.run("sh", "-c", 'mkfifo "$TORCHELASTIC_ERROR_FILE"; exit 3', timeout=30)
    assert rc == 3 and "failed: rank 0 exited with code 3" in err


@pytest.mark.parametrize("args,name", [(["train.py"], "train.py"), (["--run-path", "train.py"], "train.py"), (["-m", "train", "x"], "-m train"), (["./plain"], "./plain"),
                                       (["sh", "-c", "exit 3"], "sh")])
def test_the_report_names_the_program_as_the_user_did(crun, args, name):
    (crun.tmp / "train.py").write_text("import sys; sys.exit(3)\n")
    (crun.tmp / "plain").write_text("#!/bin/sh\nexit 3\n")
    (crun.tmp / "plain").chmod(0o755)
    rc, _, err = crun.run("--failure-file", crun.tmp / "why.json", *args, cwd=crun.tmp)
    assert rc == 3 and f"crun: {name} failed: rank 0 exited with code 3\n" in err, err
    assert json.loads((crun.tmp / "why.json").read_text())["program"] == name


@pytest.mark.parametrize("again", range(3))
def test_every_restart_has_one_line_however_short_it_is(crun, again):
    rc, _, err = crun.run("--nproc_per_node", 4, "--max_restarts", 5, "--restart-backoff", 0, "false")
    assert rc == 1
    number = r"([\d.]+) ms"
    found = re.findall(rf"^crun: restart (\d)/5 \(rank \d exited with code 1\): detect {number}, stop {number}, rendezvous {number}, spawn {number}$",
                       err, re.M)
    assert [f[0] for f in found] == ["1", "2", "3", "4", "5"] and err.count("restart ") == 5, err
    assert all(float(f[4]) > 0 for f in found), "to start four processes takes some time"


def test_when_restarts_are_used_up_the_last_culprits_code_is_returned(crun):
    rc, out, err = crun.run("--nproc_per_node", 2, "--max-restarts", 2, "sh", "-c",
                            "echo start; [ $RANK = 0 ] && exit $((10 + CRUN_ROUND)); exec sleep 10")
    assert rc == 13, err
    assert out.count("[default0]: start") == 3, "rank 1 may be stopped before it says a word"
    assert "2 of 2 restarts used" in err and "exited with code 13" in err


def test_the_time_line_has_the_first_step_of_a_worker_that_tells_it(crun, worker):
    rc, _, err = crun.run("--nproc_per_node", 2, "--max-restarts", 3, worker, "steps", 2)
    assert rc == 0, err
    found = re.findall(r"restart (\d)/3 \(rank 1 killed by SIGKILL\): detect ([\d.]+) ms, stop ([\d.]+) ms, "
                       r"rendezvous ([\d.]+) ms, spawn ([\d.]+) ms, first step (\d+) ms", err)
    assert [f[0] for f in found] == ["1", "2"], err
    for f in found:
        assert 900000 <= int(f[5]) <= 1100000, "the worker says that it was 1000 s after its start"


def test_the_report_names_the_first_culprit_its_record_and_last_words(crun, worker):
    rc, _, err = crun.run("--nproc_per_node", 3, "sh", "-c",
                          f"[ $RANK = 2 ] || exec sleep 10; exec python3 {worker} record 'it broke'")
    assert rc == 9
    assert "rank 2 exited with code 9" in err and "culprit   rank 2" in err
    assert "message   it broke" in err
    assert err.rstrip().endswith("    | one\n    | two\n    | three")
    assert "rank 0" not in err and "rank 1" not in err, "stopped by crun itself: no failures"


def test_of_two_deaths_seen_at_once_the_first_is_the_culprit(crun):
    p = crun.start("--nproc_per_node", 4, "sh", "-c", f"cd {crun.tmp}; echo $$ > p$RANK; mv p$RANK pid-$RANK; exec sleep 100")
    pids = [int(crun.wait_file(f"pid-{r}")) for r in range(4)]
    agent = crun.agent_of(p.pid)
    wait("the agent's watch over all workers", lambda: set(pids) <= watched(agent))
    with crun.stopped(agent):
        for rank, signo in (2, signal.SIGSEGV), (0, signal.SIGKILL):
            os.kill(pids[rank], signo)
            crun.wait_state(pids[rank], "Z")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 139, err
    assert b"culprit   rank 2" in err and b"then      rank 0" in err and b"rank 1" not in err and b"rank 3" not in err


def test_workers_that_ignore_sigterm_are_killed_after_the_grace(crun, worker):
    p = crun.start("--nproc_per_node", 2, "--shutdown-timeout", "0.5", worker, "stubborn")
    pids = [int(crun.wait_file(f"ready-{r}")) for r in (0, 1)]
    start = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    _, err = p.communicate(timeout=60)
    took = time.monotonic() - start
    assert p.returncode == 137
    assert 0.45 < took < 20, took
    assert b"did not end within 0.5 s" in err
    assert crun.processes() == []


def test_a_drain_is_told_through_the_page_and_ends_with_75(crun, worker):
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 3, worker, "drain")
    for r in (0, 1):
        crun.wait_file(f"ready-{r}")
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75, err
    assert [crun.wait_file(f"reason-{r}") for r in (0, 1)] == ["3", "3"]
    assert b"restart" not in err and crun.processes() == []


def test_workers_of_a_round_meet_in_a_store_that_no_later_round_sees(crun, worker):
    rc, _, err = crun.run("--max-restarts", 1, worker, "store")
    assert rc == 0, err
    assert [crun.wait_file(f"store-{r}") for r in (1, 2)] == ["+PONG :0 +OK :2"] * 2


def test_libcrun_sees_the_reason_of_a_stop(crun, worker):
    lib = os.path.join(BUILD, "common", "crun", "libcrun.so.0")
    if not os.path.exists(lib):
        pytest.skip("libcrun.so is not built")
    p = crun.start("--nproc_per_node", 2, "--run-id", "lib", worker, "library", lib)
    for r in (0, 1):
        crun.wait_file(f"ready-{r}")
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert [crun.wait_file(f"reason-{r}") for r in (0, 1)] == ["drain"] * 2
    assert p.returncode == 143, "one worker did not stop in good order"
    assert err.decode().splitlines()[-1] == "crun: stopped by SIGTERM; not in good order: rank 1 exited with code 11"


def test_a_failure_is_told_through_the_page(crun, worker):
    p = crun.start("--nproc_per_node", 3, "sh", "-c",
                   f"[ $RANK = 0 ] || exec python3 {worker} drain; while [ ! -e {crun.tmp}/ready-2 ]; do sleep 0.02; done; exit 4")
    p.communicate(timeout=60)
    assert p.returncode == 4
    assert crun.wait_file("reason-2") == "1"


@pytest.mark.parametrize("signo, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_a_stop_signal_ends_workers_that_know_nothing(crun, signo, code):
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 3, "sh", "-c", f"touch {crun.tmp}/up-$RANK; exec sleep 100",
                   preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)])
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    time.sleep(0.02)
    p.send_signal(signo)
    p.communicate(timeout=60)
    assert p.returncode == code and crun.processes() == []


def test_a_second_sigint_kills_at_once(crun, worker):
    p = crun.start("--nproc_per_node", 2, "--shutdown-timeout", 90, worker, "stubborn",
                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    for r in (0, 1):
        crun.wait_file(f"ready-{r}")
    p.send_signal(signal.SIGINT)
    time.sleep(0.02)
    p.send_signal(signal.SIGINT)  # timeout(1) signals crun, then its group: one wish
    time.sleep(1.5)  # less than 1 s later it would be the same wish
    assert p.poll() is None, "the first one waits for the workers"
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 130
    assert crun.processes() == []


def test_a_stop_signal_told_twice_is_a_drain(crun, worker):
    p = crun.start("--nproc_per_node", 2, worker, "drain", 0.3,
                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    for r in (0, 1):
        crun.wait_file(f"ready-{r}")
    agent = crun.agent_of(p.pid)
    for signo in signal.SIGTERM, signal.SIGINT, signal.SIGINT:
        p.send_signal(signo)
        time.sleep(0.02)
        wait("who takes it", lambda: not pending(p.pid) and not pending(agent))  # of several the kernel gives the lowest first
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75, err


def test_an_error_record_of_an_earlier_job_is_not_taken_for_ours(crun, worker):
    args = ["--log-dir", crun.tmp / "logs", "--run-id", "j"]
    assert "stale" in crun.run(*args, "sh", "-c", f"exec python3 {worker} record stale")[2]
    rc, _, err = crun.run(*args, "sh", "-c", "exit 3")
    assert rc == 3 and "stale" not in err and "message" not in err


def test_a_requeue_that_another_worker_does_not_obey_is_named(crun):
    rc, _, err = crun.run("--nproc_per_node", 2, "--max-restarts", 3, "sh", "-c",
                          f"[ $RANK = 1 ] && {{ trap 'exit 3' TERM; touch {crun.tmp}/up; while :; do sleep 0.01; done; }};"
                          f"while [ ! -e {crun.tmp}/up ]; do sleep 0.01; done; exit 75")
    assert rc == 3, err
    assert err.splitlines()[-1] == "crun: stopped because a worker asked for it (exit code 75); not in good order: rank 1 exited with code 3"


def test_an_ignored_sighup_stays_ignored(crun):
    p = crun.start("sh", "-c", f"touch {crun.tmp}/up; until [ -e {crun.tmp}/go ]; do sleep 0.02; done; echo end",
                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    crun.wait_file("up")
    p.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    (crun.tmp / "go").touch()
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0 and b"end" in out


def test_a_stopped_worker_is_stopped_too(crun):
    p = crun.start("--nproc_per_node", 2, "sh", "-c", f"cd {crun.tmp}; echo $$ > p$RANK; mv p$RANK pid-$RANK; exec sleep 100")
    pids = [int(crun.wait_file(f"pid-{r}")) for r in (0, 1)]
    os.kill(pids[1], signal.SIGSTOP)
    os.kill(pids[0], signal.SIGKILL)
    p.communicate(timeout=60)
    assert p.returncode == 137 and crun.processes() == []


@pytest.fixture
def disk(crun):
    """A folder of 64 KiB."""
    folder = crun.tmp / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_or_read_only_stands_in_the_first_line(crun, disk):
    rc, _, err = crun.run("sh", "-c", f"exec dd if=/dev/zero of={disk}/x bs=4k count=99 status=none")
    assert rc == 1 and "crun: sh failed: rank 0 exited with code 1: a file system without space (it said: No space left on device)\n" in err, err
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    rc, _, err = crun.run("sh", "-c", f"exec touch {disk}/y")
    assert rc == 1 and "crun: sh failed: rank 0 exited with code 1: a read-only file system (it said: Read-only file system)\n" in err, err


def test_a_fault_of_a_gpu_stands_in_the_first_line(crun):
    """As a stand-in for NVML has it: one that the round saw, not the round after it."""
    xid = crun.tmp / "xid"
    script = f"""[ $CRUN_ROUND = 2 ] && exit 7
                 : >{xid}; while ! [ -s {xid} ]; do sleep 0.01; done; kill -ABRT $$"""
    env = {"LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "launcher"), "FAKE_NVML_XID": str(xid)}
    with Daemon() as d:
        at = ("--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--rdzv-id", "x")
        for more, first, line in (([], "killed by SIGABRT, after Xid 79 on ffff:fb:00.0: it has fallen off the bus", "Xid 79 on ffff:fb:00.0: it has fallen off the bus"),
                                  (["--max-restarts", 1], "exited with code 7", "none in this round; before it Xid 79 on ffff:fb:00.0")):
            xid.unlink(missing_ok=True)
            rc, _, err = crun.run(*at, *more, "sh", "-c", script, extra_env=env)
            assert rc in (134, 7) and f"crun: sh failed: rank 0 {first}\n" in err, err
            assert f"  xid       {line}; memory is to be remapped at the next reset of ffff:fa:00.0\n" in err, err


def test_an_nvlink_that_went_down_stands_in_the_first_line(crun):
    cut = crun.tmp / "cut"
    script = f"""wait_for() {{ until grep -qs $1 {cut}.seen; do sleep 0.05; done; }}
                 wait_for up; : >{cut}; wait_for down; exit 1"""
    env = {"LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "launcher"), "FAKE_NVML_LINK": str(cut)}
    with Daemon() as d:
        rc, _, err = crun.run("--rdzv-backend", "rendezvousd", "--rdzv-endpoint", d.address, "--rdzv-id", "x", "sh", "-c", script, extra_env=env)
    assert rc == 1 and "crun: sh failed: rank 0 exited with code 1, after NVLink 1 of ffff:fa:00.0 went down\n" in err, err
    assert "  link      NVLink 1 of ffff:fa:00.0 went down (seen 0." in err, err


def test_an_nvlink_of_another_node_stands_there_too(crun):
    cut, go = crun.tmp / "cut", crun.tmp / "go"
    there = f"""wait_for() {{ until grep -qs $1 {cut}.seen; do sleep 0.05; done; }}
                wait_for up; : >{cut}; wait_for down; : >{go}; exec sleep 600"""
    at = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two")
    other = crun.start(*at, "--node-rank", 1, "sh", "-c", there,
                       extra_env={"LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "launcher"), "FAKE_NVML_LINK": str(cut)})
    p = crun.start(*at, "--node-rank", 0, "sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done; exit 3")
    said = [q.communicate(timeout=90)[1].decode() for q in (p, other)]
    assert (p.returncode, other.returncode) == (3, 3)
    assert re.search(r"crun: sh failed: rank 0 exited with code 3; on \S+: NVLink 1 of ffff:fa:00.0 went down\n", said[0]), said
    assert re.search(r"crun: the job failed: rank 0 on \S+ exited with code 3; on \S+: NVLink 1 of ffff:fa:00.0 went down\n", said[1]), said
