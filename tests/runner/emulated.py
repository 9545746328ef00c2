"""When the suite gpu-emulated has to run: where what it tests is not what a green run of it saw.

tests/gpu-emulated.seen has a line for each folder: git's hash of it, and its path. As a program: exits 0 where it does not have to."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEN = ROOT / "tests" / "gpu-emulated.seen"
HEAD = "# Folders as ./dev test --gpu-emulated saw them when it passed last; it writes this file.\n"
ROOMS = ["worker/device", "worker/comm/nccl", "worker/program", "worker/model", "worker/optim", "tests/gpu", "tests/worker/device", "tests/conformance"]


def git(*args, root=ROOT):
    p = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", str(root), *args], capture_output=True, text=True, check=False)
    return p.stdout if p.returncode == 0 else None


def hashes(root=ROOT):
    """The text of the file that belongs to the working tree; None if git does not know it or some of these folders differ from what is committed."""
    if git("status", "--porcelain", "--", *ROOMS, root=root) != "":
        return None
    lines = [(git("rev-parse", f"HEAD:{room}", root=root) or "").strip() for room in ROOMS]
    return HEAD + "".join(f"{line} {room}\n" for line, room in zip(lines, ROOMS)) if all(lines) else None


def is_seen(root=ROOT, seen=SEEN):
    now = hashes(root)
    return now is not None and seen.exists() and seen.read_text() == now


def write_seen(root=ROOT, seen=SEEN):
    """After a green run. -> what was done, in words"""
    now = hashes(root)
    if now is None:
        return f"{seen.name} is not written: {', '.join(ROOMS)} differ from the last commit, or git does not know this tree"
    if seen.exists() and seen.read_text() == now:
        return f"{seen.name} had these folders already"
    seen.write_text(now)
    return f"{seen.name} is written; commit it"


if __name__ == "__main__":
    sys.exit(0 if is_seen() else 1)
