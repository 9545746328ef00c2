"""Training on this machine's processor: this project's cpu device, PyTorch, and oneDNN's bare kernels, side by side.

usage: bench_train.py BENCH_DEVICE BENCH_KERNELS [--arch ARCH] [--peer PYTHON] [--type TYPE...] [--rounds N] [--threads N] [--batch N,N] [--image N] [--layout LAYOUT...] [--no-check]

Each contender is a process that waits for its turn; turns alternate, every other round backwards. A turn is two whole steps on synthetic
images: forward, backward, SGD; of the bare kernels, each kernel twice. The ratio to PyTorch is the median of the ratios of the fastest
steps within a round. To the bare kernels there are two ratios, each of like to like, as the machine may have other things to do: of each
kernel's and each operation's fastest run of all rounds (what lies between operations counting as one); and of the fastest whole step to the
fastest pass over all kernels. The first has an aim: "bare" with the update, "products" without. The bare kernels of networks of positions are
their products, attention's included. Each side runs with the batch that suits it best, PyTorch also with the better of
NCHW and channels_last (tried first); it runs twice, as it is and through torch.compile. The bare kernels run with the batch of this project's
side. Of each process the peak memory is printed. AIMS has the aims. A sample of gpt2 is --image tokens.

Where the processor has no units for bf16, it is emulated here, as `trainer --amp bf16` does. With AVX2 alone PyTorch (2.15) then takes 13 times as
long as in fp32, so a small batch and two rounds tell enough; oneDNN's bare kernels are left out."""
import argparse
import os
import re
import statistics
import subprocess
import sys

# Least ratio to PyTorch as it is (eager) and through torch.compile (compiled), and to the bare kernels.
AIMS = {"resnet50": {"f32": {"eager": 1.20, "compiled": 1.05, "bare": 0.93}, "bf16": {"eager": 1.25, "compiled": 1.25}},
        "convnext_tiny": {"f32": {"eager": 1.20, "compiled": 1.20, "products": 1 / 1.2}, "bf16": {"eager": 1.20, "compiled": 1.20, "products": 1 / 1.4}},
        "vit_b_16": {"f32": {"eager": 1.10, "compiled": 1.10, "products": 1 / 1.2}, "bf16": {"eager": 1.20, "compiled": 1.20, "products": 1 / 1.4}},
        "gpt2": {"f32": {"eager": 1.10, "compiled": 1.10, "products": 1 / 1.2, "memory": 1.0}, "bf16": {"eager": 2.50, "compiled": 2.50, "products": 1 / 1.4, "memory": 1.0}}}
TYPES = list(AIMS["resnet50"])
LAYOUTS = ["NCHW", "channels_last"]
EMULATED = {"batch": 4, "rounds": 2}  # at most
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_steps.py")
TRAINER = dict(os.environ, OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="8000")  # as the trainer itself runs


class Contender:
    def __init__(self, name, batch, argv, env=None):
        self.name, self.batch, self.speeds = name, batch, []
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env or TRAINER)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early (exit status {self.process.wait()})")
        seconds = [float(s) for s in line.split()]
        self.fastest_parts = self.batch / seconds[1] if len(seconds) > 1 else 0
        self.update = seconds[2] if len(seconds) > 2 else 0
        return self.batch / seconds[0]

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            self.peak = int(re.search(r"^VmHWM:\s*(\d+) kB", f.read(), re.M)[1]) / 1e6
        self.process.stdin.close()
        rest = self.process.stdout.read()
        self.process.wait()
        return rest


def ours(options, batch, kind):
    return Contender(f"ours batch {batch}", batch, [
        options.device, f"arch={options.arch}", "classes=1000", f"image={options.image}", f"batch={batch}",
        f"threads={options.threads}", f"type={'emulated' if is_emulated(kind) else kind}", "steps=2", "serve=1"])


def pytorch(options, batch, layout, mode, kind):
    return Contender(f"PyTorch {mode} {layout} batch {batch}", batch, [
        options.peer, PEER, str(batch), layout, mode, kind, str(options.threads), str(options.image), options.arch], dict(os.environ))


def bare(options, batch, kind):
    return Contender("bare kernels", batch, [
        options.kernels, f"arch={options.arch}", f"image={options.image}", f"batch={batch}", f"threads={options.threads}", f"type={kind}",
        "repeat=2", "serve=1"])


def best_of(candidates):
    """The fastest of contenders in one turn each; the others are ended."""
    tried = []
    for make in candidates:
        c = make()
        c.read()  # the start-up turn
        tried.append((max(c.turn(), c.turn()), c))
        print(f"    tried {c.name}: {tried[-1][0]:.2f} images/s", flush=True)
    tried.sort(key=lambda t: t[0])
    for _, c in tried[:-1]:
        c.end()
    return tried[-1][1]


