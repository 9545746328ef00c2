"""The part of bench_recovery.py for PyTorch: DDP with crun.inprocess and a warm spare, its process group reconnected and made anew,
beside DDP with snapshots under torchrun."""
import contextlib
import os
import pathlib
import random
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import recovery_run
from recovery_run import WORLD

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from torch_rounds import waits  # noqa: E402

GIVEN = re.compile(r"given (\d+) bytes in (\d+\.\d{4}) s")
STEP = re.compile(r"rank (\d+) pid (\d+) attempt (\d+) step (\d+) at (\d+\.\d{4})")


class Run(recovery_run.Run):
    """last: the step to end with; None: some steps after the last kill."""

    def __init__(self, args, folder, way, last, command, fault=(0, 0, 0), **env):
        super().__init__(args.gap, fault)
        self.folder, self.reached = pathlib.Path(folder), 0
        self.folder.mkdir()
        if last:
            (self.folder / "last").write_text(str(last))
        self.spares = "--warm-spares" in command
        self.deaths, self.given = [], []  # until the kernel said that it is dead, s; (bytes, s)
        env = {**os.environ, **env, "BENCH_FOLDER": folder, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": args.torch, "PYTHONPATH": str(HERE.parents[1] / "python"),
               "LIBCRUN": str(pathlib.Path(args.crun).resolve().parents[1] / "common" / "crun" / "libcrun.so.0")}
        with open(self.folder / "stderr", "wb") as err:
            self.p = subprocess.Popen([*map(str, command), HERE / "pytorch_recovery.py", way, folder, args.net, str(args.image_size), str(args.batch)], env=env,
                                      stdout=subprocess.PIPE, stderr=err, text=True)

    def spare_waits(self, pids):
        """One is ready to take a place."""
        for p in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if p.name.isdigit() and int(p.name) not in pids.values():
                    variables = (p / "environ").read_bytes().split(b"\0")
                    if f"BENCH_FOLDER={self.folder}".encode() in variables and b"CRUN_SPARE=1" in variables and waits(int(p.name)):
                        return True
        return False

    def kill(self, pid, signo):
        """-> when"""
        at, fd = time.monotonic(), os.pidfd_open(pid)
        os.kill(pid, signo)

        def await_death():
            select.select([fd], [], [])
            self.deaths.append(time.monotonic() - at)
            os.close(fd)
        threading.Thread(target=await_death, daemon=True).start()
        return at

    def lines(self):
        """Of steps; those of two ranks may run into each other."""
        for line in self.p.stdout:
            self.given += [(int(n), float(s)) for n, s in GIVEN.findall(line)]
            yield from STEP.finditer(line)

    def follow(self, kills, seed):
        """Kill a random rank `kills` times, --gap seconds after training went on at the earliest, and read to the end."""
        rng, pids, killed_at, attempt, reached, last, next_kill = random.Random(seed), {}, None, 0, 0, None, None
        left, since, (signo, least, fresh) = kills, 0, self.fault
        for m in self.lines():
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
            self.reached = reached = max(reached, step)
            if not left and killed_at is None and next_kill and at >= next_kill and not (self.folder / "last").exists():
                (self.folder / "last.new").write_text(str(reached + 20))
                (self.folder / "last.new").rename(self.folder / "last")
            if left and killed_at is None and next_kill and at >= next_kill and step >= max(least, since + fresh):
                if self.spares and not self.spare_waits(pids):
                    next_kill = at + 0.2
                    continue
                time.sleep(rng.random() * (statistics.median(self.steps[-20:]) if self.steps else 0))
                killed_at = self.kill(rng.choice(sorted(pids.values())), signo)
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


def loopback():
    """MB/s of a TCP connection between two threads of a process"""
    listener = socket.create_server(("127.0.0.1", 0))
    sender, n, piece = socket.create_connection(listener.getsockname()), 1 << 28, bytes(1 << 20)
    receiver, left, room = listener.accept()[0], 1 << 28, bytearray(1 << 20)
    threading.Thread(target=lambda: [sender.sendall(piece) for _ in range(n >> 20)], daemon=True).start()
    began = time.monotonic()
    while left:
        left -= receiver.recv_into(room, min(left, 1 << 20))
    return n / 1e6 / (time.monotonic() - began)


def bench(args, tmp, fault):
    """-> what was missed"""
    crun = [args.crun, "--nproc_per_node", WORLD, "--no-log-prefix", "--max-restarts", 1000, "--restart-backoff", 0, "--warm-spares", 1]
    torchrun = [args.torch, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", WORLD, "--max-restarts", 1000]
    timeout = {"GROUP_TIMEOUT_S": "15"} if fault[0] == signal.SIGSTOP else {}
    fewer = min(args.kills, args.torchrun_kills)
    runs, missed, last = {}, [], None
    for name, way, command, kills, env in (("reconnected", "inprocess", crun, args.kills, {}), ("made anew", "anew", crun, fewer, {}),
                                           ("torchrun", "snapshots", torchrun, fewer, {**TORCHRUN, **timeout})):
        if kills == 0:
            continue
        run = runs[name] = Run(args, f"{tmp}/torch-{way}", way, None, command, fault, **env)
        run.read(kills, args.seed)
        last = run.reached
        alone = Run(args, f"{tmp}/torch-{way}-alone", "inprocess", last, crun[:-2])
        alone.read(0, 0)
        same = equal(args.torch, run.weights, alone.weights)
        median, step = statistics.median(run.times), run.step()
        print(f"PyTorch, {args.net}, {name:11} {len(run.times)} kills: above a step ({step:.3f} s) p50 {median - step:.3f} s, p99 {run.p99() - step:.3f} s; "
              f"of it p50 {statistics.median(run.deaths):.3f} s until the kernel had ended the process; {run.tell_rest(same)}", flush=True)
        if name != "torchrun" and not (run.again == 0 and run.lost == 0 and same):
            missed.append(name)
    first, medians = runs["reconnected"], {name: statistics.median(run.times) - run.step() for name, run in runs.items()}
    if first.given:
        each = statistics.median(n for n, _ in first.given)
        rate = statistics.median(n / 1e6 / max(s, 1e-4) for n, s in first.given)
        print(f"PyTorch, {args.net}: {len(first.given)} newcomers were given {each / 1e6:.1f} MB each, p50 {rate:.0f} MB/s (loopback: {loopback():.0f} MB/s)")
    for name, median in medians.items():
        if name != "reconnected":
            print(f"PyTorch, {args.net}: reconnected {median / medians['reconnected']:.1f} times as fast as {name}, above a step", flush=True)
    if args.fault == "kill" and ("torchrun" not in medians or medians["torchrun"] < 5 * medians["reconnected"]):
        missed.append("PyTorch, beside torchrun")
    return missed
