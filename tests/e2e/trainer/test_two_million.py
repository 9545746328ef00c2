"""Two million classes over two nodes of two ranks each: memory beside what is planned, saved to a disk in one piece, resumed by another number of ranks."""
import pathlib
import re
import subprocess
import threading
import time

import pytest

from metrics_file import steps_of
from processes import command
from support import CRUN, free_port, run

CLASSES, STEPS, GB = 2_000_000, 20, 1e9
TRAINER = ["trainer", "--train-data", "null", "--arch", "resnet18", "--image-size", 64, "--device", "cpu", "--amp", "off", "--threads", 1, "--batch-size", 16,
           "--model-parallel-dim", 1, "--null-images", 1600, "--num-epochs", 10, "--checkpoint-sync", "--checkpoint-keep", 1]

pytestmark = [pytest.mark.slow, pytest.mark.serial]


def status(pid, field):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else 0


class Watch:
    """The largest VmHWM of each rank of a job."""

    def __init__(self, mark):
        self.mark, self.peaks, self.over = mark, {}, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.over.wait(0.05):
            for path in pathlib.Path("/proc").iterdir():
                try:
                    if path.name.isdigit() and self.mark in (path / "environ").read_bytes() and " trainer " in f" {command(int(path.name))} ".replace("/", " "):
                        rank = re.search(rb"\0RANK=(\d+)\0", (path / "environ").read_bytes())
                        if rank:
                            self.peaks[int(rank[1])] = max(self.peaks.get(int(rank[1]), 0), status(path.name, "VmHWM"))
                except OSError:
                    pass

    def end(self):
        self.over.set()
        self.thread.join()
        return self.peaks


def train(nodes, ranks, folder, classes, *more, timeout=1500):
    """-> text of all nodes, the peak of each rank in bytes"""
    run_id = f"classes-{time.monotonic_ns()}"
    watch = Watch(f"TORCHELASTIC_RUN_ID={run_id}".encode())
    where = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"] if nodes > 1 else []
    line = [CRUN, "--nnodes", nodes, "--nproc-per-node", ranks, "--run-id", run_id, *where, *TRAINER, "--num-labels", classes,
            "--model-parallel-size", nodes * ranks, "--checkpoint-dir", folder, *more]
    started = [subprocess.Popen([str(a) for a in line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(nodes)]
    try:
        texts = [p.communicate(timeout=timeout)[0] for p in started]
    finally:
        peaks = watch.end()
        for p in started:
            if p.poll() is None:
                p.kill()
    assert [p.returncode for p in started] == [0] * nodes, texts
    return "\n".join(texts), peaks


def planned(text):
    """Bytes of a rank, as rank 0 says before the first step."""
    line = re.search(r"memory a rank: (.*)", text)
    assert line, text
    return sum(float(mib) for mib in re.findall(r"([\d.]+) MiB", line[1])) * 2**20


def free_memory():
    return int(re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024


def test_two_nodes_train_save_and_another_layout_resumes(tmp_path):
    if free_memory() < 17e9:
        pytest.skip(f"needs 17 GB of memory: {free_memory() / GB:.1f} are free")
    idle_text, idle = train(2, 2, tmp_path / "idle", 4, "--max-steps", 2)
    text, peaks = train(2, 2, tmp_path / "ck", CLASSES, "--max-steps", STEPS)
    steps = steps_of(tmp_path / "ck")
    assert len(steps) == STEPS
    need = {r: peaks[r] - idle[r] for r in peaks}
    plan, total = planned(text) - planned(idle_text), sum(peaks.values())
    print(f"all ranks {total / GB:.1f} GB; a rank beyond an idle one's {max(idle.values()) / GB:.2f} GB: " + ", ".join(f"{n / GB:.3f}" for _, n in sorted(need.items()))
          + f"; planned {plan / GB:.3f}; {steps[-1]}")
    assert total <= 16e9
    assert all(n <= 1.05 * plan for n in need.values())
    resumed, _ = train(1, 3, tmp_path / "ck", CLASSES, "--max-steps", STEPS + 2, "--resume", "auto")
    assert f"resumed from step {STEPS}" in resumed
    again = steps_of(tmp_path / "ck")[STEPS:]
    assert len(again) == 2 and all(r["loss"] < 20 for r in again)
