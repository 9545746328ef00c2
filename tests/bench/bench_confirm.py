"""What it costs a step that ranks may outlive a round: usage bench_confirm.py CRUN TRAINER [--rounds N] [--steps N] [--ranks N]

Training with `--recovery inprocess` and with `--recovery restart`, in turns (--rounds of each), with data parallelism alone and with layouts in which
no rank changes anything before all have their sums (docs/design/decisions/0028): a barrier in each step. Otherwise the two do the same work, second
owners included. A line for each layout: the median step of both, and the median ratio of neighbouring rounds with its range.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 5  # steps in which memory and connections are made
LAYOUTS = {"data parallel": [], "zero 1": ["--zero", 1, "--replicate-state", 1], "zero 3": ["--zero", 3, "--replicate-state", 1],
           "stages": ["--stages", 2, "--microbatches", 2]}


def step_s(args, out, recovery, layout):
    """The median step of one round, seconds."""
    command = [args.crun, "--nproc_per_node", args.ranks, "--max-restarts", 1, "--recovery", recovery, args.trainer, "--data-format", "null", "--null-images",
               1024, "--num-labels", 10, "--train-data", "null", "--arch", "resnet18", "--image-size", 32, "--batch-size", 8 * args.ranks, "--num-epochs", 1000,
               "--max-steps", args.steps + SKIPPED, "--device", "cpu", "--amp", "off", "--base-learning-rate", 0.01, "--seed", 7, "--log-dir", out, *layout]
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench_confirm: {done.stdout[-3000:]}")
    rows = [json.loads(line) for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]
    at = [row["seconds"] for row in rows if "lr" in row]
    return statistics.median(b - a for a, b in zip(at[SKIPPED:], at[SKIPPED + 1:]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("crun")
    p.add_argument("trainer")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--ranks", type=int, default=4)
    args = p.parse_args()
    for name, layout in LAYOUTS.items():
        steps = {"inprocess": [], "restart": []}
        for k in range(args.rounds):
            for recovery in (sorted(steps), sorted(steps, reverse=True))[k % 2]:
                with tempfile.TemporaryDirectory() as out:
                    steps[recovery].append(step_s(args, out, recovery, layout))
        ratios = sorted(a / b for a, b in zip(steps["inprocess"], steps["restart"]))
        print(f"{name:13}  a step {1000 * statistics.median(steps['inprocess']):.1f} ms, with --recovery restart {1000 * statistics.median(steps['restart']):.1f} ms: "
              f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {args.rounds} rounds in turns)", flush=True)


if __name__ == "__main__":
    main()
