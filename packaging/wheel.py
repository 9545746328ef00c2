"""The wheel crun-launcher: crun, rendezvousd, libcrun and the Python module in an environment. usage: wheel.py BUILD OUT

Programs stand in it as they are (as ruff's and ninja's do), so its tag is any Python's, and the glibc's that they were linked with. BUILD is a
finished one of -Dportable=true. The same build makes the same bytes: names are sorted, times are SOURCE_DATE_EPOCH's."""
import base64
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile

import elf

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "crun_launcher"
LICENSES = {  # of what is inside the programs: in the sources that were built, and Debian's uthash
    "libuv": "libuv1-*/LICENSE", "libuv-extra": "libuv1-*/LICENSE-extra", "hiredis": "hiredis-*/COPYING", "cJSON": "cJSON-*/LICENSE",
    "uthash": "/usr/share/doc/uthash-dev/copyright"}
# A wheel holds no links. The first argument tells crun its name, and so the manners of torch.distributed.launch, or of torchrun
# where that is a link to the script.
LINK = """#!python
import os
import sys
os.execv(os.path.join(os.path.dirname(sys.executable), "crun"), [os.path.basename(sys.argv[0]), *sys.argv[1:]])
"""
# torchrun --rdzv-backend crun
ENTRY_POINTS = """[torchrun.handlers]
crun = crun.integrations.torchrun:handler
"""
METADATA = """Metadata-Version: 2.4
Name: crun-launcher
Version: {version}
Summary: Launcher for distributed training: crun, rendezvousd, and the module crun for workers
License-Expression: Apache-2.0 AND MIT AND BSD-3-Clause AND BSD-2-Clause AND BSD-1-Clause AND ISC
License-File: LICENSE
{license_files}Keywords: distributed,deep-learning,launcher,elastic,torchrun
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Typing :: Typed
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""


def version_of(build):
    return json.loads((build / "meson-info" / "intro-projectinfo.json").read_text())["version"]


def stripped(path, scratch):
    out, machine = scratch / path.name, elf.machine(path)
    strip = "strip" if machine == os.uname().machine else f"{machine}-linux-gnu-strip"
    subprocess.run([strip, "--strip-unneeded", "-o", out, path], check=True)
    return out


def binaries(build, scratch):
    """{name in the wheel: file}"""
    found = {f"{NAME}-{version_of(build)}.data/scripts/crun": "launcher/crun", f"{NAME}-{version_of(build)}.data/scripts/rendezvousd": "rendezvousd/rendezvousd",
             "crun/libcrun.so.0": "common/crun/libcrun.so.0"}
    return {name: stripped((build / path).resolve(), scratch) for name, path in found.items()}


def texts(build, version):
    """{name in the wheel: bytes}"""
    files = {f"crun/{p.relative_to(ROOT / 'python' / 'crun')}": p.read_bytes() for p in (ROOT / "python" / "crun").rglob("*") if p.suffix in (".py", ".typed")}
    data, info = f"{NAME}-{version}.data", f"{NAME}-{version}.dist-info"
    for name in ("crun-launch", "crun-launcher"):
        files[f"{data}/scripts/{name}"] = LINK.encode()
    for page in sorted(build.glob("*/*.1")):
        files[f"{data}/data/share/man/man1/{page.name}"] = page.read_bytes()
    files[f"{data}/data/share/bash-completion/completions/crun"] = (build / "launcher" / "crun.bash").read_bytes()
    files[f"{data}/data/share/zsh/site-functions/_crun"] = (build / "launcher" / "_crun").read_bytes()
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    names = ""
    for name, path in sorted(LICENSES.items()):
        found, = (ROOT / "packaging" / "subprojects").glob(path) if path[0] != "/" else [pathlib.Path(path)]
        files[f"{info}/licenses/LICENSE.{name}"] = found.read_bytes()
        names += f"License-File: LICENSE.{name}\n"
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    readme = (ROOT / "packaging" / "wheel.md").read_text()
    files[f"{info}/METADATA"] = (METADATA.format(version=version, license_files=names) + readme).encode()
    return files


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write(path, files, programs):
    """A zip of files, in the order of their names."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    when = max(time.gmtime(epoch)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name in sorted(files, key=lambda n: (".dist-info/" in n, n)):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name in programs or "/scripts/" in name else 0o100644) << 16
            z.writestr(entry, files[name])


def make(build, out):
    """-> path of the wheel"""
    version = version_of(build)
    info = f"{NAME}-{version}.dist-info"
    with tempfile.TemporaryDirectory() as scratch:
        programs = binaries(build, pathlib.Path(scratch))
        glibc = elf.glibc_release(programs.values())
        tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{elf.machine(next(iter(programs.values())))}"
        files = {**texts(build, version), **{name: path.read_bytes() for name, path in programs.items()}}
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: crun packaging\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/RECORD"] = "".join(f"{n},{digest(d)},{len(d)}\n" for n, d in sorted(files.items())).encode() + f"{info}/RECORD,,\n".encode()
    path = out / f"{NAME}-{version}-{tag}.whl"
    out.mkdir(parents=True, exist_ok=True)
    write(path, files, programs)
    return path


if __name__ == "__main__":
    print(make(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])))
