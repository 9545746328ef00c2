"""A rendezvousd whose Nth allocation or system call fails, once or from then on, as it starts, serves keys, a job and its page, ends."""
import contextlib
import json
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

import nth_call
from daemon import Client, RespError
from support import RENDEZVOUSD

NAME = "rendezvousd"
FEW = 25  # of each kind, on a day
GONE = (OSError, EOFError, RespError, ValueError)


class Acknowledged(dict):
    """Keys of which it said OK."""

    def put(self, port, key):
        with contextlib.suppress(*GONE), Client(port) as c:
            if c("SET", key, "v" * 100) == "OK":
                self[key] = "v" * 100

    def check(self, port):
        """By a client that is served: the first one may be that for which there is no memory."""
        for attempt in range(3):
            try:
                with Client(port) as c:
                    assert {k: c("GET", k) for k in self} == self
                    return
            except GONE:
                assert attempt < 2


def join(port, run):
    with contextlib.suppress(*GONE), Client(port) as c:
        c("RDZV.JOIN", run, "n1", "slots=1", "v=1", "nnodes=1:1", "max_restarts=3", "silence=600000")
        c("RDZV.NEXT", run, "n1", "0", "1000")


def look(url):
    for path in ("/metrics", "/", "/api/jobs"):
        with contextlib.suppress(*GONE, urllib.error.URLError, json.JSONDecodeError), urllib.request.urlopen(url + path, timeout=nth_call.PATIENCE_S) as r:
            r.read()


def use(said, data, served):
    """All that is asked of it. served: it must answer whoever comes next."""
    port = int(said[0].rsplit(":", 1)[1])
    data.put(port, "first")
    join(port, "one")
    look(said[1].split()[-1].rstrip("/"))
    join(port, "two")
    data.put(port, "second")
    if served:
        data.check(port)


def life(tmp, env, injected=None, on=False):
    """-> (exit code, stderr)"""
    state, data = tmp / "state", Acknowledged()
    with open(tmp / "err", "w+") as err:
        p = subprocess.Popen([str(RENDEZVOUSD), "--port", "0", "--http-port", "0", "--state-dir", str(state)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                             text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp), **env})
        try:
            if injected:
                injected.attach()
            said = [p.stdout.readline(), p.stdout.readline()]
            if said[1]:
                use(said, data, not on)
                p.send_signal(signal.SIGTERM)
            code = p.wait(nth_call.PATIENCE_S)
        finally:
            p.kill()
            p.communicate()
        err.seek(0)
        return code, err.read()


def check(tmp, env, injected=None, on=False):
    (tmp / "log").unlink(missing_ok=True)
    code, said = life(tmp, env, injected, on)
    nth_call.check_end(code, said)
    return code, said


def check_allocations(tmp, few, on):
    log = tmp / "log"
    code, said = check(tmp, nth_call.environment(NAME, log))
    assert code == 0, said
    keys, missed = nth_call.keys(log, few, not on), 0
    for key in keys:
        check(tmp, nth_call.environment(NAME, log, at=key, on=on), on=on)
        missed += not nth_call.has_failed(log)
    assert missed <= len(keys) / 10, f"{missed} of {len(keys)} were never reached"
    assert check(tmp, {})[0] == 0  # and its state can be read


@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
def test_an_allocation_of_the_daemon_fails(tmp_path, on):
    check_allocations(tmp_path, FEW, on)


@pytest.mark.slow
@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
def test_any_allocation_of_the_daemon_fails(tmp_path, on):
    check_allocations(tmp_path, nth_call.ALL, on)


def is_served(port):
    try:
        with Client(port) as c:
            return c("PING") == "PONG"
    except GONE:
        return False


def accepts(env, log):
    """A daemon that is ready, and then 40 clients at once: (lines of the log when it was ready, when it had served one; which clients were served)."""
    p = subprocess.Popen([str(RENDEZVOUSD), "--port", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    try:
        port = int(p.stdout.readline().rsplit(":", 1)[1])
        before = len(nth_call.sites(log))
        with contextlib.ExitStack() as stay:
            served, first = [], 0
            for _ in range(40):
                served.append(is_served(port))
                first = first or len(nth_call.sites(log))
                with contextlib.suppress(*GONE):
                    stay.enter_context(Client(port))
        p.send_signal(signal.SIGTERM)
        assert p.wait(nth_call.PATIENCE_S) == 0
        return before, first, served
    finally:
        p.kill()
        p.communicate()


def test_an_accept_that_finds_no_memory_closes_that_one_connection(tmp_path):
    log = tmp_path / "log"
    before, _, served = accepts({"PATH": "/usr/bin:/bin", **nth_call.environment(NAME, log)}, log)
    assert all(served)
    all_sites = nth_call.sites(log)
    late = [n for n in range(before + 1, len(all_sites) + 1) if all_sites[n - 1].startswith(NAME)]  # libc's depend on the time
    chosen = {site: [n for n in late if all_sites[n - 1] == site] for site in {all_sites[n - 1] for n in late}}
    missed = 0  # by a key that a busy machine does not reach
    for numbers in chosen.values():
        for n in {numbers[0], numbers[-1]}:
            log.unlink(missing_ok=True)
            _, _, served = accepts({"PATH": "/usr/bin:/bin", **nth_call.environment(NAME, log, at=nth_call.key(all_sites, n))}, log)
            missed += not nth_call.has_failed(log)
            assert served.count(False) <= 1, (all_sites[n - 1], served)
    assert missed <= len(chosen) / 3, f"{missed} of {len(chosen)}"



def test_a_client_that_epoll_has_no_room_for_is_closed_and_no_other(tmp_path):
    log, path = tmp_path / "log", {"PATH": "/usr/bin:/bin"}
    _, first, served = accepts({**path, **nth_call.environment(NAME, log, watch="none")}, log)
    assert all(served) and set(nth_call.sites(log)) == {"watch"}
    last = len(nth_call.sites(log))
    for n in {first + 1, last}:
        _, _, served = accepts({**path, **nth_call.environment(NAME, log, watch=n)}, log)
        assert served.count(False) <= 1, (n, served)
    _, _, served = accepts({**path, **nth_call.environment(NAME, log, watch=first + 2)}, log)  # after the first that stays
    assert served.index(False) == 1 and served.count(False) == 1


def check_call(tmp, call, error, n):
    """False: it makes fewer of these calls."""
    (tmp / "held").unlink(missing_ok=True)
    injected = nth_call.Injected(tmp, NAME, call, error, n)
    check(tmp, injected.environment, injected)
    return injected.detach()


CALLS = [(call, error) for call in ("openat", "fsync", "accept4", "clone3", "mmap") for error in nth_call.ERRORS[call]]


def test_a_system_call_of_the_daemon_fails(tmp_path):
    call, error = CALLS[nth_call.today() % len(CALLS)]
    for n in nth_call.numbers(30, 3):
        check_call(tmp_path, call, error, n)


@pytest.mark.slow
@pytest.mark.parametrize("call, error", CALLS)
def test_any_system_call_of_the_daemon_fails(tmp_path, call, error):
    n = 1
    while check_call(tmp_path, call, error, n):
        n += 1
