"""What the packages of Debian are called, hold and say of themselves."""
HOMEPAGE_DOC = "usr/share/doc/crun-launcher"
PRIVATE = "usr/lib/crun-launcher/bin"  # for PATH: /usr/bin/crun is the container runtime's

# package: (folder or file of the installed tree -> where it goes; None: where it is)
FILES = {
    "crun-launcher": {
        "usr/bin/crun": f"{PRIVATE}/crun",
        "usr/bin/crun-launch": f"{PRIVATE}/crun-launch",
        "usr/bin/crun-launcher": f"{PRIVATE}/crun-launcher",
        "usr/share/man/man1/crun.1": "usr/share/man/man1/crun-launcher.1",
        "usr/share/man/man1/crun-launch.1": "usr/share/man/man1/crun-launch.1",
        "usr/lib/*/crun/chaos-clock.so": None,
        "usr/share/man/man1/crun-chaos.1": None,
        "usr/share/man/man1/crun-doctor.1": None,
        "usr/share/man/man1/crun-admin.1": None,
        "usr/share/man/man1/crun-drain.1": None,
        "usr/share/man/man1/crun-logs.1": None,
        "usr/share/man/man1/crun-stacks.1": None,
        "usr/share/man/man1/crun-status.1": None,
        "usr/share/man/man1/crun-stop.1": None,
        "usr/share/man/man1/crun-topo.1": None,
        "usr/share/bash-completion/completions/crun.bash": "usr/share/bash-completion/completions/crun-launcher",
        "usr/share/zsh/site-functions/_crun": "usr/share/zsh/vendor-completions/_crun-launcher",
        HOMEPAGE_DOC: None,
    },
    "rendezvousd": {
        "usr/bin/rendezvousd": None,
        "usr/share/man/man1/rendezvousd.1": None,
        "usr/lib/systemd/system/rendezvousd.service": None,
    },
    "libcrun0": {"usr/lib/*/libcrun.so.0*": None},
    "libcrun-dev": {"usr/lib/*/libcrun.so": None, "usr/lib/*/pkgconfig/crun.pc": None, "usr/include/crun.h": None},
    "crun-trainer": {"usr/bin/trainer": None, "usr/share/man/man1/trainer*.1": None},
    "crun-trainer-cuda": {"usr/lib/*/crun/trainer-cuda.so": None},
    "python3-crun-launcher": {"usr/lib/python3/dist-packages/crun": None},
}
# Made only where the build has their files: where nvcc and cuDNN are.
OPTIONAL = {"crun-trainer-cuda": "the build has no GPU module (its summary says what was not found: nvcc, cuDNN, cuBLASLt)"}

LINKS = {
    "crun-launcher": {"usr/bin/crun-launcher": "../lib/crun-launcher/bin/crun", "usr/bin/crun-launch": "../lib/crun-launcher/bin/crun-launch"},
}
FOLDERS = {"rendezvousd": ["etc/rendezvousd"]}

# Fields of control; {v}: this version, {…}: what the files need, and open on first use.
CONTROL = {
    "crun-launcher": {
        "Section": "admin", "Depends": "{linked}, {ssl}", "Recommends": "{opened}", "Suggests": "openssh-client, elfutils, crun-trainer, python3-crun-launcher",
        "Description": """elastic launcher for distributed training
 Starts the workers of a job on one node or many with torchrun's environment,
 restarts them when one dies, lets nodes come and go, and never leaves an
 orphan. It runs any program.
 .
 The launcher is /usr/bin/crun-launcher, and `crun` for those who put
 /usr/lib/crun-launcher/bin on their PATH: /usr/bin/crun is the container
 runtime of the package crun, which may be installed beside this one.""",
    },
    "rendezvousd": {
        "Section": "net", "Depends": "{linked}, {ssl}, adduser", "Recommends": "{opened}", "Suggests": "crun-launcher",
        "Description": """rendezvous server and key-value store for crun-launcher
 Where the nodes of many jobs meet; a single job needs none. Speaks Redis'
 protocol and PyTorch's TCPStore. The unit rendezvousd.service is not started
 before somebody enables it: it needs /etc/rendezvousd/tokens.""",
    },
    "libcrun0": {
        "Section": "libs", "Depends": "{linked}",
        "Description": """what a worker started by crun-launcher can ask and tell
 Heartbeat and phases, why to stop, a key-value store shared by all ranks,
 and what went wrong.""",
    },
    "libcrun-dev": {
        "Section": "libdevel", "Depends": "libcrun0 (= {v})",
        "Description": """header and library for workers of crun-launcher
 crun.h, crun.pc and examples for those who write workers in C.""",
    },
    "crun-trainer": {
        "Section": "science", "Depends": "{linked}", "Recommends": "crun-launcher, {ssl}, {opened}", "Suggests": "gnuplot-nox, crun-trainer-cuda",
        "Description": """training of image classifiers with data parallelism
 Trains ResNets on image folders, LMDB, LevelDB, MNIST or CIFAR-10, on CPUs.
 A job that is killed and resumed ends with the same weights, bit for bit.
 `trainer demo` shows it.""",
    },
    "crun-trainer-cuda": {
        "Section": "science", "Depends": "{linked}, crun-trainer (= {v})", "Suggests": "{nvidia}, cuda-drivers | nvidia-driver",
        "Description": """training of image classifiers on NVIDIA's GPUs
 trainer's GPU module. It needs NVIDIA's driver and libraries, which Debian
 does not have: the packages it suggests are NVIDIA's own, from its repository
 for this release. Without them `trainer --device cuda` says what is missing,
 and trainer goes on working on CPUs.""",
    },
    "python3-crun-launcher": {
        "Architecture": "all", "Section": "python", "Depends": "python3 (>= 3.8), libcrun0", "Recommends": "crun-launcher",
        "Description": """Python module of crun-launcher
 The module crun: rank, heartbeat and phases, why to stop, a key-value store,
 what went wrong; callbacks for Lightning and Hugging Face; functions in
 several processes.""",
    },
}

# Which of NVIDIA's packages has a library that is linked. Any driver that is new enough will do, Debian's too (non-free).
NVIDIA = {"libcudart": "cuda-cudart-{cuda}", "libcublasLt": "libcublas-{cuda}", "libcudnn": "libcudnn{so}-cuda-{major}", "libnccl": "libnccl{so}"}

SHLIBS = {"libcrun0": "libcrun 0 libcrun0 (>= {upstream})\n"}
TRIGGERS = {"libcrun0": "activate-noawait ldconfig\n"}
MONITORING = "docs/examples/monitoring"
EXAMPLES = {
    "libcrun-dev": ["docs/examples/worker.c", "docs/examples/messages.c"],
    "python3-crun-launcher": [f"docs/examples/{name}.py" for name in ("worker", "ddp", "ddp_inprocess", "fsdp_inprocess", "lightning_inprocess", "hf_inprocess")],
    "rendezvousd": [f"{MONITORING}/prometheus.yml", f"{MONITORING}/rendezvousd.rules.yml", f"{MONITORING}/rendezvousd.dashboard.json"],
}
