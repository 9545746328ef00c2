"""How many workers, on which cores, with how many threads."""
import os
import re
import subprocess

import pytest

from crun_run import BUILD, CRUN

CPUS = sorted(os.sched_getaffinity(0))
FAKE_NVML = os.path.join(BUILD, "tests", "launcher")  # three GPUs: GPU-1... to GPU-3..., NVLinks between the first two
ASK = "grep Cpus_allowed_list /proc/self/status; echo OMP $OMP_NUM_THREADS"


def with_gpus(visible=None):
    env = {"LD_LIBRARY_PATH": FAKE_NVML}
    return env if visible is None else dict(env, CUDA_VISIBLE_DEVICES=visible)


def count(crun, words, **kw):
    rc, out, err = crun.run("--log-prefix=off", *words, "sh", "-c", "echo of $LOCAL_WORLD_SIZE", **kw)
    assert rc == 0, err
    n = int(out.split()[1])
    assert out.count(f"of {n}\n") == n
    return n


def bound(out, workers):
    """-> mask of each local rank, as the kernel writes it."""
    masks = dict(re.findall(r"default(\d+)\]: Cpus_allowed_list:\s*(\S+)", out))
    return [masks[str(i)] for i in range(workers)]


def many(n):
    return pytest.mark.skipif(len(CPUS) < n, reason=f"needs {n} CPUs")


@pytest.mark.parametrize("word", ["auto", "cpu"])
@pytest.mark.parametrize("name", ["--nproc_per_node", "--nproc-per-node"])
def test_affinity_bounds_the_count(crun, word, name):
    assert count(crun, [name, word]) == len(CPUS)
    assert count(crun, [name, word], preexec_fn=lambda: os.sched_setaffinity(0, {CPUS[-1]})) == 1


@many(2)
def test_a_cpu_quota_bounds_the_count_and_the_threads(crun):
    """Through the older tree: the newer one takes no processes beside controllers that the root has given away."""
    group = f"/sys/fs/cgroup/cpu/crun-test-{os.getpid()}"
    try:
        os.mkdir(group)
        open(f"{group}/cpu.cfs_quota_us", "w").write("150000")
    except OSError:
        pytest.skip("no cpu cgroup can be made here")
    try:
        def enter():
            open(f"{group}/cgroup.procs", "w").write("0")

        assert count(crun, ["--nproc_per_node", "cpu"], preexec_fn=enter) == 1
        rc, out, err = crun.run("sh", "-c", ASK, preexec_fn=enter)
        assert rc == 0 and "OMP 1\n" in out and "cores: 1)" in err
    finally:
        os.rmdir(group)


@pytest.mark.parametrize("visible, n", [(None, 3), ("1", 1), ("1,0", 2), ("GPU-2", 1), ("0,7,1", 1)])
def test_gpus_are_counted_without_cuda(crun, visible, n):
    for word in ("gpu", "auto"):
        assert count(crun, ["--nproc_per_node", word], extra_env=with_gpus(visible)) == n


def test_without_a_gpu_auto_takes_cores_and_gpu_is_refused(crun):
    env = with_gpus("")
    assert count(crun, ["--nproc_per_node", "auto"], extra_env=env) == len(CPUS)
    rc, out, err = crun.run("--nproc_per_node", "gpu", "echo", "ran", extra_env=env)
    assert rc == 2 and out == "" and "no GPU is usable here" in err


@pytest.mark.parametrize("text", ["0", "-1", "many", "2.5", ""])
def test_other_counts_are_refused(crun, text):
    rc, out, err = crun.run(f"--nproc_per_node={text}", "echo", "ran")
    assert rc == 2 and out == "" and "expected a number from 1 to" in err


def test_threads_are_an_even_share_said_once(crun):
    rc, out, err = crun.run("--max-restarts=1", "--nproc_per_node", 2, "sh", "-c", f"{ASK}; [ $CRUN_ROUND = 2 ]")
    assert rc == 0 and set(re.findall("OMP .*", out)) == {f"OMP {max(1, len(CPUS) // 2)}"}
    assert err.count("OMP_NUM_THREADS") == 1
    rc, out, err = crun.run("--nproc_per_node", 2, "sh", "-c", ASK, extra_env={"OMP_NUM_THREADS": "5"})
    assert out.count("OMP 5\n") == 2 and "OMP_NUM_THREADS" not in err
    rc, out, err = crun.run("sh", "-c", ASK)  # one worker: as torchrun, its own affair
    assert "OMP\n" in out and "OMP_NUM_THREADS" not in err


