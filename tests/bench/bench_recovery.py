"""How soon training goes on after a rank died: usage bench_recovery.py CRUN TRAINER [--kills N] [--fault kill|stop] [--only WAY] [--gap SECONDS] [--image-size S] [--batch B] [--torch PYTHON] [--check]

ResNet-18 over four ranks (gloo). A random rank is killed (kill -9) at a random moment, --gap (5 s) after training went on at the earliest.
Side by side: recovery in process with a warm spare, without one, and `--recovery restart` (resume from a checkpoint every 10 steps).
Of each recovery: from the kill to the next line of a step, and the parts of crun's line: from the kernel's word of the death to the first
step that some rank finished. Then: steps done again, processes that were not kept, and whether the weights are those of an undisturbed
run, bit for bit.
--torch PYTHON: instead, a Python with torch and torchvision: DDP of --net (resnet18, mlp) with crun.inprocess and a warm spare, its process
group reconnected (PyTorch 2.15) and made anew, and DDP with snapshots under torchrun (the last two at most --torchrun-kills, 10).
--fault stop: SIGSTOP instead of kill -9, once crun knows how long steps take (--hang-timeout auto). torchrun knows no hangs: there process
groups get a timeout of 15 s (shorter ones end attempts that are only starting).
--check: fails where anything is lost, or where the median less a step is above 0.3 s with a spare, 1.5 s without (kill);
PyTorch: in process not 5 times as fast, less a step as well.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import bench_recovery_torch
import recovery_run
from recovery_run import WORLD

PARTS = ["detect", "stop", "rendezvous", "spawn", "first step"]
LINE = re.compile(r"restart (\d+)/\d+ .*?: " + ", ".join(p + r" ([\d.]+) ms" for p in PARTS))
FAULTS = {"kill": (signal.SIGKILL, 0, 0), "stop": (signal.SIGSTOP, 40, 12)}  # steps that there must be before it: of all, and of a round
WAYS = {"spare": (300, "--warm-spares", 1), "inprocess": (1500,), "restart": (None, "--recovery", "restart")}  # bound of the median less a step, ms
STEP = re.compile(r"Epoch (\d+)/\d+ \[ *(\d+)/(\d+)\]")


HELD = 5  # stop_reason of the page (common/crun/crun_page.h) of one that waits for a round, as spares do


def stop_reason(proc):
    for fd in (proc / "fd").iterdir():
        if "crun-page" in os.readlink(fd):
            return struct.unpack_from("I", fd.open("rb").read(20), 16)[0]


def ranks(run_id):
    """pids of the processes that are in the round"""
    found = set()
    for p in pathlib.Path("/proc").iterdir():
        try:
            if p.name.isdigit() and f"TORCHELASTIC_RUN_ID={run_id}".encode() in (p / "environ").read_bytes().split(b"\0") and stop_reason(p) != HELD:
                found.add(int(p.name))
        except OSError:
            pass
    return found


class Run(recovery_run.Run):
    def __init__(self, args, out, steps, *options):
        self.run_id = f"bench-{os.getpid()}-{random.randrange(1 << 30)}"
        self.out, self.restarts = out, []
        super().__init__(args.gap, FAULTS[args.fault])
        command = [args.crun, "--nproc_per_node", WORLD, "--max-restarts", 100000, "--restart-backoff", 0, "--run-id", self.run_id, *options, args.trainer,
                   "--data-format", "null", "--null-images", 32 * args.batch, "--num-labels", 10, "--train-data", "null", "--arch", "resnet18",
                   "--image-size", args.image_size, "--batch-size", args.batch, "--num-epochs", 100000, "--max-steps", steps, "--device", "cpu",
                   "--amp", "off", "--base-learning-rate", 0.01, "--checkpoint-dir", out, "--checkpoint-every", 10, "--print-freq", 1, "--seed", 7]
        self.p = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def follow(self, kills, seed):
        """Kill `kills` times, and read to the end."""
        rng, next_kill, killed, known, last, reached, killed_at, since = random.Random(seed), 10 ** 9, 0, set(), None, 0, None, 0
        signo, least, fresh = self.fault
        for line in self.p.stderr:
            now, m, at = time.monotonic(), LINE.search(line), STEP.search(line)
            if m:
                self.restarts.append([float(v) for v in m.groups()[1:]])
                self.lost += WORLD - 1 - len(ranks(self.run_id) & known)
                last, next_kill, since = None, now + self.gap + rng.random(), reached
            elif at:
                step = (int(at[1]) - 1) * int(at[3]) + int(at[2])
                self.again += step <= reached
                reached = max(step, reached)
                if killed_at and len(self.restarts) == killed:  # the first of the new round
                    self.times.append(now - killed_at)
                    killed_at = None
                if last:
                    self.steps.append(now - last)
                last = now
                next_kill = now + min(2, self.gap) if next_kill == 10 ** 9 else next_kill
            if at and killed < kills and now >= next_kill and killed == len(self.restarts) and reached >= max(least, since + fresh):
                known = ranks(self.run_id)
                time.sleep(rng.random() * (statistics.median(self.steps) if self.steps else 0.1))
                killed_at = time.monotonic()
                os.kill(rng.choice(sorted(known)), signo)
                killed += 1
        if self.p.wait() != 0 or (kills and not killed):
            sys.exit(f"bench_recovery: crun ended with {self.p.returncode} after {killed} kills")
        step = max(p for p in pathlib.Path(self.out).iterdir() if re.fullmatch(r"step-\d+", p.name))
        self.weights = (step / "model.safetensors").read_bytes()


def tell(name, run, expected):
    """-> is it as it should be, but for the time; and the median less a step, ms"""
    step, median = run.step() * 1000, statistics.median(run.times) * 1000
    parts = ", ".join(f"{p} {statistics.median(column):.1f}" for p, column in zip(PARTS, zip(*run.restarts)))
    print(f"{name:10} {len(run.times)} kills: p50 {median:.0f} ms, p99 {1000 * run.p99():.0f} ms to the next step (a step: {step:.0f} ms); split {parts}; "
          f"{run.tell_rest(run.weights == expected)}", flush=True)
    return run.again == 0 and run.lost == 0 and run.weights == expected, median - step


def bench_trainer(args, tmp):
    """-> what was missed"""
    probe = Run(args, f"{tmp}/probe", 40)
    probe.read(0, 0)
    _, least, fresh = FAULTS[args.fault]
    steps = 40 + least + int(args.kills * max(fresh + 5, (args.gap + 2) / probe.step()))
    runs, missed = {}, []
    for name in args.only or WAYS:
        runs[name] = Run(args, f"{tmp}/{name}", steps, *WAYS[name][1:])
        runs[name].read(args.kills, args.seed)
    alone = Run(args, f"{tmp}/alone", steps)
    alone.read(0, 0)
    for name, run in runs.items():
        whole, median = tell(name, run, alone.weights)
        bound = WAYS[name][0]
        whole = whole and len(run.times) == args.kills  # else training was over before
        if bound and not (whole and (median <= bound or args.fault == "stop")):
            missed.append(name)
    return missed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("crun")
    p.add_argument("trainer")
    p.add_argument("--kills", type=int, default=10)
    p.add_argument("--gap", type=float, default=5)
    p.add_argument("--check", action="store_true")
    p.add_argument("--torch", metavar="PYTHON")
    p.add_argument("--net", choices=["resnet18", "mlp"], default="resnet18", help="with --torch")
    p.add_argument("--torchrun-kills", type=int, default=10, metavar="N")
    p.add_argument("--fault", choices=[*FAULTS], default="kill")
    p.add_argument("--only", action="append", choices=[*WAYS], help="this way, or these, instead of all three")
    p.add_argument("--image-size", type=int, default=32)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = p.parse_args()
    print("seed", args.seed)
    with tempfile.TemporaryDirectory() as tmp:
        missed = bench_recovery_torch.bench(args, tmp, FAULTS[args.fault]) if args.torch else bench_trainer(args, tmp)
    if args.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
