"""Starting, environment, exit codes, program look-up."""

import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess

import pytest

from crun_run import CRUN
from support import has_sanitizer, preload

CORES = len(os.sched_getaffinity(0))


def test_four_workers_get_torchruns_variables(crun, worker):
    rc, out, err = crun.run("--standalone", "--nproc_per_node", 4, "--max-restarts", 2, "--role", "trainers", worker, "env")
    assert (rc, out) == (0, "")
    assert err.count("OMP_NUM_THREADS") == 1
    ports, error_files = set(), set()
    for rank in range(4):
        got = json.loads((crun.tmp / f"env-{rank}").read_text())
        env = got["env"]
        expected = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank),
            "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "ROLE_WORLD_SIZE": "4",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "trainers",
            "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(max(1, CORES // 4)),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "CRUN_ROUND": "1", "CRUN_PREV_RANK": "-1", "CRUN_RESTART_REASON": "start",
            "CRUN_STORE": f"resp://127.0.0.1:{env['MASTER_PORT']}",
        }
        assert {k: env.get(k) for k in expected} == expected
        assert env["TORCHELASTIC_RUN_ID"] and env["CRUN_NODE_ID"]
        ports.add(env["MASTER_PORT"])
        error_files.add(env["TORCHELASTIC_ERROR_FILE"])
        page = int(env["CRUN_PAGE_FD"])
        # 0-2, the page, two eventfds, the node's memory, and the folder that the listing itself has open: nothing of crun or of other workers
        assert len(got["fds"]) == 8 and page in got["fds"], got["fds"]
    assert len(ports) == 1 and len(error_files) == 4


def test_the_error_file_of_a_crun_around_this_one_is_not_passed_on(crun):
    rc, out, _ = crun.run("--log-prefix=off", "sh", "-c", 'echo "<$TORCHELASTIC_ERROR_FILE>"',
                          extra_env={"TMPDIR": "/nonexistent", "TORCHELASTIC_ERROR_FILE": "/outer/error.json"})
    assert (rc, out) == (0, "<>\n")


def test_one_worker_is_left_its_threads(crun, worker):
    rc, _, err = crun.run("--nproc_per_node", 1, worker, "env")
    assert rc == 0 and err == ""
    assert "OMP_NUM_THREADS" not in json.loads((crun.tmp / "env-0").read_text())["env"]


def test_auto_means_the_cores_crun_may_use(crun):
    rc, out, _ = crun.run("--nproc_per_node", "auto", "/bin/echo", "here")
    assert rc == 0 and out.count("here") == CORES


