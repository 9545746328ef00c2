"""Every option of crun has a row here that shows its effect, or names the test that does.

A row is a function that runs crun with the option and looks at what came of it. Options of torchrun are those of torch 2.15."""

import ast
import fcntl
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys

import pytest

from crun_run import BUILD, CRUN, REPO

HERE = pathlib.Path(__file__).resolve().parent

TORCHRUN = """nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval start-method
event-log-handler role module no-python run-path log-dir redirects tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters
log-line-prefix-template logs-specs node-rank master-addr master-port local-addr numa-binding signals-to-handle shutdown-timeout
virtual-local-rank print-completion""".split()

ROWS = {}
ELSEWHERE = {  # option: file of tests/e2e and the test that shows its effect
    "cgroup": "launcher/test_cgroup.py::test_off_leaves_the_workers_where_crun_is",
    "color": "launcher/test_logs.py::test_colours",
    "drain-timeout": "launcher/test_stops.py::test_the_grace_of_a_drain",
    "duplicate-stderr-filters": "launcher/test_logs.py::test_lines_with_a_word_are_written_to_one_more_file",
    "duplicate-stdout-filters": "launcher/test_logs.py::test_lines_with_a_word_are_written_to_one_more_file",
    "kill-timeout": "launcher/test_stops.py::test_a_worker_the_kernel_does_not_end_is_named_and_left",
    "local-ranks-filter": "launcher/test_logs.py::test_ranks_of_two_digits_have_redirects_and_filters",
    "event-log": "launcher/test_observe.py::test_the_event_log_tells_of_a_restart_from_beginning_to_end",
    "event-log-handler": "launcher/test_observe.py::test_torchruns_event_handler_console_writes_the_lines_to_stderr",
    "export": "launcher/test_remote.py::test_agents_start_elsewhere_and_their_output_comes_back",
    "hostfile": "launcher/test_remote.py::test_a_file_of_hosts_and_a_restart",
    "hosts": "launcher/test_remote.py::test_agents_start_elsewhere_and_their_output_comes_back",
    "remote-crun": "launcher/test_remote.py::test_a_host_without_crun_and_one_without_the_folder_are_told",
    "rsh": "launcher/test_remote.py::test_agents_start_elsewhere_and_their_output_comes_back",
    "http-bind": "launcher/test_observe.py::test_who_may_read_is_said_beyond_loopback",
    "http-insecure": "launcher/test_observe.py::test_who_may_read_is_said_beyond_loopback",
    "http-port": "launcher/test_observe.py::test_health_is_right_while_a_node_joins_runs_and_waits_for_the_others",
    "http-token-file": "launcher/test_observe.py::test_who_may_read_is_said_beyond_loopback",
    "failure-file": "elastic/test_report.py::test_a_culprit_of_another_node_is_reported_by_group_rank_0",
    "fatal-codes": "launcher/test_signals.py::test_a_fatal_code_is_not_worth_another_try",
    "preemption-signal": "launcher/test_signals.py::test_a_preemption_notice_ends_with_75_and_the_workers_see_a_drain",
    "preemption-file": "launcher/test_signals.py::test_a_preemption_file_ends_with_75_and_the_workers_see_a_drain",
    "hang-witness": "launcher/test_ras.py::test_a_late_rank_is_named_and_then_its_signs_alone_decide",
    "straggler-action": "launcher/test_straggler_action.py::test_a_straggler_is_excluded_once_in_its_place",
    "time-limit": "launcher/test_signals.py::test_the_time_limit_ends_with_75_and_the_workers_see_a_drain",
    "recovery": "launcher/test_recovery.py::test_with_recovery_restart_nobody_is_held",
    "hold-timeout": "launcher/test_recovery.py::test_who_does_not_let_go_is_killed_and_replaced",
    "warm-spares": "launcher/test_recovery.py::test_a_warm_spare_takes_the_place_and_writes_where_its_rank_writes",
    "resize-timeout": "launcher/test_stops.py::test_the_grace_of_a_resize",
    "forward-signal": "launcher/test_signal_as_it_came.py::test_other_signals_are_forwarded_where_that_is_asked_for",
    "inherit-fds": "launcher/test_program.py::test_descriptors_of_the_caller_are_not_the_workers",
    "logs-specs": "launcher/test_torchrun_words.py::test_logs_specs_that_nobody_can_load_are_refused",
    "pty": "launcher/test_ptys.py::test_a_debugger_works_in_one_of_several",
    "stdin-rank": "launcher/test_ptys.py::test_standard_input_goes_to_the_rank_that_is_named",
    "torchrun-compat": "launcher/test_torchrun_words.py::test_the_option_means_the_same",
    "signals-to-handle": "launcher/test_signals.py::test_the_signals_named_stop_the_job_in_good_order_and_no_others",
    "log-layout": "launcher/test_logs.py::test_the_layout_of_torchrun_keeps_every_attempt",
    "log-line-prefix-template": "launcher/test_logs.py::test_the_macros_of_a_prefix",
    "log-max-size": "launcher/test_logs.py::test_a_file_has_a_cap_that_counts_what_is_left_out",
    "log-rate": "launcher/test_logs.py::test_the_console_is_limited_by_rate_and_counts_the_rest",
    "log-rotate-keep": "launcher/test_logs.py::test_files_are_rotated_and_old_ones_kept_as_told",
    "log-rotate-size": "launcher/test_logs.py::test_files_are_rotated_and_old_ones_kept_as_told",
    "rank-order": "elastic/test_elastic.py::test_ranks_follow_host_names_or_arrival",
    "numa-binding": "launcher/test_placement.py::test_exclusive_workers_share_no_core",
    "max-node-failures": "elastic/test_node_failures.py::test_a_node_that_fails_twice_loses_its_seat",
    "spare": "elastic/test_elastic.py::test_a_spare_that_was_never_needed_says_so_at_the_end",
    "spare-exit-code": "elastic/test_elastic.py::test_a_spare_that_was_never_needed_says_so_at_the_end",
    "ranks-filter": "launcher/test_logs.py::test_each_stream_goes_where_it_is_sent",
    "rdzv-ca": "rendezvousd/test_hosting.py::test_a_job_meets_over_tls",
    "redirects": "launcher/test_logs.py::test_each_stream_goes_where_it_is_sent",
    "restart-backoff": "elastic/test_elastic.py::test_the_first_restart_is_at_once_and_the_next_ones_wait",
    "restart-window": "elastic/test_elastic.py::test_restarts_outside_the_window_do_not_count",
    "show": "launcher/test_logs.py::test_only_the_first_failure_is_shown",
    "tee": "launcher/test_logs.py::test_each_stream_goes_where_it_is_sent",
    "token-file": "rendezvousd/test_hosting.py::test_an_agent_with_the_token_comes_in",
}


