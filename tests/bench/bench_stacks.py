"""What `crun stacks` costs beyond its tools: usage bench_stacks.py CRUN RENDEZVOUSD [--ranks N] [--times N] [--check]

A job of N ranks (64) on two nodes of this machine, of which one rank stands elsewhere. A line each: crun stacks, beside the same tool (py-spy, else
eu-stack) on the same processes, four at once on each node, as crun runs them.
--check: fails where crun takes a second more, or does not show the odd rank alone.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = """import os, threading, time
print("here", flush=True)
def odd(): time.sleep(600)
def wait(): threading.Event().wait(600)
odd() if os.environ["RANK"] == "37" else wait()
"""
TOOLS = {"py-spy": ["py-spy", "dump", "--pid"], "eu-stack": ["eu-stack", "-m", "-p"]}


def workers():
    """pids of this job's processes that run the script."""
    found = []
    for d in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (d / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bench_stacks_rank.py" in words[-2] if len(words) > 1 else False:
            found += [d.name] if b"python" in words[0] else []
    return found


def timed(call):
    begun = time.monotonic()
    result = call()
    return time.monotonic() - begun, result


def tool(command, pids):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pid: subprocess.run([*command, pid], stdout=subprocess.DEVNULL, check=True), pids))


def measure(args, folder):
    (folder / "bench_stacks_rank.py").write_text(SCRIPT)
    name = next((t for t in TOOLS if shutil.which(t)), None) or sys.exit("bench_stacks: neither py-spy nor eu-stack is on PATH")
    daemon = subprocess.Popen([args.rendezvousd, "--port", "0"], stdout=subprocess.PIPE, text=True)
    at = ["--rdzv-endpoint", daemon.stdout.readline().split()[-1]]
    logs = [open(folder / f"{i}.log", "w+b") for i in range(2)]
    nodes = [subprocess.Popen([args.crun, "--nnodes", "2", "--nproc-per-node", str(args.ranks // 2), "--rdzv-id", "bench", "--rdzv-backend", "rendezvousd", *at,
                               folder / "bench_stacks_rank.py"], stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}) for log in logs]
    try:
        while sum(pathlib.Path(log.name).read_bytes().count(b"here") for log in logs) < args.ranks:
            time.sleep(0.1)
        time.sleep(1)
        ours, theirs, pids = [], [], workers()
        assert len(pids) == args.ranks, len(pids)
        for _ in range(args.times):
            seconds, p = timed(lambda: subprocess.run([args.crun, "stacks", *at, "bench"], capture_output=True, text=True, check=True))
            ours.append(seconds)
            theirs.append(timed(lambda: tool(TOOLS[name], pids))[0])
            heads = [line.split(" (")[0].split(",")[0] for line in p.stdout.splitlines() if line.startswith("rank")]
            assert heads[0] == "rank 37" and len(heads) == 2, p.stdout
        return name, ours, theirs
    finally:
        for p in (*nodes, daemon):
            p.terminate()
        for p in (*nodes, daemon):
            p.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("crun")
    p.add_argument("rendezvousd")
    p.add_argument("--ranks", type=int, default=64)
    p.add_argument("--times", type=int, default=5)
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name, ours, theirs = measure(args, pathlib.Path(folder))
    own, tools = statistics.median(ours), statistics.median(theirs)
    print(f"crun stacks of {args.ranks} ranks: {own:.2f} s (at most {max(ours):.2f}); {name} of the same, 8 at once: {tools:.2f} s")
    if args.check and own > tools + 1:
        sys.exit("missed: a second beyond the tool's own time")


if __name__ == "__main__":
    main()
