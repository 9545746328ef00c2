"""A worker for the tests: `worker.py WHAT [args]`. Uses the shared page as its layout in common/crun/crun_page.h says."""

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time

rank = int(os.environ["RANK"])
here = os.environ.get("TMPDIR", "/tmp")


class Page:
    def __init__(self):
        self.m = mmap.mmap(int(os.environ["CRUN_PAGE_FD"]), 4096)
        assert self.m[0:4] == (0x6E757263).to_bytes(4, "little")

    def u32(self, at):
        return int.from_bytes(self.m[at : at + 4], "little")

    def put(self, at, n, value):
        self.m[at : at + n] = value.to_bytes(n, "little")

    reason = property(lambda self: self.u32(16))

    def attach(self):
        self.put(20, 4, 1)

    def progress(self, step, at_ns=None):
        self.put(24, 8, step)
        self.put(32, 8, at_ns or time.monotonic_ns())
        os.write(self.u32(8), (1).to_bytes(8, "little"))


def touch(name, text=""):
    path = os.path.join(here, name)
    with open(path + ".tmp", "w") as f:
        f.write(text)
    os.rename(path + ".tmp", path)


def env():
    """Every variable, as JSON, into a file of this rank."""
    touch(f"env-{rank}", json.dumps({"env": dict(os.environ), "fds": sorted(map(int, os.listdir("/proc/self/fd")))}))


def lines(count):
    touch(f"writing-{rank}")
    for i in range(int(count)):
        sys.stdout.write(f"line {i} of rank {rank} {'x' * (i % 97)}\n")


def long_line(size):
    sys.stdout.write(chr(ord("a") + rank) * int(size) + "\n")


def store():
    """Round 1 leaves a key and fails; round 2 must not see it. Speaks RESP by hand, as any Redis client would."""
    f = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).makefile("rwb")

    def ask(line):
        f.write(line.encode() + b"\r\n")
        f.flush()
        return f.readline().decode().strip()

    touch(f"store-{os.environ['CRUN_ROUND']}", " ".join([ask("PING"), ask("EXISTS key"), ask("SET key 1"), ask("INCR key")]))
    sys.exit(1 if os.environ["CRUN_ROUND"] == "1" else 0)


def library(path):
    """The same as drain(), through libcrun and ctypes."""
    lib = ctypes.CDLL(path)
    lib.crun_stop_reason_name.restype = ctypes.c_char_p

    class Info(ctypes.Structure):
        names = "rank world_size local_rank local_world_size group_rank group_world_size round restart_count".split()
        _fields_ = [(n, ctypes.c_int) for n in names] + [("run_id", ctypes.c_char_p), ("store", ctypes.c_char_p)]

    info = Info()
    assert lib.crun_init(ctypes.byref(info)) == 0
    assert (info.rank, info.world_size, info.run_id) == (rank, int(os.environ["WORLD_SIZE"]), b"lib"), info

    def on_term(signo, frame):
        touch(f"reason-{rank}", lib.crun_stop_reason_name(lib.crun_stop_reason()).decode())
        if rank == 1:
            lib.crun_record_error(11, b"told through the page")
            sys.exit(11)
        sys.exit(75)

    signal.signal(signal.SIGTERM, on_term)
    lib.crun_progress(ctypes.c_uint64(5))
    touch(f"ready-{rank}")
    while True:
        time.sleep(0.02)  # pause() would not see a signal that came just before it


def drain(seconds=0):
    """Stops in good order: looks at the reason when SIGTERM comes, takes its time, exits 75."""
    page = Page()
    page.attach()

    def on_term(signo, frame):
        touch(f"reason-{rank}", str(page.reason))
        time.sleep(float(seconds))
        sys.exit(75)

    signal.signal(signal.SIGTERM, on_term)
    page.progress(1)
    touch(f"ready-{rank}")
    while True:
        time.sleep(0.02)  # pause() would not see a signal that came just before it


def stubborn():
    """Ignores SIGTERM and SIGINT, and has a daemon of its own in another session that does so too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    touch(f"ready-{rank}", str(os.getpid()))
    while True:
        signal.pause()


def steps(fail_round):
    """Says of its first step that it is made in 1000 s; rank 1 kills itself in the first rounds."""
    page = Page()
    page.attach()
    page.progress(1, time.monotonic_ns() + 1000 * 10**9)
    if rank == 1 and int(os.environ["CRUN_ROUND"]) <= int(fail_round):
        os.kill(os.getpid(), signal.SIGKILL)
    if int(os.environ["CRUN_ROUND"]) <= int(fail_round):
        signal.pause()


def record(text):
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": {"message": text, "extraInfo": {"timestamp": "1700000000"}}}, f)
    sys.stderr.write("one\ntwo\nthree\n")
    sys.exit(9)


globals()[sys.argv[1]](*sys.argv[2:])
