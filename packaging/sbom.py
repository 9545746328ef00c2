"""What is in an artefact, as SPDX 2.3: ARTEFACT.spdx.json beside it. usage: sbom.py ARTEFACT...

A wheel and the debs list their programs, the code inside these, and the libraries that they are linked with or open on first use; an image the
packages that dpkg has in it. check() asks others for the same: ldd what a program loads, dpkg whose that is. Time and names are the artefact's: the
same artefact has the same bytes of it."""
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import elf

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENCES = {"libuv": "MIT AND BSD-2-Clause AND ISC", "hiredis": "BSD-3-Clause", "cJSON": "MIT", "uthash": "BSD-1-Clause", "random123": "BSD-3-Clause"}
# Debian's source of what debs have inside: package whose version it is
STATIC = {"libuv": "libuv1-dev", "hiredis": "libhiredis-dev", "uthash": "uthash-dev", "random123": "librandom123-dev"}
OPENED = re.compile(rb"(?<![\w.])(lib(?:ssl|crypto|microhttpd|hwloc|curl)\.so\.\d+)(?=\0)")


def dpkg_version(package):
    p = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False)
    return p.stdout if p.returncode == 0 else None


@functools.lru_cache(None)
def owner(path):
    """The package of Debian's that has a file here; None: none has."""
    for name in (str(path), os.path.realpath(path), str(path).removeprefix("/usr")):
        p = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False)
        if p.returncode == 0:
            return p.stdout.split(":")[0].split(",")[0]
    return None


def is_elf(path):
    with open(path, "rb") as f:
        return f.read(4) == b"\x7fELF"


@contextlib.contextmanager
def unpacked(artefact):
    """-> a folder with what a wheel or a deb holds"""
    with tempfile.TemporaryDirectory(prefix="crun-sbom-") as folder:
        if artefact.suffix == ".deb":
            subprocess.run(["dpkg-deb", "--extract", artefact, folder], check=True)
        else:
            with zipfile.ZipFile(artefact) as z:
                z.extractall(folder)
        yield pathlib.Path(folder)


def programs(folder):
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink() and is_elf(p)]


def opened(paths):
    return sorted({m.decode() for p in paths for m in OPENED.findall(p.read_bytes())})


def field(deb, name):
    return subprocess.run(["dpkg-deb", "--field", deb, name], check=True, capture_output=True, text=True).stdout.strip()


def relations(text):
    """{package: the rest of what a field like Depends says of it}"""
    return {m[1]: m[2].strip(" ()") for part in re.split(r"[,|]", text) for m in [re.match(r"\s*([\w.+-]+)(.*)", part)] if m}


def inside_wheel():
    """{library: version} of what -Dportable=true builds in."""
    found = {name: re.search(r"^directory = \w+-(.*)$", (ROOT / f"packaging/subprojects/{name.lower()}.wrap").read_text(), re.M)[1] for name in ("libuv", "hiredis", "cJSON")}
    header = pathlib.Path("/usr/include/uthash.h").read_text()
    return {**found, "uthash": re.search(r"#define UTHASH_VERSION ([\d.]+)", header)[1]}


def inside_deb(name):
    import deb  # which knows whose code is in which package
    return {library: dpkg_version(package) or "NOASSERTION" for library, package in STATIC.items() if package in deb.INSIDE.get(name, [])}


