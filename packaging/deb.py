"""Debian's packages of a finished build. usage: deb.py BUILD OUT

BUILD was set up with --prefix /usr. It is installed into a folder, each file goes to the one package that names it (debian_packages.py), and
dpkg-deb packs them. Libraries that are linked are found by dpkg-shlibdeps; those opened on first use are looked for in the programs' own
texts. The same build makes the same bytes: times are SOURCE_DATE_EPOCH's."""
import glob
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import debian_packages as packages

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAINTAINER = os.environ.get("DEBEMAIL", "crun maintainers <maintainers@crun-launcher.invalid>")
# Names of libraries in the programs that are no package's of Debian's: our own, the driver's, CUDA's.
NOT_DEBIANS = re.compile(r"lib(crun\b|nvidia|cuda|cudnn|cublas|nccl|nvrtc|nvml)")
# Whose code is inside the programs: static libraries, and libraries that are headers alone.
INSIDE = {"crun-launcher": ["libuv1-dev", "libhiredis-dev", "uthash-dev"], "rendezvousd": ["libuv1-dev", "libhiredis-dev", "uthash-dev"],
          "crun-trainer": ["uthash-dev", "librandom123-dev"]}


def output(*command, **kw):
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True, **kw).stdout.strip()


def release():
    """'deb12': what the packages are built on, and fit."""
    with open("/etc/os-release", encoding="utf-8") as f:
        fields = dict(line.rstrip().replace('"', "").split("=", 1) for line in f if "=" in line)
    return {"debian": "deb"}.get(fields["ID"], fields["ID"]) + fields.get("VERSION_ID", "")


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as f:
        return f.read(4) == b"\x7fELF"


