"""-H and --hostfile: agents that crun starts on other hosts. A script stands in for ssh; the last test has a real one."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from crun_run import CRUN
from processes import children, pending, state, wait
from support import preload
from test_terminal import Shell

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "fault"))
import netns  # noqa: E402

# Names with a user are never this machine, and all of them are reached at once.
ONE, TWO = "one@127.0.0.1", "two@127.0.0.1"

FAKE = """#!/bin/sh
# ssh as far as crun sees it: another environment and folder, words of its own, a shell for the command.
echo "$@" >> {tmp}/calls
host=$1; shift
case $host in down*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255;; esac
cd /; echo "welcome to $host"
exec env -i PATH="$PATH" HOME="$HOME" TMPDIR={tmp} {mark} FAKE_HOST=$host sh -c "$*"
"""


@pytest.fixture
def ssh(crun):
    path = crun.tmp / "fake-ssh"
    path.write_text(FAKE.format(tmp=crun.tmp, mark=crun.mark))
    path.chmod(0o755)
    crun.env["HOME"] = str(crun.tmp)
    for name in [n for n in crun.env if n.startswith(("CRUN_RDZV", "PET_"))]:
        del crun.env[name]
    return str(path)


def test_agents_start_elsewhere_and_their_output_comes_back(crun, ssh):
    folder = crun.tmp / "work here"
    folder.mkdir()
    ssh = shutil.copy(ssh, folder / "what's like ssh")
    show = 'echo "$RANK/$WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $FAKE_HOST $PWD $MINE $SAME ${OTHER-unset} $0"; echo "err $RANK" >&2'
    rc, out, err = crun.run("-H", f"{ONE},{TWO}:2", "--rsh", ssh, "-x", "MINE=a b", "-x", "SAME,MISSING", "--run-id", "far", "sh", "-c", show,
                            "it's", cwd=folder, extra_env={"SAME": "as here", "OTHER": "x"})
    assert rc == 0, err
    assert sorted(line for line in out.splitlines() if "]: " in line) == sorted(
        f"[default{rank if rank == 0 else rank - 1}]: {rank}/3 {n} {node} {host} {folder} a b as here unset it's"
        for rank, n, node, host in ((0, 1, 0, ONE), (1, 2, 1, TWO), (2, 2, 1, TWO)))
    assert {f"welcome to {ONE}", f"welcome to {TWO}"} <= set(out.splitlines())
    assert [f"[default{i}]: err {r}" in err.splitlines() for i, r in ((0, 0), (0, 1), (1, 2))] == [True] * 3
    assert "\001" not in out and "\002" not in out


def test_the_secret_stands_in_no_command_line(crun, ssh):
    token = crun.tmp / "token"
    token.write_text("me a-secret-of-the-job-0123456789\n")
    token.chmod(0o600)
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; env; touch $TMPDIR/seen-$RANK; until [ -e $TMPDIR/seen-0 ] && [ -e $TMPDIR/seen-1 ]; do sleep 0.02; done"
    rc, out, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "--token-file", token, "sh", "-c", script)
    assert rc == 0, err
    assert "remote-agent" in out and "a-secret-of-the-job" not in out + (crun.tmp / "calls").read_text()
    calls = (crun.tmp / "calls").read_text().splitlines()
    assert sorted(line.split()[0] for line in calls) == [ONE, TWO] and all(line.endswith(" remote-agent") for line in calls)


@pytest.mark.parametrize("how,code", [("exit 7", 7), ("exit 255", 255), ("kill -SEGV $$", 139), ("exit 0", 0)])
def test_the_exit_code_is_the_jobs(crun, ssh, how, code):
    rc, _, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "sh", "-c", f"[ $RANK = 1 ] && {how}; [ {code} = 0 ] || sleep 60")
    assert rc == code, err
    assert "is lost" not in err


def test_a_job_that_fails_before_all_hosts_hear_of_it_waits_for_none(crun, ssh):
    for _ in range(8):
        rc, _, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "--failure-file", crun.tmp / "why.json", "sh", "-c", "kill -9 $$")
        assert rc == 137 and "unheard" not in err, err
        assert json.loads((crun.tmp / "why.json").read_text())["unheard_nodes"] == 0


def test_a_first_host_that_is_up_a_moment_later_than_the_others_is_no_trouble(crun, ssh):
    """It hosts the rendezvous, which they dial until then."""
    late = crun.tmp / "late-ssh"
    late.write_text(f'#!/bin/sh\n[ $1 = {ONE} ] && sleep 0.5\nexec "{ssh}" "$@"\n')
    late.chmod(0o755)
    rc, _, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", late, "true")
    assert rc == 0 and "cannot reach" not in err, err


def test_a_file_of_hosts_and_a_restart(crun, ssh):
    hosts = crun.tmp / "hosts"
    hosts.write_text(f"# two\n{ONE} slots=2\n{TWO}:1\n")
    rc, out, err = crun.run("--hostfile", hosts, "--rsh", ssh, "--max-restarts", 1, "sh", "-c",
                            '[ $RANK$CRUN_ROUND = 21 ] && exit 3; [ $CRUN_ROUND = 1 ] && sleep 60; echo "rank $RANK"')
    assert rc == 0 and "restart 1/1 (rank 2" in err, err
    assert sorted(re.findall(r"\]: rank (\d)", out)) == ["0", "1", "2"]


def test_a_host_that_cannot_be_reached_is_told_and_the_others_stop(crun, ssh):
    start = time.monotonic()
    rc, _, err = crun.run("-H", f"{ONE},down", "--rsh", ssh, "sleep", "60")
    assert rc == 69 and time.monotonic() - start < 30
    assert "ssh: connect to host down port 22: Connection refused\n" in err
    assert f"crun: host down cannot be reached: {ssh} ended with exit code 255\n" in err
    assert "stopped by" not in err, err


def test_a_host_without_crun_and_one_without_the_folder_are_told(crun, ssh):
    rc, _, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "--remote-crun", "/no/such/crun", "true")
    assert rc == 69
    assert f"crun: host {ONE} has no crun at /no/such/crun (exit code 127): install it there, or name it with --remote-crun\n" in err
    other = crun.tmp / "other-ssh"
    other.write_text(f"#!/bin/sh\n[ $1 = {ONE} ] || mv {crun.tmp}/gone {crun.tmp}/moved\nexec {ssh} \"$@\"\n")
    other.chmod(0o755)
    (crun.tmp / "gone").mkdir()
    rc, _, err = crun.run("-H", f"{TWO}", "--rsh", other, "true", cwd=crun.tmp / "gone")
    assert rc == 69 and f"crun: the folder {crun.tmp}/gone cannot be entered here: No such file or directory\n" in err
    assert f"crun: host {TWO}: crun did not begin there: " in err
    rc, _, err = crun.run("-H", "a", "--rsh", "/no/such/ssh", "true")
    assert rc != 0 and "crun: --rsh: " in err and "/no/such/ssh" in err


def run_until_said(crun, text, *args):
    """-> exit code and output of a crun whose workers wait for the file `said`, made when crun has said this."""
    with open(crun.tmp / "err", "w") as err:
        p = crun.start(*args, stderr=err)
    end = time.monotonic() + 60
    while text not in (crun.tmp / "err").read_text() and p.poll() is None:
        assert time.monotonic() < end, (crun.tmp / "err").read_text()
        time.sleep(0.01)
    (crun.tmp / "said").touch()
    out, _ = p.communicate(timeout=90)
    assert crun.processes() == []
    return p.returncode, out.decode(), (crun.tmp / "err").read_text()


WORLD = "until [ -e $TMPDIR/said ]; do sleep 0.02; done; echo world $WORLD_SIZE"


def test_too_few_hosts_are_no_matter_where_fewer_suffice(crun, ssh):
    said = "host down cannot be reached"
    rc, out, err = run_until_said(crun, said, "-H", f"{ONE},down", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.1", "--rsh", ssh, "sh", "-c", WORLD)
    assert rc == 0 and "world 1" in out and said in err, err


def odd_ssh(crun, ssh, case):
    """As ssh, but for hosts that case, a part of a shell script, treats otherwise."""
    path = crun.tmp / "odd-ssh"
    path.write_text(f"#!/bin/sh\ncase $1 in {case} esac\nexec {ssh} \"$@\"\n")
    path.chmod(0o755)
    return str(path)


def program_of_each(crun, ssh, on_two, on_one=b"exec sleep 60"):
    """-> --rsh with which the program `prog` is this script on ONE and a file with this content on TWO; None: there is none."""
    for host, text in (("one", b"#!/bin/sh\n" + on_one + b"\n"), ("two", on_two)):
        (crun.tmp / host).mkdir()
        if text is not None:
            (crun.tmp / host / "prog").write_bytes(text)
            (crun.tmp / host / "prog").chmod(0o755)
    return odd_ssh(crun, ssh, f"{ONE}) export PATH={crun.tmp}/one:$PATH;; {TWO}) export PATH={crun.tmp}/two:$PATH;;")


@pytest.mark.parametrize("hosts", [f"{ONE},{TWO}", f"{TWO},{ONE}"])
@pytest.mark.parametrize("content,code", [(b"\x7fELF nothing", 126), (b"#!/no/such/interpreter\n", 127)])
def test_a_program_that_cannot_be_executed_on_one_host_is_the_jobs_code(crun, ssh, hosts, content, code):
    rsh = program_of_each(crun, ssh, content)
    for _ in range(3):
        rc, _, err = crun.run("-H", hosts, "--rsh", rsh, "--max-restarts", 1, "prog")
        assert rc == code and "start it again" not in err, err


@pytest.mark.parametrize("hosts", [f"{ONE},{TWO}", f"{TWO},{ONE}"])
def test_a_host_without_the_program_is_not_waited_for(crun, ssh, hosts):
    start = time.monotonic()
    rc, _, err = crun.run("-H", hosts, "--rsh", program_of_each(crun, ssh, None), "prog")
    assert rc == 127 and time.monotonic() - start < 30, err
    assert "program 'prog' is not found on PATH" in err
    assert f"crun: host {TWO}: crun there exited with code 127 before it joined the job\n" in err


def test_a_host_whose_crun_cannot_start_is_not_waited_for(crun, ssh):
    path = pathlib.Path(ssh)
    path.write_text(path.read_text().replace('echo "welcome', f'[ $host = {ONE} ] || ulimit -n 15\necho "welcome'))
    start = time.monotonic()
    rc, _, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "sleep", "60")
    assert rc == 69 and time.monotonic() - start < 30, err
    assert re.search(f"crun: host {TWO}: crun (there .*before it joined the job|did not begin there)", err), err


@pytest.mark.parametrize("slow", [ONE, TWO])
def test_a_host_without_the_program_is_no_matter_where_fewer_suffice(crun, ssh, slow):
    rsh = program_of_each(crun, ssh, None, WORLD.encode())
    path = pathlib.Path(rsh)
    path.write_text(path.read_text().replace("case", f"[ $1 = {slow} ] && sleep 0.5\ncase", 1))
    said = "program 'prog' is not found"
    rc, out, err = run_until_said(crun, said, "-H", f"{ONE},{TWO}", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.5", "--rsh", rsh, "prog")
    assert (rc, "world 1" in out, said in err) == (0, True, True), err


def test_a_login_script_may_print_half_a_line(crun, ssh):
    odd = odd_ssh(crun, ssh, "*) printf 'half a line';;")
    path = pathlib.Path(ssh)
    path.write_text(path.read_text().replace('echo "welcome', 'printf "welcome'))
    rc, out, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", odd, "sh", "-c", "echo rank $RANK")
    assert (rc, "did not begin" in err) == (0, False), err
    assert sorted(line for line in out.splitlines() if "rank" in line) == ["[default0]: rank 0", "[default0]: rank 1"]
    assert f"half a linewelcome to {ONE}" in out.splitlines() and "\001" not in out


@pytest.mark.parametrize("hosts", [f"{ONE},hang", f"hang,{ONE}", "hang", "hang,down"])
def test_an_ssh_that_hangs_is_not_waited_for_longer_than_for_nodes(crun, ssh, hosts):
    odd = odd_ssh(crun, ssh, "hang) exec sleep 1000;;")
    start = time.monotonic()
    rc, _, err = crun.run("-H", hosts, "--rsh", odd, "--rdzv-conf", "join_timeout=1", "sleep", "60")
    assert rc == 69 and time.monotonic() - start < 45, err
    assert re.search(r"crun: host hang: crun (has not begun there, and the job is over|has not begun there either|did not begin there within 1 s \(join_timeout\))\n", err), err


def test_a_host_that_is_given_up_is_not_lost_as_well(crun, ssh):
    """It begins while the time is over and nobody has looked yet. A libuv that reads before it looks at the time lets it begin."""
    path, said = pathlib.Path(ssh), crun.tmp / "said"
    switches = "$(grep ctxt /proc/$PPID/status)"
    asleep = f'until before="{switches}"; sleep 0.3; grep -q "State:.S" /proc/$PPID/status && [ "$before" = "{switches}" ]; do :; done'
    path.write_text(path.read_text().replace("exec env -i", f"{asleep}; kill -STOP $PPID; exec 3>&1 4>&2; {{ env -i").replace('sh -c "$*"', f'sh -c "$*" 2>&4; exec sleep 20 2>&- 4>&-; }} | tee {said} 2>&-'))
    p = crun.start("-H", ONE, "--rsh", ssh, "--rdzv-conf", "join_timeout=8,keep_alive_max_attempt=100", "true", stderr=subprocess.PIPE, text=True)
    wait("its first word", lambda: said.exists() and said.read_bytes())
    stopped = crun.agent_of(p.pid)
    wait("the stop", lambda: state(stopped) == "T")
    began = time.monotonic()
    wait("the end of the time", lambda: time.monotonic() > began + 8.2)
    os.kill(stopped, signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    given_up = p.returncode == 69 and f"host {ONE}: crun did not begin there within 8 s" in err
    assert (given_up or p.returncode == 0) and "is lost" not in err, err + said.read_text()


def test_a_stop_does_not_wait_for_an_ssh_that_hangs(crun, ssh):
    odd = odd_ssh(crun, ssh, f"hang) touch {crun.tmp}/up-0; exec sleep 1000;;")
    p = crun.start("-H", "hang", "--rsh", odd, "true")
    crun.wait_file("up-0")
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=30)
    assert p.returncode == 130 and crun.processes() == []


def test_what_ssh_leaves_behind_is_not_waited_for(crun, ssh):
    """ControlPersist: a master in the background keeps the standard error of the ssh that began it."""
    odd = odd_ssh(crun, ssh, "*) setsid sleep 1000 & ;;")
    rc, _, err = crun.run("-H", TWO, "--rsh", odd, "true", timeout=30)
    assert rc == 0, err


def up(crun, ssh, *args):
    p = crun.start("-H", f"{ONE},{TWO}", "--rsh", ssh, *args)
    for rank in (0, 1):
        crun.wait_file(f"up-{rank}")
    return p


UP = "trap 'echo saved; exit 75' TERM; touch $TMPDIR/up-$RANK; while :; do sleep 0.02; done"


def test_a_signal_reaches_the_workers_of_all_hosts(crun, ssh):
    p = up(crun, ssh, "sh", "-c", UP)
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 75 and out.decode().count("]: saved\n") == 2, err
    assert crun.processes() == []


def test_signals_without_end_do_not_end_an_agent(crun, ssh):
    """They wait in a pipe while it stands still."""
    p = up(crun, ssh, "sh", "-c", "echo $PPID >$TMPDIR/agent-$RANK; " + UP)
    local = crun.agent_of(p.pid)
    with crun.stopped(int(crun.wait_file("agent-1"))):
        for _ in range(100):
            p.send_signal(signal.SIGTERM)
            wait("the signal's end", lambda: not pending(p.pid) and not pending(local))
    out, err = p.communicate(timeout=60)
    assert p.returncode == 75 and out.decode().count("]: saved\n") == 2, err
    assert crun.processes() == []


@pytest.mark.parametrize("victim", ["guardian", "agent"])
def test_nothing_is_left_elsewhere_when_the_local_crun_is_killed(crun, ssh, victim):
    p = up(crun, ssh, "sh", "-c", "trap '' TERM; touch $TMPDIR/up-$RANK; sleep 61", "--")
    os.kill(p.pid if victim == "guardian" else crun.agent_of(p.pid), signal.SIGKILL)
    crun.wait_processes_gone(30)
    p.communicate(timeout=60)
    assert p.returncode == (-9 if victim == "guardian" else 137)


CLIENT = """import os, socket, sys, threading
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall((chr(0).join(sys.argv[2:]) + chr(10)).encode())
def pump(read, write):
    while data := read(65536):
        write(data)
