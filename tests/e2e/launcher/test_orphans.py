"""No process survives crun, whichever of its halves dies."""

import os
import signal
import subprocess
import time

import pytest


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_nobody_survives_the_kill_of_one_half(crun, worker, victim):
    p = crun.start("--nproc_per_node", 3, worker, "stubborn")
    for r in range(3):
        crun.wait_file(f"ready-{r}")
    assert len(crun.processes()) == 8, "guardian, agent, three workers with a daemon each"
    agent = crun.agent_of(p.pid)
    os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
    assert crun.wait_processes_gone(5) < 2
    p.communicate(timeout=60)
    assert p.returncode == (-9 if victim == "guardian" else 137)
    assert crun.leftovers() == []


def test_killed_at_any_moment_of_the_start(crun):
    for i in range(12):
        p = crun.start("--nproc_per_node", 4, "sh", "-c", "setsid sleep 100 & exec sleep 100")
        time.sleep(0.0015 * i)
        victim = p.pid
        if i % 2:
            try:
                victim = crun.agent_of(p.pid)
            except (OSError, IndexError):
                pass
        os.kill(victim, signal.SIGKILL)
        p.communicate(timeout=60)
        crun.wait_processes_gone(5)


def test_no_direct_worker_survives_the_kill_of_both(crun):
    p = crun.start("--nproc_per_node", 3, "sh", "-c", f"touch {crun.tmp}/up-$RANK; exec sleep 100")
    for r in range(3):
        crun.wait_file(f"up-{r}")
    os.kill(crun.agent_of(p.pid), signal.SIGSTOP)  # it cannot act between the two kills
    agent = crun.agent_of(p.pid)
    p.kill()
    os.kill(agent, signal.SIGKILL)
    assert crun.wait_processes_gone(5) < 2
    p.communicate(timeout=60)


def test_what_a_finished_job_left_in_the_background_goes_too(crun):
    rc, out, _ = crun.run("--nproc_per_node", 2, "sh", "-c", "setsid sleep 100 & echo end", timeout=60)
    assert rc == 0 and out.count("end") == 2


def test_no_zombies_while_it_runs(crun):
    p = crun.start("sh", "-c", f"for i in 1 2 3 4 5; do (sleep 0.01 & ) ; done; sleep 0.2; touch {crun.tmp}/up; exec sleep 100")
    crun.wait_file("up")
    ours = {p.pid, crun.agent_of(p.pid)}
    zombies = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) in ours:
            zombies.append(pid)
    assert zombies == []
    p.terminate()
    p.communicate(timeout=60)


def test_as_pid_1_of_a_pid_namespace(crun):
    from crun_run import CRUN
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespaces here")
    r = subprocess.run([*unshare, CRUN, "--nproc_per_node", "2", "sh", "-c", "setsid sleep 100 & exit $((RANK * 7))"],
                       env=crun.env, capture_output=True, text=True, timeout=60)
    assert r.returncode == 7, r.stderr
    assert crun.processes() == []
