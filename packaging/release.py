"""./dev release: every artefact of the commit that is checked out, made twice. usage: release.py [--only KIND,...] [--key KEY] [OUT]

1. Two clones of the commit, in two folders. The commands of a kind run in each, the second time under another name of user and of host, and with a
   clock a month ahead (faketime). What the two make must have the same bytes.
2. OUT/VERSION/ gets the artefacts, an SBOM beside each (sbom.py) that ldd and dpkg agree with, NOTES.md out of CHANGELOG.md, and SHA256SUMS.
3. KEY signs SHA256SUMS: a file is an SSH key (ssh-keygen -Y sign, namespace crun-release), anything else the name of a key of gpg's.

Nothing is uploaded. Exit code 1: two builds differ, or an SBOM is wrong; each difference is named."""
import argparse
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import sbom

ROOT = pathlib.Path(__file__).resolve().parent.parent
MONTH = 31  # days
DEFAULT = ["source", "wheel", "deb"]  # an image is not the same twice yet, and Arm's debs need a root of their own
# kind: (environment, arguments of ./dev)
KINDS = {"source": None, "wheel": ({}, "wheel"), "deb": ({}, "deb"), "image": ({}, "image"), "wheel-aarch64": ({"CRUN_MACHINE": "aarch64"}, "wheel"),
         "deb-aarch64": ({"CRUN_MACHINE": "aarch64"}, "deb")}
# What a build downloads or keeps of other machines: taken over by the second clone, for servers' certificates may end within a month.
FETCHED = ["build-zig", "packaging/subprojects/packagecache", "build-aarch64"]
ARTEFACTS = (".whl", ".deb", ".oci.tar", ".tar.gz")
# In namespaces of its own: the name of the host, and of the user in /etc/passwd.
AS_ANOTHER = """
    hostname another-host
    sed "s/^$(id -un):/another:/" /etc/passwd >"$1/passwd"
    mount --bind "$1/passwd" /etc/passwd
    shift
    exec env USER=another LOGNAME=another "$@"
"""


class Refused(Exception):
    """What was asked for cannot be done; its text is a sentence for the user."""


def git(*args):
    return subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, *args], check=True, stdout=subprocess.PIPE).stdout


def version_of(text):
    return re.search(r"^  version: '(\d+\.\d+\.\d+)',$", text, re.M)[1]


def notes(changes, version):
    """That version's part of CHANGELOG.md; before its release, what is unreleased."""
    parts = dict(re.findall(r"(?ms)^## (\d[\d.]*|Unreleased)\b[^\n]*\n(.*?)(?=^## |\Z)", changes))
    name = "Unreleased" if parts.get("Unreleased", "").strip() else version
    if not parts.get(name, "").strip():
        raise Refused(f"CHANGELOG.md has no part '## {version}' that says anything: write it, or '## Unreleased' before a release")
    title = f"crun-launcher {version}" if name == version else f"crun-launcher, what comes after {version}"
    return f"# {title}\n\n{parts[name].strip()}\n"


def source(out, version):
    """git's tar of the commit, packed without a name and a time."""
    tar, packed = git("archive", "--format=tar", f"--prefix=crun-launcher-{version}/", "HEAD"), io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as f:
        f.write(tar)
    (out / f"crun-launcher-{version}.tar.gz").write_bytes(packed.getvalue())


def clone(folder):
    subprocess.run(["git", "-c", f"safe.directory={ROOT}/.git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", git("rev-parse", "HEAD").decode().strip()], check=True)
    return folder


def another(scratch, command):
    """The command as another user of another host, a month later."""
    for tool in ("faketime", "unshare"):
        if not shutil.which(tool):
            raise Refused(f"{tool} is not installed: the second build needs another clock and another host's name")
    if os.geteuid() != 0:
        raise Refused("release needs root: the second build has another host's name, in a namespace")
    return ["unshare", "--uts", "--mount", "bash", "-euc", AS_ANOTHER, "bash", scratch, "faketime", "-f", f"+{MONTH}d", *command]


