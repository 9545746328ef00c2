"""`crun ... >log 2>&1`: a file is written by a thread of the output process, so that its disk reaches nobody else; in all else it is as before."""
import os
import re
import resource
import signal
import subprocess

import pytest

from processes import children, comm, kill, state, wait

GRACE = 1  # seconds
TALKS = "touch $HERE/up-$RANK; trap '' TERM; while :; do echo line; sleep 0.01; done"


def into(path, redirect='>>"$0" 2>&1'):
    """What becomes crun with its standard output and error there: Popen would hold the lock that the disk's thread needs."""
    return ["sh", "-c", f'exec "$@" {redirect}', path]


@pytest.fixture
def hung(crun, disk):
    """A job whose stdout and stderr lie on a disk that hangs, with their process in it -> (Popen, agent, pids of workers)."""
    p = crun.start("--nproc-per-node", 2, "--shutdown-timeout", GRACE, "sh", "-c", TALKS, extra_env={"HERE": str(crun.tmp)},
                   prefix=into(crun.tmp / "disk" / "out"))
    for rank in (0, 1):
        crun.wait_file(f"up-{rank}")
    wait("lines", lambda: disk.files["out"].count(b"line") > 2)
    agent = crun.agent_of(p.pid)
    workers = children(agent)
    disk.pause()
    assert disk.asked.wait(30)
    yield p, agent, workers
    disk.resume()
    p.communicate(timeout=60)


@pytest.mark.long
def test_with_its_disk_hung_a_signal_ends_crun(crun, disk, hung):
    p, _, workers = hung
    held = crun.output_of(p.pid)
    p.terminate()
    assert p.wait(timeout=60) == 143
    assert [state(w) for w in workers] == [None, None]
    assert crun.processes() in ([], [held]), "at most who writes is left, held by the disk"
    disk.resume()
    crun.wait_processes_gone(30)


VICTIMS = ["guardian", "agent", "guardian agent", "guardian output", "agent output"]


@pytest.mark.parametrize("victims", VICTIMS)
def test_with_its_disk_hung_no_worker_outlives_a_half(crun, hung, victims):
    p, agent, workers = hung
    pids = {"guardian": p.pid, "agent": agent, "output": crun.output_of(p.pid)}
    kill(*(pids[v] for v in victims.split()))
    wait("the end of the workers", lambda: all(state(w) in (None, "Z") for w in workers))
    if victims.split()[0] == "agent":
        assert p.wait(timeout=60) == 137, "and crun does not wait for the disk"


@pytest.mark.long
def test_with_its_disk_hung_workers_go_on_until_its_console_is_full(crun, disk):
    p = crun.start("sh", "-c", "touch $HERE/up; head -c 300000 /dev/zero | tr '\\0' x; echo; touch $HERE/wrote; until [ -e $HERE/go ]; do sleep 0.01; done",
                   extra_env={"HERE": str(crun.tmp)}, prefix=["sh", "-c", f'echo before; exec "$@" >>{crun.tmp}/disk/out', "sh"])
    crun.wait_file("up")
    disk.pause()
    crun.wait_file("wrote")
    (crun.tmp / "go").touch()
    assert disk.asked.wait(30)
    disk.resume()
    assert p.wait(timeout=60) == 0
    assert disk.files["out"] == b"x" * 300000 + b"\n"