class Package:
    def __init__(self, name, version, upstream, work):
        self.name, self.version, self.upstream = name, version, upstream
        self.root = work / name
        self.fields = dict(packages.CONTROL[name])
        self.architecture = self.fields.pop("Architecture", output("dpkg", "--print-architecture"))

    def move(self, stage):
        for pattern, to in packages.FILES[self.name].items():
            found = [pathlib.Path(p) for p in glob.glob(str(stage / pattern))]
            if not found:
                raise FileNotFoundError(f"{self.name}: {pattern} was not installed")
            for path in found:
                target = self.root / (to or path.relative_to(stage))
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)

    def add(self):
        """What the build does not install."""
        for link, to in packages.LINKS.get(self.name, {}).items():
            (self.root / link).parent.mkdir(parents=True, exist_ok=True)
            (self.root / link).symlink_to(to)
        for folder in packages.FOLDERS.get(self.name, []):
            (self.root / folder).mkdir(parents=True)
        doc = self.root / "usr/share/doc" / self.name
        doc.mkdir(parents=True, exist_ok=True)
        for example in packages.EXAMPLES.get(self.name, []):
            (doc / "examples").mkdir(exist_ok=True)
            shutil.copy(ROOT / example, doc / "examples")
        (doc / "copyright").write_text(copyright_of(self.name))
        self.changelog(doc)
        self.completions()
        self.manuals()

    def changelog(self, doc):
        when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
        text = f"crun-launcher ({self.version}) unstable; urgency=medium\n\n  * Version {self.upstream}.\n\n -- {MAINTAINER}  {when}\n"
        (doc / "changelog.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    def completions(self):
        """They are of the command crun-launcher here."""
        for path in [*self.root.glob("usr/share/bash-completion/completions/*"), *self.root.glob("usr/share/zsh/vendor-completions/*")]:
            text = path.read_text()
            path.write_text(re.sub(r"(?m)^(complete .*|#compdef) crun$", r"\1 crun-launcher", text))

    def manuals(self):
        """Compressed, and links to them too: crun-launch.1.gz -> crun-launcher.1.gz."""
        for path in sorted(self.root.glob("usr/share/man/man1/*.1")):
            if path.is_symlink():
                path.with_name(path.name + ".gz").symlink_to(os.readlink(path).replace("crun.1", "crun-launcher.1") + ".gz")
            else:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
            path.unlink()

    def programs(self):
        return [p for p in sorted(self.root.rglob("*")) if is_elf(p)]

    def strip(self):
        for path in self.programs():
            subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", path], check=True)

    def linked(self, work):
        """Packages that have what its files are linked with."""
        control = work / "shlibdeps" / "debian" / "control"
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_text("Source: crun-launcher\n\nPackage: crun-launcher\nArchitecture: any\n")
        theirs = ["--ignore-missing-info"] if self.name in packages.OPTIONAL else []  # of libraries that are no package's here: NVIDIA's
        said = output("dpkg-shlibdeps", "-O", "--warnings=0", *theirs, *[f"-e{p}" for p in self.programs()], cwd=control.parent.parent)
        return said.split("=", 1)[1]

    def opened(self):
        """Packages of the libraries that its files open on first use: (OpenSSL's, all others)."""
        names = set()
        for path in self.programs():
            known = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path)))
            names |= {m.decode() for m in re.findall(rb"(?<![\w.])lib[a-z][\w-]*\.so\.\d+(?=\0)", path.read_bytes())} - known
        owners = {name: owner(name) for name in names if not NOT_DEBIANS.match(name)}
        ssl = {p for name, p in owners.items() if name.startswith(("libssl.", "libcrypto."))}
        return ", ".join(sorted(ssl)), ", ".join(sorted(set(owners.values()) - ssl))

    def nvidias(self):
        """NVIDIA's packages of what its files are linked with, by the names that its repositories give them."""
        names = []
        for path in self.programs() if self.name in packages.OPTIONAL else []:
            said = output("readelf", "-dW", path)
            linked = dict(re.findall(r"\(NEEDED\).*\[(lib\w+)\.so\.(\d+)\]", said))
            header = pathlib.Path(re.search(r"\(RUNPATH\).*\[([^:\]]*)", said)[1]).parent / "include" / "cuda_runtime_api.h"
            version = int(re.search(r"#define CUDART_VERSION +(\d+)", header.read_text())[1])
            cuda = f"{version // 1000}-{version % 1000 // 10}"
            names += [name.format(cuda=cuda, major=version // 1000, so=linked[library]) for library, name in packages.NVIDIA.items() if library in linked]
        return ", ".join(names)

    def control(self, work):
        linked = self.linked(work) if self.programs() else ""
        ssl, opened = self.opened()
        fields = {"Package": self.name, "Source": "crun-launcher", "Version": self.version, "Architecture": self.architecture, "Maintainer": MAINTAINER,
                  "Installed-Size": str(sum(-(-p.lstat().st_size // 1024) for p in self.root.rglob("*") if p.is_file() or p.is_symlink())),
                  "Priority": "optional", "Multi-Arch": "same" if self.name == "libcrun0" else "foreign" if self.architecture == "all" else ""}
        fields.update({k: v.format(v=self.version, linked=linked, ssl=ssl, opened=opened, nvidia=self.nvidias()) for k, v in self.fields.items()})
        lines = []
        for name, value in fields.items():
            value = value if name == "Description" else ", ".join(part for part in re.split(r",\s*", value) if part)
            if value:
                lines.append(f"{name}: {value}\n")
        return "".join(lines)

    def metadata(self, work):
        debian = self.root / "DEBIAN"
        debian.mkdir()  # dpkg-shlibdeps knows a package's folder by it
        (debian / "control").write_text(self.control(work))
        sums = [f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(self.root)}\n" for p in sorted(self.root.rglob("*"))
                if p.is_file() and not p.is_symlink() and debian not in p.parents]
        (debian / "md5sums").write_text("".join(sums))
        for name, table in (("shlibs", packages.SHLIBS), ("triggers", packages.TRIGGERS)):
            if self.name in table:
                (debian / name).write_text(table[self.name].format(upstream=self.upstream))
        for script in ("postinst", "prerm", "postrm"):
            source = ROOT / "packaging" / "debian" / f"{self.name}.{script}"
            if source.exists():
                shutil.copy(source, debian / script)
                (debian / script).chmod(0o755)

    def modes(self):
        for path in [self.root, *self.root.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        for path in self.root.glob("usr/lib/*/libcrun.so.*"):
            if not path.is_symlink():
                path.chmod(0o644)

    def pack(self, out):
        path = out / f"{self.name}_{self.version}_{self.architecture}.deb"
        output("dpkg-deb", "--root-owner-group", "-Zxz", "--build", self.root, path)
        return path


def owner(soname):
    """The package that has a library."""
    folder = f"/usr/lib/{output('dpkg-architecture', '-qDEB_HOST_MULTIARCH')}"
    for path in (f"{folder}/{soname}", f"/lib/{os.path.basename(folder)}/{soname}"):
        p = subprocess.run(["dpkg-query", "-S", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if p.returncode == 0:
            return p.stdout.split(":")[0]
    raise FileNotFoundError(f"{soname} is opened on first use, and no package here has {folder}/{soname}: install what `./dev setup` lists")


def copyright_of(name):
    text = ("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: crun-launcher\n\n"
            "Files: *\nCopyright: the authors of crun\nLicense: Apache-2.0\n On Debian systems the text of this licence is in\n /usr/share/common-licenses/Apache-2.0\n")
    for package in INSIDE.get(name, []):
        said = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text()
        text += f"\n\n--- Parts of {package} are inside the programs; its copyright file says:\n\n{said}"
    return text


def is_to_be_made(name, stage):
    """False, and said: the build has none of an optional package's files."""
    if name not in packages.OPTIONAL or any(any(glob.iglob(str(stage / pattern))) for pattern in packages.FILES[name]):
        return True
    print(f"{name} is left out: {packages.OPTIONAL[name]}", file=sys.stderr)
    return False


def make(build, out):
    """-> paths of the packages"""
    upstream = json.loads((build / "meson-info" / "intro-projectinfo.json").read_text())["version"]
    version = f"{upstream}+{release()}"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="crun-deb-") as folder:
        work, stage = pathlib.Path(folder), pathlib.Path(folder) / "stage"
        output("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage)
        made = [Package(name, version, upstream, work) for name in packages.FILES if is_to_be_made(name, stage)]
        for package in made:
            package.move(stage)
        left = [str(p.relative_to(stage)) for p in stage.rglob("*") if p.is_file() or p.is_symlink()]
        if left:
            raise ValueError(f"in no package (packaging/debian_packages.py): {', '.join(sorted(left))}")
        paths = []
        for package in made:
            package.add()
            package.strip()
            package.metadata(work)
            package.modes()
            paths.append(package.pack(out))
    return paths


if __name__ == "__main__":
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    print(*make(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])), sep="\n")
