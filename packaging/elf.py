"""What a program or library needs to be loaded, as readelf tells."""
import re
import subprocess

# Those of glibc itself: PEP 600's tag says which release has them.
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path))


def glibc_release(paths):
    """(2, 34): the oldest glibc that has every symbol of these files. ValueError: one needs another library."""
    newest = (2, 5)
    for path in paths:
        foreign = set(needed(path)) - GLIBC
        if foreign:
            raise ValueError(f"{path} needs {', '.join(sorted(foreign))}: expected nothing but glibc")
        for version in re.findall(r"Name: GLIBC_([\d.]+)", readelf("-V", path)):
            newest = max(newest, tuple(map(int, version.split("."))))
    return newest[:2]


def machine(path):
    """'x86_64'"""
    name = re.search(r"Machine: +(.*)", readelf("-h", path))[1]
    return {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}[name]
