"""What trainer is built from, carried to a GPU machine that has neither network nor the packages.

usage: deps.py pack FILE.tar.xz            on Debian with the packages: headers, libraries, pkg-config files, the programs the build calls
       deps.py unpack FILE.tar.xz DIR      there: prints the environment for a build, as lines for a shell

glibc and libstdc++ are the machine's own, which must not be older than where the parcel was packed. Everything else that a library needs
travels with it, and is found by an rpath: nothing is installed, and other programs notice nothing. CUDA is the machine's; cuDNN, NCCL and
cuBLASLt may lie beside nvcc or be those of the python3 that unpacks."""
import os
import pathlib
import platform
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import tempfile

PACKAGES = ("libuv1-dev libhiredis-dev libcjson-dev uthash-dev libdnnl-dev libgloo-dev libjpeg*-turbo*-dev libpng-dev librandom123-dev "
            "libcmocka-dev libssl-dev liblmdb-dev libleveldb-dev libzip-dev libprotobuf-c-dev zlib1g-dev").split()
PROGRAMS = ["protoc-c", "pkgconf", "redis-server"]
OWN = re.compile(r"(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|libstdc\+\+|libgomp)[-.]")  # the machine's own
LIMIT = 48 << 20


def needed(path):
    """Shared libraries behind a file, as [(soname, path)]."""
    out = subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [(m[1], m[2]) for m in re.finditer(r"(\S+) => (/\S+)", out) if not OWN.match(m[1])]


def take_libraries(path, lib):
    for soname, at in needed(path):
        shutil.copy(at, lib / soname)


def take_library(link, lib):
    """A lib*.so of a -dev package: the file under its soname, what it needs, and the name that the linker looks for."""
    text = subprocess.run(["objdump", "-p", link], stdout=subprocess.PIPE, text=True, check=True).stdout
    soname = re.search(r"SONAME\s+(\S+)", text)[1]
    shutil.copy(os.path.realpath(link), lib / soname)
    take_libraries(link, lib)
    if soname != link.name and not (lib / link.name).exists():
        (lib / link.name).symlink_to(soname)


def take_package(package, to):  # libjpeg*-turbo*-dev: libjpeg62-turbo-dev, on Ubuntu libjpeg-turbo8-dev
    names = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", package], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.split("\n")
    installed = [name.split()[1] for name in names if name.startswith("installed ")]
    listed = subprocess.run(["dpkg", "-L", *installed], stdout=subprocess.PIPE, text=True, check=True).stdout
    for path in map(pathlib.Path, listed.split("\n")):
        text = str(path)
        header = re.match(r"/usr/include/(?:x86_64-linux-gnu/)?(.+)", text)
        if header and path.is_file():
            at = to / "include" / header[1]
            at.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, at)
        elif re.match(r"/usr/lib/(x86_64-linux-gnu/)?lib[^/]*\.so$", text):
            take_library(path, to / "lib")
        elif path.suffix == ".pc":
            pc = path.read_text().replace("/x86_64-linux-gnu", "")
            own = re.sub(r"(?m)^prefix=.*\n", "", pc)  # some have none
            own = re.sub(r"(?m)=/usr$", "=${prefix}", own).replace("/usr/", "${prefix}/")
            (to / "lib/pkgconfig" / path.name).write_text("prefix=${pcfiledir}/../..\n" + own)


def pack(parcel):
    with tempfile.TemporaryDirectory() as temporary:
        to = pathlib.Path(temporary)
        for folder in ("include", "lib/pkgconfig", "bin"):
            (to / folder).mkdir(parents=True)
        for package in PACKAGES:
            take_package(package, to)
        for program in PROGRAMS:
            at = shutil.which(program)
            if at:
                shutil.copy(at, to / "bin" / program)
                take_libraries(at, to / "lib")
        for file in [*(to / "lib").glob("*.so*"), *(to / "bin").iterdir()]:
            if not file.is_symlink():
                subprocess.run(["strip", "--strip-unneeded", file], check=True)
        (to / "glibc").write_text(platform.libc_ver()[1])
        pathlib.Path(parcel).parent.mkdir(parents=True, exist_ok=True)
        part = parcel + ".part"
        with tarfile.open(part, "w:xz", preset=3) as tar:
            tar.add(to, arcname=".")
        os.replace(part, parcel)
    size = os.path.getsize(parcel)
    print(f"{parcel}: {size / 2**20:.1f} MiB for {platform.machine()}, glibc {platform.libc_ver()[1]} or newer")
    if size > LIMIT:
        raise SystemExit(f"{parcel} has {size >> 20} MiB, expected at most {LIMIT >> 20}")


