"""One worker and a terminal: the worker has it, as if crun were not there. A shell with job control, through a pty."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest

from crun_run import CRUN
from processes import children, comm


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self, env):
        self.fd, child = pty.openpty()

        def take_terminal():
            os.setsid()
            import fcntl
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.p = subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=child, stdout=child, stderr=child,
                                  env=dict(env, PS1="ready> ", TERM="dumb", CRUN=CRUN), preexec_fn=take_terminal)
        os.close(child)
        self.text = ""
        self.until("ready> ")

    def until(self, pattern, seconds=60):
        """What came up to the pattern; it is taken out."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        before, self.text = self.text[:found.end()], self.text[found.end():]
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def run(self, line):
        self.type(line + "\n")

    def code(self):
        self.run("echo code=$?=")
        return int(re.search(r"code=(\d+)=", self.until(r"code=\d+=\r?\n"))[1])

    def close(self):
        os.close(self.fd)
        self.p.kill()
        self.p.wait()


@pytest.fixture
def shell(crun):
    s = Shell(crun.env)
    yield s
    s.close()


def test_a_debugger_works(crun, shell):
    (crun.tmp / "prog.py").write_text("x = 6\nbreakpoint()\nprint('the', 'end', x)\n")
    shell.run(f"$CRUN {crun.tmp}/prog.py")
    shell.until(r"\(Pdb\) ")
    shell.run("p x * 7")
    shell.until(r"42\r?\n")
    shell.until(r"\(Pdb\) ")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.until("ready> ")
    shell.run("fg")
    shell.until("CRUN")
    shell.run("x = 9")
    shell.run("c")
    shell.until("the end 9")
    shell.until("ready> ")
    assert shell.code() == 0 and crun.processes() == [shell.p.pid]


@pytest.mark.parametrize("key, code", [("\x03", 130), ("\x1c", 131)])
def test_a_typed_signal_is_the_workers_matter_and_no_failure(crun, shell, key, code):
    shell.run("$CRUN --max-restarts 3 sh -c 'echo up; exec cat'")
    shell.until("\r\nup\r?\n")
    shell.run("hello")
    shell.until("hello\r?\nhello\r?\n")
    shell.type(key)
    shell.until("ready> ")
    assert shell.code() == code and crun.processes() == [shell.p.pid]


@pytest.mark.parametrize("key, signo", [("\x03", "INT"), ("\x1c", "QUIT")])
def test_a_worker_may_say_by_its_code_that_it_was_stopped(crun, shell, key, signo):
    code = 128 + signal.Signals[f"SIG{signo}"]
    program = (f"import signal, sys; s = [signal.SIG{signo}]; signal.pthread_sigmask(signal.SIG_BLOCK, s); "
               f"print(\"up\", flush=True); signal.sigwait(s); sys.exit({code})")  # a trap of a shell waits for its read where it comes just before
    shell.run(f"$CRUN --max-restarts 3 python3 -S -c '{program}'")
    shell.until("\r\nup\r?\n")
    shell.type(key)
    shell.until("ready> ")
    assert shell.code() == code and crun.processes() == [shell.p.pid]


@pytest.mark.parametrize("code", [129, 130, 131])
def test_a_code_without_the_signal_is_a_failure(crun, shell, code):
    shell.run(f"$CRUN --max-restarts 1 sh -c 'exit {code}'")
    said = shell.until("ready> ")
    assert f"restart 1/1 (rank 0 exited with code {code})" in said and f"sh failed: rank 0 exited with code {code}" in said, said
    assert shell.code() == code


def test_a_worker_may_catch_ctrl_c_and_go_on(crun, shell):
    shell.run("""$CRUN bash -c 'trap "echo caught" INT; echo up; read a; read b; echo got $b'""")
    shell.until("\r\nup\r?\n")
    shell.type("\x03")
    shell.until("caught")
    shell.run("first")
    shell.run("second")
    shell.until("got second|got first")
    shell.until("ready> ")
    assert shell.code() == 0


@pytest.mark.parametrize("control", ["set -m", "set +m"], ids=["own_group", "group_of_the_shell"])
def test_a_kill_of_crun_leaves_the_shell_and_no_child_of_the_worker(crun, shell, control):
    shell.run(f"{control}; cd {crun.tmp}; $CRUN --cgroup off sh -c 'sleep 1000 & touch up; sleep 1000; true'")
    crun.wait_file("up")
    guardian = next(pid for pid in children(shell.p.pid) if comm(pid) == "crun")
    crun.kill_both(guardian, in_shell=True)
    shell.until("ready> ")
    crun.wait_processes(1)
    assert shell.code() == 137 and crun.processes() == [shell.p.pid]


def test_the_terminal_is_given_back_as_it_was(crun, shell):
    shell.run("$CRUN sh -c 'stty -echo -icanon; exit 3'; echo code=$?=")
    shell.until("code=3=\r?\n")
    shell.until("ready> ")
    shell.run("$CRUN sh -c 'stty -echo; kill -9 $$'; stty -a | tr ' ' '\\n' | grep -x -e -echo -e echo")
    shell.until(r"\r\necho\r?\n")


def test_several_workers_read_nothing(crun, shell):
    shell.run("$CRUN --nproc_per_node 2 cat; echo code=$?=")
    shell.until("code=0=\r?\n")


def test_a_signal_sent_to_crun_still_stops_the_worker(crun, shell):
    shell.run("$CRUN sh -c 'echo pid $PPID; cat'")
    shell.until(r"\r\npid \d+")
    guardian = int(open(f"/proc/{shell.p.pid}/task/{shell.p.pid}/children").read().split()[0])
    os.kill(guardian, signal.SIGTERM)
    shell.until("ready> ")
    assert shell.code() == 143 and crun.processes() == [shell.p.pid]
