"""libcrun as authors of workers use it: the examples of the documentation, built and run under crun."""
import math
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from crun_run import BUILD, REPO

LIBCRUN = os.path.join(BUILD, "common", "crun", "libcrun.so.0")
EXAMPLES = pathlib.Path(REPO) / "docs" / "examples"
pytestmark = pytest.mark.skipif(not os.path.exists(LIBCRUN), reason="libcrun.so is not built")


def build(source, out, *flags):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    lib = os.path.dirname(LIBCRUN)
    subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I", f"{REPO}/common/include", "-o", out,
                    *flags, EXAMPLES / source, "-L", lib, "-lcrun", f"-Wl,-rpath,{lib}"], check=True)
    return [out]


@pytest.fixture(scope="module")
def c_worker(tmp_path_factory):
    return build("worker.c", tmp_path_factory.mktemp("example") / "worker")


@pytest.mark.parametrize("world", [1, 2, 5])
def test_messages_between_ranks_go_through_the_store(crun, tmp_path, world):
    rc, out, err = crun.run("--nproc_per_node", world, "--log-prefix=off", *build("messages.c", tmp_path / "messages"))
    assert rc == 0, err
    mine = range(1, world + 1)
    ends = {0: world, world - 1: 1}
    assert sorted(out.splitlines()) == [
        f"rank {r}: exchanged {ends.get(r, r + 1)}, broadcast {world - 1}, scattered {10 * r}, gathered 1..{world}, sum {sum(mine)}, "
        f"product {math.prod(mine)}, max {world}, min 1, {'odd' if r % 2 else 'even'} {sum(m for m in mine if m % 2 == (r + 1) % 2)}" for r in range(world)]


def wait_for_steps(crun, workers=1, seconds=60):
    """Until all workers have taken SIGTERM over. -> their process ids by rank"""
    end = time.monotonic() + seconds
    while True:
        found = {}
        for pid in crun.processes():
            try:
                env = dict(v.split(b"=", 1) for v in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in v)
                status = dict(l.split(":\t", 1) for l in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in l)
            except OSError:
                continue
            term = 1 << (signal.SIGTERM - 1)
            up = int(status["SigCgt"], 16) & term and (status["Name"] == "worker" or int(status["Threads"]) > 1)
            if b"RANK" in env and up:
                found[int(env[b"RANK"])] = pid
        if len(found) == workers:
            return [found[r] for r in range(workers)]
        assert time.monotonic() < end, found
        time.sleep(0.01)


@pytest.fixture(params=["c", "python"])
def example(request, crun):
    crun.env |= {"LIBCRUN": LIBCRUN, "PYTHONPATH": f"{REPO}/python"}
    return request.getfixturevalue("c_worker") if request.param == "c" else [EXAMPLES / "worker.py"]


def test_the_examples_work_under_crun(crun, example):
    rc, out, err = crun.run("--nproc_per_node", 3, "--log-prefix=off", *example, 20)
    assert rc == 0, err
    assert sorted(out.splitlines()) == [f"rank {r} of 3: hello, round 1, sum 60" for r in range(3)]


def test_the_examples_work_alone(example):
    command = [str(example[0])] if os.access(example[0], os.X_OK) else [sys.executable, str(example[0])]
    env = {"PATH": os.environ["PATH"], "LIBCRUN": LIBCRUN, "PYTHONPATH": f"{REPO}/python"}
    p = subprocess.run([*command, "3"], env=env, capture_output=True, text=True, timeout=30)
    assert (p.returncode, p.stdout, p.stderr) == (0, "", "")


def test_the_examples_obey_a_drain(crun, example):
    logs = crun.tmp / "logs"
    p = crun.start("--hang-timeout", "off", "--log-dir", logs, "--run-id", "d", "--log-prefix=off", *example, 1000000)
    wait_for_steps(crun)
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 75, err
    assert re.search(rb"rank 0 stops after step \d+", out), out
    assert crun.processes() == []


def test_the_examples_end_at_once_when_a_peer_dies(crun, example):
    p = crun.start("--nproc_per_node", 2, "--shutdown-timeout", 50, *example, 1000000)
    pids = wait_for_steps(crun, 2)
    begun = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 137, err
    assert time.monotonic() - begun < 20 and b"did not end" not in err


CRASH = """
import ctypes, os, sys
lib = ctypes.CDLL(os.environ["LIBCRUN"])
lib.crun_init(ctypes.create_string_buffer(64))
lib.crun_progress(ctypes.c_uint64(7))
assert lib.crun_catch_crashes() == 0
if os.environ["RANK"] == "1" and sys.argv[1] == "sent":
    os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", "kill -SEGV $PPID; exec sleep 60")
elif os.environ["RANK"] == "1":
    ctypes.memset(16, 0, 1) if sys.argv[1] == "segv" else os.abort()
import signal
signal.pause()
"""


@pytest.mark.parametrize("how, code, message", [("segv", 139, "crashed: SIGSEGV at address 0x10"), ("abort", 134, "crashed: SIGABRT"),
                                                ("sent", 139, "crashed: SIGSEGV sent by process ")])