threading.Thread(target=pump, args=(lambda n: os.read(0, n), s.sendall), daemon=True).start()
pump(s.recv, lambda data: os.write(1, data))
"""


@pytest.fixture
def far_side(crun, ssh):
    """A command for --rsh whose far side is no process of crun's: only a connection leads there, as with ssh."""
    listener, started = socket.socket(socket.AF_UNIX), []
    listener.bind(str(crun.tmp / "far.sock"))
    listener.listen()

    def serve():
        while True:
            try:
                c = listener.accept()[0]
            except OSError:
                return
            head = b""
            while not head.endswith(b"\n"):
                head += c.recv(1)
            started.append(subprocess.Popen([ssh, *head.decode().rstrip("\n").split("\0")], stdin=c, stdout=c, stderr=subprocess.DEVNULL, env=crun.env))
            c.close()

    threading.Thread(target=serve, daemon=True).start()
    (crun.tmp / "client.py").write_text(CLIENT)
    yield f"{sys.executable} -S {crun.tmp}/client.py {crun.tmp}/far.sock", started
    listener.close()
    for p in started:
        p.kill()
        p.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_a_connection_stops_the_agent_there(crun, far_side, end):
    rsh, started = far_side
    p = up(crun, rsh, "sh", "-c", "trap 'touch $TMPDIR/saved-$RANK; exit 75' TERM; touch $TMPDIR/up-$RANK; while :; do sleep 0.02; done")
    p.send_signal(end)
    p.communicate(timeout=60)
    assert [q.wait(30) for q in started] == [75, 75]
    assert (crun.tmp / "saved-0").exists() and (crun.tmp / "saved-1").exists()
    crun.wait_processes_gone(10)


