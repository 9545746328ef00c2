"""`crun doctor`: faults are planted on one of two hosts, network namespaces reached by a stand-in for ssh, and each is named; of a healthy pair nothing is."""
import functools
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys

import pytest

from chaos_tool import clock_env
from crun_run import CRUN
from daemon import ALICE, BOB, Daemon, write_tokens
from processes import wait
from support import has_sanitizer

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "fault"))
import netns  # noqa: E402

# ssh as far as crun sees it. Files of the host's name hold its environment, and what stands in front of its commands.
SSH = """#!/bin/sh
host=$1; shift
case $host in down@*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255;; esac
[ -e {tmp}/$host.env ] && . {tmp}/$host.env
[ -e {tmp}/$host.prefix ] && . {tmp}/$host.prefix
echo "welcome to $host"; echo "a banner of $host" >&2
exec env -i PATH={tmp}/bin:/usr/bin:/bin HOME={tmp}/home-$host TMPDIR={tmp} GLOO_SOCKET_IFNAME=eth0 {mark} $variables $namespace $prefix sh -c "$*"
"""
ONE, TWO = "one@10.99.0.1", "two@10.99.0.2"


def of_host(text):
    """What was found, without the host; of a name that does not resolve, without the reason, which is another one in a namespace."""
    what = text.split(": ", 1)[1]
    return what.rpartition(": ")[0] if "its own name" in what else what