def row(*options):
    def keep(function):
        for option in options:
            assert option not in ROWS and option not in ELSEWHERE, option
            ROWS[option] = function
        return function
    return keep


def options():
    """Long names of --help, without those that only print."""
    text = subprocess.run([CRUN, "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
    found = re.findall(r"^  (?:-., )?--(?:\[no-\])?([a-z-]+)", text, re.M)
    return found


def said(crun, *args, program=("sh", "-c"), code=0, **kw):
    """The workers' lines, sorted, without prefix; and crun's stderr. The last argument is a script of sh."""
    rc, out, err = crun.run("--log-prefix=off", *args[:-1], *program, args[-1], **kw)
    assert rc == code, err
    return sorted(out.splitlines()), err


def script(crun, name, text):
    path = crun.tmp / name
    path.write_text(text)
    path.chmod(0o755)
    return path


# --- size and rendezvous ---------------------------------------------------------------------------------------------


@row("nproc-per-node")
def nproc(crun):
    assert said(crun, "--nproc_per_node", 3, "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE")[0] == ["0/3", "1/3", "2/3"]


def two_nodes(crun, *common, each=((), ()), secret="--insecure", env=None, show="echo $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RUN_ID"):
    started = [crun.start("--log-prefix=off", *secret.split(), "--nnodes", 2, *common, *own, "sh", "-c", show, extra_env=env or {}) for own in each]
    done = [p.communicate(timeout=90) for p in started]
    assert [p.returncode for p in started] == [0, 0], done
    return sorted(out.decode().strip() for out, _ in done)


@row("nnodes", "rdzv-endpoint", "rdzv-backend", "run-id")
def nodes_meet(crun):
    lines = two_nodes(crun, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", "--rdzv_id", "meet")
    assert [line.split()[0] for line in lines] == ["0/2", "1/2"]
    assert {line.split()[2] for line in lines} == {"meet"}
    rc, _, err = crun.run("--rdzv-backend", "etcd", "true")
    assert rc == 2 and "--rdzv-backend etcd needs --rdzv-endpoint" in err


@row("node-rank", "master-addr", "master-port")
def static_nodes(crun):
    port = crun.port()
    show = "echo $GROUP_RANK $ROLE $MASTER_ADDR:$MASTER_PORT"
    each = [("--node_rank", 1, "--role", "second"), ("--node_rank", 0, "--role", "first")]
    lines = two_nodes(crun, "--master_addr", "127.0.0.1", "--master_port", port, each=each, show=show.replace("ROLE", "ROLE_NAME"))
    assert lines == [f"0 first 127.0.0.1:{port}", f"1 second 127.0.0.1:{port}"]


def master(crun, *options):
    """Where rank 0 is told to be found by two nodes that meet at 127.0.0.1."""
    lines = two_nodes(crun, "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", *options)
    found, = {line.split()[1].rsplit(":", 1)[0] for line in lines}
    return found


@row("local-addr")
def address(crun):
    assert master(crun) == "127.0.0.1" and master(crun, "--local_addr", "127.0.0.2") == "127.0.0.2"


def interfaces():
    """{name: IPv4 address} of those that have one, but for the loopback."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:
                found[name] = socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack("256s", name.encode()))[20:24])  # SIOCGIFADDR
            except OSError:
                pass
    return {name: addr for name, addr in found.items() if not addr.startswith("127.")}


@row("iface")
def interface(crun):
    for name, addr in list(interfaces().items())[:1]:
        assert master(crun, "--iface", name) == addr
    rc, _, err = crun.run("--insecure", "--nnodes", 2, "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", "--iface", "none-such", "true")
    assert rc == 2 and "--iface 'none-such': no such interface with an address, there are lo" in err, err


@row("rdzv-conf")
def join_timeout(crun):
    rc, _, err = crun.run("--insecure", "--nnodes", 2, "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", "--rdzv_conf",
                          "join_timeout=1", "true")
    assert rc == 69, err


@row("rdzv-tls")
def tls(crun):
    """Who may talk TLS only hosts nothing, and finds nothing here."""
    rc, _, err = crun.run("--insecure", "--rdzv_tls", "--nnodes", 2, "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", "--rdzv_conf",
                          "join_timeout=1", "true")
    assert rc == 69 and "cannot reach" in err, err


@row("insecure")
def insecure(crun):
    for secret, made in (("--insecure", False), ("", True)):
        home = crun.tmp / f"home{made}"
        home.mkdir()
        two_nodes(crun, "--rdzv_endpoint", f"127.0.0.1:{crun.port()}", secret=secret, env={"HOME": str(home)})
        assert (home / ".config" / "crun" / "token").exists() == made


@row("standalone")
def standalone(crun):
    assert said(crun, "true", extra_env={"PET_STANDALONE": "2", "PET_RDZV_ENDPOINT": "10.255.255.1:1"}, timeout=20)[0] == []
    lines, err = said(crun, "--standalone", "--rdzv-endpoint", "10.255.255.1:1", "echo $GROUP_WORLD_SIZE $MASTER_ADDR")
    assert lines == ["1 127.0.0.1"] and "crun: --rdzv-endpoint has no effect with --standalone\n" in err
    typed = {"--rdzv-endpoint": "10.255.255.1:1", "--rdzv-backend": "c10d", "--master-addr": "10.255.255.1", "--master-port": "1"}
    _, err = said(crun, "--standalone", *(word for pair in typed.items() for word in pair), "true")
    assert sorted(re.findall("crun: (.*) has no effect with --standalone\n", err)) == sorted(typed), err


# --- failures and stops ----------------------------------------------------------------------------------------------


@row("max-restarts")
def restarts(crun):
    lines, _ = said(crun, "--max_restarts", 2, "echo $CRUN_ROUND $CRUN_GLOBAL_RESTARTS $CRUN_RESTART_REASON; [ $CRUN_ROUND = 2 ]")
    assert lines == ["1 0 start", "2 1 failure"]


@row("shutdown-timeout")
def grace(crun):
    stubborn = "trap '' TERM; : > ready; while :; do sleep 1; done"
    dies = "while [ ! -e ready ]; do sleep 0.01; done; exit 4"
    _, err = said(crun, "--nproc_per_node", 2, "--shutdown_timeout", "0", f"[ $RANK = 0 ] && {{ {dies}; }}; {stubborn}", code=4,
                  cwd=crun.tmp, timeout=25)
    assert "rank 0 exited with code 4" in err


@row("hang-timeout")
def hang(crun, worker):
    rc, _, err = crun.run("--hang-timeout", "0.5", worker, "drain")  # one step, and no more
    assert rc == 124 and "rank 0 has stood at step 1" in err, err


# --- output ----------------------------------------------------------------------------------------------------------


@row("log-dir")
def log_dir(crun):
    said(crun, "--log_dir", crun.tmp / "logs", "--rdzv_id", "job", "echo out; echo err >&2")
    folder = crun.tmp / "logs" / "job" / "round-1"
    assert ((folder / "rank-0.out").read_text(), (folder / "rank-0.err").read_text()) == ("out\n", "err\n")


@row("log-prefix", "role")
def prefix(crun):
    rc, out, _ = crun.run("--log-prefix", "--role", "actor", "sh", "-c", "echo $ROLE_NAME")
    assert (rc, out) == (0, "[actor0]: actor\n")
    assert said(crun, "--no-log-prefix", "echo bare")[0] == ["bare"]


@row("log-level")
def log_level(crun):
    assert "worker ended" in said(crun, "--log-level", "info", "true")[1]
    assert "worker ended" not in said(crun, "true")[1]


# --- the program -----------------------------------------------------------------------------------------------------


@row("module")
def module(crun):
    script(crun, "some_module.py", "import sys; print(__name__, sys.argv[1:], sys.stdout.write_through, __spec__.name)")
    for flag in ("-m", "--module"):
        lines, _ = said(crun, flag, "--x", program=("some_module",), cwd=crun.tmp)
        assert lines == ["__main__ ['--x'] True some_module"]


@row("no-python")
def no_python(crun):
    path = script(crun, "not_python.py", "#!/bin/sh\necho shell $1\n")
    assert said(crun, "--no_python", "x", program=(path,))[0] == ["shell x"]
    rc, _, err = crun.run("-m", "--no-python", "x")
    assert rc == 2 and "--module and --no-python contradict each other" in err


@row("run-path")
def run_path(crun):
    script(crun, "__main__.py", "import sys; print(__name__, sys.argv[1:])")
    lines, err = said(crun, "--run_path", "--no_python", "a b", program=(crun.tmp,))
    assert lines == ["__main__ ['a b']"] and "crun: --no-python has no effect: --run-path counts more\n" in err


@row("use-env")
def use_env(crun):
    path = script(crun, "args.py", "import sys; print(sys.argv[1:])")
    assert said(crun, "--no-use-env", "--nproc_per_node", 2, "x", program=(path,))[0] == ["['--local-rank=0', 'x']", "['--local-rank=1', 'x']"]
    assert said(crun, "x", program=(path,))[0] == ["['x']"]


@row("virtual-local-rank")
def virtual_local_rank(crun):
    show = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"
    assert said(crun, "--virtual_local_rank", "--nproc_per_node", 2, show)[0] == ["0 0 0", "1 0 1"]
    lines, _ = said(crun, "--virtual_local_rank", "--nproc_per_node", 2, show, extra_env={"CUDA_VISIBLE_DEVICES": "5, GPU-7"})
    assert lines == ["0 0 5", "1 0 GPU-7"]
    rc, _, err = crun.run("--virtual-local-rank", "--nproc_per_node", 2, "true", extra_env={"CUDA_VISIBLE_DEVICES": "5"})
    assert rc == 2 and "CUDA_VISIBLE_DEVICES is '5', expected a device for local rank 1" in err


@row("dry-run")
def dry_run(crun):
    rc, out, err = crun.run("--dry-run", "--nproc_per_node", 2, "--nnodes", 3, "--node-rank", 1, "--master-addr", "10.0.0.1",
                            "--role", "r", "sh", "-c", 'touch started; echo "$0" ${rank}', cwd=crun.tmp)
    assert (rc, err) == (0, "") and not (crun.tmp / "started").exists()
    assert "rank 2, local rank 0\n" in out and "rank 3, local rank 1\n" in out
    assert out.count("\n  binding: none\n") == 2
    assert "-c 'touch started; echo \"$0\" 3'\n" in out
    for line in ("RANK=3", "WORLD_SIZE=6", "GROUP_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "ROLE_NAME=r"):
        assert f"    {line}\n" in out, out
    rc, out, _ = crun.run("--dry-run", "--numa-binding", "exclusive", "true")
    assert rc == 0 and "\n  binding: CPUs " in out
    rc, out, _ = crun.run("--dry-run", "--nnodes", "1:2", "--rdzv-endpoint", "10.0.0.1", "true")
    assert rc == 0 and "    RANK=<decided by the rendezvous>\n" in out


# --- without effect --------------------------------------------------------------------------------------------------


@row("monitor-interval", "start-method")
def said_to_have_no_effect(crun):
    for line in (("--monitor_interval", "5"), ("--start_method", "fork"), ("--event_log_handler", "mine")):
        lines, err = said(crun, *line, "echo ran")
        assert lines == ["ran"] and err.count("\n") == 1
        assert err.startswith(f"crun: {line[0].replace('_', '-')} has no effect: "), err
    assert "--monitor-interval has no effect" in said(crun, "true", extra_env={"PET_MONITOR_INTERVAL": "5"})[1]
    assert said(crun, "--event-log-handler", "null", "true")[1] == ""


# --- what only prints ------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_workers_get(crun, worker):
    args = ["--nproc_per_node", 2, "--rdzv-id", "dry", "--signals-to-handle", "SIGTERM,SIGUSR2", "--virtual-local-rank", "--max-restarts", 3, worker, "env"]
    crun.env["PYTHON_EXEC"] = sys.executable  # not a shell script that sets variables of its own
    assert crun.run(*args)[0] == 0
    rc, out, _ = crun.run("--dry-run", *args)
    blocks = out.split("\nrank ")[1:]
    assert rc == 0 and len(blocks) == 2
    for rank, block in enumerate(blocks):
        got = json.loads((crun.tmp / f"env-{rank}").read_text())["env"]
        said_of = dict(line.strip().split("=", 1) for line in block.splitlines() if line.startswith("    "))
        known = {name: value for name, value in said_of.items() if not value.startswith("<")}
        assert {name: got.get(name) for name in known} == known and len(known) > 15
        ours = {name for name in got if name not in crun.env or got[name] != crun.env[name]}
        assert ours - set(said_of) == {"CRUN_PAGE_FD"} and set(said_of) - set(got) == set()


@row("print-config")
def print_config(crun):
    folder = crun.tmp / ".config" / "crun"
    folder.mkdir(parents=True)
    conf = folder / "crun.conf"
    conf.write_text("max_restarts = 7 # as a rule\nrole = from-file\nrdzv_endpoint = host:1\nnproc-per-node = 4\nshutdown-timeout=5\n")
    env = {"HOME": str(crun.tmp), "PET_ROLE": "from-env", "CRUN_NPROC_PER_NODE": "3", "PET_NPROC_PER_NODE": "5"}
    rc, out, _ = crun.run("--print-config", "--shutdown-timeout", "9", "prog", extra_env=env)
    assert rc == 0
    for line in (f"max-restarts = 7  # file {conf}", "role = from-env  # environment PET_ROLE", "shutdown-timeout = 9  # command line",
                 f"rdzv-endpoint = host:1  # file {conf}", "nproc-per-node = 3  # environment CRUN_NPROC_PER_NODE", "nnodes = 1:1  # default"):
        assert line + "\n" in out, out
    assert said(crun, "echo $TORCHELASTIC_MAX_RESTARTS", extra_env={"HOME": str(crun.tmp)})[0] == ["7"] * 4
    for name in ("CRUN_RUN_ID", "CRUN_RDZV_ID", "PET_RDZV_ID"):
        assert f"run-id = j  # environment {name}\n" in crun.run("--print-config", "true", extra_env={name: "j"})[1]
    conf.write_text("\nmax_restart = 7\n")
    rc, _, err = crun.run("true", extra_env=env)
    assert rc == 2 and f"crun: {conf}: line 2: no setting 'max_restart'" in err
    conf.write_bytes(b"\xef\xbb\xbfmax_restarts = 7\n")  # what some editors begin a file with
    rc, out, err = crun.run("--print-config", "true", extra_env=env)
    assert rc == 0 and f"max-restarts = 7  # file {conf}\n" in out, err
    for make, what in ((os.mkfifo, "a named pipe"), (os.mkdir, "a folder")):
        conf.unlink()
        make(conf)
        rc, _, err = crun.run("true", extra_env=env)
        assert rc == 2 and f"crun: {conf} is {what}: expected a file of settings" in err


@row("version", "help")
def version(crun):
    assert re.fullmatch(r"crun \d+\.\d+\.\d+\n", crun.run("--version")[1])
    assert crun.run("-h")[1].startswith("Usage: crun [options] PROGRAM [args...]\n")


@row("completion")
def completion(crun):
    bash = crun.run("--print-completion", "bash")[1]
    script(crun, "crun.bash", bash)

    def complete(*words):
        text = f'. {crun.tmp}/crun.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _crun; printf "%s\\n" "${{COMPREPLY[@]}}"'
        p = subprocess.run(["bash", "-c", text, "bash", *words], capture_output=True, text=True, timeout=20)
        assert p.returncode == 0 and p.stderr == "", p
        return p.stdout.split()

    assert set(complete("crun", "--")) >= {f"--{o}" for o in options()}
    assert {"chaos", "doctor", "explain", "status", "topo"} <= {c for letter in "cdest" for c in complete("crun", letter)}
    behind = {c: set(complete("crun", c, "--")) for c in ("chaos", "doctor", "explain", "status", "topo")}
    assert {"--watch", "--json", "--rdzv-endpoint"} <= behind["status"] and not behind["status"] & {"--nnodes", "--shared-dir"}
    assert {"--plan", "--seed"} <= behind["chaos"] and {"--shared-dir", "--hostfile"} <= behind["doctor"] and "--help" in behind["topo"] and "--nnodes" not in behind["topo"] | behind["explain"]
    assert complete("crun", "status", "--rdzv-endpoint", "h", "run", "--wa") == ["--watch"] and complete("crun", "--nnodes", "status", "--log-di") == ["--log-dir"]
    assert complete("crun", "--nproc") == ["--nproc-per-node"]
    assert complete("crun", "--nproc_per_node", "2", "--rank-order", "=", "ho") == ["host"]
    assert complete("crun", "--nproc_per_node", "2", "python3", "--n") == []
    zsh = crun.run("--completion", "zsh")[1]
    assert zsh.startswith("#compdef crun\n") and "'--rank-order=[" in zsh and ":(auto host join node-rank)'" in zsh
    assert re.search(r"^status\)\nshift words\n\(\( CURRENT-- \)\)\n_arguments (?:.*\n)*?    '--watch\[.*\n(?:.*\n)*?return\n;;\ntopo\)", zsh, re.M)


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({f.__name__ for f in ROWS.values()}))
def test_effect(crun, worker, name):
    function = next(f for f in ROWS.values() if f.__name__ == name)
    function(*(crun, worker)[:function.__code__.co_argcount])


def test_every_option_has_a_row():
    missing = [o for o in options() if o not in ROWS and o not in ELSEWHERE]
    assert missing == [], "a row in test_flags.py shows what an option does"
    assert [o for o in [*ROWS, *ELSEWHERE] if o not in options()] == [], "rows of options that are gone"


def used_by(path, name):
    """The text of this function of a file, and of all that it names in turn."""
    text = path.read_text()
    parts = {}
    for node in ast.parse(text).body:
        names = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)] or [getattr(node, "name", None)]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        parts.update({n: (node, "\n".join(text.splitlines()[first - 1:node.end_lineno])) for n in names if n})
    found, ask = {}, [name]
    while ask:
        node, source = parts.get(ask.pop(), (None, ""))
        if node and source not in found.values():
            found[id(node)] = source
            words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
            ask += words & set(parts)
    return list(found.values())


@pytest.mark.parametrize("option", sorted(ELSEWHERE))
def test_the_test_of_a_row_exists_and_uses_the_option(option):
    file, name = ELSEWHERE[option].split("::")
    text = "\n".join(used_by(HERE.parent / file, name))
    assert text, f"{file} has no {name}"
    short = {"hosts": "-H", "export": "-x"}.get(option)
    assert re.search(rf"--(no-)?{option.replace('-', '[-_]')}\b", text) or (short and f'"{short}"' in text), option


@pytest.mark.parametrize("option", [o for o in TORCHRUN if o != "print-completion"])
def test_torchruns_options_have_both_spellings_and_a_variable(option):
    rows = subprocess.run([CRUN, "--options-markdown"], capture_output=True, text=True, check=True, timeout=20).stdout
    found = [line for line in rows.splitlines() if re.search(rf"--(\[no-\])?{option}\b", line.split(" | ")[0])]
    assert len(found) == 1, f"--{option} is not an option"
    variables = found[0].split(" | ")[1]
    assert "`CRUN_" in variables
    if option != "numa-binding":
        assert f"`PET_{option.upper().replace('-', '_')}`" in variables
    for spelling in (option, option.replace("-", "_")):
        p = subprocess.run([CRUN, f"--{spelling}=\x01", "--help"], capture_output=True, text=True, timeout=20)
        assert "unknown option" not in p.stderr and "ambiguous" not in p.stderr, p.stderr


def test_every_option_has_a_variable_of_its_own():
    rows = subprocess.run([CRUN, "--options-markdown"], capture_output=True, text=True, check=True, timeout=20).stdout
    for line in rows.splitlines():
        if line.startswith("| `"):
            name = re.search(r"--(?:\[no-\])?([a-z-]+)", line).group(1)
            # CRUN_SPARE is what a process of --warm-spares finds
            variable = "CRUN_WAIT_AS_SPARE" if name == "spare" else f"CRUN_{name.upper().replace('-', '_')}"
            assert f"`{variable}`" in line, line


def test_prefixes_are_taken_unless_ambiguous(crun):
    assert said(crun, "--nproc", 2, "echo x")[0] == ["x", "x"]
    rc, _, err = crun.run("--warm", 0, "--http", 0, "true")
    assert rc == 2 and "option '--http' is ambiguous: --http-port, --http-bind" in err
    # of torchrun's options one alone begins so
    assert said(crun, "--rdzv-c", "join_timeout=1", "true") == ([], "crun: --rdzv-conf has no effect: one node meets nobody\n")
    rc, _, err = crun.run("--nprok-per-node", "2", "true")
    assert rc == 2 and "did you mean '--nproc-per-node'?" in err


def test_an_option_that_is_gone_is_refused_with_what_to_type_instead(crun):
    rc, out, err = crun.run("--collapse", "echo", "ran")
    assert (rc, out) == (2, "") and err.startswith("crun: option '--collapse' is gone: --ranks-filter 0 shows the lines of one rank, and files")
    rc, out, err = crun.run("echo", "ran", extra_env={"CRUN_COLLAPSE": "1"})
    assert (rc, out) == (0, "ran\n") and err.startswith("crun: CRUN_COLLAPSE has no effect, for --collapse is gone: --ranks-filter 0 shows"), err


@pytest.mark.parametrize("option", ["-H", "--hostfile"])
def test_an_empty_word_is_no_host(crun, option):
    rc, out, err = crun.run(option, "", "echo", "ran")
    assert (rc, out) == (2, "") and f"{option} '': expected " in err, err
    variable = {"-H": "CRUN_HOSTS", "--hostfile": "CRUN_HOSTFILE"}[option]
    assert crun.run("echo", "ran", extra_env={variable: ""})[:2] == (0, "ran\n"), "an empty variable is none"


def test_an_empty_role_is_the_default(crun):
    """--role "$ROLE" of a variable that is not set; torchrun takes any text."""
    default = crun.run("sh", "-c", "echo $ROLE_NAME$TORCHELASTIC_ROLE")[1]
    assert crun.run("--role", "", "sh", "-c", "echo $ROLE_NAME$TORCHELASTIC_ROLE")[:2] == (0, default)
    rc, _, err = crun.run("--role", "x" * 65, "true")
    assert rc == 2 and "expected at most 64 characters" in err, err


def test_the_nearest_command_is_named(crun):
    rc, _, err = crun.run("docter")
    assert (rc, err) == (127, "crun: program 'docter' is not found on PATH or beside crun, did you mean 'crun doctor'?\n")
    for args in (["--nproc", 1, "docter"], ["./docter"], ["no-such"]):
        rc, _, err = crun.run(*args)
        assert rc == 127 and "did you mean" not in err, err


def test_the_nearest_command_hides_nothing_else(crun):
    (crun.tmp / "stats").write_text("#!/bin/sh\n")
    (crun.tmp / "stats").chmod(0o755)
    rc, _, err = crun.run("stats", cwd=crun.tmp)
    assert (rc, err) == (127, "crun: program 'stats' is not found on PATH or beside crun (there is one in this folder: write ./ in front), "
                              "did you mean 'crun status'?\n")
    (crun.tmp / "code").mkdir()
    (crun.tmp / "code/stats").mkdir()
    (crun.tmp / "code/stats/__main__.py").touch()
    rc, _, err = crun.run("stats", cwd=crun.tmp / "code", extra_env={"PYTHON_EXEC": "no-such-python"})
    assert (rc, err) == (127, "crun: PYTHON_EXEC names no Python: program 'no-such-python' is not found on PATH or beside crun\n")
    rc, _, err = crun.run("stats", extra_env={"CRUN_RUN_PATH": "1"})
    assert (rc, err) == (127, "crun: script 'stats' is not found\n")


def test_macros_in_arguments(crun):
    lines, _ = said(crun, "--nproc_per_node", 2, "printf '%s\\n' '${local_rank}-${rank} $${rank} $$ $rank ${other}'")
    assert lines == ["0-0 ${rank} $$ $rank ${other}", "1-1 ${rank} $$ $rank ${other}"]


def test_crun_launch_has_the_manners_of_torch_distributed_launch(crun):
    link = crun.tmp / "crun-launch"
    link.symlink_to(CRUN)
    path = script(crun, "no_suffix", "import os, sys; print(os.environ['LOCAL_RANK'], sys.argv[1:])")

    def launch(*args):
        p = subprocess.run([link, "--log-prefix=off", *args], capture_output=True, text=True, timeout=60, env=crun.env)
        assert p.returncode == 0, p.stderr
        return sorted(p.stdout.splitlines())

    assert launch("--nproc_per_node=2", path, "a") == ["0 ['--local-rank=0', 'a']", "1 ['--local-rank=1', 'a']"]
    assert launch("--use_env", path, "a") == ["0 ['a']"]


def test_a_python_of_choice(crun):
    python = script(crun, "python", '#!/bin/sh\necho "$@"\n')
    path = script(crun, "x.py", "")
    lines, _ = said(crun, "1", program=(path,), extra_env={"PYTHON_EXEC": str(python)})
    assert lines == [f"-u {path} 1"]


def test_what_has_no_effect_here_is_said(crun, tmp_path):
    for option in (("--node-rank", "3"), ("--iface", "lo"), ("--rdzv-tls",), ("--restart-window", "9"), ("--insecure",),
                   ("--resize-timeout", "9"), ("--fatal-codes", "3"), ("--http-bind", "127.0.0.2"), ("--spare",), ("--spare-exit-code", "3")):
        _, err = said(crun, *option, "true")
        assert re.fullmatch(rf"crun: {option[0]} has no effect: [^\n]+\n", err), err
    secret = tmp_path / "secret"
    secret.write_text("me 0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    (tmp_path / "shared").mkdir()
    p = subprocess.run([CRUN, "--rdzv-endpoint", f"file://{tmp_path}/shared", "--rdzv-id", "j", "--token-file", secret, "true"], capture_output=True, text=True, check=False, timeout=60)
    assert (p.returncode, p.stderr) == (0, "")  # its nodes prove it to each other
    _, err = said(crun, "--preemption-signal", "USR1", "--signals-to-handle", "SIGTERM,SIGUSR1", "true")
    assert err == "crun: SIGUSR1 in --signals-to-handle has no effect: --preemption-signal counts more\n"


def test_sruns_nodes_that_nobody_asked_for_are_said(crun):
    """Each crun is a job of its own there."""
    alone = "crun: srun runs on 2 nodes, and each crun there is a job of its own: --nnodes 2 makes them one (--standalone if that is meant)\n"
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_NUM_NODES": "2"}
    for typed, more, expected in (((), {}, alone), ((), {"SLURM_STEP_NUM_NODES": "1"}, ""), (("--nnodes", "1"), {}, ""), (("--standalone",), {}, ""),
                                  ((), {"TORCHELASTIC_RUN_ID": "around"}, "")):
        _, err = said(crun, *typed, "true", extra_env=step | more)
        assert err == expected, (typed, more)


def test_the_manual_page_is_formatted_without_a_warning():
    page = pathlib.Path(BUILD) / "launcher" / "crun.1"
    text = page.read_text()
    for option in options():
        assert option.replace("-", r"\-") in text
    try:
        p = subprocess.run(["groff", "-man", "-ww", "-Tutf8", str(page)], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no groff")
    assert p.returncode == 0 and p.stderr == ""
    assert "restarts them together" in re.sub(r"\s+", " ", p.stdout)


def test_a_shell_that_is_there_takes_the_completion(crun):
    tried = 0
    for shell in ("bash", "zsh"):
        path = script(crun, f"completion.{shell}", crun.run("--completion", shell)[1])
        try:
            p = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=20)
        except FileNotFoundError:
            continue
        tried += 1
        assert p.returncode == 0 and p.stderr == "", p
    assert tried, "bash is needed for ./dev"
