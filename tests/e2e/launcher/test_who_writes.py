"""docs/design/processes.md says which process writes which file: a job with all of them under strace."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import support

PAGE = pathlib.Path(support.ROOT, "docs/design/processes.md")
CALLS = "openat,write,writev,pwrite64,mkdir,mkdirat,renameat,unlinkat"
WORKER = 'echo out; echo err >&2; cat; echo "{\\"message\\": \\"bad\\"}" >$TORCHELASTIC_ERROR_FILE; exit 3'
CHANGES = re.compile(r"(?:write|writev|pwrite64)\(\d+<(?P<at>/[^>]+)>|(?:mkdirat|renameat|unlinkat)\(\w+<(?P<folder>/[^>]+)>, \"(?P<below>[^\"]+)\"|"
                     r"mkdir\(\"(?P<made>/[^\"]+)\"|openat\([^,]+, \"(?P<opened>/[^\"]+)\", [^)]*O_CREAT")


def rows():
    """The table of files: what a file is called there -> the process that writes it."""
    table = PAGE.read_text().split("| file | process |\n|---|---|\n")[1].split("\n\n")[0]
    return {file: process for file, process in (line.strip("| ").split(" | ") for line in table.splitlines())}


def writers(log):
    """What strace saw -> {(name of the process, path)} of all that was written or made."""
    seen = set()
    for line in log.read_text(errors="replace").splitlines():
        name, call = re.match(r"\d+<([^>]+)> +(.*)", line).groups()
        change = CHANGES.match(call)
        if change and " = -1 " not in call:
            found = change.groupdict()
            seen.add((name, found["at"] or found["made"] or found["opened"] or f"{found['folder']}/{found['below']}"))
    return seen


def run(crun, *options):
    """-> set of (process, path) below the test's folder or of a cgroup."""
    log = crun.tmp / "strace"
    (crun.tmp / "in").write_text("in\n")
    with open(crun.tmp / "in") as stdin, open(crun.tmp / "out", "w") as stdout, open(crun.tmp / "err", "w") as stderr:
        p = crun.start("--stdin-rank", 0, *options, "sh", "-c", WORKER, stdin=stdin, stdout=stdout, stderr=stderr,
                       prefix=["strace", "-f", "-y", "--decode-pids=comm", "-o", log, "-e", f"trace={CALLS}"])
    assert p.wait(timeout=120) == 3, (crun.tmp / "err").read_text()
    return {(who, path) for who, path in writers(log) if path.startswith((f"{crun.tmp}/", "/sys/fs/cgroup"))}


@pytest.fixture
def traced():
    """strace, where the kernel lets it trace."""
    if not shutil.which("strace") or subprocess.run(["strace", "-f", "--decode-pids=comm", "-o", os.devnull, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no strace, or ptrace is refused here")


def test_the_page_names_who_writes_each_file(crun, traced):
    where = crun.tmp
    (where / "shared").mkdir()
    seen = run(crun, "--nnodes", 1, "--rdzv-endpoint", f"file://{where}/shared", "--rdzv-id", "j", "--log-dir", where / "logs", "--redirects", 3,
               "--event-log", where / "events", "--failure-file", where / "failure", "--preemption-file", where / "notice")
    seen |= run(crun)
    patterns = {
        "stdout, where it is a file": rf"{where}/out",
        "stderr, where it is a file": rf"{where}/err",
        "log files of workers (`--log-dir`)": rf"{where}/logs/j/round-1(/rank-0\.(out|err))?|{where}/logs(/j)?",
        "event log (`--event-log`)": rf"{where}/events",
        "failure report in the log folder": rf"{where}/logs/j/failure\.json(\.\d+\.tmp)?",
        "failure report (`--failure-file`)": rf"{where}/failure(\.\d+\.tmp)?",
        "shared folder (`--rdzv-endpoint file://…`)": rf"{where}/shared/.*",
        "error record of a worker": rf"{where}/logs/j/round-1/rank-0\.error\.json|{where}/crun-[0-9a-f]+/.*\.error\.json",
        "temporary folder for error records": rf"{where}/crun-[0-9a-f]+",
        "cgroup of the job": r"/sys/fs/cgroup.*",
    }
    table = rows()
    assert set(table) == set(patterns)
    for file, pattern in patterns.items():
        found = {who for who, path in seen if re.fullmatch(pattern, path)}
        expected = {"sh", "job-output"} if file == "error record of a worker" else {table[file]}
        assert found <= expected and (found or "cgroup" in file), (file, found)
    strays = {(who, path) for who, path in seen if not any(re.fullmatch(p, path) for p in patterns.values())}
    assert not strays
