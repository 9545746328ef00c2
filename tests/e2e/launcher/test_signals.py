"""Signals to crun: which stop it, which warn it, which are the workers'."""

import json
import os
import re
import signal
import time

import pytest

from crun_run import OWN

SIGNALS = {s: getattr(signal, "SIG" + s) for s in "TERM INT HUP QUIT USR1 USR2 ALRM VTALRM PROF XCPU IO PWR".split()}
HANDLED = ["TERM", "INT", "HUP", "QUIT"]


def defaults():
    for s in SIGNALS.values():
        signal.signal(s, signal.SIG_DFL)


def start(crun, *args, n=2, **kw):
    """n workers that know nothing of signals, all of them up."""
    kw.setdefault("preexec_fn", defaults)
    p = crun.start("--nproc_per_node", n, "--max-restarts", 3, *args, "sh", "-c", "touch $HERE/up-$RANK; exec sleep 100",
                   extra_env={"HERE": str(crun.tmp)}, **kw)
    for r in range(n):
        crun.wait_file(f"up-{r}")
        os.unlink(crun.tmp / f"up-{r}")
    return p


def end(p, crun):
    err = p.communicate(timeout=60)[1].decode()
    crun.wait_processes_gone(10)
    return p.returncode, err


def wait_awaited(p, signo, awaited=True):
    """Until crun waits for this signal, or no longer: which ones beyond the usual, and which of these not, it learns from its own agent."""
    end = time.monotonic() + 60
    while bool(int(re.search(r"SigBlk:\s+(\w+)", open(f"/proc/{p.pid}/status").read())[1], 16) >> (signo - 1) & 1) != awaited:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("listed", [["TERM"], ["USR1", "TERM"], ["ALRM", "XCPU", "PWR", "IO", "VTALRM", "PROF"]])
def test_the_signals_named_stop_the_job_in_good_order_and_no_others(crun, listed):
    names = ",".join("SIG" + s for s in listed)
    p = start(crun, "--signals-to-handle", names)
    wait_awaited(p, SIGNALS[listed[-1]])
    p.send_signal(SIGNALS[listed[-1]])
    rc, err = end(p, crun)
    assert rc == 128 + SIGNALS[listed[-1]] and f"stopped by SIG{listed[-1]}" in err, err
    p = start(crun, "--signals-to-handle", names)
    left_out = next(s for s in HANDLED if s not in listed)
    wait_awaited(p, SIGNALS[left_out], awaited=False)
    p.send_signal(SIGNALS[left_out])
    rc, err = end(p, crun)
    assert rc == -SIGNALS[left_out], "its usual meaning for crun, and nobody survives"


