"""`crun explain`: every exit code and every message of the three programs has a row, and the page is made of them."""

import fnmatch
import pathlib
import re
import subprocess

import pytest

from crun_run import CRUN, REPO
from messages import messages


def explain(*words):
    p = subprocess.run([CRUN, "explain", *words], capture_output=True, text=True, timeout=30)
    return p.returncode, p.stdout + p.stderr


def test_every_exit_code_has_a_row():
    codes = re.findall(r"X\(EXIT_\w+, (\d+),", pathlib.Path(REPO, "common/job/exitcode.h").read_text())
    assert len(codes) > 10
    for code in codes:
        rc, out = explain(code)
        assert rc == 0 and out.startswith(f"{code}: ") and "remedy: " in out and "worker's own" not in out, out
    assert "SIGKILL" in explain("137")[1] and "SIGTERM" in explain("143")[1] and "worker's own" in explain("41")[1]


TABLES = ("crun", "rendezvousd", "trainer", "general")


def rows():
    """The patterns of the pages, as `crun explain` uses them: what stands in code before a row's first words."""
    text = "".join(explain("--messages-markdown", t)[1].split("\n\n", 2)[2] for t in TABLES)
    items = re.findall(r"^- ((?:`[^`]+`[,:]\s+)+)", text, re.M)
    return [re.compile(fnmatch.translate(f"*{p}*")) for item in items for p in re.findall(r"`([^`]+)`", item)]


def test_every_message_of_the_programs_has_a_row():
    found, known = messages(), rows()
    assert len(found) > 1200 and len(known) > 600
    assert not (missing := [where for text, where in found.items() if not any(r.match(text) for r in known)]), missing


def test_a_message_without_a_row_would_be_seen():
    assert not any(r.match("the moon is full, expectedly") for r in rows())


@pytest.mark.parametrize("args, words", [
    (["./missing"], "write a path"), (["/etc"], "chmod"), (["--nnodes", "3:2", "true"], "after 'expected'"), (["--logs_specs", "x", "true"], "plug-ins"),
    (["-m", "--no-python", "x"], "leave one of them out"), (["x.py"], "the same on every node")])
def test_what_crun_says_can_be_pasted(crun, args, words):
    _, _, err = crun.run(*args)
    rc, out = explain(err.splitlines()[0])
    assert rc == 0 and words in out, (err, out)


@pytest.mark.parametrize("message, words", [
    ("its agent (pid 7) was stopped by SIGSTOP: until SIGCONT nobody watches the workers", "-CONT"),
    ("its agent (pid 7) was killed by SIGKILL; the workers were ended", "for want of memory"), ("stopped by SIGTERM", "not every worker"),
    ("rank 2 has stood at step 112 for 1.1 s, stopped by a signal; all others wait at step 112", "hang-rank-N.txt"),
    ("cannot reach n1:29480: the server closed the connection", "--http-port"), ("private key 'k.pem' cannot be used: No such file", "certificate"),
    ("its agent (pid 7) does not take signals ...", "stood still"),
    ("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:40000", "first rank that failed"),
    ("[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)", "--hang-timeout"),
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "NCCL_DEBUG"),
    ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000", "LOCAL_RANK"), ("CUDA error: invalid device ordinal", "fewer ranks"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "smaller batch"),
    ("CUDA error: an illegal memory access was encountered", "compute-sanitizer"), ("CUDA error: device-side assert triggered", "label"),
    ("CUDA error: no kernel image is available for execution on the device", "get_arch_list"),
    ("CUDA driver version is insufficient for CUDA runtime version", "newer driver"),
    ("CUDA error: uncorrectable ECC error encountered", "take the node out"),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "MASTER_PORT"),
    ("its agent (pid 7, state T) did not take SIGTERM within 5 s: it and the workers were ended (exit code 143)", "stood still")])
def test_the_row_is_the_right_one(message, words):
    rc, out = explain(f"crun: {message}")
    assert rc == 0 and words in out, out


def test_what_is_unknown_is_said():
    rc, out = explain("the moon is full")
    assert rc == 1 and "is not known" in out
    assert explain()[0] == 2 and explain("--help")[0] == 0


@pytest.mark.parametrize("table", ["codes", *TABLES])
def test_the_pages_are_up_to_date(table):
    page = pathlib.Path(REPO, "docs/reference", "messages.md" if table == "codes" else f"messages-{table}.md")
    assert page.read_text() == explain("--messages-markdown", table)[1], "run ./dev docs"
