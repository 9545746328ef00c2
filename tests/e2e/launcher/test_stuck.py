"""One half of crun is stopped, spins, or is in the hands of a debugger: the user's wish, and a kill -9, still end everything. How soon, `./dev bench stuck` judges."""
import contextlib
import ctypes
import os
import resource
import select
import signal
import time

import pytest

from crun_run import OWN
from held import HOW, stuck
from processes import children, comm, state, wait
from support import preload

# Two workers, and a daemon of each.
WORKER = "setsid sleep 1000 & touch $HERE/up-$RANK; exec sleep 1000"


def start(crun, *args, worker=WORKER, env=None):
    p = crun.start("--nproc_per_node", 2, *args, "sh", "-c", worker, extra_env={"HERE": str(crun.tmp), **(env or {})})
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    return p, crun.agent_of(p.pid), direct_workers(crun.agent_of(p.pid))


def direct_workers(agent):
    pids = [pid for pid in children(agent) if comm(pid) in ("sh", "sleep")]
    assert len(pids) == 2
    return pids


def said(p):
    return p.communicate(timeout=60)[1].decode()


@pytest.mark.parametrize("how", HOW)
def test_a_signal_ends_what_a_stuck_agent_does_not(crun, how):
    p, agent, _ = start(crun)
    with stuck(agent, how):
        begun = time.monotonic()
        p.terminate()
        err = said(p)
        took = time.monotonic() - begun
    assert p.returncode == 143 and 5 <= took, (took, err)
    assert f"its agent (pid {agent}, state " in err and "did not take SIGTERM within 5 s: it and the workers were ended (exit code 143)" in err
    assert "does not take signals" in err
    assert crun.processes() == [] and crun.leftovers() == []


@pytest.mark.long
def test_an_agent_that_has_read_the_signal_is_given_the_grace_it_named(crun):
    p, agent, _ = start(crun, "--drain-timeout", 1, worker="trap 'touch $HERE/told-$RANK' TERM; touch $HERE/up-$RANK; while :; do sleep 0.05; done")
    p.terminate()
    begun = time.monotonic()
    for r in (0, 1):
        crun.wait_file(f"told-{r}")
    with stuck(agent, "stopped"):
        err = said(p)
        took = time.monotonic() - begun
    assert p.returncode == 143 and "was to end after SIGTERM, and did not for 5 s more" in err, err
    assert 5.9 <= took, took
    assert crun.processes() == []


@pytest.mark.parametrize("how", HOW)
def test_the_third_sigint_ends_a_stuck_agent_at_once(crun, how):
    p, agent, _ = start(crun)
    with stuck(agent, how):
        for _ in range(2):
            p.send_signal(signal.SIGINT)
            time.sleep(1.05)  # sooner it is the same wish told twice
        assert p.poll() is None
        for _ in range(2):  # of two that were read late, one more may be needed
            p.send_signal(signal.SIGINT)
            time.sleep(1.05)
        err = said(p)
    assert p.returncode == 130 and "a third SIGINT" in err and "did not take" not in err, err
    assert crun.processes() == []


