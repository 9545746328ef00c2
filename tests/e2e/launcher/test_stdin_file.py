"""`crun --stdin-rank 0 ... <file`: the file is read by a thread of the output process, so that its disk reaches nobody else; to the worker it is as `cat file | crun ...`."""
import os
import signal
import subprocess

import pytest

from processes import children, state, wait

TEXT = b"".join(b"line %d\n" % n for n in range(30000))  # more than a pipe holds
TAKES = "touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; exec cat"


def is_asleep(pid):
    """All of its threads, of which there are two at least."""
    threads = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    return len(threads) > 1 and all(state(t) == "S" for t in threads)


def start(crun, path, program, *options, **kw):
    """Popen would hold the lock that the disk's thread needs."""
    return crun.start("--stdin-rank", 0, *options, "sh", "-c", program, extra_env={"HERE": str(crun.tmp)}, prefix=["sh", "-c", 'exec "$@" <"$0"', path], **kw)


@pytest.fixture
def hung(crun, disk):
    """A job whose standard input lies on a disk that hangs, with a worker that waits for more of it -> (Popen, pid of the worker)."""
    disk.write("in", TEXT)
    p = start(crun, crun.tmp / "disk" / "in", TAKES, "--shutdown-timeout", 1, stdout=subprocess.DEVNULL)
    crun.wait_file("up")
    worker, = children(crun.agent_of(p.pid))
    disk.pause()
    (crun.tmp / "go").touch()
    assert disk.asked.wait(30)
    yield p, worker
    disk.resume()
    p.communicate(timeout=60)
    crun.wait_processes_gone(30)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_with_its_disk_hung_a_signal_ends_crun(crun, hung, signo):
    p, worker = hung
    reader = crun.output_of(p.pid)
    p.send_signal(signo)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 128 + signo, err
    assert state(worker) is None and crun.processes() in ([], [reader]), "at most who reads is left, held by the disk"
    assert f"crun: its output process {reader} (job-output, state D" in err.decode() and "is held by a disk or a shared folder and ends when that answers" in err.decode(), err


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_with_its_disk_hung_no_worker_outlives_a_half(crun, hung, victim):
    p, worker = hung
    os.kill(p.pid if victim == "guardian" else crun.agent_of(p.pid), signal.SIGKILL)
    wait("the end of the worker", lambda: state(worker) in (None, "Z"))
    assert p.wait(timeout=60) == (-9 if victim == "guardian" else 137)


def test_a_worker_has_all_of_it_and_its_end(crun):
    (crun.tmp / "in").write_bytes(TEXT)
    p = start(crun, crun.tmp / "in", "cat")
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == TEXT, err
    assert crun.processes() == []


def test_another_that_reads_takes_the_place_of_one_that_is_killed(crun):
    """And nothing is lost, or comes twice."""
    (crun.tmp / "in").write_bytes(TEXT)
    p = start(crun, crun.tmp / "in", TAKES)
    crun.wait_file("up")
    outputs = [crun.output_of(p.pid)]
    for _ in range(3):
        wait("a full pipe", lambda: is_asleep(outputs[-1]))
        os.kill(outputs[-1], signal.SIGKILL)
        outputs.append(crun.output_of(p.pid, *outputs))
    (crun.tmp / "go").touch()
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == TEXT, err


def test_the_place_in_the_file_is_that_of_its_shell(crun):
    """`(head -n 1; crun; cat) <file`: crun begins where the shell is, and what follows finds the end."""
    (crun.tmp / "in").write_bytes(b"one\ntwo\n")
    script = f'(read one; {crun.program} --stdin-rank 0 cat; cat; echo "was $one") <{crun.tmp}/in'
    out = subprocess.run(["sh", "-c", script], env=crun.env, stdout=subprocess.PIPE, timeout=60, check=True).stdout
    assert out == b"two\nwas one\n"


def test_a_file_that_cannot_be_read_is_reported(crun):
    p = start(crun, f"/proc/{os.getpid()}/mem", "cat; echo end")  # its first byte is nobody's
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == b"end\n"
    assert b"crun: standard input ends early: Input/output error\n" in err, err
