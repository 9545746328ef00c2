"""Data parallelism, ZeRO 1 and 3, a split last layer, stages, and --check-replicas: this trainer with itself, and beside PyTorch over Gloo.

usage: bench_parallel.py TRAINER [--peer PYTHON] [--rounds N] [--ranks N] [--batch N] [--image N] [--classes N] [--schemes ddp,fsdp] [--check]

ResNet-18 on the CPU, fp32, one thread a rank, SGD with momentum, made-up images; every rank a process. Contenders take turns, a whole job of
some steps each; a turn's figure is its median step, and the most memory that a rank has to itself (USS), sampled. A ratio is the median of the
ratios within a round. PyTorch's memory is above what it has before there is a model (libraries, its process group); ours is counted from 0.
Replicas compared every 100 steps: what a step costs more is the hash of its weights; compared in each step: the bound of any interval.
Aims: ZeRO 1 at most 1.05 x plain, ZeRO 3 at most 1.25 x, replicas 1.05 x and 1.15 x; PyTorch's step at least 1.1 x ours, our memory at most 1.0 x PyTorch's."""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_parallel.py")
SCHEMES = {"ddp": ("plain", []), "zero": ("ZeRO 1", ["--zero", "1"]), "head": ("split over classes", ["--model-parallel-dim", "1"]), "fsdp": ("ZeRO 3", ["--zero", "3"]),
           "pipe": ("stages, 1F1B", ["--schedule", "1f1b"]), "hash": ("replicas compared every 100 steps", ["--check-replicas", "100"]),
           "each": ("replicas compared in each step", ["--check-replicas", "1"])}
PEERS = {"ddp": "DistributedDataParallel", "zero": "ZeroRedundancyOptimizer", "head": "ColwiseParallel, loss_parallel", "fsdp": "fully_shard (FSDP2)", "pipe": "pipelining, Schedule1F1B"}
STEPS = 10


def own_memory(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return sum(int(line.split()[1]) for line in f if line.startswith("Private_")) << 10
    except OSError:
        return 0


def descendants(pid):
    found = [pid]
    for p in found:
        try:
            found += map(int, pathlib.Path(f"/proc/{p}/task/{p}/children").read_text().split())
        except OSError:
            pass
    return found


class Sampler(threading.Thread):
    """The most memory that any process under these has to itself."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.most, self.ended = pids, 0, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.03):
            self.most = max([self.most, *(own_memory(d) for p in self.pids for d in descendants(p))])

    def end(self):
        self.ended.set()
        self.join()
        return self.most


def ours(options, scheme, folder):
    log = pathlib.Path(folder) / f"{scheme}-{time.monotonic_ns()}"
    more = SCHEMES[scheme][1] + {"head": ["--model-parallel-size", options.ranks], "pipe": ["--stages", options.ranks, "--microbatches", options.ranks]}.get(scheme, [])
    p = subprocess.Popen([str(a) for a in [
        options.trainer, "--train-data", "null", "--null-images", options.batch * 64, "--num-labels", options.classes, "--arch", "resnet18", "--image-size", options.image,
        "--batch-size", options.batch, "--device", "cpu", "--amp", "off", "--threads", 1, "--loader-threads", 1, "--max-steps", STEPS, "--num-epochs", 100, "--procs", options.ranks,
        "--momentum", 0.9, "--weight-decay", 1e-4, "--log-dir", log, *more]], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    sampler = Sampler([p.pid])
    if p.wait(timeout=600):
        raise SystemExit(f"the trainer ended with code {p.returncode}")
    most = sampler.end()
    records = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(options.batch / r["images_per_sec"] for r in records if "lr" in r and r["step"] > 2), most


def pytorch(options, scheme, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [subprocess.Popen([options.peer, PEER, scheme, *map(str, (options.batch, options.image, options.classes, STEPS))], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.DEVNULL, env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(options.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                                                  OMP_NUM_THREADS="1")) for r in range(options.ranks)]
    idle = max(int(p.stdout.readline() or 0) for p in ranks)
    sampler = Sampler([p.pid for p in ranks])
    said = [p.communicate(timeout=600)[0].split() for p in ranks]
    if not all(said) or any(p.returncode for p in ranks):
        raise SystemExit(f"PyTorch's {PEERS[scheme]} ended early")
    return max(float(s[0]) for s in said), sampler.end() - idle


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("--peer", default="")
    for name, value in (("rounds", 3), ("ranks", 2), ("batch", 128), ("image", 64), ("classes", 1000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="some of them; ratios are to ddp, which is always one")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    schemes = [s for s in SCHEMES if s == "ddp" or s in options.schemes.split(",")]
    peer = bool(options.peer) and os.path.exists(options.peer)
    print(f"ResNet-18, {options.image} pixels, batch {options.batch}, {options.classes} classes, {options.ranks} ranks" + ("" if peer else "; PyTorch: not here, skipped"))
    contenders = [("ours", s) for s in schemes] + ([("PyTorch", s) for s in schemes if s in PEERS] if peer else [])
    turns = {c: [] for c in contenders}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.rounds):
            for who, scheme in contenders if i % 2 == 0 else contenders[::-1]:
                turns[who, scheme].append((ours if who == "ours" else pytorch)(options, scheme, folder))
    for (who, scheme), all_of in turns.items():
        seconds, memory = (statistics.median(t[k] for t in all_of) for k in (0, 1))
        print(f"  {who + ': ' + (SCHEMES[scheme][0] if who == 'ours' else PEERS[scheme]):42} {seconds:7.3f} s a step, {memory / 2**20:7.1f} MiB a rank")

    def ratio(a, b, k):
        return statistics.median(x[k] / y[k] for x, y in zip(turns[a], turns[b]))

    found = [(f"{SCHEMES[s][0]} / plain, time", ratio(("ours", s), ("ours", "ddp"), 0), "<=", aim) for s, aim in (("zero", 1.05), ("fsdp", 1.25), ("hash", 1.05), ("each", 1.15)) if s in schemes]
    for s in (s for s in schemes if peer and s in PEERS):
        found += [(f"{PEERS[s]} / ours, time", ratio(("PyTorch", s), ("ours", s), 0), ">=", 1.1), (f"ours / {PEERS[s]}, memory", ratio(("ours", s), ("PyTorch", s), 1), "<=", 1.0)]
    missed = 0
    for what, value, kind, aim in found:
        good = value <= aim if kind == "<=" else value >= aim
        missed += not good
        print(f"  {what:46} {value:6.2f}  aim {kind} {aim:.2f}  {'ok' if good else 'MISSED'}")
    if options.check and missed:
        raise SystemExit(1)


main()
