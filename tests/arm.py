"""./dev arm-test: the launcher's and the daemon's tests, and those of trainer's devices, with programs for aarch64, under qemu-user.
usage: arm.py --build BUILD --root ROOT [NAME...]

The kernel starts such a program by binfmt_misc wherever one is run: by a test, by crun, by a daemon. Python, shells and Debian's tools stay those of
this machine. In a mount namespace of its own /usr/lib has the loader and the libraries of ROOT, a Debian of arm64, too, and `cc` is a cross compiler.
PyTorch runs in ROOT itself, with its Python: DDP over the wheel (ddp()). NOT_RUN names the tests that do not run, and why; docs/design/arm.md has them."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = ["tests/common", "tests/launcher", "tests/rendezvousd", *(f"store-{name}" for name in ("mem", "prefix", "redis", "rendezvousd", "tcp1", "tcp2")),
         "comm_suite", "comm_messages", "comm_groups", "comm_product", "device_suite", "device_mixed", "device_network"]
TORCH = ["torch==2.7.1", "typing-extensions", "filelock", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "numpy"]
PLATFORMS = ["manylinux_2_28_aarch64", "manylinux2014_aarch64", "manylinux_2_17_aarch64", "any"]
INSIDE = """
    small=$1/lib root=$2 bin=$1/bin
    shift 2
    mkdir -p "$small" "$bin"
    ln -sfn "$root/usr/lib/aarch64-linux-gnu" "$small/aarch64-linux-gnu"
    ln -sfn "$root/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1" "$small/ld-linux-aarch64.so.1"
    printf '#!/bin/sh\\nexec aarch64-linux-gnu-gcc --sysroot=%s "$@"\\n' "$root" >"$bin/cc"
    chmod +x "$bin/cc"
    mount -t overlay -o "lowerdir=$small:/usr/lib" overlay /usr/lib
    PATH=$bin:$PATH exec "$@"
"""

REASONS = {
    "subreaper": "qemu-user refuses PR_SET_CHILD_SUBREAPER: orphans are init's, and not crun's",
    "sock_diag": "qemu-user has no NETLINK_SOCK_DIAG, which tells who holds a port",
    "proc": "/proc/PID has qemu's stacks, name and registers (/proc/PID/exe, ptrace)",
    "signal": "a fault in qemu's own stack ends the process before the handler runs",
}
NOT_RUN = {  # a C program, or a case of one
    "port_mark: a_mark_outlives_a_process_that_is_killed": "sock_diag",
    "crun: a_crash_leaves_a_record_and_the_signal_kills": "signal",
    "launcher_tree": "subreaper",
    "launcher_guardian: end_of_file_says_that_every_worker_is_dead": "subreaper",
    "launcher_guardian: only_the_newest_connection_is_the_proof": "subreaper",
    "launcher_guardian: workers_die_before_a_slow_cgroup_is_told": "subreaper",
    "launcher_stacks: what_the_kernel_knows_is_there_without_any_tool": "proc",
    "launcher_stacks: a_tool_has_limits": "proc",
}


def inside(scratch, root, command):
    return ["unshare", "--mount", "bash", "-euc", INSIDE, "bash", scratch, root, *command]


def suites(args, scratch):
    """-> exit status"""
    without = scratch / "without"
    without.write_text("".join(f"{name}\n" for name in NOT_RUN))
    command = [sys.executable, ROOT / "tests/run.py", "--build", args.build, "--patience", "10", "--without", without, *(args.names or NAMES)]
    print("not run, and why is in docs/design/arm.md:", *NOT_RUN, sep="\n  ")
    return subprocess.run(list(map(str, inside(scratch, args.root, command))), check=False).returncode


DDP = """
    rm -rf /tmp/wheel /tmp/ddp.pt
    python3 -m zipfile -e {wheel} /tmp/wheel
    for program in /tmp/wheel/*.data/scripts/*; do chmod +x "$program"; done
    export PYTHONPATH={torch}:/tmp/wheel OMP_NUM_THREADS=1
    /tmp/wheel/*.data/scripts/crun --standalone --nproc-per-node 2 --no-log-prefix python3 docs/examples/ddp.py /tmp/ddp.pt 60
"""


def ddp(args):
    """-> exit status"""
    torch = ROOT / "build-aarch64/torch"
    if not torch.exists():
        platforms = [f"--platform={p}" for p in PLATFORMS]
        subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--no-deps", "--only-binary=:all:", "--implementation=cp",
                        f"--python-version={sys.version_info[0]}.{sys.version_info[1]}", *platforms, "--target", torch, *TORCH], check=True)
    wheels = ROOT / "build-aarch64/wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    subprocess.run([ROOT / "dev", "wheel", wheels], env={**os.environ, "CRUN_MACHINE": "aarch64"}, check=True, stdout=subprocess.DEVNULL)
    wheel, = wheels.glob("*_aarch64.whl")
    command = DDP.format(wheel=wheel, torch=torch)
    p = subprocess.run([ROOT / "packaging/cross/enter.sh", args.root, "bash", "-euc", command], stdout=subprocess.PIPE, text=True, timeout=1800, check=False)
    print(p.stdout, end="")
    losses = {line.split(": ", 1)[1] for line in p.stdout.splitlines() if line.startswith("rank ")}
    well = p.returncode == 0 and len(losses) == 1 and p.stdout.count("rank ") == 2
    print("ddp:", "two ranks of PyTorch for aarch64 ended with one loss" if well else f"failed ({p.returncode})")
    return 0 if well else 1


def main():
    p = argparse.ArgumentParser(prog="./dev arm-test")
    p.add_argument("names", nargs="*", metavar="NAME", help="as ./dev test has them, or ddp")
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--root", type=pathlib.Path, required=True)
    args = p.parse_args()
    args.build, args.root = args.build.resolve(), args.root.resolve()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="crun-arm."))
    try:
        code = suites(args, scratch) if args.names != ["ddp"] else 0
        if not args.names or "ddp" in args.names:
            code = ddp(args) or code
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
