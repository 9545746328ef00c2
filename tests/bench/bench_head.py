"""A last layer split over ranks, and the least it could take: bare products of its shapes, and its bytes at the speed of a copy.

usage: bench_head.py TRAINER BENCH_HEAD [--ranks N] [--classes N] [--rounds N] [--check]

Ranks are processes of one thread each, on the CPU in fp32, SGD with momentum; images of 28 pixels through two hidden layers, batch 64. What the
layer takes of a step is the step less that of the same network with 1,000 classes. The floor is run by as many processes at once. Both take turns; the
ratio is the median of the ratios within a round. Aim: 1.15."""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

BATCH, FEATURES, FEW = 64, 512, 1000


def step(options, classes, folder):
    log = pathlib.Path(tempfile.mkdtemp(dir=folder))
    subprocess.run([str(a) for a in [
        options.trainer, "--train-data", "null", "--null-images", BATCH * 64, "--num-labels", classes, "--arch", "mlp", "--image-size", 28, "--batch-size", BATCH,
        "--device", "cpu", "--amp", "off", "--threads", 1, "--loader-threads", 1, "--max-steps", 14, "--num-epochs", 100, "--momentum", 0.9, "--procs", options.ranks,
        "--model-parallel-size", options.ranks, "--model-parallel-dim", 1, "--log-dir", log]], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=600)
    records = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(BATCH / r["images_per_sec"] for r in records if "lr" in r and r["step"] > 3)


def floor(options):
    ranks = [subprocess.Popen([options.bench_head, f"rows={BATCH}", f"features={FEATURES}", f"classes={options.classes // options.ranks}", "repeat=12"],
                              stdout=subprocess.PIPE, text=True) for _ in range(options.ranks)]
    return [statistics.mean(v) for v in zip(*([float(t) for t in p.communicate(timeout=300)[0].split()] for p in ranks))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("bench_head")
    for name, value in (("ranks", 4), ("classes", 200_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            layer = step(options, options.classes, folder) - step(options, FEW, folder)
            rows.append((layer, *floor(options)))
    layer, products, copies = (statistics.median(r[k] for r in rows) for k in range(3))
    ratio = statistics.median(r[0] / (r[1] + r[2]) for r in rows)
    print(f"{options.classes:,} classes over {options.ranks} ranks: the layer {1e3 * layer:.1f} ms of a step; floor {1e3 * products:.1f} ms of products + {1e3 * copies:.1f} ms of bytes")
    print(f"layer / floor  {ratio:.2f}  aim <= 1.15  {'ok' if ratio <= 1.15 else 'MISSED'}")
    if options.check and ratio > 1.15:
        raise SystemExit(1)


main()
