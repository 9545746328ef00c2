"""Several workers and a terminal: who reads it, terminals of their own, workers that are stopped."""

import contextlib
import os
import pathlib
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


@pytest.mark.parametrize("options", ["", "--log-dir $TMPDIR/logs", "</dev/null"])
def test_the_bar_of_a_worker_that_is_alone_is_live_too(crun, shell, options):
    shell.run(f"$CRUN {options} {script(crun, BAR.rpartition('print')[0])}")
    shell.until("\rbar 0/3\rbar 1/3\rbar 2/3\r\n")


TWO_NODES = "--nnodes 1:2 --rdzv-endpoint localhost:{} --rdzv-conf last_call_timeout=0.1"


def test_a_worker_of_several_nodes_has_the_terminal(crun, shell):
    shell.run(f"$CRUN {TWO_NODES.format(crun.port())} python3 -c 'import sys; print(sys.stdout.isatty())'")
    shell.until(r"\nTrue\r\n")


@pytest.mark.parametrize("job", ["", TWO_NODES])
def test_a_worker_that_is_alone_has_the_prefix_that_is_asked_for(crun, shell, job):
    shell.run(f"$CRUN --log-prefix {job.format(crun.port())} {script(crun, BAR)}")
    text = shell.until("ready> ")
    assert re.search(r"\[default0\]: (\rbar 0/3\rbar 1/3\r)?bar 2/3\r\n", text) and "[default0]: False\r\n" in text, text


FLOODS = """
import os, pathlib, sys, time
here = pathlib.Path(os.environ["TMPDIR"])
(here / "up").write_text(str(os.getpid()))
while not (here / "go").exists():
    time.sleep(0.01)
for _ in range(8192):
    os.write(int(sys.argv[1]), b"x" * 1023 + b"\\n")
(here / "done").touch()
"""


@pytest.mark.parametrize("options, fd", [("", 2), ("--local-ranks-filter 0", 1), ("--local-ranks-filter 0", 2), ("--pty all", 1)])
def test_a_live_stream_waits_for_a_terminal_that_does_not_read(crun, shell, options, fd):
    shell.run(f"$CRUN {options} {script(crun, FLOODS)} {fd}")
    crun.wait_file("up")
    worker = int(wait("its pid", (crun.tmp / "up").read_text))
    output = crun.output_of(children(shell.p.pid)[0])
    end = "ptmx" if "--pty" in options else fds(worker)[fd]
    ours = {n for n, at in fds(output).items() if at.endswith(end)}
    wait("its stream to be read", lambda: ours & polled(output))
    (crun.tmp / "go").touch()
    wait("its stream to be left alone", lambda: (crun.tmp / "done").exists() or not ours & polled(output))
    assert not (crun.tmp / "done").exists()
    while not (crun.tmp / "done").exists():
        assert select.select([shell.fd], [], [], 60)[0], "the worker is held, although its terminal is read"
        os.read(shell.fd, 65536)
    shell.until("ready> ")
    assert shell.code() == 0


def fds(pid):
    """{descriptor: what it is}"""
    at = pathlib.Path(f"/proc/{pid}/fd")
    return {int(fd): os.readlink(at / fd) for fd in os.listdir(at)}


def polled(pid):
    """Descriptors that this process waits for."""
    found = set()
    for fd in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.update(map(int, re.findall(r"^tfd:\s+(\d+)", fd.read_text(), re.M)))
    return found


ENDS_WITHIN = "import sys\nsys.stderr.write({!r})\nsys.stderr.flush()\nsys.exit(3)\n"


@pytest.mark.parametrize("options, written, shown", [("", "\r1/9 it\r2/9 it", "\r2/9 it\r\ncrun: "), ("--pty all", "\r2/9 it", "\r2/9 it\r\ncrun: "),
                                                     ("", "\r9/9 it\n", "\r9/9 it\r\ncrun: ")])
def test_what_crun_says_begins_a_line(crun, shell, options, written, shown):
    shell.run(f"$CRUN --max-restarts 1 {options} {script(crun, ENDS_WITHIN.format(written))}")
    text = shell.until("ready> ")
    assert text.count(shown) == 2 and "it\r\n\r\n" not in text, text


BAR_AND_LINE = """
import os, sys, time
if os.environ["RANK"] == "0":
    sys.stderr.write("\\r2/9 it")
    sys.stderr.flush()
while not os.path.exists(os.environ["TMPDIR"] + "/go"):
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    print("mine", flush=True)
"""


def test_a_line_of_another_rank_is_not_glued_to_a_bar(crun, shell):
    shell.run(f"$CRUN --nproc_per_node 2 --pty 0 {script(crun, BAR_AND_LINE)}")
    shell.until("\r2/9 it")
    (crun.tmp / "go").touch()
    assert shell.until(r"\[default1\]: mine\r\n") == "\r\n[default1]: mine\r\n"


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
    rest, told = b"", rb"\(pid %d\) was stopped by SIGSTOP; .* \(\d+ stops since the last such line were not reported\)\n$" % victim
    while not re.search(told, rest):  # it is left stopped: that is told when the pause is over
        assert select.select([p.stderr], [], [], 60)[0], f"a stop that lasts was not reported: {rest}"
        rest += os.read(p.stderr.fileno(), 65536)
    p.terminate()
    _, rest2 = p.communicate(timeout=60)
    assert (rest + rest2).count(b"was stopped by SIGSTOP") <= (time.monotonic() - begun) // 10, rest
    assert p.returncode == 143


def ups(shell, n):
    """pids of the workers, by rank"""
    found = {}
    while len(found) < n:
        rank, pid = re.search(r"up (\d) (\d+)\r?\n", shell.until(r"up \d \d+\r?\n")).groups()
        found[int(rank)] = int(pid)
    return found


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("options", ["--stdin-rank 1 --nproc_per_node 2", ""])
def test_the_worker_with_the_terminal_dies_of_its_signal_before_crun_hears_of_that(crun, shell, options, signo):
    """The terminal signals both; the worker's end may be the first news."""
    shell.run(f"$CRUN --max-restarts 3 {options} sh -c 'echo up $RANK $$; exec sleep 1000'")
    pids = ups(shell, 2 if "2" in options else 1)
    os.kill(pids[max(pids)], signo)
    assert f"crun: stopped by {signo.name}\r\n" in shell.until("ready> ")
    assert shell.code() == 128 + signo


def test_a_job_that_is_stopped_and_killed_is_not_restarted(crun, shell):
    """`kill %1` reaches crun and the worker at once; here the worker is first for sure."""
    shell.run("$CRUN --max-restarts 3 sh -c 'echo up $RANK $$; exec sleep 1000'")
    worker, guardian = ups(shell, 1)[0], children(shell.p.pid)[0]
    shell.type("\x1a")
    shell.until("ready> ")
    for pid in guardian, worker:
        os.kill(pid, signal.SIGTERM)
    os.kill(worker, signal.SIGCONT)
    assert "restart 1/3" not in shell.until("crun: stopped by SIGTERM\r\n")
    os.kill(guardian, signal.SIGCONT)
    wait("its end", lambda: crun.processes() == [shell.p.pid])