def wait_dead(pids):
    """Though nobody lets go of what is stuck."""
    wait("their end", lambda: all(state(pid) in (None, "Z") for pid in pids))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_the_kill_of_one_half_ends_everybody_though_the_other_is_stuck(crun, victim, how):
    p, agent, workers = start(crun)
    other, killed = (agent, p.pid) if victim == "guardian" else (p.pid, agent)
    with stuck(other, how):
        everybody = set(crun.processes()) - {p.pid, agent}
        os.kill(killed, signal.SIGKILL)
        wait_dead(workers)
        wait("the end of their daemons", lambda: all(state(pid) in (None, "Z") for pid in everybody if pid not in crun.own(p.pid)))
        if victim == "agent":
            p.kill()
        crun.wait_processes_gone()
    p.communicate(timeout=60)
    assert crun.leftovers() == []


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_the_half_that_is_left_is_stopped_as_it_begins_to_act(crun, victim):
    env = {**preload("fault_signal"), "FAULT_SIGNAL_SWEEP": str(int(signal.SIGSTOP)), "FAULT_SIGNAL_FIRST": str(crun.tmp / "first"), "HERE": str(crun.tmp)}
    p = crun.start("--nproc_per_node", 2, "--cgroup", "off", "sh", "-c", WORKER, extra_env=env)
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    agent = crun.agent_of(p.pid)
    crun.wait_processes(OWN + 4)  # the two that made the files are gone
    everybody = set(crun.processes()) - set(crun.own(p.pid))
    assert len(everybody) == 4 and not (crun.tmp / "first").exists()
    os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
    wait("the end of workers and daemons", lambda: all(state(pid) in (None, "Z") for pid in everybody), 10)
    crun.wait_file("first")
    if victim == "agent":
        p.kill()
    crun.wait_processes_gone()
    p.communicate(timeout=60)


def test_the_deputy_leaves_the_output_process_the_last_words(crun):
    with open(crun.tmp / "out", "wb") as out:
        p = crun.start("sh", "-c", "setsid sleep 1000 & touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; echo last words; touch $HERE/said; exec sleep 1000",
                       extra_env={"HERE": str(crun.tmp)}, stdout=out)
    crun.wait_file("up")
    agent, output = crun.agent_of(p.pid), crun.output_of(p.pid)
    os.kill(output, signal.SIGSTOP)
    crun.wait_state(output, "T")
    with crun.stopped(p.pid):
        (crun.tmp / "go").touch()
        crun.wait_file("said")
        os.kill(agent, signal.SIGKILL)
        wait("the end of the daemon", lambda: len(crun.processes()) <= 3)  # guardian, deputy, output process
        assert state(output) == "T"
        os.kill(output, signal.SIGCONT)
        wait("the last words", lambda: b"last words" in (crun.tmp / "out").read_bytes())
    said(p)
    assert p.returncode == 137 and crun.processes() == [] and crun.leftovers() == []


@pytest.mark.parametrize("victims", ["guardian", "agent", "guardian agent"])
def test_a_stopped_deputy_outlives_nobody(crun, victims):
    p, agent, _ = start(crun, worker="touch $HERE/up-$RANK; exec sleep 1000")
    deputy = crun.deputy_of(p.pid)
    os.kill(deputy, signal.SIGSTOP)
    crun.wait_state(deputy, "T")
    for v in victims.split():
        with contextlib.suppress(ProcessLookupError):  # an agent without a guardian ends
            os.kill(p.pid if v == "guardian" else agent, signal.SIGKILL)
    crun.wait_processes_gone(10)
    p.communicate(timeout=60)


def test_a_killed_deputy_is_replaced_and_told(crun):
    p, agent, workers = start(crun, worker="touch $HERE/up-$RANK; exec sleep 1000")
    while b"OMP_NUM_THREADS" not in p.stderr.readline():
        pass
    deputies = [crun.deputy_of(p.pid)]
    for _ in range(3):
        os.kill(deputies[-1], signal.SIGKILL)
        deputies.append(crun.deputy_of(p.pid, *deputies))
        line = p.stderr.readline().decode()
        assert line == f"crun: its deputy process (pid {deputies[-2]}) is gone; another took over (pid {deputies[-1]})\n"
        assert state(deputies[-2]) is None, "nobody has reaped it"
    assert direct_workers(agent) == workers
    with stuck(agent, "stopped"):  # the last one acts as the first would have
        p.kill()
        wait_dead(workers)
    p.communicate(timeout=60)
    crun.wait_processes_gone()
    assert crun.leftovers() == []


