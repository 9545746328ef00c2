"""What share of the time checkpoints in memory take: usage bench_keep.py CRUN TRAINER [--ranks N] [--copies N] [--percent P,...] [--check]

Training with `--memory-checkpoints P`, for each P and layout, until --copies were made. Each copy says how long it took, agreeing with the other ranks
included. A line each: steps between two copies, how long one takes, and the share of rank 0's time from the first copy to the last.
--check: fails where a share is more than a tenth above P.
"""
import argparse
import re
import statistics
import subprocess
import sys
import time

LAYOUTS = {"data parallel": [], "zero 1": ["--zero", 1], "zero 3": ["--zero", 3]}
COPY = re.compile(r"step (\d+) is in memory, after ([\d.]+) ms")


def copies(args, percent, layout):
    """-> of each copy of rank 0: when it was told (s), its step, how long it took (ms)"""
    command = [args.crun, "--nproc_per_node", args.ranks, "--local-ranks-filter", 0, "--max-restarts", 1, args.trainer, "--data-format", "null",
               "--null-images", 1024, "--num-labels", 10, "--train-data", "null", "--arch", "resnet18", "--image-size", 32, "--batch-size", 8 * args.ranks,
               "--num-epochs", 100000, "--max-steps", 100000, "--device", "cpu", "--amp", "off", "--base-learning-rate", 0.001, "--seed", 7,
               "--log-level", "debug", "--memory-checkpoints", percent, *layout]
    p, found, lines = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), [], []
    try:
        for line in p.stdout:
            lines.append(line)
            m = COPY.search(line)
            if m:
                found.append((time.monotonic(), int(m[1]), float(m[2])))
            if len(found) == args.copies:
                return found
    finally:
        p.terminate()
        p.communicate()
    sys.exit("bench_keep: " + "".join(lines[-30:]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("crun")
    p.add_argument("trainer")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--copies", type=int, default=8)
    p.add_argument("--percent", default="1,2,10")
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    missed = []
    for name, layout in LAYOUTS.items():
        for percent in map(float, args.percent.split(",")):
            found = copies(args, percent, layout)
            spent, whole = sum(ms for _, _, ms in found[1:]), 1000 * (found[-1][0] - found[0][0])
            share = 100 * spent / whole
            steps = [b[1] - a[1] for a, b in zip(found, found[1:])]
            print(f"{name:13}  --memory-checkpoints {percent:g}: every {statistics.median(steps):.0f} steps, {statistics.median(ms for *_, ms in found):.1f} ms each: "
                  f"{share:.2f} % of the time", flush=True)
            if share > 1.1 * percent:
                missed.append(f"{name} at {percent:g} %")
    if args.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
