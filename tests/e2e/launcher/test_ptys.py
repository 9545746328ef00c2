"""Several workers and a terminal: who reads it, terminals of their own, workers that are stopped."""

import os
import re
import select
import signal
import time

import pytest

from processes import children, wait
from test_terminal import Shell

DEBUGS = "import os\nx = 6\nif os.environ['RANK'] == '1':\n    breakpoint()\nprint('end', os.environ['RANK'], x, flush=True)\n"
ASKS = """
import getpass, os, sys
if os.environ["RANK"] == "0":
    print("got", getpass.getpass("secret: ")[::-1], sys.stdout.isatty(), os.get_terminal_size().columns, flush=True)
"""
BAR = "import sys, time\nfor i in range(3):\n    sys.stderr.write(f'\\rbar {i}/3')\n    sys.stderr.flush()\nsys.stderr.write('\\n')\nprint(sys.stderr.isatty())\n"


@pytest.fixture
def shell(crun):
    s = Shell(crun.env)
    yield s
    s.close()


def script(crun, text):
    (crun.tmp / "script.py").write_text(text)
    return crun.tmp / "script.py"


@pytest.mark.parametrize("options", ["--stdin-rank 1", "--pty 1", "--pty all --stdin-rank 1"])
def test_a_debugger_works_in_one_of_several(crun, shell, options):
    shell.run(f"$CRUN --nproc_per_node 2 {options} {script(crun, DEBUGS)}")
    shell.until(r"\(Pdb\) ")
    shell.run("p x * 7")
    shell.until(r"42\r?\n")
    shell.until(r"\(Pdb\) ")
    shell.run("x = 9")
    shell.until(r"\(Pdb\) ")
    shell.run("c")
    shell.until("end 1 9")
    shell.until("ready> ")
    assert shell.code() == 0 and crun.processes() == [shell.p.pid]
    shell.run("stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo -e -echo -e -icanon | sort")
    shell.until(r"\r\necho\r?\nicanon\r?\n")


def test_a_password_is_asked_for_and_not_shown(crun, shell):
    shell.run("stty cols 123")
    shell.until("ready> ")
    shell.run(f"$CRUN --nproc_per_node 2 --pty 0 {script(crun, ASKS)}")
    shell.until("secret: ")
    shell.run("wolf")
    text = shell.until("got flow True 123")
    assert "wolf" not in text
    shell.until("ready> ")
    assert shell.code() == 0


def test_a_live_bar_comes_as_it_is(crun, shell):
    shell.run(f"$CRUN --pty all {script(crun, BAR)}")
    text = shell.until("True\r?\n")
    assert "\rbar 0/3\rbar 1/3\rbar 2/3\r\n" in text, text


def test_a_worker_that_asks_for_a_terminal_is_refused_and_not_stopped(crun, shell):
    shell.run(f"$CRUN --nproc_per_node 2 {script(crun, ASKS)}")
    shell.until("EOFError")
    shell.until("ready> ")
    assert shell.code() == 1


@pytest.mark.parametrize("option, said", [(["--stdin-rank", 2], "--stdin-rank 2: expected one of the job's 2 ranks, 0 to 1"),
                                          (["--pty", "0,5-7"], "--pty 5: expected some of the job's 2 ranks, 0 to 1")])
def test_a_rank_that_the_job_does_not_have_is_refused(crun, option, said):
    rc, _, err = crun.run("--nproc_per_node", 2, *option, "true")
    assert rc == 2 and said in err, err


def test_standard_input_goes_to_the_rank_that_is_named(crun):
    p = crun.start("--nproc_per_node", 2, "--stdin-rank", 1, "sh", "-c", "echo $RANK $(cat)", stdin=-1)
    out, _ = p.communicate(b"words\n", timeout=60)
    assert p.returncode == 0 and sorted(out.decode().splitlines()) == ["[default0]: 0", "[default1]: 1 words"]


def test_output_of_a_terminal_is_clean_where_nobody_looks(crun):
    rc, out, _ = crun.run("--nproc_per_node", 2, "--pty", "all", "sh", "-c", "test -t 1 && test -t 0 && echo yes $RANK; printf end")
    assert rc == 0 and sorted(out.splitlines()) == ["[default0]: end", "[default0]: yes 0", "[default1]: end", "[default1]: yes 1"]


FAILS = "import sys, time\nprint('words')\nsys.stderr.write('\\rbar 1/2\\rbar 2/2')\nsys.stderr.flush()\nraise ValueError('no such thing')\n"


def test_a_report_has_the_last_lines_of_a_terminal(crun):
    rc, _, err = crun.run("--nproc_per_node", 2, "--pty", "all", "--log-dir", crun.tmp / "logs", script(crun, FAILS))
    assert rc == 1 and "stderr    last lines:" in err
    report = err[err.index("stderr    last lines:"):]
    assert "words" in report and "ValueError: no such thing" in report and "bar 1/2" not in report, err


def test_a_report_has_the_last_lines_of_a_terminal_that_is_shown_as_it_comes(crun, shell):
    shell.run(f"$CRUN --pty all {script(crun, FAILS)}")
    text = shell.until("ready> ")
    shown, report = text.split("last lines:")
    assert shown.count("ValueError: no such thing") == 1 and "bar 1/2\rbar 2/2" in shown, text
    assert "ValueError: no such thing" in report and shell.code() == 1


def test_workers_are_in_sessions_of_their_own(crun):
    rc, out, _ = crun.run("--nproc_per_node", 2, "--no-log-prefix", "python3", "-c", "import os; print(os.getsid(0) == os.getpid())")
    assert rc == 0 and out == "True\nTrue\n"


def test_a_worker_that_is_stopped_is_named(crun):
    p = crun.start("--nproc_per_node", 2, "sh", "-c", "touch $HERE/up-$RANK; exec sleep 1000", extra_env={"HERE": str(crun.tmp)})
    for r in (0, 1):
        crun.wait_file(f"up-{r}")
    agent = crun.agent_of(p.pid)
    wait("both", lambda: len(children(agent)) == 2)
    victim = children(agent)[1]
    os.kill(victim, signal.SIGSTOP)
    said = b""
    while b"was stopped" not in said or not said.endswith(b"\n"):
        assert select.select([p.stderr], [], [], 60)[0], said
        piece = os.read(p.stderr.fileno(), 65536)
        assert piece, said
        said += piece
    assert f"(pid {victim}) was stopped by SIGSTOP; kill -CONT {victim}" in said.decode()
    begun = time.monotonic()
    for _ in range(20):  # in turns, as `crun chaos` slows a worker: the console does not tell each time
        for signo in (signal.SIGCONT, signal.SIGSTOP):
            os.kill(victim, signo)
            time.sleep(0.02)
    rest = b""
    while not rest.endswith(b"\n"):  # it is left stopped: that is told when the pause is over
        assert select.select([p.stderr], [], [], 60)[0], "a stop that lasts was not reported"
        rest += os.read(p.stderr.fileno(), 65536)
    assert re.search(rb"\(pid %d\) was stopped by SIGSTOP; .* \(\d+ stops since the last such line were not reported\)\n$" % victim, rest), rest
    p.terminate()
    _, rest2 = p.communicate(timeout=60)
    assert (rest + rest2).count(b"was stopped by SIGSTOP") <= (time.monotonic() - begun) // 10, rest
    assert p.returncode == 143
