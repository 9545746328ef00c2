"""A rank of the trainer that stands still: noticed by its learned time, stacks saved, the others go on, and lose no step."""
import ctypes
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from support import CRUN, worker_pid

pytestmark = pytest.mark.slow
RANKS, STEPS = 4, 120


class Page(ctypes.Structure):
    """struct crun_page (common/crun/crun_page.h)."""
    _fields_ = [("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("notify_fd", ctypes.c_int32), ("reserved", ctypes.c_uint32),
                ("stop_reason", ctypes.c_uint32), ("attached", ctypes.c_uint32), ("step", ctypes.c_uint64),
                ("first_step_ns", ctypes.c_int64), ("last_step_ns", ctypes.c_int64), ("error_code", ctypes.c_int32),
                ("error_text", ctypes.c_char * 512), ("has_metrics", ctypes.c_uint32), ("reserved2", ctypes.c_uint32),
                ("metrics", ctypes.c_uint64 * 2), ("phase", ctypes.c_uint32), ("reserved3", ctypes.c_uint32),
                ("phase_ns", ctypes.c_int64), ("longest_ns", ctypes.c_int64 * 8), ("steps", ctypes.c_uint32 * 384)]


def page_of(pid):
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if "crun-page" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                with open(f"/proc/{pid}/fd/{fd}", "rb") as f:
                    return Page.from_buffer_copy(f.read(4096))
    except OSError:
        pass
    return None


def p99_of(pages):
    """Of all ranks' steps, as crun takes it, in seconds; the upper end of its bucket."""
    steps = [sum(n) for n in zip(*(p.steps for p in pages))]
    want, seen = 0.99 * sum(steps), 0
    for i, n in enumerate(steps):
        seen += n
        if seen >= want:
            return (1 << (17 + (i + 1) // 16)) * (1 + (i + 1) % 16 / 16) / 1e9


def test_a_stopped_rank_is_noticed_and_the_job_goes_on(shapes, tmp_path):
    data = shapes(32, 640, 20)
    run_id = f"hang-{os.getpid()}"
    command = [CRUN, "--nproc_per_node", RANKS, "--max-restarts", 1, "--run-id", run_id, "--log-dir", tmp_path / "logs",
               "trainer", "--train-data", data / "train", "--arch", "resnet18", "--image-size", 32, "--batch-size", 8,
               "--num-epochs", 20, "--max-steps", STEPS, "--device", "cpu", "--amp", "off", "--checkpoint-dir", tmp_path / "out",
               "--checkpoint-every", 25, "--resume", "auto", "--print-freq", 50]
    p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, noticed = [], threading.Event()

    def text():
        return "".join(line for _, line in lines)

    def read():
        for line in p.stdout:
            lines.append((time.monotonic(), line))
            if "has stood" in line:
                noticed.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        deadline = time.monotonic() + 240
        pages = [None]
        while None in pages or any(page.step < 60 or page.phase != 0 for page in pages):
            assert time.monotonic() < deadline and p.poll() is None, text()
            time.sleep(0.05)
            pids = [worker_pid(run_id, r) for r in range(RANKS)]
            pages = [page_of(pid) if pid else None for pid in pids]
        p99 = p99_of(pages)
        os.kill(pids[2], signal.SIGSTOP)
        begun = time.monotonic()
        assert noticed.wait(3 * p99 + 30), text()
        at, line = next((at, line) for at, line in lines if "has stood" in line)
        print(f"{line}p99 of a step {p99:.3f} s; noticed {at - begun:.3f} s after SIGSTOP, 3 x p99 + 1 s = {3 * p99 + 1:.3f} s")
        assert p.wait(300) == 0, text()
    finally:
        p.kill()
        reader.join(20)
    assert re.search(r"rank 2 has stood at step \d+ for [\d.]+ s, stopped by a signal", text()), text()
    assert "restart 1/1 (rank 2 hung" in text() and "goes on from step" in text(), text()
    assert at - begun < 1.5 * (3 * p99 + 1) + 1  # for a busy machine; the figure above is the measurement
    saved = list((tmp_path / "logs").glob("*/round-1/hang-rank-*.txt"))
    assert len(saved) == RANKS
    assert all(re.search(r"^thread \d+ \(trainer\): state", f.read_text(), re.M) for f in saved)
