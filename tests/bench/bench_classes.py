"""A last layer of ever more classes, split over ranks: what a step costs, predicted and run.

usage: bench_classes.py TRAINER [--sweep-classes N,N,...] [--ranks N] [--check]

The model of a step of n ranks, K classes and C features, of a global batch of S samples, with the layer split over classes:

    t(K) = t(1000) + d products / flops + d bytes / bandwidth + d sent / link
    products   6 S C K / n                  forward, gradient of the features, gradient of the weights
    bytes      4 C K / n * p + 4 S K / n * l   p passes over the layer's parameters (its gradient, the optimizer), l over the logits
    sent       2 (n - 1) / n * 4 S C           features forward, their gradient backward: nothing of it grows with K
Split over features instead, each rank has partial sums of all logits: 2 (n - 1) / n * 4 S K more is sent, and l passes go over 4 S K.

First the model is held against TorchShard's published sweep (ResNet-50, 224 pixels, batch 256, 8 TITAN Xp: 0.508 s with 1,000 classes,
0.578 s with 1,000,000), and 8 H200 are printed beside it. Then the sweep runs on this machine: `flops and bandwidth` are one number,
seconds a class of one rank alone, measured here; of n ranks each has a part of n, and that is the prediction. --check: the model is within
3 % of the published 0.578 s."""
import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import tempfile

CLASSES = "1000,5000,20000,50000,100000"
PUBLISHED = {("classes", 1000): 0.508, ("classes", 1_000_000): 0.578, ("features", 1_000_000): 0.710}


@dataclasses.dataclass
class Machine:
    name: str
    flops: float  # of products, as reached
    bandwidth: float  # of memory, bytes a second, as reached
    link: float  # bytes a second that a rank sends
    parameter_passes: float  # over parameters: their gradient written, and what the optimizer reads and writes
    logit_passes: float = 6


# Peaks of data sheets times what such loops reach. PyTorch's SGD of then went over parameters, gradients and momentum one operation at a time.
TITAN_XP = Machine("8 TITAN Xp", 12.15e12 * 0.75, 547.7e9 * 0.8, 12e9, 10)
H200 = Machine("8 H200 (TF32)", 494e12 * 0.7, 4.8e12 * 0.85, 400e9, 6)


def head_seconds(m, ranks, samples, features, classes, dim):
    of_rank = classes / ranks
    products = 6 * samples * features * of_rank / m.flops
    logits = 4 * samples * (of_rank if dim == "classes" else classes)
    memory = (4 * features * of_rank * m.parameter_passes + logits * m.logit_passes) / m.bandwidth
    around = 2 * (ranks - 1) / ranks
    sent = around * 4 * samples * features + (around * 4 * samples * classes if dim == "features" else 0)
    return products + memory + sent / m.link


def published():
    """-> how far the model is from the published second of 1,000,000 classes"""
    at = PUBLISHED["classes", 1000]
    print("TorchShard's sweep, ResNet-50, batch 256 over 8 ranks, 2,048 features; seconds a step")
    print(f"{'classes':>10} {'split over':>10} {'published':>10} {'model':>8} {'to 1,000':>9}    the layer alone on {H200.name}, ms")
    for dim, classes in [("classes", k) for k in (1000, 5000, 50_000, 100_000, 500_000, 1_000_000)] + [("features", 1_000_000)]:
        t = at + head_seconds(TITAN_XP, 8, 256, 2048, classes, dim) - head_seconds(TITAN_XP, 8, 256, 2048, 1000, "classes")
        known = PUBLISHED.get((dim, classes))
        print(f"{classes:>10,} {dim:>10} {known or '':>10} {t:>8.3f} {t / at - 1:>+9.1%}    {1e3 * head_seconds(H200, 8, 256, 2048, classes, dim):.2f}")
        if (dim, classes) == ("classes", 1_000_000):
            off = t / known - 1
    return off


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
        print(f"\nthis machine, ResNet-18, 32 pixels, batch 64, cpu, {options.ranks} ranks; one rank alone takes {a_class * 1e9:.0f} ns a class")
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
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    off = published()
    sweep(options)
    print(f"\nthe model to the published step of 1,000,000 classes: {off:+.1%} (aim within 3 %)")
    if options.check and abs(off) > 0.03:
        raise SystemExit(1)


main()
