"""Workers get the signal that crun got: Python's clean-up runs at Ctrl-C, as under torchrun."""

import os
import re
import shlex
import signal
import subprocess

import pytest

from test_terminal import Shell

CLEANS_UP = """
import atexit, os, signal, sys, time
rank, here = os.environ["RANK"], os.environ["HERE"]
atexit.register(lambda: open(f"{here}/atexit-{rank}", "w").close())
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    open(f"{here}/up-{rank}", "w").close()
    while True:
        time.sleep(0.05)
finally:
    open(f"{here}/finally-{rank}", "w").close()
"""

# Tells which signals came, and goes by SIGTERM only.
TELLS = """
import os, signal, time
def told(signo, frame):
    print("got", signal.Signals(signo).name, flush=True)
    if signo == signal.SIGTERM:
        raise SystemExit(0)
for s in "INT HUP QUIT TERM USR1".split():
    signal.signal(getattr(signal, "SIG" + s), told)
open(os.environ["HERE"] + "/up-" + os.environ["RANK"], "w").close()
while True:
    time.sleep(0.05)  # a signal that comes just before a sleep is seen behind it
"""


def script(crun, text, name="script.py"):
    (crun.tmp / name).write_text(text)
    return crun.tmp / name


def start(crun, *args, n=2, **kw):
    p = crun.start(*args, extra_env={"HERE": str(crun.tmp)}, **kw)
    for r in range(n):
        crun.wait_file(f"up-{r}")
    return p


def end(crun, p):
    out, err = p.communicate(timeout=90)
    crun.wait_processes_gone(10)
    return p.returncode, out.decode(), err.decode()


def test_sigint_is_a_keyboard_interrupt_in_every_worker(crun):
    p = start(crun, "--nproc_per_node", 2, "--max-restarts", 3, script(crun, CLEANS_UP))
    p.send_signal(signal.SIGINT)
    rc, _, err = end(crun, p)
    assert rc == 130 and "stopped by SIGINT" in err and " failed: " not in err and "not in good order" not in err, err
    assert all((crun.tmp / f"{what}-{r}").exists() for what in ("finally", "atexit") for r in (0, 1)), err


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGINT"])
def test_sigterm_follows_only_late_in_the_grace(crun, name):
    p = start(crun, "--nproc_per_node", 1, "--drain-timeout", 4, script(crun, TELLS), n=1, stdin=-3)
    p.send_signal(getattr(signal, name))
    rc, out, _ = end(crun, p)
    assert rc == 75 and re.findall(r"got (\w+)", out) == [name, "SIGTERM"], out


def test_sigterm_comes_once(crun):
    p = start(crun, "--drain-timeout", 4, script(crun, TELLS), n=1, stdin=-3)
    p.send_signal(signal.SIGTERM)
    rc, out, _ = end(crun, p)
    assert rc == 75 and re.findall(r"got (\w+)", out) == ["SIGTERM"], out


@pytest.mark.parametrize("home", ["tcp", "file"])
def test_the_workers_of_other_nodes_get_it_too(crun, home):
    (crun.tmp / "home").mkdir()
    where = f"127.0.0.1:{crun.port()}" if home == "tcp" else f"file://{crun.tmp}/home"
    args = ("--nnodes", 2, "--rdzv-endpoint", where, "--run-id", "int", *(["--insecure"] if home == "tcp" else []))
    env = lambda n: {"HERE": str(crun.tmp), "CRUN_NODE_RANK": str(n)}
    nodes = [crun.start(*args, script(crun, CLEANS_UP), extra_env=env(n)) for n in (0, 1)]
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    nodes[1].send_signal(signal.SIGINT)
    (rc0, _, err0), (rc1, _, err1) = (end_of(p) for p in nodes)
    crun.wait_processes_gone(10)
    assert rc1 == 130 and rc0 == 75 and " failed: " not in err0 + err1, (rc0, err0, rc1, err1)
    assert "not in good order" not in err0 + err1
    assert all((crun.tmp / f"{what}-{r}").exists() for what in ("finally", "atexit") for r in (0, 1))


