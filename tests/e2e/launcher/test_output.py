"""Every line arrives whole, on the console and in the files."""

import collections
import os
import re
import select
import signal
import subprocess
import time

import pytest

from processes import wait
from support import preload


def test_four_ranks_of_ten_thousand_lines_arrive_whole(crun, worker):
    rc, out, _ = crun.run("--nproc_per_node", 4, "--log-dir", crun.tmp / "logs", "--run-id", "j", worker, "lines", 10000)
    assert rc == 0
    seen = collections.defaultdict(list)
    for line in out.splitlines():
        m = re.fullmatch(r"\[default(\d)\]: line (\d+) of rank (\d) (x*)", line)
        assert m and m[1] == m[3] and len(m[4]) == int(m[2]) % 97, line
        seen[m[1]].append(int(m[2]))
    assert {r: s == list(range(10000)) for r, s in seen.items()} == {str(r): True for r in range(4)}
    for r in range(4):
        text = (crun.tmp / "logs" / "j" / "round-1" / f"rank-{r}.out").read_text()
        assert text.count("\n") == 10000 and text.startswith("line 0 of") and "[default" not in text
        assert (crun.tmp / "logs" / "j" / "round-1" / f"rank-{r}.err").read_text() == ""


def test_stdout_and_stderr_into_one_pipe_never_cut_into_each_other(crun):
    script = "i=0; while [ $i -lt 3000 ]; do echo out-$RANK-$i; echo err-$RANK-$i >&2; i=$((i+1)); done"
    rc, out, _ = crun.run("--nproc_per_node", 2, "sh", "-c", script, stderr=subprocess.STDOUT, extra_env={"OMP_NUM_THREADS": "1"})
    assert rc == 0
    lines = out.splitlines()
    assert len(lines) == 12000 and all(re.fullmatch(r"\[default(\d)\]: (out|err)-\1-\d+", l) for l in lines)


def test_lines_of_a_mebibyte_arrive_whole(crun, worker):
    rc, out, _ = crun.run("--nproc_per_node", 2, worker, "long_line", 1 << 20)
    assert rc == 0
    assert sorted(out.splitlines()) == [f"[default{r}]: " + c * (1 << 20) for r, c in enumerate("ab")]


def test_the_last_words_without_a_newline_are_kept(crun):
    rc, out, err = crun.run("sh", "-c", "printf unfinished; printf last-words >&2; kill -9 $$")
    assert rc == 137 and out == "unfinished\n"
    assert err.startswith("last-words\n") and "    | last-words\n" in err


def test_a_closed_stdout_does_not_disturb(crun, worker):
    r, w = os.pipe()
    os.close(r)
    p = crun.start("--nproc_per_node", 2, worker, "lines", 5000, stdout=w)
    os.close(w)
    p.communicate(timeout=60)
    assert p.returncode == 0
    rc, _, _ = crun.run("sh", "-c", "echo x; exit 6", stdout=None, preexec_fn=lambda: os.close(1))
    assert rc == 6


def test_a_console_that_reads_slowly_loses_nothing(crun, worker):
    p = crun.start("--nproc_per_node", 2, worker, "lines", 60000)
    for r in (0, 1):
        crun.wait_file(f"writing-{r}")
    cpu_time = lambda: open(f"/proc/{crun.output_of(p.pid)}/stat").read().split()[13:15]
    before, end = None, time.monotonic() + 60
    while before != cpu_time():  # several megabytes: soon the workers are blocked, and crun waits without spinning
        assert time.monotonic() < end, "crun spins"
        before = cpu_time()
        time.sleep(0.4)
    out, _ = p.communicate(timeout=180)
    assert p.returncode == 0 and out.count(b"\n") == 120000


def test_a_console_that_reads_nothing_keeps_no_stopped_job(crun):
    r, w = os.pipe()
    p = crun.start("--nproc_per_node", 2, "yes", stdout=w)
    wait("a full pipe", lambda: not select.select([], [w], [], 0)[1])
    p.terminate()
    assert p.wait(30) == 143
    assert re.search(rb"crun: \d+ bytes for stdout were lost: it was not read, and the job was stopped\n", p.stderr.read())
    os.close(r)
    os.close(w)


def test_the_callers_stdout_keeps_its_flags(crun):
    r, w = os.pipe()
    p = crun.start("sh", "-c", "echo x", stdout=w)
    p.communicate(timeout=60)
    assert os.get_blocking(w)
    os.close(w)
    assert os.read(r, 100) == b"x\n"
    os.close(r)


def test_a_file_as_stdout_is_appended_to_in_order(crun):
    path = crun.tmp / "all"
    path.write_text("before\n")
    with open(path, "ab") as f:
        p = crun.start("sh", "-c", "echo one; echo two", stdout=f, stderr=f)
        p.communicate(timeout=60)
    assert path.read_text() == "before\none\ntwo\n"


@pytest.mark.parametrize("what", [["--help"], ["--print-config", "x"], ["--completion", "bash"], ["--dry-run", "true"]])
def test_what_was_only_to_be_printed_is_printed_or_an_error(crun, what):
    with open("/dev/full", "wb") as f:
        p = crun.start(*what, stdout=f)
        _, err = p.communicate(timeout=60)
    assert p.returncode == 73
    assert b"crun: the output cannot be written: No space left on device" in err
    p = crun.start(*what)
    p.stdout.close()  # a pager that was left
    assert p.wait(60) == 0 and p.stderr.read() == b""