def test_the_list_is_torchruns_in_form_and_told_to_the_workers(crun, worker):
    for args, env in (["--signals_to_handle=SIGUSR2,SIGTERM"], {}), ([], {"PET_SIGNALS_TO_HANDLE": "USR2, TERM ,SIGTERM"}):
        assert crun.run(*args, worker, "env", extra_env=env)[0] == 0
        assert json.loads(crun.wait_file("env-0"))["env"]["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGUSR2,SIGTERM"


@pytest.mark.parametrize("option", ["--signals-to-handle", "--preemption-signal"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGNOPE", "", "SIGTERM,,SIGINT"])
def test_a_signal_that_cannot_be_handled_is_refused(crun, option, name):
    rc, _, err = crun.run(f"{option}={name}", "true")
    assert rc == 2 and option[2:] in err and "SIGTERM, SIGINT" in err and err.count(f"'{name}'") == 1, err


@pytest.mark.parametrize("name", ["HUP", "INT", "USR1"])
def test_what_was_ignored_stays_ignored(crun, name):
    p = crun.start("--signals-to-handle", "SIGTERM,SIGHUP,SIGINT,SIGUSR1", "sh", "-c", f"trap 'exit 9' {name}; touch {crun.tmp}/up; sleep 0.3; echo end",
                   preexec_fn=lambda: signal.signal(SIGNALS[name], signal.SIG_IGN))
    crun.wait_file("up")
    p.send_signal(SIGNALS[name])
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0 and b"end" in out


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_usr1_and_usr2_go_to_the_workers_that_catch_them(crun, name):
    """Rank 0 catches it; rank 1 would die of it; rank 2 is a shell that would, around a program that catches it."""
    catches = f"import signal, time; signal.signal(signal.SIG{name}, lambda *a: open('{crun.tmp}/got-$RANK', 'w')); open('{crun.tmp}/up-$RANK', 'w'); time.sleep(1000)"
    p = crun.start("--nproc_per_node", 3, "sh", "-c", f"""[ $RANK = 1 ] && {{ touch {crun.tmp}/up-1; exec sleep 100; }}
        [ $RANK = 0 ] && exec python3 -c "{catches}"
        python3 -c "{catches}"; true""", preexec_fn=defaults)
    for r in range(3):
        crun.wait_file(f"up-{r}")
    for _ in range(2):
        p.send_signal(SIGNALS[name])
        for r in (0, 2):
            crun.wait_file(f"got-{r}")
            os.unlink(crun.tmp / f"got-{r}")
    assert p.poll() is None
    p.terminate()
    rc, err = end(p, crun)
    assert rc == 143 and "stopped by SIGTERM" in err, err


def test_usr1_before_there_are_workers_is_not_the_end_of_crun(crun):
    p = crun.start("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{crun.port()}", "--run-id", "u", "--insecure", "--log-level", "info", "true",
                   preexec_fn=defaults)
    crun.wait_processes(OWN)
    for _ in range(50):
        p.send_signal(signal.SIGUSR1)
        p.send_signal(signal.SIGUSR2)
    p.terminate()
    assert end(p, crun)[0] == 143


def test_a_preemption_notice_ends_with_75_and_the_workers_see_a_drain(crun, worker):
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 3, "--preemption-signal", "SIGUSR1", worker, "drain")
    for r in (0, 1):
        crun.wait_file(f"ready-{r}")
    p.send_signal(signal.SIGUSR1)
    rc, err = end(p, crun)
    assert rc == 75 and [crun.wait_file(f"reason-{r}") for r in (0, 1)] == ["3", "3"]
    assert "stopped after SIGUSR1, a preemption notice" in err and "restart" not in err


def test_the_time_limit_ends_with_75_and_the_workers_see_a_drain(crun, worker):
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 3, "--time-limit", "2s", worker, "drain")
    rc, err = end(p, crun)
    assert rc == 75 and "stopped after 2 s, the time limit; start it again" in err and "restart" not in err, err


@pytest.mark.parametrize("there", [False, True], ids=["comes later", "is there from the start"])
def test_a_preemption_file_ends_with_75_and_the_workers_see_a_drain(crun, worker, there):
    notice, log = crun.tmp / "notice", crun.tmp / "events.jsonl"
    if there:
        notice.touch()
    p = crun.start("--nproc_per_node", 2, "--max-restarts", 3, "--preemption-file", notice, "--event-log", log, worker, "drain")
    if not there:
        for r in (0, 1):
            crun.wait_file(f"ready-{r}")
        notice.touch()
    rc, err = end(p, crun)
    assert rc == 75 and "stopped after the file of --preemption-file, a preemption notice; start it again" in err, err
    if not there:
        assert [crun.wait_file(f"reason-{r}") for r in (0, 1)] == ["3", "3"]
    notices = [e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "notice"]
    assert [e["by"] for e in notices] == ["preemption-file"]


def test_slurms_limit_leaves_time_for_the_drain(crun, worker):
    """auto: it drains --drain-timeout and 5 s before the end that Slurm names, at once where that has passed."""
    p = crun.start("--time-limit", "auto", "--drain-timeout", "20s", worker, "drain", extra_env={"SLURM_JOB_END_TIME": str(int(time.time()) + 25)})
    rc, err = end(p, crun)
    assert rc == 75 and "stopped after 1 s, the time limit" in err, err


@pytest.mark.parametrize("text, why", [("soon", "expected a time such as 90m or 4h"), ("0.5", "from 1 s to 365d"), ("400d", "from 1 s to 365d")])
def test_a_time_limit_that_is_none_is_refused(crun, text, why):
    rc, _, err = crun.run("--time-limit", text, "true")
    assert rc == 2 and "time-limit" in err and why in err, err


def test_an_end_of_slurm_that_is_no_time_is_refused(crun):
    rc, _, err = crun.run("--time-limit", "auto", "true", extra_env={"SLURM_JOB_END_TIME": "tomorrow"})
    assert rc == 2 and "SLURM_JOB_END_TIME is 'tomorrow', expected seconds since 1970" in err, err


def test_a_limit_that_nobody_knows_is_said_to_be_none(crun):
    rc, _, err = crun.run("--time-limit", "auto", "true", extra_env={"SLURM_JOB_END_TIME": ""})
    assert rc == 0 and "--time-limit auto has no effect: SLURM_JOB_END_TIME is not set" in err, err
    rc, _, err = crun.run("--time-limit", "off", "true")
    assert (rc, err) == (0, "")


@pytest.mark.parametrize("name", ["USR2", "TERM"])
def test_a_preempted_job_of_workers_that_know_nothing_is_to_be_started_again(crun, name):
    p = start(crun, "--preemption-signal", name)
    p.send_signal(SIGNALS[name])
    assert end(p, crun)[0] == 75


def test_a_preempted_worker_that_crashes_is_named(crun):
    p = crun.start("--nproc_per_node", 2, "--preemption-signal", "USR1", "sh", "-c",
                   f"trap 'exit 5' TERM; touch {crun.tmp}/up-$RANK; while :; do sleep 0.01; done", preexec_fn=defaults)
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    p.send_signal(signal.SIGUSR1)
    rc, err = end(p, crun)
    assert rc == 5 and "stopped by SIGUSR1, a preemption notice; not in good order: rank 0 exited with code 5" in err, err


@pytest.mark.parametrize("codes, ends, rounds, rc", [
    ("3,77", "exit 3", 1, 3), ("3,77", "exit 77", 1, 77), ("3,77", "exit 4", 3, 4), ("130-139", "kill -SEGV $$", 1, 139),
    ("130-138", "kill -SEGV $$", 3, 139), ("none", "exit 3", 3, 3),
])
def test_a_fatal_code_is_not_worth_another_try(crun, codes, ends, rounds, rc):
    got, out, err = crun.run("--nproc_per_node", 2, "--max-restarts", 2, "--restart-backoff", 0, "--fatal-codes", codes, "sh", "-c",
                             f"[ $RANK = 0 ] || exec sleep 100; echo round; {ends}")
    assert (got, out.count("round")) == (rc, rounds), err


def test_a_fatal_code_ends_the_other_nodes_too(crun):
    port = crun.port()
    nodes = [crun.start("--nnodes", 2, "--node-rank", n, "--rdzv-endpoint", f"127.0.0.1:{port}", "--run-id", "f", "--insecure", "--max-restarts", 5,
                        "--fatal-codes", "7", "sh", "-c", "[ $RANK = 0 ] || exec sleep 100; exit 7") for n in (0, 1)]
    said = [p.communicate(timeout=60)[1].decode() for p in nodes]
    assert [p.returncode for p in nodes] == [7, 7], said
    assert "restart 1/5" not in "".join(said)


@pytest.mark.parametrize("codes", ["0", "256", "5-3", "x", "", "1,,2"])
def test_wrong_fatal_codes_are_refused(crun, codes):
    rc, _, err = crun.run(f"--fatal-codes={codes}", "true")
    assert rc == 2 and "fatal-codes" in err and "1 to 255" in err, err