def end_of(p):
    out, err = p.communicate(timeout=90)
    return p.returncode, out.decode(), err.decode()


@pytest.fixture
def shell(crun):
    s = Shell(dict(crun.env, HERE=str(crun.tmp)))
    yield s
    s.close()


@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_c_runs_finally_and_atexit(crun, shell, n):
    shell.run(f"$CRUN --nproc_per_node {n} {script(crun, CLEANS_UP)}")
    for r in range(n):
        crun.wait_file(f"up-{r}")
    shell.type("\x03")
    shell.until("ready> ")
    assert shell.code() == 130 and crun.processes() == [shell.p.pid]
    assert all((crun.tmp / f"{what}-{r}").exists() for what in ("finally", "atexit") for r in range(n))


def test_the_one_worker_that_exits_130_after_ctrl_c_has_not_failed(crun, shell):
    exits = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *a: os._exit(130))
open(os.environ["HERE"] + "/up-0", "w").close()
while True:
    time.sleep(0.05)
"""
    shell.run(f"$CRUN --max-restarts 3 {script(crun, exits)}")
    crun.wait_file("up-0")
    shell.type("\x03")
    text = shell.until("ready> ")
    assert " failed: " not in text and "restart" not in text, text
    assert shell.code() == 130


def test_other_signals_are_forwarded_where_that_is_asked_for(crun):
    p = start(crun, "--forward-signal", "SIGHUP,SIGALRM", "--signals-to-handle", "SIGTERM", script(crun, TELLS), n=1, stdin=-3)
    p.send_signal(signal.SIGHUP)
    assert p.stdout.readline().decode().endswith("got SIGHUP\n")
    p.send_signal(signal.SIGALRM)  # it neither catches nor blocks it: death, which is kept from it
    p.send_signal(signal.SIGUSR1)  # no longer named, but never crun's end
    p.send_signal(signal.SIGTERM)
    rc, out, err = end(crun, p)
    assert rc == 75 and "USR1" not in out and "SIGTERM" in out, (out, err)


def test_a_signal_reaches_the_group_of_a_worker_and_nobody_who_left_it(crun):
    def child(name, left):
        return ["python3", "-c", f"import os, signal\n{'os.setsid()' if left else ''}\nsignal.signal(signal.SIGUSR1, lambda *_: print('got', '{name}', flush=True))\n"
                f"open('{crun.tmp}/up-{name}', 'w').close()\nwhile True: signal.pause()"]
    words = [shlex.join(child(name, left)) for name, left in (("left", True), ("0", False))]
    p = start(crun, "sh", "-c", f"{words[0]} & until [ -e {crun.tmp}/up-left ]; do sleep 0.02; done; {words[1]}", n=1, stdin=-3)
    p.send_signal(signal.SIGUSR1)
    assert p.stdout.readline().decode().endswith("got 0\n")
    p.send_signal(signal.SIGTERM)
    rc, out, err = end(crun, p)
    assert rc == 128 + signal.SIGTERM and "got" not in out, (out, err)


def test_a_signal_that_comes_at_once_is_forwarded(crun):
    """The worker may be ready for it before its agent knows that it is there: three of ten were lost."""
    for _ in range(12):
        p = crun.start("bash", "-c", "trap 'echo got; exit' USR1; echo up; for i in $(seq 300); do sleep 0.01; done", stdin=subprocess.DEVNULL)
        assert p.stdout.readline().endswith(b"up\n")
        p.send_signal(signal.SIGUSR1)
        assert p.communicate(timeout=60)[0].endswith(b"got\n") and p.returncode == 0


def test_no_signal_is_forwarded_with_none(crun):
    p = start(crun, "--forward-signal", "none", script(crun, TELLS), n=1, stdin=-3)
    p.send_signal(signal.SIGUSR1)
    p.send_signal(signal.SIGTERM)
    rc, out, err = end(crun, p)
    assert rc == 75 and "USR1" not in out, (rc, out, err)
