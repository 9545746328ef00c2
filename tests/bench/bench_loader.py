"""The trainer's loader beside bare libjpeg-turbo and, where `./dev peer` has installed it, PyTorch's DataLoader: the same JPEG files, as many
threads or worker processes as there are cores, taking turns; a ratio is the median of the ratios within a round.

    bench_loader.py BENCH_LOADER [--rounds N] [--seconds S] [--images N] [--peer PYTHON] [--check]

Rates per core are images a second of processor time, so that what else the machine does counts little. --check: fail below the aims.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

PEER = pathlib.Path(__file__).resolve().parents[2] / "build" / "peer" / "bin" / "python"
BARE_AIM, TORCH_AIM, V2_AIM = 0.97, 3.0, 3.0
QUALITIES = 90, 94  # some 85 KB a picture, and ImageNet's 110

# As torchvision's references/classification has it, with its transforms v2: on Pillow's pictures up to the tensor; RASampler shows each 4 times.
V2 = """
t = v2
how = t.Compose([t.RandomResizedCrop(176), t.RandomHorizontalFlip(), t.TrivialAugmentWide(interpolation=t.InterpolationMode.BILINEAR), t.PILToTensor(),
                 t.ToDtype(torch.float, scale=True), t.Normalize((.485, .456, .406), (.229, .224, .225)), t.RandomErasing(0.1)])
mix = t.RandomChoice([t.MixUp(alpha=0.2, num_classes=1000), t.CutMix(alpha=1.0, num_classes=1000)])
collate = lambda batch: mix(*torch.utils.data.default_collate(batch))
repetitions = 4
"""

TORCH = """
import os, resource, sys, time
import torch, torchvision
from torchvision import transforms as t
from torchvision.transforms import v2
collate, repetitions = None, 1
path, seconds, cores = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
how = t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(),
                 t.Normalize((.485, .456, .406), (.229, .224, .225))])
#V2
data = torchvision.datasets.ImageFolder(path, how)

def cpu():
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))

def turn(images):
    sampler = [int(i) for i in torch.randint(len(data), (images // repetitions,)) for _ in range(repetitions)]
    before, begin, seen = cpu(), None, 0
    for x, y in torch.utils.data.DataLoader(data, 64, sampler=sampler, num_workers=cores, collate_fn=collate):
        if begin is None:
            begin = time.perf_counter()
        else:
            seen += len(y)
    end = time.perf_counter()
    return seen / (end - begin), images / (cpu() - before)

turn(64 * (cores + 1))
rate, _ = turn(64 * 2 * (cores + 1))
print(*turn(64 * max(3, int(rate * seconds / 64))), torch.__version__, torchvision.__version__)
"""


def rates(*argv):
    out = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout.split()
    return float(out[0]), float(out[1]), out[2:]


def measure(a, data, quality, cores):
    """Below the aims?"""
    seen = {"libjpeg-turbo, bare": [], "loader": [], "torch DataLoader": [], "loader, V2": [], "torch DataLoader, V2": []}
    subprocess.run([a.bench, "make", data, str(a.images), str(quality)], check=True, timeout=300)
    size = sum(f.stat().st_size for f in data.glob("*/*.jpg")) / a.images / 1000
    print(f"{a.images} pictures of 500 x 375, quality {quality}, 4:2:0, {size:.0f} KB each; {cores} cores; crops of 224")
    for _ in range(a.rounds):
        seen["libjpeg-turbo, bare"].append(rates(a.bench, "bare", data, a.seconds))
        seen["loader"].append(rates(a.bench, "loader", data, a.seconds))
        if a.peer.exists():
            seen["torch DataLoader"].append(rates(a.peer, "-c", TORCH, data, a.seconds, cores))
        seen["loader, V2"].append(rates(a.bench, "v2", data, a.seconds))
        if a.peer.exists():
            seen["torch DataLoader, V2"].append(rates(a.peer, "-c", TORCH.replace("#V2", V2), data, a.seconds, cores))
    print(f"{'':22}{'images/s':>10}{'per core':>10}")
    for name, turns in seen.items():
        if turns:
            told = " ".join(turns[0][2])
            print(f"{name:22}{statistics.median(t[0] for t in turns):10.0f}{statistics.median(t[1] for t in turns):10.0f}  {told}")
    ours = seen["loader"]
    bare = statistics.median(x[1] / y[1] for x, y in zip(ours, seen["libjpeg-turbo, bare"]))
    print(f"loader / bare decode, per core: {bare:.2f} (aim {BARE_AIM})")
    failed = bare < BARE_AIM
    if a.peer.exists():
        torch = [statistics.median(x[i] / y[i] for x, y in zip(ours, seen["torch DataLoader"])) for i in (0, 1)]
        print(f"loader / torch DataLoader: {torch[0]:.2f}, per core {torch[1]:.2f} (aim {TORCH_AIM})")
        failed |= torch[1] < TORCH_AIM
        v2 = [statistics.median(x[i] / y[i] for x, y in zip(seen["loader, V2"], seen["torch DataLoader, V2"])) for i in (0, 1)]
        print(f"with V2's augmentation, loader / torch DataLoader: {v2[0]:.2f}, per core {v2[1]:.2f} (aim {V2_AIM})")
        failed |= v2[1] < V2_AIM
    else:
        print("torch DataLoader: skipped, ./dev peer installs it")
    return failed


def main():
    p = argparse.ArgumentParser()
    p.add_argument("bench")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--images", type=int, default=128)
    p.add_argument("--peer", type=pathlib.Path, default=PEER, help="python of PyTorch's environment")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as tmp:
        failed = [measure(a, pathlib.Path(tmp) / str(quality), quality, cores) for quality in QUALITIES]
    return 1 if a.check and any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