def version(text):
    return tuple(int(n) for n in text.split("."))


def unpack(parcel, to):
    to = pathlib.Path(to).resolve()
    mark = to / "unpacked"
    stamp = str(os.stat(parcel).st_mtime_ns)
    if not mark.exists() or mark.read_text() != stamp:
        shutil.rmtree(to, ignore_errors=True)
        with tarfile.open(parcel) as tar:
            tar.extractall(to)
        want, have = (to / "glibc").read_text(), platform.libc_ver()[1]
        if version(have) < version(want):
            raise SystemExit(f"{parcel} was packed for glibc {want}, this machine has {have}: pack it on an older Debian")
        for program in sorted((to / "bin").iterdir()):  # each with the libraries of this folder
            real = to / "libexec" / program.name
            real.parent.mkdir(exist_ok=True)
            program.rename(real)
            program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{to}/lib" exec "{real}" "$@"\n')
            program.chmod(0o755)
        if (to / "bin/pkgconf").exists():
            (to / "bin/pkg-config").symlink_to("pkgconf")
        mark.write_text(stamp)
    own = wheels(to / "cuda")
    include = ":".join([f"{to}/include"] + [f"{to}/cuda/include"] * bool(own))
    flags = [f"-L{to}/lib", f"-Wl,-rpath,{to}/lib"] + [f"-L{to}/cuda/lib"] * bool(own) + [f"-Wl,-rpath,{lib}" for lib in own]
    print(f'export PATH="{to}/bin:$PATH" PKG_CONFIG_LIBDIR="{to}/lib/pkgconfig"')
    print(f'export C_INCLUDE_PATH="{include}" CPLUS_INCLUDE_PATH="{include}"')
    # RPATH, not RUNPATH: it holds for what the libraries themselves need, too.
    print(f'export LDFLAGS="-Wl,--disable-new-dtags {" ".join(flags)}"')


def in_toolkit(header):
    """Does CUDA have it itself? nvcc on the PATH may be a script elsewhere."""
    nvcc = shutil.which("nvcc") or ""
    homes = [pathlib.Path(os.path.realpath(nvcc)).parent.parent, pathlib.Path("/usr/local/cuda"), pathlib.Path("/usr")]
    return any((h / "include" / header).exists() for h in homes)


# nvidia/PART, or all of CUDA 13's in one folder
WHEELS = [(("cudnn",), "cudnn_graph.h"), (("nccl",), "nccl.h"), (("cublas", "cu13"), "cublasLt.h")]


def wheels(to):
    """cuDNN, NCCL and cuBLASLt of Python's site-packages, where the toolkit lacks them: headers and linker's names in one folder. Returns the libraries' own."""
    found = []
    shutil.rmtree(to, ignore_errors=True)
    sites = dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])
    for parts, header in WHEELS:
        homes = [pathlib.Path(p) / "nvidia" / part for p in sites for part in parts]
        home = next((h for h in homes if (h / "include" / header).exists()), None)
        if home is None or in_toolkit(header):
            continue
        (to / "include").mkdir(parents=True, exist_ok=True)
        (to / "lib").mkdir(exist_ok=True)
        for file in (home / "include").iterdir():
            if not (to / "include" / file.name).exists():
                (to / "include" / file.name).symlink_to(file)
        for file in (home / "lib").glob("lib*.so.*"):
            link = to / "lib" / re.sub(r"\.so.*", ".so", file.name)
            if not link.exists():
                link.symlink_to(file)
        found.append(home / "lib")
    return found


if __name__ == "__main__":
    commands = {"pack": (pack, 1), "unpack": (unpack, 2)}
    if len(sys.argv) < 2 or sys.argv[1] not in commands or len(sys.argv) - 2 != commands[sys.argv[1]][1]:
        raise SystemExit(__doc__)
    commands[sys.argv[1]][0](*sys.argv[2:])