@functools.cache
def of_this_machine():
    """What is found here in any case: this may be a container with little memory, whose name no file knows."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    p = subprocess.run([CRUN, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=60, check=False)
    found = {of_host(f["text"]) for f in json.loads(p.stdout)["findings"] if f["finding"] != "foreign-crun"}
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        found.add(f"its own name is not known to it: host '{socket.gethostname()}'")
    return found


def planted(rc, out):
    """-> [(name of the finding, its sentence)] without those of this machine."""
    found = json.loads(out)["findings"]
    assert rc == (1 if found else 0) and all(f["remedy"] for f in found) and "\x1b" not in out
    return [(f["finding"], f["text"]) for f in found if of_host(f["text"]) not in of_this_machine()]


class Hosts:
    """Two of them; `names` as -H takes them."""

    def __init__(self, crun, net):
        self.crun, self.net, self.names = crun, net, [ONE, TWO]
        for name, host in zip(self.names, net.hosts):
            (crun.tmp / f"{name}.env").write_text(f"namespace='{' '.join(host.prefix())}'\n")
            (crun.tmp / f"home-{name}/.config/crun").mkdir(parents=True)
        (crun.tmp / "bin").mkdir()
        (crun.tmp / "bin/crun").symlink_to(CRUN)
        self.rsh = crun.tmp / "netns-ssh"
        self.rsh.write_text(SSH.format(tmp=crun.tmp, mark=crun.mark))
        self.rsh.chmod(0o755)

    def plant(self, variables="", prefix="", host=TWO):
        (self.crun.tmp / f"{host}.prefix").write_text(f"variables='{variables}'\nprefix='{prefix}'\n")

    def token(self, host, *tokens):
        write_tokens(self.crun.tmp / f"home-{host}/.config/crun/token", *tokens)

    def look(self, *args, **kw):
        p = self.crun.start("doctor", "-H", ",".join(self.names), "--rsh", self.rsh, "--json", *args, **kw)
        out, err = p.communicate(timeout=90)
        assert p.returncode in (0, 1), (out, err)
        self.crun.wait_processes_gone(30)  # what a host was at when it was given up dies with it
        return planted(p.returncode, out.decode())


@pytest.fixture
def hosts(crun):
    if why := netns.available():
        pytest.skip(why)
    for name in [n for n in crun.env if n.startswith(("CRUN_RDZV", "PET_", "CRUN_TOKEN"))]:
        del crun.env[name]
    net = netns.Net(2)
    yield Hosts(crun, net)
    net.close()


def script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_of_a_healthy_pair_nothing_is_found(hosts):
    hosts.token(ONE, ALICE)
    hosts.token(TWO, ALICE)
    assert hosts.look("--shared-dir", hosts.crun.tmp, "--iface", "eth0") == []
    assert not list(hosts.crun.tmp.glob(".crun-doctor*"))
    rc, out, err = hosts.crun.run("doctor", "-H", f"{ONE},{TWO}", "--rsh", hosts.rsh)
    assert rc == (1 if of_this_machine() else 0) and err == "", (out, err)
    assert of_this_machine() or out.endswith("2 hosts looked at: nothing found\n")
    assert f"{ONE}: crun " in out and "eth0 up MTU 1500" in out and "(/usr/bin/python3, by PATH)" in out


def test_packets_that_are_lost_for_their_size(hosts):
    netns.ip("link", "set", hosts.net.hosts[1].port_of_switch, "mtu", 1350, ns=hosts.net.switch)
    for host in hosts.net.hosts:  # else the kernel hands on packets that nobody has cut yet
        netns.ip("link", "set", "eth0", "gso_max_segs", 1, ns=host.ns)
    told = []
    for _ in range(3):  # a trial that takes longer than 0.7 s counts as lost, and a smaller size is told
        found = hosts.look()
        assert {name for name, _ in found} == {"mtu"}, found
        told.append(found[0][1])
        if "1300" in told[-1]:
            break
    assert told[-1] == (f"{ONE}: large packets to or from {TWO} are lost: the MTU of eth0 is 1500, "
                        "but only packets of up to 1300 bytes get through"), told


def test_interfaces_of_different_mtu(hosts):
    netns.ip("link", "set", "eth0", "mtu", 1400, ns=hosts.net.hosts[1].ns)
    assert hosts.look() == [("mtu", f"{TWO}: the MTU of its eth0 is 1400, that of {ONE}'s eth0 is 1500")]


def test_a_way_that_is_closed(hosts):
    netns.ip("route", "add", "prohibit", "10.99.0.1/32", ns=hosts.net.hosts[1].ns)
    (one, text), (two, denied) = hosts.look()  # the one waits for answers that the other may not send
    assert one == two == "closed" and text.startswith(f"{ONE}: it cannot connect to {TWO}: ")
    assert denied == f"{TWO}: it cannot connect to {ONE}: connect: Permission denied"


def test_a_clock_that_is_wrong(hosts):
    clock = hosts.crun.tmp / "clock"
    clock.write_bytes(struct.pack("q", -7_500_000_000))
    hosts.plant(variables=" ".join(f"{k}={v}" for k, v in clock_env(clock).items()))
    assert hosts.look() == [("clock", f"{TWO}: its clock is 7.5 s behind that of {ONE}")]


def test_tokens(hosts):
    hosts.token(ONE, ALICE)
    assert hosts.look() == [("token", f"{TWO}: it has no token, and {ONE} has one")]
    hosts.token(TWO, ("alice", "another-secret-0123456789"))
    found = hosts.look()
    assert found == [("token", f"{TWO}: its token is another one than that of {ONE}: they would refuse each other")]
    hosts.token(TWO, ALICE)
    (hosts.crun.tmp / f"home-{TWO}/.config/crun/token").chmod(0o644)
    (name, text), = hosts.look()
    assert name == "token" and text.startswith(f"{TWO}: its token cannot be used: ") and "mode 0644" in text and ALICE[1] not in text


@pytest.mark.parametrize("prefix, name, says", [
    ("prlimit --nofile=256", "files", "a process may open only 256 files: expected 1024 or more"),
    ("prlimit --as=8589934592", "address-space", "the address space of a process is limited to 8192 MiB"),
    ("setarch --uname-2.6", "kernel", "its kernel is Linux 2.6."),
], ids=["files", "address space", "kernel"])
def test_limits_and_an_old_kernel(hosts, prefix, name, says):
    if name == "address-space" and (has_sanitizer("asan") or has_sanitizer("tsan")):
        pytest.skip("the address or thread sanitizer needs its address space")
    hosts.plant(prefix=prefix)
    (found, text), = hosts.look()
    assert found == name and text.startswith(f"{TWO}: {says}")


def test_the_users_limit_of_processes(hosts):
    """Root has none: the whole of it as another user."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]  # what it executes may still go where root may, unlike what that executes
    if subprocess.run([*user, "sh", "-c", f"'{CRUN}' --version; exit $?"], capture_output=True, check=False).returncode:
        pytest.skip("another uid needs root, and a build that it can read")
    hosts.plant(prefix=f"prlimit --nproc=200 {' '.join(user)}", variables="TMPDIR=/tmp")
    found = hosts.look()
    assert ("processes", f"{TWO}: the user may have only 200 processes: expected 1024 or more") in found