def test_signals_and_mask_of_workers_are_those_crun_was_started_with(crun):
    rc, out, _ = crun.run("--log-prefix=off", "/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status",
                          preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
    assert rc == 0
    assert [int(line.split()[1], 16) for line in out.splitlines()] == [0, 0]


@pytest.mark.parametrize("script, code", [
    ("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -SEGV $$", 139), ("kill -TERM $$", 143),
])
def test_the_exit_code_is_the_first_failing_workers(crun, script, code):
    rc, _, err = crun.run("--nproc_per_node", 3, "sh", "-c", f"[ $RANK = 1 ] || exec sleep 0.2; {script}")
    assert rc == code, err
    if code:
        assert "rank 1" in err
        assert err.count("culprit") == 1 and "then" not in err


@pytest.mark.parametrize("fault, script, code", [("pidfd", "exit 7", 7), ("pidfd", "kill -9 $$", 137), ("pidfd", "exit 0", 0), ("once", "exit 0", 70)])
def test_an_ending_that_cannot_be_asked_for_is_no_success(crun, fault, script, code):
    rc, _, err = crun.run("sh", "-c", script, extra_env={**preload("fault_waitid"), "FAULT_WAITID": fault})
    assert rc == code, err
    assert ("how rank 0 ended is not known (waitid: No child processes)" in err) == (fault == "once")


def test_a_workers_own_75_ends_the_job_without_a_restart(crun):
    rc, _, err = crun.run("--nproc_per_node", 3, "--max-restarts", 3, "sh", "-c", "[ $RANK = 1 ] || exec sleep 20; exit 75")
    assert rc == 75, err
    assert "stopped before the end" in err and "restart" not in err and "culprit" not in err


def test_a_worker_that_is_done_early_does_not_end_the_others(crun):
    rc, out, _ = crun.run("--nproc_per_node", 2, "sh", "-c", "[ $RANK = 0 ] || sleep 0.3; echo end")
    assert rc == 0 and out.count("end") == 2


@pytest.mark.parametrize("args, code, words", [
    (["--nproc_per_node", "0", "true"], 2, ["nproc", "'0'", "1 to"]),
    (["--nproc_per_node", "many", "true"], 2, ["'many'"]),
    (["--nnodes", "2:1", "true"], 2, ["nnodes", "MIN <= MAX"]),
    (["--nnodes", "2", "true"], 2, ["nnodes", "--rdzv-endpoint", "crun.conf"]),
    (["--max-restarts", "-1", "true"], 2, ["max-restarts"]),
    (["--run-id", ".a", "true"], 2, ["rdzv-id", "'.a'"]),
    (["--rdzv-id", "i" * 129, "true"], 2, [f"--rdzv-id '{'i' * 60}...': expected 1 to 128 characters"]),
    (["--nnodes", "2", "--rdzv-id", "i" * 600, "--rdzv-endpoint", "h", "true"], 2, [f"--rdzv-id '{'i' * 60}...': expected 1 to 128 characters"]),
    (["--nnodes", "2", "--rdzv-id", "i", "--rdzv-endpoint", f"file:///{'d' * 2000}", "true"], 2, [f"'file:///{'d' * 52}...': expected at most 1023 characters, got 2008"]),
    (["--nproc_per_nod3", "1", "true"], 2, ["nproc"]),
    (["--rdzv_backend=etcd", "--rdzv_endpoint", "x:1", "true"], 2, ["no --rdzv-id is given"]),
    (["-m", "--no-python", "package.module"], 2, ["--module", "--no-python"]),
    (["--role", "a\nb", "true"], 2, ["role", "control characters"]),
    ([], 2, ["no program"]),
    (["no-such-program"], 127, ["no-such-program", "not found"]),
    (["./no/such/program"], 127, ["no/such/program", "not found"]),
    (["no-such.py"], 127, ["no-such.py", "not found"]),
    (["/etc"], 126, ["/etc", "cannot be executed"]),
    (["/tmp"], 126, ["/tmp", "cannot be executed"]),
])
def test_a_wrong_command_line_is_one_clear_sentence(crun, args, code, words):
    rc, out, err = crun.run(*args)
    assert (rc, out) == (code, ""), err
    assert err.startswith("crun: ") and len([l for l in err.splitlines() if l.startswith("crun: ")]) == 1
    for word in words:
        assert word in err


def test_an_exec_that_fails_is_told_once_and_never_retried(crun):
    for name, text, code in ("bad-interpreter", "#!/no/such/thing\n", 127), ("no-format", "garbage\n", 126):
        path = crun.tmp / name
        path.write_text(text)
        path.chmod(0o755)
        rc, _, err = crun.run("--nproc_per_node", 3, "--max-restarts", 5, path, extra_env={"OMP_NUM_THREADS": "1"})
        assert rc == code, err
        assert len(err.splitlines()) == 1 and str(path) in err


def test_programs_beside_crun_and_in_its_worker_folder_are_found(crun):
    bin_dir = crun.tmp / "b" / "launcher"
    bin_dir.mkdir(parents=True)
    (crun.tmp / "b" / "worker").mkdir()
    shutil.copy(CRUN, bin_dir / "crun")
    for folder, name in ("launcher", "beside-it"), ("worker", "in-worker"):
        path = crun.tmp / "b" / folder / name
        path.write_text(f"#!/bin/sh\necho found {name} $1\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    import subprocess
    for name in "beside-it", "in-worker":
        r = subprocess.run([bin_dir / "crun", name, "--help"], capture_output=True, text=True, timeout=60)
        assert (r.returncode, r.stdout) == (0, f"found {name} --help\n"), r.stderr


def test_help_version_and_config_start_nothing(crun):
    rc, out, err = crun.run("--help")
    assert rc == 0 and "--nproc-per-node" in out and "PROGRAM" in out and err == ""
    rc, out, _ = crun.run("--version")
    assert rc == 0 and out.startswith("crun ")
    rc, out, _ = crun.run("--print-config", "--nproc_per_node", "3", extra_env={"PET_MAX_RESTARTS": "7"})
    assert rc == 0
    assert any("nproc-per-node" in l and "3" in l for l in out.splitlines())
    assert any("max-restarts" in l and "7" in l for l in out.splitlines())


def test_a_worker_cannot_cut_its_page_short(crun):
    """The agent reads it: a page that is gone would end the agent with SIGBUS."""
    script = ("import os, sys\ntry: os.ftruncate(int(os.environ['CRUN_PAGE_FD']), 0)\n"
              "except PermissionError: sys.exit(7)")
    rc, _, err = crun.run("--standalone", "python3", "-c", script)
    assert rc == 7, err


@pytest.mark.parametrize("files, workers, options, need", [(40, 64, [], 411), (64, 8, [], 75), (74, 8, ["--max-restarts", 1], 99)])
def test_what_the_workers_need_of_open_files_is_told_before_the_first_starts(crun, files, workers, options, need):
    limit = lambda n: lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))
    args = "--nproc-per-node", workers, *options, "touch", crun.tmp / "started"
    rc, _, err = crun.run(*args, preexec_fn=limit(files))
    assert (rc, err) == (69, f"crun: at most {files} files may be open here (ulimit -n, RLIMIT_NOFILE): {workers} workers need {need}\n")
    assert not (crun.tmp / "started").exists()
    rc, _, err = crun.run(*args, preexec_fn=limit(need + 2))  # an address sanitizer has some of its own
    assert rc == 0, err