def test_a_deputy_that_dies_each_time_is_not_started_for_ever(crun):
    p, _, _ = start(crun, worker="touch $HERE/up-$RANK; exec sleep 1000")
    err = b""
    while b"its deputy process cannot be started (10 were): the last 10 ended at once" not in err:
        with contextlib.suppress(StopIteration, ProcessLookupError):
            os.kill(next(pid for pid in children(p.pid) if comm(pid) == "job-deputy"), signal.SIGKILL)
        while select.select([p.stderr], [], [], 0.05)[0]:
            err += os.read(p.stderr.fileno(), 65536) or pytest.fail(err)
    assert err.count(b"another took over") == 9, err
    assert "job-deputy" not in [comm(pid) for pid in children(p.pid)]
    p.terminate()
    assert p.wait(60) == 143 and crun.processes() == []


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_the_output_process_stands_in_for_a_deputy_killed_with_a_half(crun, victim, how):
    p, agent, workers = start(crun)
    deputy = crun.deputy_of(p.pid)
    everybody = set(crun.processes()) - set(crun.own(p.pid))
    with contextlib.ExitStack() as held:
        if victim == "guardian":
            held.enter_context(stuck(agent, how))
            os.kill(p.pid, signal.SIGSTOP)  # it replaces nobody
        else:
            held.enter_context(stuck(p.pid, how))
        os.kill(deputy, signal.SIGKILL)
        os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
        wait_dead(everybody)
        if victim == "agent":
            p.kill()
        crun.wait_processes_gone(30)
    err = said(p)
    assert victim == "agent" or how == "stopped" or err.count("the guardian is gone and its agent") == 1, err
    assert crun.leftovers() == []


def test_the_output_process_says_what_it_did_before_it_ends(crun):
    words = "crun: the guardian is gone and its agent"
    p, agent, workers = start(crun, env={**preload("fault_slow"), "FAULT_SLOW_WORDS": words, "FAULT_SLOW_MS": "500"})
    deputy = crun.deputy_of(p.pid)
    with stuck(agent, "traced"):
        os.kill(p.pid, signal.SIGSTOP)  # it replaces nobody
        os.kill(deputy, signal.SIGKILL)
        p.kill()
        wait_dead([agent, *workers])
        crun.wait_processes_gone(30)
    assert said(p).count(words) == 1
    assert crun.leftovers() == []


