"""Ranks that do not end: what each was doing, before they are ended. A GPU machine may have neither debugger nor network, and be there for minutes."""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess

import pytest

from processes import marked

SECONDS = 180  # of a job of tests/gpu, which takes some 15; its collectives give up after COMM_TIMEOUT
COMM_TIMEOUT = 60
HUNG_MOST = 2  # jobs of a file; what comes after them is left alone, for each would take minutes of the card
SHOWN = 12000
HANGS = re.compile(r"has not ended within|no end within")
hung = []
MARK = "CRUN_TEST_JOB"


def text_of(path):
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return "?"


def threads(pid):
    """A line a thread: its name, state, and what it waits for in the kernel."""
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
        state = text_of(task / "stat").rpartition(")")[2].split()[:1]
        yield f"  {text_of(task / 'comm'):16} {''.join(state) or '?'} {text_of(task / 'wchan')} {text_of(task / 'syscall').split(' ')[0]}"


def ranks(job):
    """pid of each rank, in order."""
    found = {}
    for pid in marked(f"{MARK}={job}"):
        variables = text_of(pathlib.Path(f"/proc/{pid}/environ")).split("\0")
        rank = next((v[5:] for v in variables if v.startswith("RANK=")), "")
        if rank.isdigit():
            found[int(rank)] = pid
    return dict(sorted(found.items()))


def named(text):
    """Frames as libcrun writes them, file(+0xoffset), with the functions that addr2line finds."""
    wanted = {}
    for path, at in re.findall(r"(/.*?)\(\+(0x[0-9a-f]+)\)", text):
        wanted.setdefault(path, {})[at] = None
    for path, places in wanted.items() if shutil.which("addr2line") else ():
        p = subprocess.run(["addr2line", "-f", "-e", path, *places], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=False)
        lines = p.stdout.splitlines()
        places.update(zip(places, zip(lines[::2], lines[1::2])))

    def name(m):
        function, line = wanted[m[1]][m[2]] or ("??", "")
        return m[0] if function == "??" else f"{function} {line.rpartition('/')[2]}"

    return re.sub(r"(/.*?)\(\+(0x[0-9a-f]+)\) ?\[0x[0-9a-f]+\]", name, text)


def dissect(job):
    """What its ranks' threads are at. Then each is sent SIGABRT: libcrun writes the call stack of the thread that trains."""
    found = ranks(job)
    seen = [f"rank {rank}, pid {pid}:\n" + "\n".join(threads(pid)) for rank, pid in found.items()]
    for pid in found.values():
        try:
            os.kill(pid, signal.SIGABRT)
        except ProcessLookupError:
            pass
    return "\n".join(seen)


def new_job():
    """-> its mark, for its environment."""
    if len(hung) >= HUNG_MOST:
        pytest.skip(f"{HUNG_MOST} jobs before it hung, the first {hung[0]}")
    return f"{os.getpid()}-{random.SystemRandom().randrange(1 << 30)}"


def note_end(text):
    """What a job said that has ended, or was ended: did it hang?"""
    if HANGS.search(text):
        hung.append("in " + os.environ.get("PYTEST_CURRENT_TEST", "?").rpartition("::")[2].split(" ")[0])


def fail(seconds, text, seen):
    note_end("no end within")
    pytest.fail(f"no end within {seconds} s\n{named(text)[-SHOWN:]}\n{seen}", pytrace=False)


def run_ranks(*args, seconds=SECONDS, env=None):
    """As support.run(), for a job of crun's; where it does not end the test fails, with what its ranks were doing."""
    job = new_job()
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                         env={**(env or os.environ), MARK: job})
    try:
        out, err = p.communicate(timeout=seconds)
        if p.returncode != 0:
            note_end(err)
        return subprocess.CompletedProcess(args, p.returncode, out, err)
    except subprocess.TimeoutExpired:
        seen = dissect(job)
    if not seen:  # else crun ends for what happened to them
        p.terminate()
        seen = "there are no ranks"
    try:
        out, err = p.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        p.kill()  # its workers die with it
        out, err = p.communicate()
    fail(seconds, out[-2000:] + err, seen)