class Document:
    def __init__(self, artefact, name, version):
        self.artefact, data = artefact, artefact.read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.packages, self.files, self.related = [], [], []
        self.main = self.package(name, version, "Apache-2.0", checksums=[{"algorithm": "SHA256", "checksumValue": self.sha256}], packageFileName=artefact.name)
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", self.main)

    def package(self, name, version, licence="NOASSERTION", **more):
        ref = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{len(self.packages)}")
        self.packages.append({"SPDXID": ref, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": licence,
                              "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more})
        return ref

    def relate(self, a, how, b):
        self.related.append({"spdxElementId": a, "relationshipType": how, "relatedSpdxElement": b})

    def inside(self, libraries):
        for name, version in sorted(libraries.items()):
            self.relate(self.main, "STATIC_LINK", self.package(name, version, LICENCES[name]))

    def needs(self, how, name, version="NOASSERTION", comment=None):
        ref = self.package(name, version, **({"comment": comment} if comment else {}))
        self.relate(*((self.main, how, ref) if how.startswith("D") else (ref, how, self.main)))

    def programs(self, folder, paths):
        for path in paths:
            data, ref = path.read_bytes(), f"SPDXRef-File-{len(self.files)}"
            sums = [{"algorithm": name, "checksumValue": hashlib.new(name, data).hexdigest()} for name in ("sha1", "sha256")]
            self.files.append({"SPDXID": ref, "fileName": f"./{path.relative_to(folder)}", "fileTypes": ["BINARY"], "licenseConcluded": "NOASSERTION",
                               "copyrightText": "NOASSERTION", "checksums": [{**s, "algorithm": s["algorithm"].upper()} for s in sums],
                               "comment": "linked with " + ", ".join(sorted(elf.needed(path)))})
            self.relate(self.main, "CONTAINS", ref)

    def text(self):
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
        whole = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": self.artefact.name,
                 "documentNamespace": f"https://crun-launcher.invalid/spdx/{self.artefact.name}-{self.sha256}",
                 "creationInfo": {"created": created, "creators": ["Tool: crun-launcher packaging/sbom.py"]},
                 "packages": self.packages, **({"files": self.files} if self.files else {}), "relationships": self.related}
        return json.dumps(whole, indent=1) + "\n"


def of_wheel(artefact):
    _, version, *_ = artefact.name.split("-")
    d = Document(artefact, "crun-launcher", version)
    with unpacked(artefact) as folder:
        paths = programs(folder)
        d.programs(folder, paths)
        d.inside(inside_wheel())
        glibc = elf.glibc_release(paths)
        d.needs("DYNAMIC_LINK", "glibc", f"{glibc[0]}.{glibc[1]}", "this release or a newer one")
        for library in opened(paths):
            d.needs("RUNTIME_DEPENDENCY_OF", library, comment="opened on first use, where it is there")
    return d


def of_deb(artefact):
    name = field(artefact, "Package")
    d = Document(artefact, name, field(artefact, "Version"))
    with unpacked(artefact) as folder:
        d.programs(folder, programs(folder))
    d.inside(inside_deb(name))
    for what, how in {"Depends": "DYNAMIC_LINK", "Recommends": "RUNTIME_DEPENDENCY_OF"}.items():
        for package, release in sorted(relations(field(artefact, what)).items()):
            d.needs(how, package, release or "NOASSERTION", f"Debian's field {what}")
    return d


def of_image(artefact):
    """By the last /var/lib/dpkg/status of its layers."""
    d = Document(artefact, "crun-launcher", artefact.name.split("-")[2])
    status = ""
    with tarfile.open(artefact) as whole:
        def read(digest):
            return whole.extractfile(f"blobs/{digest.replace(':', '/')}").read()
        index = json.load(whole.extractfile("index.json"))
        for layer in json.loads(read(index["manifests"][0]["digest"]))["layers"]:
            with tarfile.open(fileobj=io.BytesIO(read(layer["digest"]))) as files:
                for entry in files:
                    if entry.name.lstrip("./") == "var/lib/dpkg/status":
                        status = files.extractfile(entry).read().decode()
    for paragraph in sorted(status.split("\n\n")):
        name, version = (re.search(rf"^{f}: (.*)$", paragraph, re.M) for f in ("Package", "Version"))
        if name and "\nStatus: install ok installed" in paragraph:
            d.relate(d.main, "CONTAINS", d.package(name[1], version[1]))
    return d


def of_source(artefact):
    return Document(artefact, "crun-launcher", re.search(r"-([\d.]+)\.tar\.gz$", artefact.name)[1])


KINDS = {".whl": of_wheel, ".deb": of_deb, ".oci.tar": of_image, ".tar.gz": of_source}


def write(artefact):
    """-> path of the SBOM"""
    make = next(make for end, make in KINDS.items() if artefact.name.endswith(end))
    path = artefact.with_name(artefact.name + ".spdx.json")
    path.write_text(make(artefact).text())
    return path


def loaded(path):
    """{soname: path} by ldd, which runs the loader; of another machine's program: {soname: None}"""
    if elf.machine(path) != os.uname().machine:
        return dict.fromkeys(elf.needed(path))
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    found = dict(re.findall(r"^\s*(\S+) => (\S+) \(", said, re.M))
    return {name: found.get(name) for name in elf.needed(path)}


def check(artefact):
    """-> sentences about what a program loads and the SBOM does not name, or names otherwise"""
    written = json.loads(artefact.with_name(artefact.name + ".spdx.json").read_text())
    named = {p["name"] for p in written["packages"]}
    wrong = []
    with unpacked(artefact) as folder:
        for path in programs(folder):
            name = path.relative_to(folder)
            if f"./{name}" not in {f["fileName"] for f in written.get("files", [])}:
                wrong.append(f"{artefact.name}: {name} is not in its SBOM")
            for soname, where in loaded(path).items():
                package = owner(where) if where else None
                if soname in elf.GLIBC:
                    package = "libc6" if artefact.suffix == ".deb" else "glibc"
                elif soname.startswith("libcrun."):
                    package = "libcrun0"
                if package and package not in named:
                    wrong.append(f"{artefact.name}: {name} loads {soname} of the package {package}, which its SBOM does not name")
                if where is None and elf.machine(path) == os.uname().machine and soname not in elf.GLIBC and not soname.startswith("libcrun."):
                    wrong.append(f"{artefact.name}: {name} needs {soname}, which ldd does not find here")
    return wrong


if __name__ == "__main__":
    for given in map(pathlib.Path, sys.argv[1:]):
        print(write(given))