@pytest.mark.long
def test_a_disk_that_moves_is_waited_for_to_the_last_line(crun, disk):
    """The end of crun comes when the file is whole."""
    p = crun.start("sh", "-c", "for i in 1 2 3; do echo $i; done; touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; echo end; echo bad >&2; exit 3",
                   extra_env={"HERE": str(crun.tmp)}, prefix=into(crun.tmp / "disk" / "out"))
    crun.wait_file("up")
    disk.pause()
    (crun.tmp / "go").touch()
    assert disk.asked.wait(30)
    output = crun.output_of(p.pid)
    wait("crun's wait for it", lambda: output in children(p.pid) and comm(children(p.pid)[0]) != "crun")
    disk.resume()
    assert p.wait(timeout=60) == 3
    said = disk.files["out"].decode()
    assert said.startswith("1\n2\n3\n") and "end\n" in said and "bad\n" in said and "sh failed: rank 0 exited with code 3" in said, said


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_a_standard_input_on_a_hung_disk_keeps_nobody(crun, disk, victim):
    disk.write("in", b"text\n")
    p = crun.start("sh", "-c", "touch $HERE/up; exec sleep 1000", extra_env={"HERE": str(crun.tmp)}, prefix=["sh", "-c", f'exec "$@" <{crun.tmp}/disk/in', "sh"])
    crun.wait_file("up")
    agent = crun.agent_of(p.pid)
    disk.pause()
    os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
    wait("the end of all", lambda: state(agent) in (None, "Z") and p.poll() is not None, 10)
    crun.wait_processes_gone(30)


def test_another_takes_the_place_of_one_that_is_killed(crun):
    out = crun.tmp / "out"
    p = crun.start("sh", "-c", "i=0; while [ ! -e $HERE/stop ]; do echo line-$i; i=$((i+1)); sleep 0.01; done; echo $i > $HERE/count", extra_env={"HERE": str(crun.tmp)},
                   prefix=into(out))
    outputs = [crun.output_of(p.pid)]
    for _ in range(3):
        size = out.stat().st_size
        wait("lines", lambda: out.stat().st_size > size + 100)
        os.kill(outputs[-1], signal.SIGKILL)
        outputs.append(crun.output_of(p.pid, *outputs))
    (crun.tmp / "stop").touch()
    assert p.wait(timeout=60) == 0
    numbers = [int(n) for n in re.findall(r"^(?:\[default0\]: )?line-(\d+)$", out.read_text(), re.M)]
    count = int((crun.tmp / "count").read_text())
    assert numbers == sorted(set(numbers)) and numbers[-1] == count - 1 and len(numbers) > count - 30, "lost is at most what was in its hands"
    assert crun.processes() == []


def test_what_the_one_that_was_killed_had_in_hand_is_told(crun, disk, hung):
    p, _, _ = hung
    os.kill(crun.output_of(p.pid), signal.SIGKILL)
    disk.resume()
    told = re.compile(rb"crun: up to \d+ bytes are missing here: the process that wrote them was killed\n")
    wait("the note", lambda: told.search(disk.files["out"]))
    p.terminate()
    assert p.wait(timeout=60) == 143


@pytest.mark.long
def test_what_a_hung_disk_has_not_taken_in_the_end_is_told(crun, disk):
    p = crun.start("sh", "-c", "echo first; touch $HERE/up; until [ -e $HERE/go ]; do sleep 0.01; done; echo last words", extra_env={"HERE": str(crun.tmp)},
                   prefix=into(crun.tmp / "disk" / "out", '>>"$0"'))
    crun.wait_file("up")
    wait("a line", lambda: disk.files["out"].count(b"first"))
    output = crun.output_of(p.pid)
    disk.pause()
    (crun.tmp / "go").touch()
    try:
        _, err = p.communicate(timeout=60)
    finally:
        disk.resume()
    assert p.returncode == 0
    assert re.search(rf"crun: its output process {output} \(job-output, state D.*\) did not end and was killed: 11 bytes for stdout are lost\n", err.decode()), err


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def test_a_file_that_takes_no_more_costs_output_but_not_the_job(crun):
    out = crun.tmp / "out"
    p = crun.start("sh", "-c", "yes | head -c 1000000", prefix=into(out, '>"$0"'), preexec_fn=limit_files)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out.stat().st_size == 4096
    assert f"crun: {1000000 - 4096} bytes for stdout were lost: File too large\n" in err.decode(), err