def run(command, cwd, env, log):
    with open(log, "ab") as f:
        code = subprocess.run(list(map(str, command)), cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        tail = "\n".join(pathlib.Path(log).read_text(errors="replace").splitlines()[-15:])
        raise Refused(f"{' '.join(map(str, command[-3:]))} ended with {code}:\n{tail}")


def make(kind, trees, outs, scratch, version):
    for turn, (tree, out) in enumerate(zip(trees, outs)):
        out.mkdir(parents=True, exist_ok=True)
        env = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").decode().strip(), "CCACHE_DISABLE": "1"}
        if kind == "source":
            source(out, version)
            continue
        more, what = KINDS[kind]
        command = [tree / "dev", what, out]
        print(f"{kind}: {'again, as another user of another host, a month later' if turn else 'once'} … ", flush=True)
        if turn:
            for fetched in FETCHED:
                if (trees[0] / fetched).exists() and not (tree / fetched).exists():
                    subprocess.run(["cp", "-al", trees[0] / fetched, tree / fetched], check=True)
            command = another(scratch, command)
        run(command, tree, {**env, **more}, scratch / f"{kind}-{turn + 1}.log")


def differences(first, second):
    names = sorted({p.name for out in (first, second) for p in out.iterdir()})
    return [n for n in names if not all((out / n).exists() for out in (first, second)) or (first / n).read_bytes() != (second / n).read_bytes()]


def sums(out):
    names = sorted(p.name for p in out.iterdir() if p.name not in ("SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.asc"))
    (out / "SHA256SUMS").write_text("".join(f"{hashlib.sha256((out / n).read_bytes()).hexdigest()}  {n}\n" for n in names))


def sign(out, key):
    if pathlib.Path(key).is_file():
        command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "crun-release", "-f", key, out / "SHA256SUMS"]
    else:
        command = ["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", out / "SHA256SUMS"]
    p = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if p.returncode:
        raise Refused(f"--key {key}: {command[0]} does not sign with it: {p.stderr.strip()}")


def release(kinds, key, out, scratch):
    """-> sentences about what is wrong"""
    if git("status", "--porcelain", "--untracked-files=no").strip():
        raise Refused("the tree differs from its commit (git status): commit or stash that first, a release is of a commit")
    version = version_of(git("show", "HEAD:meson.build").decode())
    text = notes(git("show", "HEAD:CHANGELOG.md").decode(), version)
    trees = [clone(scratch / "first" / "crun"), clone(scratch / "the-second-one" / "of-crun")]
    if (ROOT / "build-aarch64/root/complete").exists():  # minutes under qemu
        (trees[0] / "build-aarch64").mkdir()
        (trees[0] / "build-aarch64/root").symlink_to(ROOT / "build-aarch64/root")
    outs = [scratch / "made-first", scratch / "made-second"]
    for kind in kinds:
        make(kind, trees, outs, scratch, version)
    wrong = [f"{name} differs between two builds" for name in differences(*outs)]
    out = out / version
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(outs[0].iterdir()):
        made = pathlib.Path(shutil.copy(path, out))
        os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct").decode().strip()
        sbom.write(made)
        if made.name.endswith((".whl", ".deb")):
            wrong += sbom.check(made)
    (out / "NOTES.md").write_text(text)
    sums(out)
    if key and not wrong:
        sign(out, key)
    return wrong, out


def main():
    p = argparse.ArgumentParser(prog="./dev release", description="Build every artefact twice, compare, write SBOMs, notes and sums, and sign them.")
    p.add_argument("--only", metavar="KIND,...", help=f"of {', '.join(KINDS)} (default: {', '.join(DEFAULT)})")
    p.add_argument("--key", help="an SSH key's file, or the name of a gpg key: signs SHA256SUMS")
    p.add_argument("out", nargs="?", type=pathlib.Path, default=pathlib.Path("dist"), metavar="DIR", help="gets a folder VERSION (default: dist)")
    args = p.parse_args()
    kinds = args.only.split(",") if args.only else DEFAULT
    if unknown := set(kinds) - set(KINDS):
        p.error(f"--only {args.only}: there is no {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="crun-release."))
    try:
        wrong, out = release(kinds, args.key, args.out.resolve(), scratch)
    except Refused as e:
        sys.exit(f"dev: release: {e}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for sentence in wrong:
        print(f"dev: release: {sentence}", file=sys.stderr)
    print(*sorted(map(str, out.iterdir())), sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
