"""A disk that hangs, and one path of the user's on it: program, script, working directory, TMPDIR, event log, file of a notice. The first three cost the start of
whoever needs them, the others nothing; no heartbeat is late, and signals work. So it is with a file as stdout and stderr, up to what a console holds."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from held import stuck
from processes import children, comm, state, wait

SCRIPT = b"""#!/bin/sh
touch $HERE/up-$CRUN_ROUND-$RANK
[ $CRUN_ROUND = 1 ] || exit 0
exec sleep 100
"""
GRACE = 1
STARTS = ["program", "script", "cwd"]  # what a start needs: a shell looks where it is
OTHERS = ["TMPDIR", "event log", "preemption file", "console"]


def on_disk(crun, disk, kind):
    """Arguments, and how to start it, where this path is on the disk."""
    local = crun.tmp / "program"
    local.write_bytes(SCRIPT)
    local.chmod(0o755)
    folder, env = crun.tmp / "disk", {"HERE": str(crun.tmp)}
    if kind in ("program", "script"):
        disk.write("program", SCRIPT)
        return ["sh"] * (kind == "script") + [folder / "program"], {"extra_env": env}
    if kind == "cwd":
        # A shell checks its PWD, which asks the disk; without one it asks the kernel alone. env -C: Popen(cwd=) would hold the lock that
        # the disk's thread needs.
        return [local], {"extra_env": {**env, "PWD": str(folder)}, "prefix": ["env", "-C", folder]}
    if kind == "TMPDIR":
        return [local], {"extra_env": {**env, "TMPDIR": str(folder)}}
    if kind == "console":
        return [local], {"extra_env": env, "prefix": ["sh", "-c", f'exec "$@" >>{folder}/out 2>&1', "sh"]}
    if kind == "preemption file":
        return ["--preemption-file", folder / "notice", local], {"extra_env": env}
    return ["--event-log", folder / "events", local], {"extra_env": env}


def end_worker(crun, agent):
    worker, = children(agent)
    wait("the shell to leave its script", lambda: comm(worker) == "sleep")  # else its end waits for the disk
    os.kill(worker, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("kind", STARTS + OTHERS)
def test_the_other_nodes_notice_nothing(crun, disk, kind):
    port = crun.port()
    args, how = on_disk(crun, disk, kind)
    common = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--insecure", "--run-id", "j", "--max-restarts", 1, "--rdzv-conf",
              "keep_alive_interval=1,keep_alive_max_attempt=3"]
    nodes = [crun.start(*common, crun.tmp / "program", stdout=subprocess.DEVNULL, extra_env={"HERE": str(crun.tmp)})]
    wait("a host", lambda: children(nodes[0].pid))
    nodes.append(crun.start(*common, *args, stdout=subprocess.DEVNULL, **how))
    for rank in (0, 1):
        crun.wait_file(f"up-1-{rank}")
    worker, = children(crun.agent_of(nodes[1].pid))
    wait("the shell to leave its script", lambda: comm(worker) == "sleep")
    disk.pause()
    os.kill(worker, signal.SIGKILL)
    if kind in STARTS:
        wait("the other worker", lambda: list(crun.tmp.glob("up-2-*")))
        assert disk.asked.wait(30)
    else:
        for rank in (0, 1):
            crun.wait_file(f"up-2-{rank}")
    assert not disk.going.wait(4), "longer than a node may be silent"
    assert kind not in STARTS or nodes[1].poll() is None
    disk.resume()
    for p in nodes:
        err = p.communicate(timeout=60)[1] + disk.files.get("out", b"")
        assert p.returncode == 0 and b"nothing was heard" not in err and b"restart 2" not in err, err
    for rank in (0, 1):
        crun.wait_file(f"up-2-{rank}")
    assert crun.leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", STARTS + OTHERS)
def test_a_signal_ends_crun(crun, disk, kind):
    args, how = on_disk(crun, disk, kind)
    p = crun.start("--max-restarts", 1, "--kill-timeout", 1, "--shutdown-timeout", GRACE, *args, **how)
    crun.wait_file("up-1-0")
    agent = crun.agent_of(p.pid)
    wait("the shell to leave its script", lambda: [comm(w) for w in children(agent)] == ["sleep"])
    disk.pause()
    if kind in STARTS:
        end_worker(crun, agent)
        assert disk.asked.wait(30)
    p.terminate()
    p.wait(timeout=60)
    err = os.read(p.stderr.fileno(), 65536).decode()
    if kind in STARTS:
        assert p.returncode == 71 and "still there 1 s after SIGKILL" in err and "state D" in err, err
    else:
        assert p.returncode == 143, err
    disk.resume()
    p.communicate(timeout=60)


def test_an_agent_that_a_disk_holds_before_it_begins_is_left(crun, disk):
    disk.write("program", SCRIPT)
    (crun.tmp / "disk" / "program").stat()  # it answers
    disk.pause()
    p = crun.start(crun.tmp / "disk" / "program")
    assert disk.asked.wait(30)
    agent = crun.agent_of(p.pid)
    p.terminate()
    assert p.wait(60) == 71
    err = os.read(p.stderr.fileno(), 65536).decode()
    assert re.search(rf"still there [0-9.]+ s after SIGKILL: {agent} \(crun, state D", err) and "output process" not in err, err
    disk.resume()
    p.communicate(timeout=60)


def test_a_file_for_what_crun_says_keeps_no_worker(crun, disk):
    """`crun ... >file 2>&1`: what the guardian has to say of a stopped agent is left to the disk, and nobody waits for it."""
    p = crun.start("sleep", 1000, prefix=["sh", "-c", f'exec "$@" >>{crun.tmp}/disk/out 2>&1', "sh"])
    wait("the worker", lambda: "sleep" in [comm(pid) for pid in crun.processes()])
    agent = crun.agent_of(p.pid)
    worker, = children(agent)
    disk.pause()
    os.kill(agent, signal.SIGSTOP)
    assert disk.asked.wait(30), "the word of it"
    p.terminate()
    assert p.wait(60) == 143 and state(worker) is None
    disk.resume()
    crun.wait_processes_gone(30)
    wait("the word", lambda: b"was stopped by SIGSTOP" in disk.files["out"])


@pytest.mark.long
def test_an_event_log_that_hangs_is_written_once_by_whoever_takes_over(crun, disk):
    args, how = on_disk(crun, disk, "event log")
    p = crun.start("--max-restarts", 1, *args, **how)
    crun.wait_file("up-1-0")
    wait("lines", lambda: b'"worker_started"' in disk.files.get("events", b""))
    disk.pause()
    end_worker(crun, crun.agent_of(p.pid))
    crun.wait_file("up-2-0")
    assert disk.asked.wait(30)
    os.kill(crun.output_of(p.pid), signal.SIGKILL)
    said = b""
    while b"another took over" not in said:
        said += p.stderr.readline() or pytest.fail(said)
    disk.resume()
    p.communicate(timeout=60)
    events = [json.loads(line) for line in disk.files["events"].decode().splitlines()]
    told = [e["mono_ns"] for e in events]
    assert p.returncode == 0 and told == sorted(told) and events[0]["event"] == "agent_started" and events[-1]["event"] == "job_ended", events
    assert len(told) - len(set(told)) <= 1, "the one that it was at"
    assert not any("lost" in e for e in events)


def test_a_temporary_folder_that_was_left_is_removed_by_a_later_run(crun):
    left, young, other = (crun.tmp / f"crun-{digit * 16}" for digit in "0a1")
    for folder in (left, young, other):
        folder.mkdir(mode=0o700)
        (folder / "round-1-rank-0.error.json").touch()
    other.chmod(0o755)
    for folder in (left, other):
        os.utime(folder, (0, 0))
    held = crun.tmp / f"crun-{'b' * 16}"
    held.mkdir(mode=0o700)
    os.utime(held, (0, 0))
    with open(crun.tmp / "out", "wb") as out, subprocess.Popen(["flock", "-x", str(held), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdin.write(b"held\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"held\n"
        p = crun.start("sh", "-c", f"until [ -e {crun.tmp}/go ]; do sleep 0.05; done", stdout=out, stderr=out)
        wait("the sweep", lambda: not left.exists())
        (crun.tmp / "go").touch()
        assert p.wait(timeout=60) == 0
        holder.stdin.close()
    assert sorted(crun.leftovers()) == sorted(f.name for f in (young, other, held))
    for folder in (young, other, held):
        assert folder == held or (folder / "round-1-rank-0.error.json").exists()


def test_without_a_place_for_it_workers_have_no_error_record(crun):
    rc, out, err = crun.run("sh", "-c", 'echo "[$TORCHELASTIC_ERROR_FILE]"', extra_env={"TMPDIR": str(pathlib.Path("/proc"))})
    assert (rc, out) == (0, "[]\n"), err


@pytest.mark.long
def test_the_end_of_a_lease_is_told_once(crun, disk):
    """Guardian and deputy both look, and a worker that the disk holds is there for both."""
    port = crun.port()
    common = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--insecure", "--run-id", "j", "--kill-timeout", 1, "sh", "-c",
              "touch $HERE/up-$RANK; [ $GROUP_RANK = 0 ] && exec sleep 1000; exec cat $HERE/disk/file"]
    disk.write("file", b"")
    first = crun.start(*common, stdout=subprocess.DEVNULL, extra_env={"HERE": str(crun.tmp)})
    wait("a host", lambda: children(first.pid))
    disk.pause()
    second = crun.start(*common, stdout=subprocess.DEVNULL, extra_env={"HERE": str(crun.tmp)})
    for rank in (0, 1):
        crun.wait_file(f"up-{rank}")
    assert disk.asked.wait(30)
    with stuck(crun.agent_of(second.pid), "stopped"):
        err = b""
        while b"has stood still" not in err:
            err += second.stderr.readline() or pytest.fail(err)
        time.sleep(1)  # the deputy has looked as well, half a second after the guardian at the latest
        disk.resume()
    os.kill(crun.agent_of(second.pid), signal.SIGCONT)
    for p in (second, first):
        p.terminate()
    err += second.communicate(timeout=60)[1]
    first.communicate(timeout=60)
    assert err.count(b"has stood still") == 1, err


def asked_first(kind, folder):
    """Arguments, environment, and the path on the disk that is looked at before anything begins."""
    if kind == "HOME":
        return [], {"HOME": str(folder)}, folder / ".config/crun/crun.conf"
    if kind == "token file":
        return ["--nnodes", 2, "--rdzv-endpoint", "127.0.0.1:1", "--token-file", folder / "file"], {}, folder / "file"
    if kind == "hostfile":
        return ["--hostfile", folder / "file"], {}, folder / "file"
    if kind == "VIRTUAL_ENV":
        return [], {"VIRTUAL_ENV": str(folder)}, folder / "bin"
    return [], {}, folder / "file"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["HOME", "token file", "hostfile", "VIRTUAL_ENV", "program"])
def test_a_file_that_holds_up_the_beginning_is_named(crun, disk, kind):
    folder = crun.tmp / "disk"
    args, env, path = asked_first(kind, folder)
    disk.write("file", b"")
    disk.pause()
    script = crun.tmp / "x.py"
    script.touch()
    p = crun.start(*args, {"program": folder / "file", "VIRTUAL_ENV": script}.get(kind, "true"), extra_env=env)
    err = b""
    while b"has waited for that file for 1000 ms" not in err:
        err += p.stderr.readline() or pytest.fail(err)
    p.terminate()
    assert p.wait(60) in (71, 143), "whether the kernel lets it go"
    err = (err + os.read(p.stderr.fileno(), 65536)).decode()
    agent = rf"its agent \(pid \d+, state [DS].*, at '{re.escape(str(path))}'\)"
    assert re.search(rf"^crun: {agent} has waited for that file for 1000 ms: the disk or file server does not answer$", err, re.M), err
    assert re.search(rf"^crun: {agent} did not take SIGTERM within 5 s: it and the workers were ended \(exit code {p.returncode}\)$", err, re.M), err
    disk.resume()
    p.communicate(timeout=60)
