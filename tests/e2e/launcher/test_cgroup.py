"""Workers in a cgroup2 of their own, and the same endings without one."""
import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from crun_run import CRUN
from support import TRAINER, run


pytestmark = pytest.mark.serial


def tree():
    """-> folder of this process' cgroup2, None where none is mounted."""
    with open("/proc/self/mountinfo") as f:
        mounts = [line.split() for line in f if " - cgroup2 " in line]
    own = [line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup") if line.startswith("0::")]
    return mounts[0][4] + own[0].rstrip("/") if mounts and own else None


TREE = tree()


def can_make():
    probe = f"{TREE}/crun-test-{os.getpid()}"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    able = os.path.exists(f"{probe}/cgroup.kill")
    os.rmdir(probe)
    return able


needs_tree = pytest.mark.skipif(TREE is None or not can_make(), reason="no cgroup2 can be made here")


@contextlib.contextmanager
def small_memory(mib):
    """-> a cgroup of so much memory, below this process' own; None where none can be made."""
    v1 = [line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup") if ":memory:" in line]
    for own, limit in [(f"/sys/fs/cgroup/memory{v1[0].rstrip('/')}" if v1 else None, "memory.limit_in_bytes"), (TREE, "memory.max")]:
        folder = f"{own}/crun-test-{os.getpid()}"
        if not own or not os.path.isdir(own):
            continue
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(f"{folder}/{limit}", "w") as f:
                f.write(str(mib << 20))
        except OSError:
            os.rmdir(folder)
            continue
        for swap, most in ("memory.memsw.limit_in_bytes", mib << 20), ("memory.swap.max", 0):
            with contextlib.suppress(OSError), open(f"{folder}/{swap}", "r+") as f:
                f.write(str(most))
        yield folder
        os.rmdir(folder)
        return
    yield None


# Rank 1, once the other one is there, wants more than there is.
HOG = """import os, time
with open(os.environ["TMPDIR"] + "/rank-" + os.environ["RANK"], "w"): pass
while not os.path.exists(os.environ["TMPDIR"] + "/rank-0"): time.sleep(.01)
time.sleep(60) if os.environ["RANK"] == "0" else bytearray(500 << 20)
"""


def test_a_worker_that_is_out_of_memory_is_named(crun):
    with small_memory(64) as folder:
        if not folder:
            pytest.skip("no cgroup here limits memory")
        rc, _, err = crun.run("--nproc-per-node", 2, sys.executable, "-c", HOG, prefix=["sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$@"', "sh"])
    read = os.access("/dev/kmsg", os.R_OK)
    assert rc == 137 and re.search(r" failed: rank 1 killed by the kernel: out of memory \((63\.\d|64) of 64 MiB; "
                                   + (r"the largest: rank 1\)\n" if read else r"of the others rank 0 held most, [\d.]+ MiB\)\n"), err), err
    assert f"memory    1 process killed since the round began, of cgroup {folder} (memory." in err


# A child, as a data loader's is, wants more than there is; the worker fails because it is gone.
LOADER = """import os, sys
pid = os.fork()
if pid == 0: bytearray(500 << 20)
os.waitpid(pid, 0)
sys.exit(1)
"""


def test_a_child_that_is_out_of_memory_is_the_cause_of_its_workers_end(crun):
    with small_memory(64) as folder:
        if not folder:
            pytest.skip("no cgroup here limits memory")
        rc, _, err = crun.run(sys.executable, "-c", LOADER, prefix=["sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$@"', "sh"])
    assert rc == 1 and " failed: rank 0 exited with code 1, after the kernel killed 1 process of its cgroup (out of memory)\n" in err, err
    assert f"memory    1 process killed since the round began, of cgroup {folder} (memory." in err


@pytest.mark.parametrize("mib, more", [(170, []), (380, ["--test-data", "null", "--batch-size", 64])])
def test_a_trainer_is_refused_with_a_sentence_and_not_killed(mib, more):
    """What is open already is counted, used or not: the state beside the plan of training, that beside the plan of evaluation."""
    with small_memory(mib) as folder:
        if not folder:
            pytest.skip("no cgroup here limits memory")
        p = run("sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$@"', "sh", TRAINER, "--train-data", "null", "--null-images", 64, "--arch", "resnet18",
                "--image-size", 64, "--batch-size", 16, "--num-epochs", 1, "--threads", 1, *more)
    assert p.returncode == 2 and "MiB" not in p.stdout and " are allowed here (memory." in p.stderr, (p.returncode, p.stdout, p.stderr)


def ours(agent):
    return [n for n in os.listdir(TREE) if n.startswith(f"crun-{agent}-")]


@pytest.fixture(params=["off", pytest.param("on", marks=needs_tree)])
def mode(request):
    return ["--cgroup", request.param]


@needs_tree
def test_each_round_has_its_own_and_the_end_removes_them(crun):
    script = "grep ^0:: /proc/self/cgroup; [ $CRUN_ROUND = 2 ]"
    rc, out, err = crun.run("--cgroup", "on", "--max-restarts", 1, "--nproc_per_node", 2, "sh", "-c", script)
    assert rc == 0, err
    paths = {line.split("::")[1] for line in out.splitlines()}
    assert {p.rsplit("/", 1)[1] for p in paths} == {"round-1", "round-2"}
    job, = {p.rsplit("/", 1)[0].rsplit("/", 1)[1] for p in paths}
    assert job.startswith("crun-") and not os.path.exists(f"{TREE}/{job}")


def test_off_leaves_the_workers_where_crun_is(crun):
    rc, out, _ = crun.run("--cgroup", "off", "--log-prefix=off", "cat", "/proc/self/cgroup")
    assert rc == 0 and out == open("/proc/self/cgroup").read()


def test_daemons_die_with_a_failure(crun, mode):
    script = "(setsid sh -c 'sleep 100 & touch up-$RANK; sleep 100' &) ; until [ -e up-0 ] && [ -e up-1 ]; do sleep 0.01; done; exit 3"
    assert crun.run(*mode, "--nproc_per_node", 2, "sh", "-c", script, cwd=crun.tmp)[0] == 3  # run() looks for survivors


def test_one_that_forks_all_the_time_is_caught(crun, mode):
    chain = ("import os\nopen('up','w').close()\n"
             "while os.fork() == 0 or os._exit(0):\n    os.setsid()\n")
    rc, _, err = crun.run(*mode, "sh", "-c", "python3 -c \"$CHAIN\" & while ! [ -e up ]; do sleep 0.01; done; exit 4",
                          cwd=crun.tmp, extra_env={"CHAIN": chain}, timeout=60)
    assert rc == 4 and "still there" not in err


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_the_half_that_lives_kills_and_cleans_up(crun, worker, mode, victim):
    p = crun.start(*mode, "--nproc_per_node", 2, worker, "stubborn")
    for r in range(2):
        crun.wait_file(f"ready-{r}")
    agent = crun.agent_of(p.pid)
    if mode[1] == "on":
        assert len(ours(agent)) == 1
    os.kill(p.pid if victim == "guardian" else agent, signal.SIGKILL)
    crun.wait_processes_gone(15)  # half of the grace
    p.communicate(timeout=60)
    if TREE:
        assert ours(agent) == []


@needs_tree
def test_the_deputy_ends_daemons_and_cleans_up_when_both_halves_are_killed(crun, worker):
    p = crun.start("--cgroup", "on", "--nproc_per_node", 2, worker, "stubborn")
    for r in range(2):
        crun.wait_file(f"ready-{r}")
    agent = crun.agent_of(p.pid)
    crun.kill_both(p.pid)
    crun.wait_processes_gone(15)
    p.communicate(timeout=60)
    assert ours(agent) == [] and crun.leftovers() == []


@needs_tree
def test_a_crun_within_a_worker_nests_and_goes_with_it(crun):
    p = crun.start("--cgroup", "on", CRUN, "--cgroup", "on", "--log-prefix=off", "sh", "-c",
                   "grep ^0:: /proc/self/cgroup > group; touch up; exec sleep 100", cwd=crun.tmp)
    crun.wait_file("up")
    assert crun.wait_file("group").count("crun-") == 2
    agent = crun.agent_of(p.pid)
    os.kill(agent, signal.SIGKILL)
    crun.wait_processes_gone(15)
    p.communicate(timeout=60)
    assert ours(agent) == []


@needs_tree
def test_a_tree_that_cannot_be_written_is_no_matter_unless_it_must(crun):
    def run(*args):
        ro = ["unshare", "-m", "sh", "-c", f"mount -o remount,ro,bind {mount} && exec \"$@\"", "sh"]
        return subprocess.run([*ro, CRUN, *args], env=crun.env, capture_output=True, text=True, timeout=60)

    mount = next(line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line)
    if subprocess.run(["unshare", "-m", "mount", "-o", "remount,ro,bind", mount], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    r = run("sh", "-c", "exit 5")
    assert r.returncode == 5 and "cgroup" not in r.stderr
    assert "cgroup" in run("--log-level=debug", "true").stderr
    r = run("--cgroup=on", "sh", "-c", "echo ran")
    assert r.returncode == 69 and r.stdout == "" and "Read-only file system" in r.stderr and "--cgroup on" in r.stderr


@needs_tree
def test_the_next_crun_removes_what_a_killed_one_left_and_nothing_else(crun):
    old, young = (f"{TREE}/crun-{os.getpid()}-{name}" for name in ("00old", "young"))
    for path in (old, young):
        os.makedirs(f"{path}/round-1")
    os.utime(old, (0, 0))
    p = crun.start("--cgroup", "on", "sh", "-c", "touch up; exec sleep 100", cwd=crun.tmp)
    crun.wait_file("up")
    living, = ours(crun.agent_of(p.pid))
    os.utime(f"{TREE}/{living}", (0, 0))
    try:
        assert subprocess.run([CRUN, "--cgroup", "on", "true"], env=crun.env, timeout=60).returncode == 0
        assert not os.path.exists(old) and os.path.exists(young) and os.path.exists(f"{TREE}/{living}")
    finally:
        os.rmdir(f"{young}/round-1")
        os.rmdir(young)
    p.terminate()
    p.communicate(timeout=60)