def test_another_python(hosts):
    script(hosts.crun.tmp / "old/python3", """echo '{"version": "3.6.9"}'""")
    hosts.plant(variables=f"PATH={hosts.crun.tmp}/old:{hosts.crun.tmp}/bin:/usr/bin:/bin")
    (name, text), *rest = hosts.look()
    assert name == "python" and [n for n, _ in rest] in ([], ["torch"])  # where the first one's has it
    assert re.fullmatch(rf"{TWO}: its Python is 3\.6\.9 \({hosts.crun.tmp}/old/python3, by PATH\), that of {ONE} \S+ \(/usr/bin/python3, by PATH\)", text)
    hosts.plant(variables="PYTHON_EXEC=/no/such/python")
    assert ("python", f"{TWO}: PYTHON_EXEC names no Python: program '/no/such/python' is not found") in hosts.look()
    script(hosts.crun.tmp / "old/python3", "echo Illegal instruction; exit 132")
    hosts.plant(variables=f"PYTHON_EXEC={hosts.crun.tmp}/old/python3")
    first, *rest = hosts.look()
    assert first == ("python", f"{TWO}: its Python {hosts.crun.tmp}/old/python3 (PYTHON_EXEC) does not run: Illegal instruction")
    assert [n for n, _ in rest] in ([], ["torch"])


def test_another_program_and_another_module_of_the_name(hosts):
    tmp = hosts.crun.tmp
    script(tmp / "oci/crun", "echo crun version 1.8.1; echo commit: f8a096be")
    (tmp / "lib").mkdir()
    (tmp / "lib/crun.py").write_text("raise SystemExit('this is executed by nobody')\n")
    hosts.plant(variables=f"PATH={tmp}/oci:{tmp}/bin:/usr/bin:/bin PYTHONPATH={tmp}/lib")
    assert hosts.look() == [("foreign-crun", f"{TWO}: crun on PATH is {tmp}/oci/crun, another program ('crun version 1.8.1')"),
                            ("foreign-module", f"{TWO}: `import crun` of its Python /usr/bin/python3 gets another project's {tmp}/lib/crun.py")]
    (tmp / "bin/crun-launcher").symlink_to(CRUN)  # Debian's package: the two stand side by side
    assert [name for name, _ in hosts.look()] == ["foreign-module"]
    hosts.plant(variables=f"PYTHONPATH={HERE.parents[2]}/python")  # our own
    assert hosts.look() == []
    shutil.copytree(HERE.parents[2] / "python/crun", tmp / "over/crun")
    (tmp / "over/crun/__init__.py").write_text("from .runner import run\n")  # theirs, installed over ours
    hosts.plant(variables=f"PYTHONPATH={tmp}/over")
    assert [name for name, _ in hosts.look()] == ["foreign-module"]


def test_a_name_that_is_not_known(hosts):
    (hosts.crun.tmp / "two@no-such-host.invalid.env").write_text((hosts.crun.tmp / f"{TWO}.env").read_text())
    (hosts.crun.tmp / "home-two@no-such-host.invalid").mkdir()
    hosts.names[1] = "two@no-such-host.invalid"
    (name, text), = hosts.look()
    assert name == "name" and text.startswith(f"{ONE}: it does not know the name of two@no-such-host.invalid: host 'no-such-host.invalid': ")


def test_a_name_of_its_own_that_only_it_can_reach(hosts):
    """As Debian's installer writes it."""
    tmp = hosts.crun.tmp
    (tmp / "etc-hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node2\n")
    named = script(tmp / "named", f'hostname node2 && mount --bind {tmp}/etc-hosts /etc/hosts && exec "$@"')
    torch = script(tmp / "torch/python3", """echo '{"version": "3.13.5", "torch": "2.15.0"}'""")
    for told, names in (("GLOO_SOCKET_IFNAME=", ["own-address"]), ("GLOO_SOCKET_IFNAME=eth0", [])):
        hosts.plant(prefix=f"unshare -m -u {named}", variables=f"PYTHON_EXEC={torch} {told}")
        found = [f for f in hosts.look() if f[0] not in ("python", "torch")]  # another one than the first host's
        assert [name for name, _ in found] == names, found
        assert not found or found[0][1] == f"{TWO}: its own name node2 stands for 127.0.1.1, where PyTorch's Gloo would wait for other hosts"