@many(2)
def test_exclusive_workers_share_no_core(crun):
    rc, out, err = crun.run("--numa-binding", "exclusive", "--nproc_per_node", 2, "sh", "-c", ASK)
    if rc == 2 and "has 1 core" in err:
        pytest.skip("one core with two threads")
    assert rc == 0, err
    masks = [set(expand(m)) for m in bound(out, 2)]
    assert masks[0] and masks[1] and not masks[0] & masks[1] and masks[0] | masks[1] <= set(CPUS)


def expand(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_a_binding_stays_within_what_crun_may_use(crun, mode):
    rc, out, err = crun.run("--log-prefix", "--numa_binding", mode, "sh", "-c", f"{ASK}; [ {mode} = socket ] || grep -m1 -o prefer /proc/self/numa_maps",
                            preexec_fn=lambda: os.sched_setaffinity(0, {CPUS[0]}))
    assert rc == 0, err
    assert bound(out, 1) == [str(CPUS[0])]


def test_before_the_program_runs_and_again_in_each_round(crun):
    rc, out, _ = crun.run("--numa-binding=node", "--max-restarts=1", "python3", "-c",
                          "import os; print('cpus', *os.sched_getaffinity(0), flush=True); os._exit(os.environ['CRUN_ROUND'] == '1')",
                          preexec_fn=lambda: os.sched_setaffinity(0, {CPUS[0]}))
    assert rc == 0 and out.count(f"cpus {CPUS[0]}\n") == 2


def test_exclusive_with_more_workers_than_cores_is_refused(crun):
    rc, out, err = crun.run("--numa-binding", "exclusive", "--nproc_per_node", 2, "echo", "ran",
                            preexec_fn=lambda: os.sched_setaffinity(0, {CPUS[0]}))
    assert rc == 2 and out == "" and "2 workers belong to NUMA node" in err and "at most one worker for each" in err


def test_without_hwloc_a_sentence(crun):
    (crun.tmp / "libhwloc.so.15").touch()
    env = {"LD_LIBRARY_PATH": str(crun.tmp)}
    rc, out, err = crun.run("--numa-binding", "node", "echo", "ran", extra_env=env)
    assert rc == 69 and out == "" and "--numa-binding" in err and "hwloc" in err and "Debian: libhwloc" in err
    assert crun.run("true", extra_env=env)[0] == 0


def test_nothing_is_opened_that_nobody_asked_for(crun):
    rc, out, _ = crun.run("--standalone", "--nproc_per_node", 2, "sh", "-c", "cat /proc/$PPID/maps")
    assert rc == 0 and "libc.so" in out
    assert not re.search("hwloc|nvidia", out)


def topo(crun, *args, **env):
    p = subprocess.run([CRUN, "topo", *args], env=dict(crun.env, **env), capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout, p.stderr


def test_topo_prints_the_matrix_as_nvidia_smi_does(crun):
    rc, out, err = topo(crun, **with_gpus("1"))
    assert rc == 0, err
    rows = [line.split("\t") for line in out.split("\nLegend:")[0].splitlines()]
    assert rows[0][:4] == ["", "GPU0", "GPU1", "GPU2"] and rows[0][-2:] == ["CPU Affinity", "NUMA Affinity"]
    cells = [[c.strip() for c in row[1:4]] for row in rows[1:4]]
    assert cells == [["X", "NV2", "PXB"], ["NV2", "X", "PXB"], ["PXB", "PXB", "X"]]
    for word in ("X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#"):
        assert re.search(rf"^  {word:4} = ", out, re.M)


def test_topo_without_a_gpu_shows_the_cores(crun):
    rc, out, err = topo(crun)
    assert rc == 0, err
    nodes = re.findall(r"^NUMA node \d+: socket \d+, \d+ cores? .*CPUs ([0-9]+(?:[,-][0-9]+)*)", out, re.M)
    assert set(CPUS) <= {cpu for text in nodes for cpu in expand(text)}


def test_topo_says_what_is_wrong(crun):
    assert topo(crun, "--help")[:2][0] == 0
    rc, out, err = topo(crun, "now")
    assert rc == 2 and "'now'" in err
    (crun.tmp / "libhwloc.so.15").touch()
    rc, out, err = topo(crun, LD_LIBRARY_PATH=str(crun.tmp))
    assert rc == 69 and err.count("\n") == 1 and "Debian: libhwloc" in err


def test_a_dry_run_prints_the_place_of_each_worker(crun):
    rc, out, err = crun.run("--dry-run", "--numa-binding=node", "--nproc_per_node", 2, "true",
                            preexec_fn=lambda: os.sched_setaffinity(0, {CPUS[0]}))
    assert rc == 0, err
    assert out.count(f"binding: CPUs {CPUS[0]}") == 2 and out.count("    OMP_NUM_THREADS=1\n") == 2
