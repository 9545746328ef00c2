"""A last layer of ever more classes, split over ranks: what a step costs, predicted and run.

usage: bench_classes.py TRAINER [--sweep-classes N,N,...] [--ranks N]

The prediction is seconds a class of one rank alone, measured here; of n ranks each has a part of n. TorchShard's published sweep is bench_charts.py's."""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

CLASSES = "1000,5000,20000,50000,100000"


def step_seconds(trainer, classes, ranks, folder):
    """The median step of a run, the first ones left out."""
    log = pathlib.Path(folder) / f"{classes}-{ranks}"
    split = ["--model-parallel-size", ranks, "--model-parallel-dim", "1"] if ranks > 1 else []
    subprocess.run([str(a) for a in [
        trainer, "--train-data", "null", "--null-images", 16 * 64, "--num-labels", classes, "--arch", "resnet18", "--image-size", 32, "--batch-size", 64,
        "--device", "cpu", "--threads", 1, "--loader-threads", 1, "--max-steps", 10, "--num-epochs", 100, "--procs", ranks, "--log-dir", log, *split]],
        check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=600)
    records = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(64 / r["images_per_sec"] for r in records if "lr" in r and r["step"] > 2)


def ascending(text):
    counts = [int(k) for k in text.split(",")]
    if len(counts) < 2 or counts[0] < 1 or any(a >= b for a, b in zip(counts, counts[1:])):
        raise argparse.ArgumentTypeError(f"'{text}' (expected two or more numbers of classes, each above the one before)")
    return counts


def sweep(options):
    counts = options.sweep_classes
    with tempfile.TemporaryDirectory() as folder:
        few, many = (min(step_seconds(options.trainer, k, 1, folder) for _ in range(2)) for k in (counts[0], counts[-1]))
        a_class = (many - few) / (counts[-1] - counts[0])
        print(f"this machine, ResNet-18, 32 pixels, batch 64, cpu, {options.ranks} ranks; one rank alone takes {a_class * 1e9:.0f} ns a class")
        print(f"{'classes':>10} {'predicted':>10} {'run':>10} {'run to 1st':>11} {'run / predicted':>16}")
        first = None
        for k in counts:
            t = min(step_seconds(options.trainer, k, options.ranks, folder) for _ in range(2))
            first = first or t
            predicted = first + a_class * (k - counts[0]) / options.ranks
            print(f"{k:>10,} {predicted:>8.3f} s {t:>8.3f} s {t / first - 1:>+11.1%} {t / predicted:>16.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("--sweep-classes", type=ascending, default=CLASSES)
    parser.add_argument("--ranks", type=int, default=2)
    sweep(parser.parse_args())


main()