def compare(options, kind):
    """Median ratios of ours to PyTorch, eager and compiled (neither without it), and to the bare kernels, by name."""
    print(f"{kind}, emulated:" if is_emulated(kind) else f"{kind}:")
    if is_emulated(kind):
        options = argparse.Namespace(**{**vars(options), "batch": [min(EMULATED["batch"], *options.batch)], "rounds": min(EMULATED["rounds"], options.rounds)})
    modes = ["eager", "compiled"] if options.peer else []
    sides = [best_of([lambda b=b: ours(options, b, kind) for b in options.batch])]
    for m in modes:
        sides.append(best_of([lambda b=b, l=l: pytorch(options, b, l, m, kind)
                              for b in options.batch for l in options.layout]))
    kernels = None if is_emulated(kind) else bare(options, sides[0].batch, kind)
    if kernels:
        kernels.read()  # ready
        sides.append(kernels)
    for r in range(options.rounds):
        for c in sides if r % 2 == 0 else reversed(sides):
            c.speeds.append(c.turn())
    rest = [c.end() for c in sides]
    print(rest[-1] if kernels else "", end="")
    for c in sides:
        print(f"  {c.name:32s} {max(c.speeds):7.2f} images/s at best, median {statistics.median(c.speeds):.2f}, rounds "
              + " ".join(f"{s:.2f}" for s in c.speeds) + f"; peak memory {c.peak:.2f} GB")
    to = {m: statistics.median(a / b for a, b in zip(sides[0].speeds, c.speeds)) for m, c in zip(modes, sides[1:])}
    us = sides[0]
    to["memory"] = min((c.peak / us.peak for m, c in zip(modes, sides[1:]) if c.batch == us.batch), default=1)
    for m in modes:
        print(f"  {kind}: {to[m]:.2f} x PyTorch's best, {m}")
    if not kernels:
        return to
    to["bare"] = us.fastest_parts / kernels.fastest_parts
    to["products"] = us.batch / (us.batch / us.fastest_parts - us.update) / kernels.fastest_parts
    print(f"  {kind}: {100 * to['bare']:.0f} % of the bare kernels, every operation and kernel at its fastest ({us.fastest_parts:.2f} of "
          f"{kernels.fastest_parts:.2f} images/s); {100 * max(us.speeds) / max(kernels.speeds):.0f} % whole step to whole pass; without the update, "
          f"{1000 * us.update:.1f} ms of a step, {100 * to['products']:.0f} %: {1 / to['products']:.2f} x as long as they")
    return to


def missed(options, kind):
    """The aims that were."""
    to = compare(options, kind)
    names = {"eager": "PyTorch", "compiled": "PyTorch through torch.compile", "bare": "the bare kernels", "products": "the bare kernels without the update",
             "memory": "PyTorch's peak memory by ours"}
    return [f"{kind}: {to[k]:.2f} x {names[k]} (expected {aim:.2f})" for k, aim in AIMS[options.arch][kind].items() if k in to and to[k] < aim]


def processor(flag):
    with open("/proc/cpuinfo") as f:
        return re.search(rf"^flags\s.*\b{flag}\b", f.read(), re.M) is not None


def is_emulated(kind):
    return kind == "bf16" and not (processor("amx_bf16") or processor("avx512_bf16"))


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("device")
    a.add_argument("kernels")
    a.add_argument("--peer", help="python of PyTorch's environment (./dev peer makes one)")
    a.add_argument("--arch", choices=AIMS, default="resnet50")
    a.add_argument("--type", nargs="+", choices=TYPES, default=TYPES)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--image", type=int, default=224)
    a.add_argument("--batch", type=lambda s: [int(x) for x in s.split(",")], default=[16, 32])
    a.add_argument("--layout", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="PyTorch's, to try")
    a.add_argument("--no-check", action="store_true", help="print only")
    return a.parse_args()


def main():
    options = arguments()
    if options.peer and not os.access(options.peer, os.X_OK):
        print(f"no PyTorch at {options.peer}: ./dev peer makes it; SKIPPED the comparison with it")
        options.peer = None
    if options.peer:
        subprocess.run([options.peer, "-c", "import torch; print('PyTorch', torch.__version__)"], check=True)
    failed = [text for kind in options.type for text in missed(options, kind)]
    print("\n".join(failed) or ("every aim that was measured is reached" if options.peer else "those beside PyTorch were not measured; any others are reached"))
    sys.exit(bool(failed) and not options.no_check)


if __name__ == "__main__":
    main()
