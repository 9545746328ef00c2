"""`crun explain`: every exit code and every message of the three programs has a row, and the page is made of them."""

import fnmatch
import functools
import itertools
import pathlib
import re
import subprocess

import pytest

from crun_run import CRUN, REPO
from messages import MAKERS, callers, messages


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


TABLES = ("hangs", "meet", "crun", "rendezvousd", "options", "trainer", "general")


@functools.lru_cache
def rows():
    """[(table, {pattern: (longest part, as `crun explain` uses it)})] of the pages, in their order: what stands in code before a row's first words."""
    found = []
    for table in TABLES:
        text = explain("--messages-markdown", table)[1].split("\n\n", 2)[2]
        for item in re.findall(r"^- ((?:`[^`]+`[,:]\s+)+)", text, re.M):
            found.append((table, {p: (max(re.split(r"[*\[]", p), key=len), re.compile(fnmatch.translate(f"*{p}*"))) for p in re.findall(r"`([^`]+)`", item)}))
    return found


def hits(message):
    """[(table, longest pattern that matches)] of its rows"""
    all_of_row = ((table, [p for p, (part, r) in patterns.items() if part in message and r.match(message)]) for table, patterns in rows())
    return [(table, max(ps, key=literal)) for table, ps in all_of_row if ps]


def literal(pattern):
    return len(pattern.replace("*", ""))


# Messages that the first of two rows explains, though a pattern of the other has more letters.
FIRST_IS_RIGHT = {"--module and --no-python contradict each other: leave one of them out", "--show first-failure and --tee contradict each other: leave one of them out",
                  "--log-dir: the path is too long", "--arch 7 is of no use: the checkpoint is of arch 7", "7; this log is incomplete, training goes on"}


def test_every_message_of_the_programs_has_its_row():
    """One at least; and where several match, the first has the longest pattern, but for those of all programs, as "No space left on device"."""
    found, missing, hidden = messages(), [], []
    assert len(found) > 1700 and sum(len(patterns) for _, patterns in rows()) > 900
    for text, where in found.items():
        all_hits = hits(text)
        own = [p for table, p in all_hits if table != "general"]
        if not all_hits:
            missing.append(where)
        elif own and max(map(literal, own)) > literal(own[0]) + 3 and text not in FIRST_IS_RIGHT:
            hidden.append((where, own[0], max(own, key=literal)))
    assert not missing and not hidden, (missing, hidden)


# What is called with a sentence and makes no message: results, notes at level info or debug, names of things, what --help says.
NO_MAKERS = set("""snprintf assert static_assert _Static_assert MUST ADD findings_add X help_entry print_text ARG_GROUP ASK_OPTIONS backend_is metrics_head metrics_figure times
    log_info log_debug log_line line note printf puts cell buf_addstr buf_printf put_text append_item trace_span watch_wait watch_call emit_kernel compare_sums comm_share parse_i64 mem_report_tell
    round_break err_wrap cuda_plan_step look_at report_stop refuse set_full keep_from cudnn_record_bar machine_push_plain""".split())


def test_every_function_that_makes_messages_is_known():
    assert callers(['f(x, "a is b", g("cc dd ee ff gg")); h((x ? "aa bb cc dd" : "y"), "one") /* k("aa bb cc dd") */']).keys() == {"g", "h"}
    others = callers().keys() - NO_MAKERS
    assert len(others) > 30 and not (new := {f for f in others if not re.fullmatch(MAKERS, f)}), new


def test_each_disk_that_hangs_is_known():
    """The message begins with the disk's name, so that no scan of the sources finds its words."""
    disks = re.findall(r'\.disk = "([^"]+)"', "".join(p.read_text() for p in pathlib.Path(REPO, "launcher/output/process").glob("*.c")))
    assert len(disks) > 3
    for disk in disks:
        assert explain(f"crun: {disk} has not answered for 1000 ms (/x/y): what is there waits")[0] == 0, disk


def test_a_message_without_a_row_would_be_seen():
    assert not hits("the moon is full, expectedly")


def test_a_message_that_was_cut_short_is_known():
    """Each pattern of many words, of which the last words are not there."""
    cut = [" ".join(p.replace("*", "7").split()[:-2]) for _, patterns in rows() for p in patterns if len(re.findall("[A-Za-z]{2,}", p.replace("*", "7"))) > 7]
    assert len(cut) > 30
    for text, end in zip(cut, itertools.cycle(("", " ...", "\u2026", ":"))):
        assert explain(text + end)[0] == 0, text


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
    ("restart 1/1 (rank 0 exited with code 1): detect 3.1 ms, stop 0.2 ms, rendezvous 1 ms, spawn 4 ms", "what a restart does"),
    ("1981522 bytes of the workers' output are missing in the log files", "--log-dir"), ("NOPERM this server speaks TLS only", "--rdzv-tls"),
    ("NOPERM the rendezvous of this server takes those that have authenticated", "--token-file"), ("REFUSED node 'a' is no member of round 3", "joins again"),
    ("--base_learning_rate 0.1 is meant for a global batch of 256, this run's is 64; 0.025 would fit, or --lr-scale batch256", "--lr-scale"),
    ("You have chosen a specific GPU. This will completely disable data parallelism.", "--gpu"),
    ("the rendezvous at n1:29400 has lost its memory of job 'j'; the workers here were ended", "--state-dir"),
    ("60 training images could not be read or decoded, or are of no class, and weighed nothing", "bad-samples.txt"), ("job 'none' has no place for this node", "--spare"),
    ("host n2 cannot be reached: ssh ended with exit code 255", "ssh HOST true"), ("ERR this server is no bootstrap store", "--rdzv-endpoint"),
    ("sh failed: rank 0 exited with code 1: a file system without space (it said: No space left on device)", "df -i"),
    ("sh failed: rank 0 exited with code 1: a read-only file system (it said: Read-only file system)", "dmesg"),
    ("sh failed: rank 3 exited with code 1, after e0 went down", "ibstat"), ("sh failed: rank 3 killed by SIGSEGV, 20 s after e0 went down", "ibstat"),
    ("sh failed: rank 0 killed by SIGABRT, after Xid 79 on ffff:fb:00.0: it has fallen off the bus", "list of Xids"),
    ("the job failed: rank 0 on a exited with code 3; on b: Xid 79 on ffff:fb:00.0: it has fallen off the bus, 9 s before", "list of Xids"),
    ("train.py failed: rank 0 exited with code 1: the GPU's memory is full (it said: CUDA out of memory)", "smaller batch"),
    ("train.py failed: rank 0 exited with code 1, after the kernel killed 1 process of its cgroup (out of memory)", "loaders"),
    ("train.py failed: rank 0 killed by SIGKILL; the kernel also killed 1 process of its cgroup for want of memory", "loaders"),
    ("sh failed: rank 1 killed by SIGSEGV, which process 4711 sent", "not the worker's own fault"),
    ("sh failed: rank 1 killed by SIGSEGV (core dumped), which a process outside of its container sent", "not the worker's own fault"),
    ("  xid       Xids before this job: not readable here (/dev/kmsg)", "dmesg_restrict"),
    ("sh failed: rank 1 killed by the kernel: out of memory (64 of 64 MiB)", "oom_kill"), ("sh failed: rank 1 exited with code 1", "last lines"),
    ("crun stacks: no crun of yours has process id 4711 here, and as the name of a job: 127.0.0.1 port 29400: connect: Connection refused", "number"),
    ("kill worker: by how much is missing ('7')", "chaos"), ("tensor 'w' in m.safetensors is damaged: its CRC32C is 1 instead of 2", "--resume auto"),
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
