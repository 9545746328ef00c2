"""Which tests may be skipped, and where: each row has what the reason says, and whether this machine lacks what is missing then. Any other skip fails."""
import ctypes.util
import functools
import importlib.util
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess


def lacks(*programs):
    return lambda: not any(map(shutil.which, programs))


def lacks_module(name):
    return lambda: importlib.util.find_spec(name) is None


def lacks_library(name):
    return lambda: ctypes.util.find_library(name) is None


@functools.lru_cache
def fails(*command):
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return False  # whether it would is not known
    except OSError:
        return True


def no_torch():
    return fails(os.environ.get("CRUN_TORCH_PYTHON", "/usr/bin/python3"), "-c", "import torch")


def no_gpu():
    return fails("nvidia-smi", "-L")


def no_cgroup():
    """No cgroup2, or none in which this user may make one."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        mounts = [line.split()[4] for line in f if " - cgroup2 " in line]
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        own = [line.split(":", 2)[2].strip() for line in f if line.startswith("0::")]
    probe = f"{mounts[0]}{own[0].rstrip('/')}/crun-may-i-{os.getpid()}" if mounts and own else "/nowhere/x"
    try:
        os.mkdir(probe)
        killable = os.path.exists(f"{probe}/cgroup.kill")
        os.rmdir(probe)
        return not killable
    except OSError:
        return True


def no_namespaces():
    return fails("unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "true")


def no_mounts():
    """Not root, or root of a container that may not."""
    return fails("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt")


def hidden_from_others():
    """A folder above the build may be entered by its owner alone."""
    return any(not folder.stat().st_mode & 0o001 for folder in pathlib.Path(__file__).resolve().parents)


MOUNTS_FUSE = 'exec 3<>/dev/fuse && mount -i -t fuse -o "fd=3,rootmode=40000,user_id=$(id -u),group_id=$(id -g)" probe /tmp'


def no_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return False
    except OSError:
        return True


def no_fuse():
    """No FUSE file system can be mounted."""
    return fails("unshare", "--mount", "sh", "-c", MOUNTS_FUSE)


SSH_SERVES = """set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' TERM
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N "" -f "$folder/key"
printf "HostKey $folder/key\\nAuthorizedKeysFile $folder/key.pub\\nStrictModes no\\nUsePAM no\\nPermitRootLogin yes\\n" >"$folder/config"
ssh -n -x -F none -i "$folder/key" -o ProxyCommand="$1 -i -f $folder/config" -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes localhost true
"""


def no_ssh_service():
    """An sshd of this user's lets no one in: it wants an account of its own, say, or this user's has no shell."""
    return fails("timeout", "-k", "1", "50", "sh", "-c", SSH_SERVES, "sh", shutil.which("sshd", path="/usr/sbin:/usr/bin") or "sshd")


def not_root():
    return os.geteuid() != 0


def few_cpus():
    return len(os.sched_getaffinity(0)) < 8


def has(flag):
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return re.search(rf"^flags\b.*\b{flag}\b", f.read(), re.M) is not None


def anywhere():  # what cannot be asked for here in another way
    return True


# what the skipped test or its reason says, and whether that is so here
ROWS = [
    (r"no redis-server|no redis-cli", lacks("redis-server", "redis-cli")),
    (r"no redis-benchmark", lacks("redis-benchmark")),
    (r"no etcd \(", lacks("etcd")),
    (r"no KUBE_APISERVER", lambda: not os.environ.get("KUBE_APISERVER")),
    (r"could not import 'redis'", lacks_module("redis")),
    (r"could not import 'yaml'", lacks_module("yaml")),
    (r"no abidiff", lacks("abidiff")),
    (r"no promtool", lacks("promtool")),
    (r"no strace", lacks("strace")),
    (r"no x86-64", lambda: os.uname().machine != "x86_64"),
    (r"no network|debootstrap reaches no mirror", anywhere),
    (r"no venv module", lacks_module("ensurepip")),
    (r"needs root, debootstrap, buildah and bubblewrap", lambda: not all(map(shutil.which, ("debootstrap", "buildah", "bwrap"))) or not_root()),
    (r"needs root and debootstrap", lambda: lacks("debootstrap")() or not_root()),
    (r"could not import 'lmdb'", lacks_module("lmdb")),
    (r"the safetensors package", lacks_module("safetensors")),
    (r"no torch in", no_torch),
    (r"sshd does not serve us here", no_ssh_service),
    (r"no gdb here", lacks("gdb")),
    (r"eu-stack is not installed", lacks("eu-stack")),
    (r"no sshd here", lambda: not os.path.exists("/usr/sbin/sshd") and not shutil.which("sshd")),
    (r"no Chromium", lacks("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")),
    (r"no tmux", lacks("tmux")),
    (r"no groff", lacks("groff")),
    (r"no C compiler", lacks("cc")),
    (r"no mpirun|no mpiexec|openmpi-bin, mpich", lambda: lacks("mpirun.openmpi")() or lacks("mpirun.mpich")() or lacks("mpiexec.hydra")()),
    (r"no cgroup2 can be made here|no cpu cgroup", no_cgroup),
    (r"network namespaces|no network namespace|virtual links|no ip\(8\)|no pid namespaces|no mount namespaces|no namespaces", no_namespaces),
    (r"needs root|another uid needs root|root may be another user", not_root),
    (r"a build that it can read", hidden_from_others),
    (r"no right to mount|cannot mount", no_mounts),
    (r"no FUSE ", no_fuse),
    (r"needs \d+ CPUs|one core with two threads", few_cpus),
    (r"no cgroup here limits memory", anywhere),  # no controller is delegated to this process
    (r"no cores here", lambda: resource.getrlimit(resource.RLIMIT_CORE)[1] == 0),
    (r"no cuDNN|no cuBLASLt|no CUDA", lambda: no_gpu() or not shutil.which("nvcc")),
    (r"cuDNN is not built in", lambda: not shutil.which("nvcc")),
    (r"GPU|device cuda|libcuda|no driver|no NCCL", no_gpu),
    (r"no \S*bf16\S* units", lambda: not has("avx512_bf16")),
    (r"no \S*fp16\S* units", lambda: not has("avx512_fp16")),
    (r"no AVX2", lambda: not has("avx2")),
    (r"no IPv6", no_ipv6),
    (r"gnuplot is not installed", lacks("gnuplot")),
    (r"needs root and faketime", lambda: lacks("faketime")() or not_root()),
    (r"the tree differs from its commit", anywhere),
    (r"dpkg-deb is not installed", lacks("dpkg-deb")),
    (r"ssh-keygen is not installed", lacks("ssh-keygen")),
    (r"nix-instantiate is not installed", lacks("nix-instantiate")),
    (r"openssl\S* (is not installed|makes no certificate)", lacks("openssl")),
    (r"redis-\S+ is not installed|cannot start redis-server", lacks("redis-server", "redis-cli")),
    (r"rendezvousd_peer_uid|launcher_tree", not_root),
    (r"ptrace: |ptrace is refused", anywhere),  # what the kernel's Yama, or a container, forbids
    (r"pipes are as large as ever", anywhere),
    (r"does not run \d+ processes more", anywhere),
    (r"the (address|thread|address or thread) sanitizer (needs|knows)", anywhere),
    (r"this build has no HTTP", lacks_library("microhttpd")),
]


def expected(name, why):
    return any(re.search(pattern, f"{name} {why}") and here() for pattern, here in ROWS)
