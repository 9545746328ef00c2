"""What all end-to-end tests share: the build under test, running commands with a deadline, ports and locks, made faults."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import random
import socket
import subprocess

import pytest

from processes import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build"))
CRUN = BUILD / "launcher" / "crun"
TRAINER = BUILD / "worker" / "trainer"
RENDEZVOUSD = BUILD / "rendezvousd" / "rendezvousd"
LIBCRUN = BUILD / "common" / "crun" / "libcrun.so.0"
leases = {}


def run(*args, timeout=120, **kw):
    """Run to the end and return the CompletedProcess with text output; never longer than timeout seconds."""
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([str(a) for a in args], timeout=timeout, text=True, check=False, **kw)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def has_sanitizer(name):
    """Is crun built with this one, "asan" or "tsan"? It needs files, memory and processes of its own."""
    return f"__{name}_init".encode() in CRUN.read_bytes()


@contextlib.contextmanager
def locked(path):
    """One process at a time is in this block."""
    with open(path, "wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def lease(name):
    """Whether this name is ours now: no other process of this machine that asks here is given it until this one ends. It is an abstract socket's, for those
    belong to a network, as ports and subnets do, whatever the user, the folder for temporary files and the process ids that are seen."""
    if name in leases:
        return False
    s = socket.socket(socket.AF_UNIX)
    try:
        s.bind(f"\0crun-test-{name}")
    except OSError:
        s.close()
        return False
    leases[name] = s
    return True


def free_port(host="127.0.0.1"):
    """One that no other test is given. Below those that the kernel hands out: no connection takes it before it is used."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low = max(low, 20000)
    while True:
        port = random.SystemRandom().randrange(low // 2, low)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            try:
                s.bind((host, port))
            except OSError:
                continue
        if lease(f"port-{port}"):
            return port


def worker_pid(run_id, rank):
    """Process id of a rank of a running job, None if there is none."""
    return min(programs(f"TORCHELASTIC_RUN_ID={run_id}", f"RANK={rank}"), default=None)


@contextlib.contextmanager
def tmpfs(folder, mib):
    """A disk of its own, in memory, of so many MiB, at that folder. Root only: else the test is skipped."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(exist_ok=True)
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=%dm" % mib) != 0:
        pytest.skip("no right to mount")
    try:
        yield folder
    finally:
        libc.umount2(bytes(folder), 2)  # MNT_DETACH


def needs_tables_of_threads():
    """Skip where crun's threads cannot have tables of descriptors of their own."""
    if b"__tsan_init" in CRUN.read_bytes():
        pytest.skip("the thread sanitizer knows one table of descriptors a process")


def preload(*names):
    """Environment of a program with these libraries of tests/fault."""
    libraries = [BUILD / "tests" / "fault" / f"lib{name}.so" for name in names]
    for library in libraries:
        assert library.exists(), f"{library} is not built: ninja -C {BUILD} tests/fault/{library.name}"
    return {"LD_PRELOAD": ":".join(map(str, libraries)), "ASAN_OPTIONS": "verify_asan_link_order=0"}


def faulty_disk(**kw):
    """Environment of a program whose disk has the faults of tests/fault/fault_disk.c."""
    return {**os.environ, **preload("fault_disk"), **{f"FAULT_DISK_{k.upper()}": str(v) for k, v in kw.items()}}