@pytest.fixture
def small_disk(crun):
    """A tmpfs that is full but for 100 kB; its path, and the file that fills it."""
    path = crun.tmp / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no right to mount a tmpfs")
    (path / "filler").write_bytes(bytes((16 << 20) - 100000))
    yield path, path / "filler"
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_that_has_room_again_goes_on_with_whole_lines(crun, small_disk):
    disk, filler = small_disk
    p = crun.start("sh", "-c", "seq 100000 500000; touch $HERE/wrote; seq 500001 900000; until [ -e $HERE/go ]; do sleep 0.01; done; echo after",
                   prefix=into(disk / "out", '>"$0"'), extra_env={"HERE": str(crun.tmp)})
    crun.wait_file("wrote")  # more than all queues hold
    filler.unlink()
    (crun.tmp / "go").touch()
    _, err = p.communicate(timeout=60)
    whole = "".join(f"{n}\n" for n in range(100000, 900001)) + "after\n"
    before, missing, rest = re.fullmatch(r"(.*\n)crun: (\d+) bytes are missing here \(No space left on device\)\n(.*)", (disk / "out").read_text(), re.S).groups()
    kept = before if whole.startswith(before) else before[:-1]
    assert p.returncode == 0 and whole.startswith(kept) and whole.endswith("\n" + rest) and rest.endswith("after\n")
    assert len(kept) + int(missing) + len(rest) == len(whole)
    assert f"crun: {missing} bytes for stdout were lost: No space left on device\n" in err.decode(), err


@pytest.mark.parametrize("redirect", ['>"$0" 2>&1', '>"$0" 2>"$0.err"'])
def test_files_cost_the_agent_no_descriptor(crun, redirect):
    """The number that crun says it needs is enough (test_run.py)."""
    p = crun.start("sh", "-c", "echo said", prefix=into(crun.tmp / "out", redirect), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (33, 33)))
    assert p.wait(timeout=60) == 0 and (crun.tmp / "out").read_text() == "said\n", (crun.tmp / "out").read_text()


@pytest.mark.parametrize("args, code, said", [(["--nosuch"], 2, "unknown option"), (["--help"], 0, "usage"), (["--dry-run", "true"], 0, "worker"),
                                              (["no-such-program"], 127, "is not found on PATH")])
def test_what_is_said_before_a_job_is_in_the_file_when_crun_has_ended(crun, args, code, said):
    out = crun.tmp / "out"
    p = crun.start(*args, prefix=into(out))
    assert p.wait(timeout=60) == code
    assert said in out.read_text().lower() or said in out.read_text()


def test_two_cruns_and_their_shell_share_one_offset(crun):
    """`(echo; crun; echo) >log`, without O_APPEND."""
    out = crun.tmp / "out"
    script = f'(echo one; {crun.program} echo two; echo three; {crun.program} --nproc-per-node 2 sh -c "echo four; echo four >&2"; echo five) >{out} 2>&1'
    subprocess.run(["sh", "-c", script], env={**crun.env, "OMP_NUM_THREADS": "1"}, timeout=60, check=True)
    lines = [line.split(": ")[-1] for line in out.read_text().splitlines()]
    assert lines == ["one", "two", "three"] + ["four"] * 4 + ["five"], lines


def test_stdout_and_stderr_of_two_files_are_apart(crun):
    out, err = crun.tmp / "out", crun.tmp / "err"
    p = crun.start("sh", "-c", "echo one; echo two >&2", prefix=into(out, f'>"$0" 2>{err}'))
    assert p.wait(timeout=60) == 0
    assert (out.read_text(), err.read_text()) == ("one\n", "two\n")


def test_with_files_as_standard_streams_there_is_one_process_more_than_the_deputy(crun):
    """Nobody is called crun but the two halves: pkill crun hits nobody else."""
    (crun.tmp / "in").write_text("text\n")
    p = crun.start("--stdin-rank", 0, "sh", "-c", "touch $HERE/up; exec sleep 1000", extra_env={"HERE": str(crun.tmp)},
                   prefix=into(crun.tmp / "out", f'<{crun.tmp}/in >"$0" 2>"$0.err"'))
    crun.wait_file("up")
    names = [open(f"/proc/{pid}/cmdline").read().rstrip("\0") for pid in children(p.pid)[1:]]
    assert sorted(names) == [f"job-deputy of {p.pid}", f"job-output of {p.pid}"] and comm(children(p.pid)[0]) == "crun"
    p.terminate()
    assert p.wait(timeout=60) == 143
