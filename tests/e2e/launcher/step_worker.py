"""A worker that makes steps of some milliseconds through libcrun: `step_worker.py LAST_ROUND_STEPS [STUCK_RANK STUCK_STEP]`.

In the first round it goes on until something ends it; the rank STUCK_RANK stands still at STUCK_STEP. In later rounds it makes LAST_ROUND_STEPS.
With THREADS in the environment it has so many more, which sleep.
"""
import ctypes
import os
import pathlib
import sys
import threading
import time

lib = ctypes.CDLL(os.environ["LIBCRUN"])
lib.crun_progress.argtypes = [ctypes.c_uint64]
lib.crun_barrier.argtypes = [ctypes.c_char_p, ctypes.c_double]
assert lib.crun_init(ctypes.create_string_buffer(64)) == 0
lib.crun_phase(5)
rank, first = int(os.environ["RANK"]), os.environ["CRUN_ROUND"] == "1"
last = int(sys.argv[1])
stuck = [int(a) for a in sys.argv[2:4]] or [-1, -1]
for _ in range(int(os.environ.get("THREADS", 0))):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
took = []
step = 0
while first or step < last:
    begun = time.monotonic()
    time.sleep(0.005)
    while first and [rank, step] == stuck:
        time.sleep(0.1)
    rc = lib.crun_barrier(b"step", 600)
    assert rc == 0, rc
    step += 1
    lib.crun_progress(step)
    took.append(time.monotonic() - begun)
    if first and step == 200:
        took.sort()
        path = pathlib.Path(os.environ["TMPDIR"]) / f"ready-{rank}"
        path.with_suffix(".tmp").write_text(f"{os.getpid()} {took[int(0.99 * len(took))]}")
        path.with_suffix(".tmp").rename(path)
lib.crun_phase(3)
