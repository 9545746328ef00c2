"""How long the headers of tar files take that are walked over when a run begins: usage bench_tars.py TRAINER [--tars N] [--pictures N] [--bytes N] [--dir DIR] [--check]

Made are N tars with a picture of so many bytes and its .cls each (mean of ImageNet: 110,000), sparse: what a picture holds is a hole. `trainer summary` reads
them, first with the files out of the page cache, then with them in it. Fewer are made where the disk has no room for all. A line each: seconds, and seconds a GB of tars.
--check: fails above 1 s a GB.
"""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

DISK = 8192  # bytes that a picture takes at most: two blocks


def end(signum, frame):
    sys.exit(128 + signum)  # what was made is removed


def remove_left(where):
    """What a call that was killed with -9 could not remove."""
    for path in pathlib.Path(where).glob("bench_tars-*-*"):
        if not os.path.exists(f"/proc/{path.name.split('-')[1]}"):
            shutil.rmtree(path, ignore_errors=True)


def fit(where, tars, pictures):
    """As many tars as leave a tenth of the disk's free room."""
    of = os.statvfs(where)
    fitting = int(of.f_bavail * of.f_frsize * 0.9 / (pictures * DISK))
    if fitting < 1:
        sys.exit(f"bench_tars: {where} has no room for a tar of {pictures} pictures ({pictures * DISK >> 20} MiB): --dir names another disk")
    if fitting < tars:
        print(f"{where} has room for {fitting} of the {tars} tars", flush=True)
    return min(tars, fitting)


def header(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def make(path, first, pictures, size):
    padded, at = (size + 511) // 512 * 512, 0
    with open(path, "wb") as f:
        pending = b""
        for i in range(first, first + pictures):
            os.pwrite(f.fileno(), pending + header(f"{i:08}.jpg", size), at - len(pending))
            pending = header(f"{i:08}.cls", 3) + f"{i % 1000:03}".encode().ljust(512, b"\0")
            at += 512 + padded + len(pending)
        os.pwrite(f.fileno(), pending, at - len(pending))
        f.truncate(at + 1024)
    return at + 1024


def forget(folder):
    os.sync()
    for path in folder.iterdir():
        with open(path, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def index(trainer, folder, pictures):
    start = time.monotonic()
    p = subprocess.run([trainer, "summary", "--train-data", folder, "--arch", "convnet", "--device", "ref"], capture_output=True, text=True)
    seconds = time.monotonic() - start
    if p.returncode or f"tar, {pictures} images, " not in p.stdout:
        sys.exit(f"bench_tars: {p.stdout}{p.stderr}")
    return seconds


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trainer")
    p.add_argument("--tars", type=int, default=1000)
    p.add_argument("--pictures", type=int, default=1000, help="of a tar")
    p.add_argument("--bytes", type=int, default=110000, help="of a picture")
    p.add_argument("--dir", help="where the tars are made: up to 8 KiB of disk a picture; default: the system's")
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(s, end)
    where = args.dir or tempfile.gettempdir()
    remove_left(where)
    tars = fit(where, args.tars, args.pictures)
    with tempfile.TemporaryDirectory(dir=where, prefix=f"bench_tars-{os.getpid()}-") as d:
        folder = pathlib.Path(d)
        gb, start, worst = 0, time.monotonic(), 0
        for i in range(tars):
            gb += make(folder / f"{i:06}.tar", i * args.pictures, args.pictures, args.bytes) / 1e9
            if (i + 1) % 50 == 0 or i + 1 == tars:
                print(f"made {i + 1} of {tars} tars in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        for name in "out of the page cache", "in the page cache":
            if name.startswith("out"):
                forget(folder)
            seconds = index(args.trainer, folder, tars * args.pictures)
            worst = max(worst, seconds / gb)
            print(f"{tars} tars of {args.pictures} pictures, {gb:.1f} GB, {name}: {seconds:.2f} s, {seconds / gb:.3f} s a GB", flush=True)
    if args.check and worst > 1:
        sys.exit(f"missed: {worst:.2f} s a GB")


main()
