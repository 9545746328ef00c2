"""What all end-to-end tests share: the build under test, a data set, running commands with a deadline."""
import os
import pathlib
import random
import socket
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build"))
CRUN = BUILD / "launcher" / "crun"
TRAINER = BUILD / "worker" / "trainer"


def run(*args, timeout=120, **kw):
    """Run to the end and return the CompletedProcess with text output; never longer than timeout seconds."""
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([str(a) for a in args], timeout=timeout, text=True, check=False, **kw)


def free_port(host="127.0.0.1"):
    """Below those that the kernel hands out: no other connection takes it before it is used."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            try:
                s.bind((host, random.SystemRandom().randrange(low // 2, low)))
            except OSError:
                continue
            return s.getsockname()[1]


def worker_pid(run_id, rank):
    """Process id of a rank of a running job, None if there is none."""
    want = {f"TORCHELASTIC_RUN_ID={run_id}".encode(), f"RANK={rank}".encode()}
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if want <= set((p / "environ").read_bytes().split(b"\0")):
                return int(p.name)
        except OSError:
            pass
    return None


def preload(name):
    """Environment of a program with a library of tests/fault."""
    library = BUILD / "tests" / "fault" / f"lib{name}.so"
    assert library.exists(), f"{library} is not built: ninja -C {BUILD} tests/fault/{library.name}"
    return {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"}


def faulty_disk(**kw):
    """Environment of a program whose disk has the faults of tests/fault/fault_disk.c."""
    return {**os.environ, **preload("fault_disk"), **{f"FAULT_DISK_{k.upper()}": str(v) for k, v in kw.items()}}