def fake_machine(root):
    """A root with cgroups, adapters and GPUs that this machine does not have."""
    files = {
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": "805306368\n", "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/pids.max": "max\n", "sys/fs/cgroup/job/step/pids.max": "64\n",
        "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n"}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_small_cgroups_lost_gpus_and_adapters_that_are_down(hosts):
    root = hosts.crun.tmp / "root"
    fake_machine(root)
    hosts.plant(variables=f"HWLOC_FSROOT={root}")
    found = dict(hosts.look())
    assert found["memory"] == f"{TWO}: its cgroup /sys/fs/cgroup/job may use only 768 MiB of memory: expected 1024 for 1 worker"
    assert found["tasks"] == f"{TWO}: its cgroup /sys/fs/cgroup/job/step may have only 64 processes and threads: expected 128 for 1 worker"
    assert found["nic"] == f"{TWO}: port mlx5_1:1 of its RDMA adapter is not active"
    assert found["gpu"] in (f"{TWO}: 1 NVIDIA GPU is on its PCI bus, but the driver names 0", f"{TWO}: its driver names 0 GPUs, that of {ONE} 1") or \
        found["gpu"].startswith(f"{TWO}: the driver's library cannot be used: ")
    assert set(found) <= {"memory", "tasks", "nic", "gpu", "locked-memory"}


def test_an_interface_that_is_down(hosts):
    for host in hosts.net.hosts:
        netns.ip("link", "add", "ib0", "type", "veth", "peer", "name", "veth-ib0", ns=host.ns)
        netns.ip("link", "set", "veth-ib0", "up", ns=host.ns)
        netns.ip("link", "set", "ib0", "up", ns=host.ns)
    assert hosts.look() == []
    netns.ip("link", "set", "ib0", "down", ns=hosts.net.hosts[1].ns)
    assert hosts.look() == [("nic", f"{TWO}: its network interface ib0 is down, that of {ONE} is up")]
    assert ("nic", f"{ONE}: there is no network interface hsn0") in hosts.look("--iface", "hsn0")


def test_folders(hosts):
    folder = hosts.crun.tmp / "checkpoints"
    folder.mkdir()
    path = script(hosts.crun.tmp / "own-disk", f"mount -t tmpfs none {folder} && exec \"$@\"")
    hosts.plant(prefix=f"unshare -m {path}")
    shared = ("shared", f"{TWO}: what {ONE} writes to {folder} is not seen there")
    assert hosts.look("--shared-dir", folder) == [shared] == hosts.look("--rdzv-endpoint", f"file://{folder}")
    assert list(folder.iterdir()) == []
    assert hosts.look("--shared-dir", "/no/such") [0][0] == "shared"
    path = script(path, f"mount -t tmpfs none {hosts.crun.tmp} && exec \"$@\"")
    here = hosts.crun.tmp / "checkpoints"
    hosts.plant(prefix=f"unshare -m sh {path}")
    assert ("folder", f"{TWO}: the folder that crun is started in cannot be entered there: {here}: No such file or directory") in hosts.look(cwd=here)


def test_hosts_that_cannot_be_looked_at(hosts):
    hosts.names[1] = "down@10.99.0.2"
    assert hosts.look() == [("host", "down@10.99.0.2: it cannot be looked at: nothing began there: exit code 255: "
                             "ssh: connect to host down@10.99.0.2 port 22: Connection refused")]
    hosts.names[1] = TWO
    hosts.plant(prefix="/no/such/shell")
    (name, text), = hosts.look()
    assert name == "host" and "nothing began there: exit code 127" in text
    hosts.plant(prefix=script(hosts.crun.tmp / "hangs", "exec sleep 60"))
    found = hosts.look("--timeout", "1")  # on a busy machine the other one may be late as well
    assert all(name == "host" for name, _ in found) and any(text.startswith(f"{TWO}: ") and "within 1 s" in text for _, text in found), found


# --- alone, and at a rendezvous


