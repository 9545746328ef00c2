"""The part of bench_recovery.py for PyTorch: DDP with crun.inprocess and a warm spare, beside DDP with snapshots under torchrun."""
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import time

import recovery_run
from recovery_run import WORLD

HERE = pathlib.Path(__file__).resolve().parent
STEP = re.compile(r"rank (\d+) pid (\d+) attempt (\d+) step (\d+) at (\d+\.\d{4})")


class Run(recovery_run.Run):
    def __init__(self, args, folder, way, steps, command, fault=(0, 0, 0), **env):
        super().__init__(args.gap, fault)
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        env = {**os.environ, **env, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": args.torch, "PYTHONPATH": str(HERE.parents[1] / "python"),
               "LIBCRUN": str(pathlib.Path(args.crun).resolve().parents[1] / "common" / "crun" / "libcrun.so.0")}
        with open(self.folder / "stderr", "wb") as err:
            self.p = subprocess.Popen([*map(str, command), HERE / "pytorch_recovery.py", way, str(steps), folder, str(args.image_size), str(args.batch)], env=env,
                                      stdout=subprocess.PIPE, stderr=err, text=True)

    def follow(self, kills, seed):
        """Kill a random rank `kills` times, --gap seconds after training went on at the earliest, and read to the end."""
        rng, pids, killed_at, attempt, reached, last, next_kill = random.Random(seed), {}, None, 0, 0, None, None
        left, since, (signo, least, fresh) = kills, 0, self.fault
        for m in (m for line in self.p.stdout for m in STEP.finditer(line)):  # lines of two ranks may run into each other
            rank, pid, n, step, at = int(m[1]), int(m[2]), int(m[3]), int(m[4]), float(m[5])
            if n > attempt:  # the first step of the new round
                if killed_at is None:
                    self.fail(f"restarted though nobody was killed, {left} kills left")
                attempt, before, pids, since = n, pids, {}, step
                self.times.append(at - killed_at)
                self.again += reached + 1 - step
                killed_at = last = next_kill = None
            pids[rank] = pid
            if len(pids) == WORLD and next_kill is None:
                next_kill = at + self.gap + rng.random()
                self.lost += (WORLD - 1 - len(set(before.values()) & set(pids.values()))) if attempt else 0
            if rank == 3:
                if last:
                    self.steps.append(at - last)
                last = at
            reached = max(reached, step)
            if left and killed_at is None and next_kill and at >= next_kill and step >= max(least, since + fresh):
                killed_at = time.monotonic()
                os.kill(rng.choice(sorted(pids.values())), signo)
                left -= 1
        if self.p.wait() != 0 or left:
            self.fail(f"ended with {self.p.returncode}, {left} kills left")
        self.weights = self.folder / "weights.pt"

    def fail(self, why):
        sys.exit((self.folder / "stderr").read_text(errors="replace")[-3000:] + f"bench_recovery: {self.p.args[0]} {why}")


def equal(python, a, b):
    text = "import sys, torch; a, b = map(torch.load, sys.argv[1:]); sys.exit(not all(map(torch.equal, a, b)))"
    return subprocess.run([python, "-c", text, a, b], check=False).returncode == 0


# torchrun since 2.5 has one store for all attempts, in which ranks find where those of the one before listened: "Connection refused", attempt
# after attempt (pytorch issue 135712). With this each attempt has a store of its own.
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def bench(args, tmp, fault):
    """-> what was missed"""
    crun = [args.crun, "--nproc_per_node", WORLD, "--no-log-prefix", "--max-restarts", 1000, "--restart-backoff", 0]
    torchrun = [args.torch, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", WORLD, "--max-restarts", 1000]
    probe = Run(args, f"{tmp}/torch-probe", "inprocess", 30, crun)
    probe.read(0, 0)
    steps = 30 + fault[1] + int(args.kills * max(fault[2] + 5, (args.gap + 2) / probe.step()))
    alone = Run(args, f"{tmp}/torch-alone", "inprocess", steps, crun)
    alone.read(0, 0)
    medians, above = {}, {}  # above a step
    whole = True
    timeout = {"GROUP_TIMEOUT_S": "15"} if fault[0] == signal.SIGSTOP else {}
    for name, way, command, kills, env in (("inprocess", "inprocess", [*crun, "--warm-spares", 1], args.kills, {}),
                                           ("torchrun", "snapshots", torchrun, min(args.kills, args.torchrun_kills), {**TORCHRUN, **timeout})):
        run = Run(args, f"{tmp}/torch-{name}", way, steps, command, fault, **env)
        run.read(kills, args.seed)
        medians[name] = statistics.median(run.times)
        above[name] = medians[name] - run.step()
        same = equal(args.torch, run.weights, alone.weights)
        print(f"PyTorch, {name:9} {len(run.times)} kills: p50 {medians[name]:.2f} s, p99 {run.p99():.2f} s from the kill to the next step "
              f"(a step: {run.step():.2f} s); {run.tell_rest(same)}", flush=True)
        whole = whole and (name == "torchrun" or (run.again == 0 and run.lost == 0 and same))
    factor = above["torchrun"] / above["inprocess"]
    print(f"PyTorch: in process {factor:.1f} times as fast as torchrun above a step ({above['inprocess']:.2f} and {above['torchrun']:.2f} s), "
          f"{medians['torchrun'] / medians['inprocess']:.1f} times with it")
    return [] if whole and factor >= 5 else ["PyTorch"]