def test_a_crash_is_in_the_report_with_its_stack(crun, how, code, message):
    crun.env["LIBCRUN"] = LIBCRUN
    script = crun.tmp / "crash.py"
    script.write_text(CRASH)
    rc, _, err = crun.run("--nproc_per_node", 2, "--log-dir", crun.tmp / "logs", "--run-id", "c", script, how)
    assert rc == code, err
    assert message in err and "rank 1" in err
    assert bool(re.search(r" failed: rank 1 killed by SIGSEGV( \(core dumped\))?, which process \d+ sent\n", err)) == (how == "sent"), err
    record = (crun.tmp / "logs" / "c" / "round-1" / "rank-1.error.json").read_text()
    assert message in record and '"step": 7' in record and "#0 0x" in record and "libc.so" in record
    assert "libc.so" in (crun.tmp / "logs" / "c" / "round-1" / "rank-1.err").read_text()
    assert not (crun.tmp / "logs" / "c" / "round-1" / "rank-0.error.json").exists()


@pytest.fixture(scope="module")
def crash(tmp_path_factory):
    return build(pathlib.Path(__file__).with_name("crash.c"), tmp_path_factory.mktemp("crash") / "crash", "-fno-stack-protector")


@pytest.mark.parametrize("how, signo", [("smash", "SIGSEGV"), ("abort", "SIGABRT")])
def test_a_crash_whose_stack_is_overwritten_is_in_the_report(crun, crash, how, signo):
    rc, _, err = crun.run("--log-dir", crun.tmp / "logs", "--run-id", "c", *crash, how)
    assert rc == 128 + signal.Signals[signo] and f"killed by {signo}" in err and f"message   crashed: {signo}" in err, err
    record = json.loads((crun.tmp / "logs" / "c" / "round-1" / "rank-0.error.json").read_text())
    assert record["message"]["message"].startswith(f"crashed: {signo}") and record["rank"] == 0
    assert "call stack is damaged" in (crun.tmp / "logs" / "c" / "round-1" / "rank-0.err").read_text()


def test_a_crash_of_a_forked_process_is_not_the_ranks(crun, crash):
    rc, _, err = crun.run("--log-dir", crun.tmp / "logs", "--run-id", "c", *crash, "fork")
    assert rc == 3 and "rank 0 exited with code 3" in err and "message   " not in err, err
    assert not (crun.tmp / "logs" / "c" / "round-1" / "rank-0.error.json").exists()
    assert "crashed: SIGSEGV at address 0x10\n" in (crun.tmp / "logs" / "c" / "round-1" / "rank-0.err").read_text()


STORE = """
import ctypes, errno, os, threading, time
lib = ctypes.CDLL(os.environ["LIBCRUN"])
lib.crun_get.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.c_double]
lib.crun_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
lib.crun_barrier.argtypes = [ctypes.c_char_p, ctypes.c_double]
lib.crun_init(ctypes.create_string_buffer(64))
rank, n = int(os.environ["RANK"]), ctypes.c_size_t()
big = bytes(range(256)) * 8192
out = ctypes.create_string_buffer(len(big))

def get(key, cap, timeout):
    return lib.crun_get(key, out, cap, ctypes.byref(n), timeout)

begun = time.monotonic()
assert get(b"never", 1, 0.2) == -errno.ETIMEDOUT and 0.15 < time.monotonic() - begun < 20
assert get(b"never", 1, 0) == -errno.ETIMEDOUT
if rank == 0:                                     # one thread waits, another sets what it waits for
    got = []
    t = threading.Thread(target=lambda: got.append(get(b"big", len(big), 30)))
    t.start()
    time.sleep(0.05)
    assert lib.crun_set(b"big", big, len(big)) == 0
    t.join()
    assert got == [0] and n.value == len(big) and out.raw == big
else:
    assert get(b"big", len(big), 30) == 0 and out.raw == big
assert get(b"big", 3, 30) == 0 and n.value == len(big) and out.raw[:3] == big[:3]
assert lib.crun_set(b"empty", b"", 0) == 0 and get(b"empty", 1, 1) == 0 and n.value == 0
for i in range(100):
    assert lib.crun_barrier(b"b", 30) == 0
assert lib.crun_add(f"mine-{rank}".encode(), ctypes.c_int64(-5), None) == 0
assert lib.crun_add(b"big", ctypes.c_int64(1), None) == -errno.EPROTO  # no number
assert lib.crun_delete(f"mine-{rank}".encode()) == 1 and lib.crun_delete(f"mine-{rank}".encode()) == 0
assert lib.crun_barrier(b"end", 30) == 0
if rank == 0:
    assert lib.crun_barrier(b"alone", 0.2) == -errno.ETIMEDOUT
"""


def test_keys_waits_threads_and_barriers(crun):
    crun.env["LIBCRUN"] = LIBCRUN
    script = crun.tmp / "store.py"
    script.write_text(STORE)
    rc, _, err = crun.run("--nproc_per_node", 3, script)
    assert rc == 0, err