@contextlib.contextmanager
def subreaper():
    """Orphans become our children, as in a container they are the first process's: of its session, so that the kernel wakes no stopped one."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def test_a_stopped_agent_goes_on_when_nobody_is_left_to_act_for_it(crun):
    with subreaper():
        p, agent, _ = start(crun, worker="touch $HERE/up-$RANK; exec sleep 1000")
        own = [crun.deputy_of(p.pid), crun.output_of(p.pid), p.pid]
        with stuck(agent, "stopped"):
            os.kill(p.pid, signal.SIGSTOP)  # it replaces nobody
            for pid in own:
                os.kill(pid, signal.SIGKILL)
            p.communicate(timeout=60)
            crun.wait_processes_gone(30)
        for pid in (agent, *own[:2]):
            os.waitpid(pid, 0x40000000)  # __WALL


@pytest.mark.parametrize("how", ["traced", "gdb"])
def test_a_dead_worker_that_a_debugger_holds_is_dead(crun, how):
    p, _, workers = start(crun, "--shutdown-timeout", 0.5, "--kill-timeout", 30)
    with stuck(workers[0], how):
        p.terminate()
        err = said(p)
        assert p.returncode == 143 and "still there" not in err, err
    assert crun.processes() == []


def test_a_stopped_guardian_acts_on_sigcont(crun):
    p, agent, _ = start(crun)
    with stuck(p.pid, "stopped"):
        p.terminate()
        os.kill(agent, signal.SIGKILL)
        time.sleep(0.2)
        assert p.poll() is None
    os.kill(p.pid, signal.SIGCONT)
    said(p)
    assert p.returncode == 137 and crun.processes() == []


def test_what_a_stopped_guardian_did_not_see_is_no_delay_of_the_agents(crun):
    """Its five seconds are those that it ran itself."""
    p, agent, _ = start(crun)
    with stuck(agent, "stopped"):
        p.terminate()
        wait("the guardian's wait", lambda: state(p.pid) == "S")
        with crun.stopped(p.pid):
            time.sleep(5.5)
        wait("the guardian's wait", lambda: state(p.pid) == "S")
        os.kill(agent, signal.SIGCONT)
        err = said(p)
    assert p.returncode == 143 and "did not take" not in err, err
    assert crun.processes() == []


def test_alone_a_stopped_agent_is_reported_and_not_killed(crun):
    p, agent, workers = start(crun)
    with stuck(agent, "stopped"):
        line = p.stderr.readline()
        while b"was stopped by SIGSTOP" not in line:
            assert line
            line = p.stderr.readline()
        assert f"its agent (pid {agent}) was stopped by SIGSTOP: until SIGCONT nobody watches the workers" in line.decode()
        assert not {state(pid) for pid in workers} & {None, "Z", "T"}
    os.kill(agent, signal.SIGCONT)
    p.terminate()
    assert "did not take" not in said(p) and p.returncode == 143


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_counts_from_the_first_moment(crun, name):
    signo = getattr(signal, "SIG" + name)
    p = crun.start("sleep", 1000, extra_env={**preload("fault_signal"), "FAULT_SIGNAL_SOCKETPAIR": str(int(signo))},
                   preexec_fn=lambda: signal.signal(signo, signal.SIG_DFL))
    err = said(p)
    assert p.returncode in (75, 128 + signo), (p.returncode, err)
    assert crun.processes() == []


def test_a_kernel_that_is_too_old_is_a_sentence(crun):
    rc, _, err = crun.run("true", extra_env={**preload("fault_proc"), "FAULT_PROC_OLD": "1"})
    assert rc == 69 and err == f"crun: this kernel (Linux {os.uname().release}) has no pidfd_open(2): expected Linux 5.3 or newer\n"


@pytest.mark.parametrize("call", ["clone3", "pidfd_open"])
def test_a_filter_that_refuses_new_calls_is_a_sentence(crun, call):
    rc, _, err = crun.run("true", extra_env={**preload("fault_proc"), "FAULT_PROC_FILTER": call})
    assert rc == 69 and err.startswith(f"crun: {call}(2) is refused here, as by the seccomp filter of an old container runtime: ") and err.count("\n") == 1, err


def test_a_stack_that_is_too_small_is_a_sentence(crun):
    limit = 64 * 1024
    p = crun.start("true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (limit, limit)))
    err = said(p)
    assert p.returncode == 69 and err == "crun: the stack is limited to 64 KiB here (ulimit -s, RLIMIT_STACK): expected at least 128\n"


def locked_kb(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck:"))


def limit_memlock(limit):
    """For a process that may lock no more than that, root or not (CAP_IPC_LOCK)."""
    ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to lock memory beyond the usual limit")
def test_both_halves_keep_their_memory_and_workers_do_not(crun):
    p = crun.start("sh", "-c", f"touch {crun.tmp}/up; exec sleep 1000")
    crun.wait_file("up")
    agent = crun.agent_of(p.pid)
    worker, = children(agent)
    if any(f"lib{s}san.so" in open(f"/proc/{agent}/maps").read() for s in "at"):
        p.kill()
        pytest.skip("the address sanitizer needs mlockall(2) to do nothing, as that of threads does")
    wait("the locks", lambda: locked_kb(p.pid) > 0 and locked_kb(agent) > 0)
    assert locked_kb(worker) == 0
    p.terminate()
    said(p)


@pytest.mark.parametrize("limit", [0, 64 << 10, 4 << 20])
def test_a_small_limit_of_locked_memory_fails_no_run(crun, limit):
    rc, out, err = crun.run("--nproc_per_node", 2, "echo", "end", preexec_fn=lambda: limit_memlock(limit))
    assert rc == 0 and out.count("end") == 2, err
