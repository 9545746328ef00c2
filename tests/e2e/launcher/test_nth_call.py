"""An agent whose Nth allocation or system call fails, once or from then on, as it starts, sees a worker die, restarts, is stopped."""
import signal
import time

import pytest

import nth_call

DIES = 'test "$TORCHELASTIC_RESTART_COUNT" != 0 || exit 3'
AGENT = "crun.1"
FEW = 25  # of each kind, on a day


def restart(crun, env, injected=None):
    """One worker dies and is started again: (exit code, what was said)."""
    p = crun.start("--standalone", "--max-restarts", "1", "sh", "-c", DIES, extra_env=env)
    if injected:
        injected.attach()
    _, said = p.communicate(timeout=nth_call.PATIENCE_S)
    return p.returncode, said.decode(errors="replace")


def stop(crun, env, injected=None):
    """A stop while the worker runs."""
    (crun.tmp / "up").unlink(missing_ok=True)
    p = crun.start("--standalone", "sh", "-c", f"touch {crun.tmp}/up; exec sleep 100", extra_env=env)
    if injected:
        injected.attach()
    end = time.monotonic() + nth_call.PATIENCE_S
    while not (crun.tmp / "up").exists() and p.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    if p.poll() is None:
        p.send_signal(signal.SIGTERM)
    _, said = p.communicate(timeout=nth_call.PATIENCE_S)
    return p.returncode, said.decode(errors="replace")


def check(crun, what, log, env, injected=None):
    log.unlink(missing_ok=True)
    code, said = what(crun, env, injected)
    nth_call.check_end(code, said)
    crun.wait_processes_gone(nth_call.PATIENCE_S)
    assert crun.leftovers() == []
    return code, said


def check_allocations(crun, what, few, on):
    log = crun.tmp / "log"
    code, said = check(crun, what, log, nth_call.environment(AGENT, log))
    assert code == (0 if what is restart else 143), said
    keys = nth_call.keys(log, few, not on)
    assert len(keys) >= FEW
    missed = 0
    for key in keys:
        check(crun, what, log, nth_call.environment(AGENT, log, at=key, on=on))
        missed += not nth_call.has_failed(log)
    assert missed <= len(keys) / 10, f"{missed} of {len(keys)} were never reached"


@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("what", [restart, stop])
def test_an_allocation_of_the_agent_fails(crun, what, on):
    check_allocations(crun, what, FEW, on)


@pytest.mark.slow
@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("what", [restart, stop])
def test_any_allocation_of_the_agent_fails(crun, what, on):
    check_allocations(crun, what, nth_call.ALL, on)


def test_short_writes_to_log_files_lose_nothing(crun):
    lines = "".join(f"line {i} of a worker\n" for i in range(1000))
    (crun.tmp / "lines").write_text(lines)
    code, _, said = crun.run("--standalone", "--log-dir", crun.tmp / "logs", "--redirects", "3", "cat", crun.tmp / "lines", extra_env=nth_call.environment("job-output", crun.tmp / "log", short=1))
    assert code == 0, said
    assert [f.read_text() for f in (crun.tmp / "logs").rglob("rank-0.out")] == [lines]


def check_call(crun, call, error, n):
    """False: the agent makes fewer of these calls."""
    (crun.tmp / "held").unlink(missing_ok=True)
    injected = nth_call.Injected(crun.tmp, AGENT, call, error, n)
    check(crun, restart, crun.tmp / "log", injected.environment, injected)
    return injected.detach()


CALLS = [(call, error) for call in ("openat", "accept4", "clone3", "mmap") for error in nth_call.ERRORS[call]]


def test_a_system_call_of_the_agent_fails(crun):
    call, error = CALLS[nth_call.today() % len(CALLS)]
    for n in nth_call.numbers(40, 3):
        check_call(crun, call, error, n)


@pytest.mark.slow
@pytest.mark.parametrize("call, error", CALLS)
def test_any_system_call_of_the_agent_fails(crun, call, error):
    n = 1
    while check_call(crun, call, error, n):
        n += 1