def of(pid, name):
    """A file of /proc, empty once the process has gone."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def on_two(crun):
    return [pid for pid in crun.processes() if f"FAKE_HOST={TWO}".encode() in of(pid, "environ")]


def test_a_host_that_is_lost_is_told(crun, ssh):
    p = up(crun, ssh, "sh", "-c", UP)
    halves = [pid for pid in on_two(crun) if b"remote-agent" in of(pid, "cmdline")]
    guardian, = [pid for pid in halves if set(children(pid)) & set(halves)]
    os.kill(guardian, signal.SIGKILL)
    out, err = p.communicate(timeout=90)
    assert f"crun: host {TWO} is lost: {ssh} killed by SIGKILL\n" in err.decode(), err
    assert p.returncode not in (0, 255) and crun.processes() == []


@pytest.mark.long
def test_a_host_whose_ssh_hangs_later_is_lost(crun, ssh):
    p = up(crun, ssh, "--rdzv-conf", "keep_alive_interval=0.2", "sh", "-c", UP)
    for pid in on_two(crun):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
    out, err = p.communicate(timeout=90)
    assert f"crun: host {TWO} is lost: nothing was heard of it for 6 s (--rdzv-conf keep_alive_interval, keep_alive_max_attempt)\n" in err.decode(), err
    assert p.returncode not in (0, 255) and b"\006" not in out + err
    crun.wait_processes_gone(30)


def test_a_silent_host_is_not_lost(crun, ssh):
    rc, out, err = crun.run("-H", TWO, "--rsh", ssh, "--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=1", "sleep", "5")
    assert rc == 0 and "lost" not in err and "\006" not in out + err, err


def test_an_agent_that_ended_behind_half_a_line_is_over(crun, ssh):
    path = crun.tmp / "agent"
    path.write_text("#!/bin/sh\nprintf '\\001crun-agent 2\\nhalf a line\\002crun-agent 2\\n'; exit 7\n")
    path.chmod(0o755)
    rc, out, err = crun.run("-H", TWO, "--rsh", ssh, "--remote-crun", path, "true")
    assert rc == 7 and "lost" not in err and "half a line\n" in out and "\002" not in out, err


def test_an_order_larger_than_its_pipe_arrives(crun, ssh):
    """A user who has many pipes gets small ones."""
    pipes = []
    try:
        while len(pipes) < 140:
            pipes += os.pipe()
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(pipes[-1], fcntl.F_SETPIPE_SZ, 1 << 20)
        limited = ["setpriv", "--bounding-set=-sys_resource,-sys_admin"] if os.geteuid() == 0 else []
        small = subprocess.run([*limited, sys.executable, "-c", "import os, fcntl; print(fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ))"],
                               capture_output=True, text=True)
        if small.returncode or int(small.stdout) > 8192:
            pytest.skip(f"pipes are as large as ever: {small.stdout}{small.stderr}")
        big = "x" * 90000
        p = subprocess.run([*limited, CRUN, "-H", TWO, "--rsh", ssh, "-x", "BIG", "sh", "-c", "echo ${#BIG}"], capture_output=True, text=True,
                           env={**crun.env, "BIG": big}, timeout=60)
    finally:
        for fd in pipes:
            os.close(fd)
    assert p.returncode == 0 and "90000\n" in p.stdout, p.stderr


def test_hosts_are_checked_before_anything_starts(crun, ssh):
    for args, part in ((("-H", "a,-oProxyCommand=x"), "-H: host '-oProxyCommand=x': expected HOST"),
                       (("-H", "a:0"), "-H: host 'a:0': slots"),
                       (("--hostfile", "/no/such"), "--hostfile '/no/such' cannot be read: No such file or directory"),
                       (("-H", "a", "--hostfile", "/dev/null"), "-H and --hostfile both name the hosts"),
                       (("--hostfile", "/dev/null"), "--hostfile '/dev/null' names no host"),
                       (("-H", "a,b,c", "--nnodes", "2"), "--nnodes takes 2 nodes, but 3 hosts are named: leave some out, or give --spare"),
                       (("-H", "a", "--nnodes", "3"), "--nnodes wants 3 nodes, but only 1 host is named"),
                       (("-H", "a", "--standalone"), "--standalone contradicts -H"),
                       (("-H", "a", "--node-rank", "1"), "--node-rank contradicts -H"),
                       (("-H", "a", "--stdin-rank", "0"), "--stdin-rank 0 contradicts -H"),
                       (("-H", "a", "-x", "1A=2"), "expected NAME=VALUE, NAME or NAME,NAME")):
        rc, _, err = crun.run(*args, "--rsh", ssh, "true")
        assert rc == 2 and part in err, err
    assert not (crun.tmp / "calls").exists()


def test_all_hosts_are_looked_up_at_once(crun):
    together = crun.tmp / "together"
    crun.run("-H", "late-a,late-b,late-c", "--rsh", "false", "true", extra_env={**preload("fault_names"), "FAULT_NAMES": f"together:{together}"})
    assert together.exists()


def test_a_signal_during_a_look_up_ends_crun_before_any_agent_is_started(crun, ssh):
    known = crun.tmp / "known"
    p = crun.start("-H", "late-a,late-b", "--rsh", ssh, "true", extra_env={**preload("fault_names"), "FAULT_NAMES": f"held:{known}"})
    wait("a look-up", pathlib.Path(f"{known}.asked").exists)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=90)
    assert (p.returncode, err) == (128 + signal.SIGTERM, b"") and not (crun.tmp / "calls").exists()


def test_what_is_for_other_hosts_has_no_effect_without_any(crun, ssh):
    for args in (("-x", "A=1"), ("--rsh", ssh), ("--remote-crun", "/no/such/crun")):
        rc, _, err = crun.run(*args, "true")
        option = {"-x": "--export"}.get(args[0], args[0])
        assert (rc, err) == (0, f"crun: {option} has no effect: no other host is started from here (-H, --hostfile)\n")
        rc, _, err = crun.run("-H", f"localhost,{ONE}", "--rsh", ssh, "-x", "A=1", "true")
        assert rc == 0 and "no effect" not in err, err


@pytest.mark.parametrize("typed", ['"join_timeout=50,last_call_timeout=1"', "join_timeout='50',", ",".join(["last_call_timeout=1"] * 99 + ["join_timeout=50"])])
def test_rdzv_conf_reaches_the_hosts_however_it_is_typed(crun, ssh, typed):
    rc, out, err = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "--rdzv-conf", typed, "sh", "-c", "echo rank $RANK")
    assert rc == 0 and sorted(re.findall(r"rank \d", out)) == ["rank 0", "rank 1"], err
    _, out, _ = crun.run("-H", f"{ONE},{TWO}", "--rsh", ssh, "--rdzv-conf", typed, "--dry-run", "true")
    assert re.findall(r"--rdzv-conf=\S*join_timeout=\S*50\S*,is_host=(\d)", out) == ["1", "0"], out


def test_workers_for_hosts_that_all_have_a_number_are_said_to_have_no_effect(crun, ssh):
    for hosts, said in (("localhost:1", True), (f"localhost:1,{ONE}", False)):
        rc, _, err = crun.run("-H", hosts, "--rsh", ssh, "--nproc-per-node", 2, "--dry-run", "true")
        assert rc == 0 and ("crun: --nproc-per-node has no effect: every host" in err) == said, err


def test_a_dry_run_tells_who_would_be_started_how(crun, ssh):
    rc, out, err = crun.run("-H", f"localhost:2,{TWO}", "--rsh", f"{ssh} -p 22", "--nproc-per-node", "gpu", "--run-id", "plan", "--dry-run", "true")
    assert (rc, err) == (0, ""), "GPUs are those of the hosts"
    assert "host localhost, node rank 0\n  started by: this crun\n" in out
    assert re.search(rf"host {TWO}, node rank 1\n  started by: {ssh} -p 22 {TWO} 'exec /\S+/crun remote-agent'\n", out), out
    assert "--nnodes=2 --nproc-per-node=2 --rdzv-id=plan --node-rank=0 --rdzv-endpoint=" in out
    assert not (crun.tmp / "calls").exists()


def test_a_remote_agent_is_nothing_for_people(crun):
    rc, _, err = crun.run("remote-agent", stdin=subprocess.DEVNULL)
    assert rc == 69 and "the crun that started this one has gone" in err
    p = crun.start("remote-agent", stdin=subprocess.PIPE)
    _, err = p.communicate(b"hello\n", timeout=60)
    assert p.returncode == 69 and b"crun remote-agent is what crun -H starts on other hosts" in err


def test_hosts_of_their_own_networks_meet_at_the_first(crun):
    """This crun is in none of the networks, as on a log-in node without a route: it needs no more than ssh."""
    why = netns.available()
    if why:
        pytest.skip(why)
    rsh = crun.tmp / "netns-ssh"
    with contextlib.closing(netns.Net(2)) as net:
        rsh.write_text("#!/bin/sh\nhost=$1; shift\ncase $host in\n" + "".join(
            f'{h.addr}) exec {" ".join(h.prefix())} sh -c "$*";;\n' for h in net.hosts) + "esac\nexit 255\n")
        rsh.chmod(0o755)
        rc, out, err = crun.run("-H", ",".join(f"{h.addr}:2" for h in net.hosts), "--rsh", rsh, "sh", "-c", 'echo "$RANK/$WORLD_SIZE $MASTER_ADDR"')
        assert rc == 0, err
        assert sorted(re.findall(r"\]: (\S+ \S+)", out)) == [f"{r}/4 {net.hosts[0].addr}" for r in range(4)]


def test_ctrl_z_stops_the_workers_of_all_hosts(crun, ssh):
    shell = Shell(crun.env)
    try:
        shell.run(f"$CRUN -H {ONE},{TWO} --rsh {ssh} sh -c 'echo up $$; exec sleep 1000'")
        pids = [int(re.search(r"up (\d+)\r?\n", shell.until(r"up \d+\r?\n"))[1]) for _ in range(2)]
        shell.type("\x1a")
        shell.until("Stopped ")
        wait("their stop", lambda: [state(pid) for pid in pids] == ["T", "T"])
        shell.until("ready> ")
        shell.run("fg")
        wait("them to go on", lambda: [state(pid) for pid in pids] == ["S", "S"])
        shell.type("\x03")
        shell.until("stopped by SIGINT")
        shell.until("ready> ")
        assert shell.code() == 130
    finally:
        shell.close()


def test_a_real_ssh(crun):
    sshd, keygen = shutil.which("sshd", path="/usr/sbin:/usr/bin"), shutil.which("ssh-keygen")
    if not sshd or not keygen or not shutil.which("ssh"):
        pytest.skip("no sshd here")
    tmp, port = crun.tmp, crun.port()
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp / name)], check=True, timeout=30)
    (tmp / "authorized").write_text((tmp / "user.pub").read_text())
    config = tmp / "sshd_config"
    config.write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp}/host\nAuthorizedKeysFile {tmp}/authorized\nStrictModes no\n"
                      f"PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    daemon = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, env=crun.env)
    ssh = (f"ssh -x -F none -p {port} -i {tmp}/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
           "-o LogLevel=ERROR -o IdentitiesOnly=yes")
    try:
        end = time.monotonic() + 30
        while subprocess.run([*ssh.split(), "127.0.0.1", "true"], timeout=60, capture_output=True).returncode:
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.skip(f"sshd does not serve us here: {daemon.stderr.read() if daemon.poll() is not None else ''}")
            time.sleep(0.1)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        mark, value = crun.mark.split("=")
        show = f'echo "$RANK $A $SSH_CONNECTION"; [ $RANK = 0 ] && exec touch {tmp}/said; until [ -e {tmp}/said ]; do sleep 0.02; done; exit 9'
        rc, out, err = crun.run("-H", f"{user}@127.0.0.1:2", "--rsh", ssh, "-x", f"{mark}={value}", "-x", "A=1 2", "sh", "-c", show)
        assert rc == 9 and re.search(r"\]: 0 1 2 127\.0\.0\.1 ", out), (out, err)
        p = crun.start("-H", f"{user}@127.0.0.1", "--rsh", ssh, "-x", f"{mark}={value}", "sh", "-c", f"touch {tmp}/up; sleep 61")
        crun.wait_file("up")
        p.kill()
        p.communicate(timeout=60)
        end = time.monotonic() + 60
        while any(pid != daemon.pid and (comm := of(pid, "comm")) and b"sshd" not in comm for pid in crun.processes()):
            assert time.monotonic() < end, "the far side outlives crun"
            time.sleep(0.05)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=30)