def test_however_few_files_may_be_open_crun_says_so_and_ends(crun):
    if has_sanitizer("asan"):
        pytest.skip("the address sanitizer needs files of its own")
    for files in range(4, 33):
        with open(crun.tmp / "err", "wb") as err:  # which the output process writes to, if it can be
            p = crun.start("touch", crun.tmp / "started", stderr=err, preexec_fn=lambda n=files: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
            assert p.wait(30) in (69, 127), files
        said = (crun.tmp / "err").read_text()
        assert said and (files < 9 or "ulimit -n" in said), (files, said)  # with less it cannot even be loaded
    assert not (crun.tmp / "started").exists()


def test_too_few_processes_are_told_with_the_limit(crun):
    """Whichever of crun's own comes to be too much; stderr is a file, which a thread of the output process writes."""
    other = "setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"
    if subprocess.run([*other, CRUN, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("another uid needs root, and a build that it can read")
    if has_sanitizer("asan"):
        pytest.skip("the address sanitizer needs a process of its own")
    for processes in range(1, 7):
        path = crun.tmp / f"err-{processes}"
        with open(path, "wb") as err:
            p = crun.start("true", prefix=["prlimit", f"--nproc={processes}", *other], stderr=err, stdout=err, extra_env={"TMPDIR": "/tmp", "HOME": "/tmp"})
            assert p.wait(60) == 69 or processes == 5, processes  # there a worker has room between two tries for an output process
        said = path.read_text()
        assert f"Resource temporarily unavailable (ulimit -u, RLIMIT_NPROC, allows {processes})" in said and len(said.splitlines()) < 30, (processes, said)
        crun.wait_processes_gone(30)


def test_a_port_that_another_program_holds_is_named_with_the_reason(crun):
    """It is bound, but nobody listens: whoever dials is refused."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        said = f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        rc, _, err = crun.run("--master-port", port, "true", timeout=30)
        assert rc == 69 and err == f"crun: {said}: another program has that port; leave --master-port out, or choose another one\n"
        for home in (["--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", port, "--rdzv-conf", "join_timeout=2"],
                     ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=1,join_timeout=2"]):
            rc, _, err = crun.run("--nnodes", 2, *home, "true", timeout=30)
            assert rc == 69 and said in err and "Connection refused" in err


@pytest.mark.parametrize("files", [8, 11, 15, 16, 24, 32])
def test_too_few_open_files_are_a_sentence_and_no_abort(crun, files):
    rc, _, err = crun.run("true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert (rc, err) == (69, f"crun: at most {files} files may be open here (ulimit -n, RLIMIT_NOFILE): 1 worker needs 33\n")


@pytest.mark.parametrize("workers", [1, 4])
def test_as_many_open_files_as_that_sentence_asks_for_are_enough(crun, workers):
    files = 33 + 6 * (workers - 1)
    rc, _, err = crun.run("--nproc-per-node", workers, "true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert rc == 0, err


def test_a_program_without_a_name_is_a_wrong_command_line(crun):
    rc, _, err = crun.run("")
    assert rc == 2 and "no program to run" in err


def test_a_failure_report_that_cannot_be_written_is_told_at_the_start(crun):
    rc, out, err = crun.run("--failure-file", "/nonexistent/x", "echo", "ran")
    assert (rc, out) == (73, "")
    assert err == "crun: cannot write the failure report /nonexistent/x (--failure-file): No such file or directory\n"
    assert crun.run("--failure-file", "x", "true", cwd=crun.tmp)[0] == 0


def test_logs_relative_to_a_folder_that_is_gone_cannot_be_written(crun):
    gone = crun.tmp / "gone"
    gone.mkdir()
    p = subprocess.run(["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", CRUN, "--log-dir", "L", "true"], cwd=gone, env=crun.env,
                       capture_output=True, text=True, timeout=60)
    rc, err = p.returncode, p.stderr
    assert rc == 73 and "--log-dir L: the current folder: No such file or directory" in err, err


def test_a_number_of_nodes_is_read_to_its_end(crun):
    rc, out, err = crun.run("--nnodes", "0000000000000012", "--rdzv-endpoint", "h", "--dry-run", "true")
    assert rc == 0 and " 12 nodes" in out, out + err
    rc, _, err = crun.run("--nnodes", "0" * 40 + "1", "--dry-run", "true")
    assert rc == 2 and "expected N or MIN:MAX" in err
