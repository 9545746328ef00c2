"""No process survives crun, whichever of its halves dies."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time

import pytest

from crun_run import CRUN, OWN
from processes import WAIT, comm, command
from support import preload


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_nobody_survives_the_kill_of_one_half(crun, worker, victim):
    p = crun.start("--nproc_per_node", 3, worker, "stubborn")
    for r in range(3):
        crun.wait_file(f"ready-{r}")
    assert len(crun.processes()) == OWN + 6, "crun itself, three workers with a daemon each"
    agent = crun.agent_of(p.pid)
    os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
    crun.wait_processes_gone()
    p.communicate(timeout=60)
    assert p.returncode == (-9 if victim == "guardian" else 137)
    assert crun.leftovers() == []


def open_console(kind):
    """-> (crun's end, end to keep open or None): a console that takes nothing, in one of the ways in which it can."""
    if kind == "socket":
        ours, theirs = socket.socketpair()
        return theirs.detach(), ours.detach()
    r, w = os.pipe()
    if kind == "closed":
        os.close(r)
        return w, None
    os.set_blocking(w, False)
    try:
        while True:
            os.write(w, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(w, True)
    if kind == "foreign":  # /proc/self/fd/N of a pipe that may not be opened
        os.fchmod(w, 0)
    return w, r


def give_up_reading_everything():
    """Root without CAP_DAC_OVERRIDE: permissions count."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


@pytest.mark.parametrize("victim", ["guardian", "agent"])
@pytest.mark.parametrize("console", ["closed", "full", "socket", "foreign"])
def test_no_console_keeps_them_alive(crun, victim, console):
    theirs, ours = open_console(console)
    p = crun.start("--nproc_per_node", 2, "sh", "-c", f"setsid sleep 1000 & touch {crun.tmp}/up-$RANK; trap '' PIPE; yes; exec sleep 1000",
                   stdout=theirs, stderr=theirs, preexec_fn=give_up_reading_everything)
    os.close(theirs)
    for r in range(2):
        crun.wait_file(f"up-{r}")
    time.sleep(0.1)  # more output than the console and crun's queue hold
    os.kill(p.pid if victim == "guardian" else crun.agent_of(p.pid), signal.SIGKILL)
    crun.wait_processes_gone()
    assert p.wait(timeout=60) == (-9 if victim == "guardian" else 137)
    if ours is not None:
        os.close(ours)


@pytest.mark.parametrize("console", ["full", "socket", "foreign"])
def test_the_farewell_to_a_console_that_takes_nothing_ends_with_the_guardian(crun, console):
    theirs, ours = open_console(console)
    p = crun.start("sh", "-c", f"head -c 400000 /dev/zero; touch {crun.tmp}/up", stdout=theirs, stderr=subprocess.DEVNULL,
                   preexec_fn=give_up_reading_everything)
    os.close(theirs)
    crun.wait_file("up")
    crun.wait_processes(OWN)
    time.sleep(0.1)
    assert p.poll() is None, "it waits for the console"
    p.kill()
    crun.wait_processes_gone()
    p.wait(timeout=60)
    os.close(ours)


@pytest.mark.parametrize("console", ["socket", "foreign"])
def test_a_console_that_cannot_be_reopened_gets_every_byte(crun, worker, console):
    if console == "socket":
        ours, theirs = (s.detach() for s in socket.socketpair())
    else:
        ours, theirs = os.pipe()
        os.fchmod(theirs, 0)
    p = crun.start("--nproc_per_node", 2, worker, "lines", 5000, stdout=theirs, preexec_fn=give_up_reading_everything)
    got = b""
    assert os.get_blocking(theirs)
    os.close(theirs)
    while chunk := os.read(ours, 65536):
        got += chunk
    p.communicate(timeout=60)
    os.close(ours)
    assert p.returncode == 0 and got.count(b"\n") == 10000 and got.count(b"]: line ") == 10000


def test_killed_at_any_moment_of_the_start(crun):
    for i in range(12):
        p = crun.start("--nproc_per_node", 4, "sh", "-c", "setsid sleep 1000 & exec sleep 1000")
        time.sleep(0.0015 * i)
        victim = p.pid
        if i % 2:
            try:
                victim = crun.agent_of(p.pid)
            except (OSError, IndexError):
                pass
        os.kill(victim, signal.SIGKILL)
        p.communicate(timeout=60)
        crun.wait_processes_gone()


def test_a_worker_that_is_being_made_as_the_guardian_dies_is_ended(crun):
    up = crun.tmp / "up"
    end = time.monotonic() + WAIT
    while not up.exists() and time.monotonic() < end:  # the deputy ends an agent that takes too long for this, before its worker is there
        p = crun.start("--cgroup", "off", "sh", "-c", f"setsid sleep 1000 & touch {up}; exec sleep 1000",
                       extra_env={**preload("fault_spawn"), "FAULT_SPAWN_FILE": str(up)})
        p.communicate(timeout=60)
        crun.wait_processes_gone()
        assert p.returncode == -9
    assert up.exists()


def test_no_direct_worker_survives_the_kill_of_both(crun):
    p = crun.start("--nproc_per_node", 3, "sh", "-c", f"touch {crun.tmp}/up-$RANK; exec sleep 1000")
    for r in range(3):
        crun.wait_file(f"up-{r}")
    crun.kill_both(p.pid)
    crun.wait_processes_gone()
    p.communicate(timeout=60)


NAMED = {"killall -9 crun": lambda pid: comm(pid) == "crun",
         "pkill -9 crun": lambda pid: "crun" in comm(pid),
         "pkill -9 -f crun": lambda pid: "crun" in command(pid)}


@pytest.mark.parametrize("how", NAMED)
def test_a_kill_by_name_leaves_no_child_of_a_worker(crun, how):
    p = crun.start("--cgroup", "off", "--nproc-per-node", 2, "sh", "-c", "sleep 1000 & touch up-$RANK; sleep 1000; true", cwd=crun.tmp)
    for r in range(2):
        crun.wait_file(f"up-{r}")
    agent = crun.agent_of(p.pid)
    with crun.stopped(agent):  # it cannot act between the two kills
        hit = sorted(filter(NAMED[how], crun.processes()))
        assert hit == [p.pid, agent], "no process that cleans up has such a name"
        for pid in hit:
            with contextlib.suppress(ProcessLookupError):  # the guardian's death continues the agent, which may end first
                os.kill(pid, signal.SIGKILL)
        p.wait()
    crun.wait_processes_gone()


def test_only_a_process_of_the_job_is_killed_by_its_session(crun):
    """Of the worker's session, but without the job's environment; it ends with this test."""
    other = "env -u CRUN_NODE_ID sh -c 'echo $$ >other.new && mv other.new other; exec sleep 1000'"
    p = crun.start("--cgroup", "off", "sh", "-c", f"{other} & sleep 1000 & touch up; sleep 1000; true", cwd=crun.tmp)
    crun.wait_file("up")
    other = int(crun.wait_file("other"))
    crun.kill_both(p.pid)
    p.wait()
    crun.wait_processes(1)
    assert crun.processes() == [other]
    os.kill(other, signal.SIGKILL)


def test_what_a_finished_job_left_in_the_background_goes_too(crun):
    rc, out, _ = crun.run("--nproc_per_node", 2, "sh", "-c", "setsid sleep 1000 & echo end", timeout=60)
    assert rc == 0 and out.count("end") == 2


def test_an_output_process_killed_as_it_makes_the_temporary_folder_leaves_none(crun):
    rc, _, err = crun.run("true", extra_env={**preload("fault_signal"), "FAULT_SIGNAL_MKDIR": "9"})
    assert rc == 0 and "another took over" in err, err


def zombies_of(parents):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) in parents:
            found.append(pid)
    return found


def test_no_zombies_while_it_runs(crun):
    p = crun.start("sh", "-c", f"for i in 1 2 3 4 5; do (sleep 0.01 & ) ; done; touch {crun.tmp}/up; exec sleep 1000")
    crun.wait_file("up")
    crun.wait_processes(OWN + 1)
    ours, end = {p.pid, crun.agent_of(p.pid)}, time.monotonic() + 10
    while left := zombies_of(ours):
        assert time.monotonic() < end, left
        time.sleep(0.01)
    p.terminate()
    p.communicate(timeout=60)


def test_as_pid_1_of_a_pid_namespace(crun):
    from crun_run import CRUN
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespaces here")
    r = subprocess.run([*unshare, CRUN, "--nproc_per_node", "2", "sh", "-c", "setsid sleep 1000 & exit $((RANK * 7))"],
                       env=crun.env, capture_output=True, text=True, timeout=60)
    assert r.returncode == 7, r.stderr
    assert crun.processes() == []


@pytest.mark.parametrize("cgroup", ["as it is", "read-only"])
@pytest.mark.parametrize("stopped", [False, True])
def test_right_as_pid_1_of_a_container(crun, cgroup, stopped):
    """Exec'ed as PID 1: nothing outside reaps for it, and signals without a handler would be dropped."""
    from crun_run import CRUN
    trees = [line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "cgroup2"] if cgroup == "read-only" else []
    lock = " && ".join(["true"] + [f"mount -o remount,bind,ro {t}" for t in trees])
    unshare = ["unshare", "--pid", "--fork", "--mount", "--mount-proc"]
    if subprocess.run([*unshare, "sh", "-c", lock], capture_output=True).returncode != 0:
        pytest.skip("no namespaces, or no remount, here")
    worker = f"setsid sleep 1000 & (sleep 0.01 &); touch {crun.tmp}/up-$RANK; " + ("exec sleep 1000" if stopped else "sleep 0.1; exit $((RANK * 7))")
    p = subprocess.Popen([*unshare, "sh", "-c", f"{lock} && exec {CRUN} --log-level info --nproc_per_node 2 sh -c '{worker}'"], env=crun.env, stderr=subprocess.PIPE, text=True)
    if stopped:
        crun.wait_file("up-0")
        crun.wait_file("up-1")
        inner = int(open(f"/proc/{p.pid}/task/{p.pid}/children").read().split()[0])
        os.kill(inner, signal.SIGTERM)
    err = p.communicate(timeout=60)[1]
    assert p.returncode == (143 if stopped else 7), err
    assert crun.processes() == []


def test_without_proc_nobody_is_left_and_it_is_said(crun):
    hide = ["unshare", "-m", "sh", "-c", 'umount -l /proc && [ ! -e /proc/self ] && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no mount namespaces here")
    start = time.monotonic()
    p = subprocess.run([*hide, CRUN, "--nproc-per-node", "2", "sh", "-c", "setsid sleep 1000 & setsid sh -c 'sleep 1000; :' & sleep 0.3; exit 3"],
                       env=crun.env, capture_output=True, timeout=60)
    if b"LeakSanitizer" in p.stderr:
        pytest.skip("the address sanitizer needs /proc")
    assert p.returncode == 3 and b"crun: there is no /proc: " in p.stderr and b"still there" not in p.stderr
    assert crun.processes() == [] and time.monotonic() - start < 25
