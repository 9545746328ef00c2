"""A process that stands still, or seems to: stopped, spinning, in the hands of a debugger."""
import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from processes import state, wait
from support import BUILD

HOW = ["stopped", "spinning", "traced", "gdb"]


@contextlib.contextmanager
def debugger(pid):
    """A person looks at it, and thinks."""
    if not shutil.which("gdb"):
        pytest.skip("no gdb here")
    gdb = subprocess.Popen(["gdb", "-nx", "-q", "-p", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env={**os.environ, "DEBUGINFOD_URLS": ""})
    try:
        gdb.stdin.write("set confirm off\necho ready\\n\n")
        gdb.stdin.flush()
        text = ""
        while not text.endswith("ready\n"):
            text += gdb.stdout.readline() or pytest.fail(text)
        if "ptrace: " in text:
            pytest.skip("ptrace: gdb may hold no process here")
        wait("the stop", lambda: state(pid) == "t")
        yield
    finally:
        gdb.communicate("quit\n", timeout=60)


@contextlib.contextmanager
def stuck(pid, how):
    if how == "gdb":
        with debugger(pid):
            yield
        return
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
        wait("the stop", lambda: state(pid) == "T")
        yield
        return
    p = subprocess.Popen([BUILD / "tests" / "fault" / "hold", str(pid), "spin" if how == "spinning" else "stop"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
    try:
        if p.stdout.readline() != "ready\n":
            pytest.skip("ptrace: no process can be held here, or be made to spin")
        yield
    finally:
        p.communicate(timeout=60)