@pytest.fixture
def alone(crun):
    for name in [n for n in crun.env if n.startswith(("CRUN_", "PET_")) and not n.startswith("CRUN_TEST")]:
        del crun.env[name]
    (crun.tmp / "bin").mkdir()
    (crun.tmp / "bin/crun").symlink_to(CRUN)
    crun.env.update(PATH=f"{crun.tmp}/bin:/usr/bin:/bin", HOME=str(crun.tmp))
    write_tokens(crun.tmp / "tokens", ALICE, BOB)
    (crun.tmp / ".config/crun").mkdir(parents=True)
    write_tokens(crun.tmp / ".config/crun/token", ALICE)

    def look(*args):
        p = crun.start("doctor", "--json", *args)
        out, err = p.communicate(timeout=60)
        assert p.returncode in (0, 1), (out, err)
        return planted(p.returncode, out.decode())

    return look


def test_a_rendezvous_that_is_not_there_or_refuses(crun, alone):
    assert alone() == []
    where = f"127.0.0.1:{crun.port()}"
    assert alone("--rdzv-endpoint", where) == [("rendezvous", f"this host: the rendezvous at {where} does not answer: connect: Connection refused")]
    (name, text), = alone("--rdzv-endpoint", "no-such-host.invalid")
    assert name == "name" and "no-such-host.invalid" in text
    with Daemon("--token-file", crun.tmp / "tokens") as d:
        assert alone("--rdzv-endpoint", d.address) == []
        write_tokens(crun.tmp / "other", ("alice", "another-secret-0123456789"))
        (name, text), = alone("--rdzv-endpoint", d.address, "--token-file", crun.tmp / "other")
        assert name == "refused" and "does not hold the secret that we hold for principal 'alice'" in text


def test_a_job_that_waits_is_told_with_whom_it_waits_for(crun, alone):
    with Daemon("--token-file", crun.tmp / "tokens") as d:
        p = crun.start("--rdzv-endpoint", d.address, "--rdzv-backend", "rendezvousd", "--rdzv-id", "waits", "--nnodes", 3, "--node-rank", 1, "true",
                       stderr=subprocess.PIPE)
        wait("the job", lambda: "waits for 2 more" in subprocess.run([CRUN, "status", "--rdzv-endpoint", d.address], env=crun.env, capture_output=True, text=True, timeout=60, check=False).stdout)
        found = alone("--rdzv-endpoint", d.address, "waits")
        assert re.fullmatch(r"waits: the job waits since \d+ s for 2 more of its 3 nodes, node ranks 0,2, and gives up in \d+ s", found[0][1])
        p.terminate()
        p.communicate(timeout=60)


@pytest.mark.parametrize("args, says", [
    (["a", "b"], "'b': expected one RUN at most"), (["run"], "expected --rdzv-endpoint"), (["-H", "a", "--hostfile", "b"], "leave one of them out"),
    (["--rdzv-endpoint", "redis://x", "r"], "expected HOST[:PORT] or file:///DIR"), (["--hostfile", "/dev/null"], "names no host"),
    (["-H", "a", "--rsh", "/no/such/ssh"], "/no/such/ssh")])
def test_what_is_wrong_on_its_command_line(crun, args, says):
    rc, _, err = crun.run("doctor", *args)
    assert rc == (69 if "ssh" in says else 2) and says in err and err.startswith("crun doctor: ")


def test_words_for_people(crun, alone):
    crun.env["PATH"] = "/usr/bin:/bin"
    here = socket.gethostname()
    rc, out, _ = crun.run("doctor", "--nproc-per-node", 4096)
    assert rc == 1 and re.search(rf"^{here}: \d+ CPUs may be used for 4096 workers$", out, re.M) and "\n    remedy: more CPUs" in out


@pytest.mark.parametrize("then", ["read x < $0.never", "while echo busy >&2; do :; done"])
def test_a_shell_that_closes_its_output_is_not_waited_for(tmp_path, then):
    pid, rsh = tmp_path / "pid", tmp_path / "rsh"
    os.mkfifo(tmp_path / "rsh.never")
    rsh.write_text(f"#!/bin/sh\nexec >&-\necho $$ > {pid}\n{then}\n")
    rsh.chmod(0o755)
    p = subprocess.run([CRUN, "doctor", "-H", "one@127.0.0.1", "--rsh", rsh, "--timeout", "5"], capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 69 and "nothing began there within 5 s" in p.stdout and not pathlib.Path(f"/proc/{int(pid.read_text())}").exists(), p.stdout
