"""A worker that uses libcrun through ctypes: the same as worker.c.

    crun --nproc_per_node 4 --max-restarts 3 worker.py 100

Set LIBCRUN to the library's path where the loader does not find libcrun.so.0.
"""
import ctypes
import os
import signal
import sys
import threading
import time

STEP, CHECKPOINT, EVALUATION, CLOSING, PAUSED, STARTING = range(6)  # enum crun_phase
DRAIN, RESIZE = 3, 2  # enum crun_stop_reason
REQUEUE = 75


class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in
                ("rank", "world_size", "local_rank", "local_world_size", "group_rank", "group_world_size", "round", "restart_count")]
    _fields_ += [("run_id", ctypes.c_char_p), ("store", ctypes.c_char_p)]


class Crun:
    def __init__(self):
        lib = self.lib = ctypes.CDLL(os.environ.get("LIBCRUN", "libcrun.so.0"))
        lib.crun_progress.argtypes = [ctypes.c_uint64]
        lib.crun_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        lib.crun_get.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.c_double]
        lib.crun_add.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
        lib.crun_barrier.argtypes = [ctypes.c_char_p, ctypes.c_double]
        lib.crun_record_error.argtypes = [ctypes.c_int, ctypes.c_char_p]
        self.info = Info()
        self.check("crun_init", lib.crun_init(ctypes.byref(self.info)))
        lib.crun_catch_crashes()  # with faulthandler enabled before it, Python's stack is printed after ours

    def check(self, what, rc):
        if rc < 0:
            raise OSError(-rc, f"{what}: {os.strerror(-rc)}")

    def set(self, key, value):
        self.check("crun_set", self.lib.crun_set(key.encode(), value, len(value)))

    def get(self, key, timeout=30.0, capacity=1 << 16):
        out, n = ctypes.create_string_buffer(capacity), ctypes.c_size_t()
        self.check("crun_get", self.lib.crun_get(key.encode(), out, capacity, ctypes.byref(n), timeout))
        return out.raw[:n.value] if n.value <= capacity else self.get(key, timeout, n.value)

    def add(self, key, delta=1):
        total = ctypes.c_int64()
        self.check("crun_add", self.lib.crun_add(key.encode(), delta, ctypes.byref(total)))
        return total.value

    def barrier(self, name, timeout=60.0):
        self.check("crun_barrier", self.lib.crun_barrier(name.encode(), timeout))


def watch_for_stops(crun):
    """SIGTERM says that there is a reason to stop. For a drain the loop looks at it after its step; else nothing is left to be done. A thread,
    because Python's own handlers wait until a call into C returns."""
    def wait():
        while True:
            signal.sigwait({signal.SIGTERM})
            if crun.lib.crun_stop_reason() not in (DRAIN, RESIZE):
                os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()


def main(steps):
    crun = Crun()
    watch_for_stops(crun)
    me = crun.info
    crun.lib.crun_phase(STARTING)  # from here on this worker is watched for hangs
    if me.rank == 0 and me.world_size > 1:
        crun.set("greeting", b"hello")
    for step in range(1, steps + 1):
        time.sleep(0.01)  # the work
        if me.world_size > 1:
            crun.add("sum", me.rank)
        crun.barrier("step")
        crun.lib.crun_progress(step)
        if crun.lib.crun_stop_reason() in (DRAIN, RESIZE):
            print(f"rank {me.rank} stops after step {step}")
            return REQUEUE  # a real worker agrees with the others on the step, and saves
    crun.lib.crun_phase(CLOSING)
    if me.world_size > 1:
        print(f"rank {me.rank} of {me.world_size}: {crun.get('greeting').decode()}, round {me.round}, sum {crun.add('sum', 0)}")
    crun.lib.crun_finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