def test_a_full_disk_costs_output_but_not_the_job(crun, worker):
    with open("/dev/full", "wb") as f:
        p = crun.start("--nproc_per_node", 2, worker, "lines", 1000, stdout=f)
        _, err = p.communicate(timeout=60)
    assert p.returncode == 0
    assert b"No space left" in err


def test_every_round_keeps_its_files(crun):
    rc, _, _ = crun.run("--max-restarts", 1, "--log-dir", crun.tmp / "logs", "--run-id", "j", "sh", "-c",
                        "echo round $CRUN_ROUND; [ $CRUN_ROUND = 2 ]")
    assert rc == 0
    for r in (1, 2):
        assert (crun.tmp / "logs" / "j" / f"round-{r}" / "rank-0.out").read_text() == f"round {r}\n"


def test_a_log_folder_that_cannot_be_made_is_one_sentence(crun):
    rc, _, err = crun.run("--log-dir", "/dev/null/x", "true")
    assert rc == 73 and "/dev/null" in err and len(err.splitlines()) == 1


def shown_while_it_runs(crun, script, until, *options, meanwhile=lambda p: None):
    """-> the console's lines, once until(what is shown) and the job has ended; files hold the bytes as they were written"""
    p = crun.start("--nproc-per-node", 2, "--log-dir", crun.tmp / "logs", "--run-id", "j", *options, "sh", "-c", script,
                   stderr=subprocess.DEVNULL)
    os.set_blocking(p.stdout.fileno(), True)
    meanwhile(p)
    got, end = b"", time.monotonic() + 60
    while not until(got):
        assert p.poll() is None and time.monotonic() < end, got
        got += os.read(p.stdout.fileno(), 4096)
    (crun.tmp / "seen").touch()
    got += p.communicate(timeout=60)[0]
    assert p.returncode == 0
    return got.decode().splitlines()


WAIT_SEEN = "until [ -e $TMPDIR/seen ]; do sleep 0.02; done; "


def test_a_line_that_stands_unfinished_is_shown_meanwhile(crun):
    lines = shown_while_it_runs(crun, f"printf loading...; {WAIT_SEEN} echo ' done'; echo whole", lambda got: got.count(b"\n") >= 2)
    assert sorted(lines[:2]) == ["[default0]: loading...", "[default1]: loading..."]
    assert sorted(lines[2:]) == sorted(f"[default{r}]: {t}" for r in (0, 1) for t in (" done", "whole"))
    assert (crun.tmp / "logs/j/round-1/rank-1.out").read_text() == "loading... done\nwhole\n"


@pytest.mark.parametrize("bar", [r"\r%d%%", r"%d%%\r"])
def test_progress_bars_are_lines_one_a_second_and_the_last(crun, bar):
    script = (f'i=0; until [ -e $TMPDIR/seen -a $i -ge 100 ]; do i=$((i+1)); printf "{bar}" $i; sleep 0.02; done; '
              f'printf "{bar}\n" 1000; echo end')
    start = time.monotonic()
    lines = shown_while_it_runs(crun, script, lambda got: all(got.count(b"[default%d]" % r) >= 2 for r in (0, 1)))
    took = time.monotonic() - start
    for r in (0, 1):
        mine = [l.split(": ")[1] for l in lines if l.startswith(f"[default{r}]")]
        assert mine[-2:] == ["1000%", "end"] and all(re.fullmatch(r"\d+%", m) for m in mine[:-1])
        assert 4 <= len(mine) <= took + 4
        raw = (crun.tmp / f"logs/j/round-1/rank-{r}.out").read_bytes()
        assert raw.count(b"\r") > len(mine) and raw.endswith(b"\nend\n")


def test_a_log_file_that_is_a_fifo_is_written_if_somebody_reads_it(crun):
    folder = crun.tmp / "logs" / "j" / "round-1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "rank-0.out")
    args = ["--log-dir", crun.tmp / "logs", "--run-id", "j", "echo", "x"]
    rc, _, err = crun.run(*args, timeout=30)
    assert rc == 73 and "rank-0.out: it is a FIFO that nobody reads" in err
    fd = os.open(folder / "rank-0.out", os.O_RDONLY | os.O_NONBLOCK)
    rc, _, _ = crun.run(*args, timeout=30)
    assert rc == 0 and os.read(fd, 100) == b"x\n"
    os.close(fd)


def test_a_signal_ends_the_wait_for_a_console_that_never_reads(crun, worker):
    # more than a pipe holds, less than crun queues
    p = crun.start("--nproc_per_node", 1, "--event-log", crun.tmp / "events", worker, "lines", 2000)
    end = time.monotonic() + 60
    while "job_ended" not in crun.wait_file("events"):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.2)
    assert p.poll() is None, "the output is not lost: somebody may still read it"
    p.terminate()
    assert p.wait(timeout=60) == 0
    p.communicate()


def test_a_signal_just_before_that_wait_ends_it_too(crun, worker):
    p = crun.start("--nproc_per_node", 1, worker, "lines", 2000, extra_env={**preload("fault_signal"), "FAULT_SIGNAL_UNWATCH": str(int(signal.SIGTERM))})
    assert p.wait(timeout=60) == 0
    p.communicate()


def test_crun_on_a_terminal(crun):
    """A pseudo terminal: output arrives, Ctrl-C ends the job once."""
    import pty
    pid, fd = pty.fork()
    if pid == 0:
        from crun_run import CRUN
        os.execve(CRUN, [CRUN, "sh", "-c", "echo hello; exec sleep 100"], crun.env)
    got = b""
    while b"hello" not in got:
        got += os.read(fd, 1000)
    os.write(fd, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    os.close(fd)
    assert crun.processes() == []
