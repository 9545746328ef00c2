"""Images a second of training on one GPU: ours and PyTorch's, side by side, with the ceilings of the same card measured in the same call.

  ceilings   a copy kernel and large products
  table      ResNet-18 to 152 x TF32, fp16, bf16 x batch 256, 64. A row is a contest: both processes hold their model, turns alternate (every other
             round backwards), speeds are medians over rounds, ratios medians of the ratios within a round. PyTorch: channels_last, autocast; ResNet-50
             with batch 256 and ResNet-18 compiled with CUDA graphs, the others eager. Where PyTorch fails or is out of time, ours is measured alone
  profile    steps of the plan by their kind, launched one by one
  trainer    the program itself: synthetic images, then JPEGs of ImageNet's size

The budget (540 s) covers everything, in order of interest: what no longer fits is named, not guessed, and bench.json is written anew after each
row. Plans and compiled models are kept in the build folder: a second call gets further. Work an image: 2 x (3 x MACs - the first layer's
gradient of its input); bytes an image: convolutions, and batch norm fused with what follows, each tensor through memory once a use (large batches)."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
GFLOP = {"resnet18": 10.65, "resnet34": 21.75, "resnet50": 24.30, "resnet101": 46.57, "resnet152": 68.85}
MBYTE = {"resnet18": 76, "resnet34": 116, "resnet50": 348, "resnet101": 514, "resnet152": 718}  # halves; TF32 moves twice as much
TYPES = ["fp16", "bf16", "tf32"]
ROUNDS, TURN_S = 5, 0.35
EXPECTED_S = {"compile": 90, "eager": 40, "alone": 20}  # a row, before there is one to go by
START = time.monotonic()


def left(options):
    return options.budget - (time.monotonic() - START)


def save(options, results):
    if options.out:
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps(results, indent=1) + "\n")
        part.replace(options.out)


class Ended(Exception):
    """A contender that gave no answer."""


class Process:
    """A contender: a line in, a line out, each within a deadline."""

    def __init__(self, argv, env=None):
        self.name = os.path.basename(str(argv[-1] if argv[0] == sys.executable else argv[0]))
        self.p = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def read(self, seconds):
        late = threading.Event()
        timer = threading.Timer(max(seconds, 1), lambda: (late.set(), self.p.kill()))
        timer.start()
        line = self.p.stdout.readline()
        timer.cancel()
        if not line:
            status = self.p.wait()
            raise Ended(f"{self.name} gave no answer within {max(seconds, 1):.0f} s" if late.is_set() else f"{self.name} ended early (exit status {status})")
        return line

    def ask(self, line, seconds=60):
        try:
            self.p.stdin.write(line + "\n")
            self.p.stdin.flush()
        except BrokenPipeError:
            pass
        return self.read(seconds)

    def end(self):
        """Its last words; by force where it does not end by itself."""
        try:
            return self.p.communicate(timeout=20)[0]
        except (BrokenPipeError, ValueError, subprocess.TimeoutExpired):
            return ""
        finally:
            self.p.kill()
            self.p.wait()


class Ours:
    name = "ours"

    def __init__(self, options, arch, batch, kind, profile=0):
        self.batch = batch
        self.p = Process([options.build / "tests/bench/gpu/bench_gpu_device", f"arch={arch}", f"batch={batch}", f"type={kind}", f"profile={profile}",
                          f"cache={options.build / 'gpu-cache'}"])
        self.about = json.loads(self.p.read(min(120, left(options) - (0 if profile else options.keep_back))))

    def seconds(self, steps):
        return float(self.p.ask(str(steps)))


class PyTorch:
    """One process for all rows: importing it takes seconds. One that dies or hangs is replaced, three times; one compilation out of time is the last."""
    name = "PyTorch"

    def __init__(self, options):
        self.options, self.lives, self.compiles, self.p = options, 4, True, None
        self.start()

    def start(self):
        if self.lives == 0:
            raise Ended("PyTorch failed too often")
        self.lives -= 1
        env = dict(os.environ, BENCH_COMPILE_MODE=self.options.compile_mode, TORCHINDUCTOR_CACHE_DIR=str(self.options.build / "inductor"))
        self.p = Process([sys.executable, self.options.peer_program], env)
        self.about = json.loads(self.p.read(90))

    def tell(self, seconds, **order):
        said = json.loads(self.p.ask(json.dumps(order), seconds))
        if "error" in said:
            raise Ended(f"PyTorch: {said['error']}")
        return said

    def mode(self, arch, batch):
        return "compile" if self.compiles and (arch == "resnet18" or (arch == "resnet50" and batch == 256)) else "eager"

    def make(self, arch, batch, kind):
        mode = self.mode(arch, batch)
        if self.p.p.poll() is not None:
            self.start()
        try:
            return self.tell(min(200, left(self.options) - self.options.keep_back), make=(arch, batch, kind, mode))
        except Ended:
            self.compiles &= mode != "compile" or self.p.p.poll() is None
            raise

    def drop(self):
        try:
            self.tell(60, drop=1)
        except (Ended, ValueError):
            self.p.end()

    def seconds(self, steps):
        return self.tell(60, steps=steps)["events"]


def turns(contenders, batch):
    """Images a second of each contender in each round."""
    speeds, steps = {c: [] for c in contenders}, {}
    for c in contenders:
        steps[c] = max(3, int(TURN_S / (c.seconds(3) / 3)))
    for r in range(ROUNDS):
        for c in contenders if r % 2 == 0 else reversed(contenders):
            speeds[c].append(batch * steps[c] / c.seconds(steps[c]))
    return speeds


def row(options, peer, ceilings, arch, kind, batch):
    found = {"arch": arch, "type": kind, "batch": batch}
    ours = Ours(options, arch, batch, kind)
    found.update(ours.about)
    try:
        sides = [ours]
        try:
            if peer:
                made = peer.make(arch, batch, kind)
                found.update(peer_mode=made["mode"], peer_ready_s=round(made["ready"], 1))
                sides.append(peer)
            speeds = turns(sides, batch)
        except (Ended, ValueError) as why:
            if ours.p.p.poll() is not None or not peer:
                raise
            found["peer_error"] = str(why)
            sides = [ours]
            speeds = turns(sides, batch)
    finally:
        ours.p.end()
        if peer:
            peer.drop()
    found["images_s"] = round(statistics.median(speeds[ours]), 1)
    found["spread"] = round((max(speeds[ours]) - min(speeds[ours])) / found["images_s"], 4)
    if len(sides) > 1:
        found["peer_images_s"] = round(statistics.median(speeds[peer]), 1)
        found["ratio"] = round(statistics.median(a / b for a, b in zip(speeds[ours], speeds[peer])), 3)
    found["tflop_s"] = round(found["images_s"] * GFLOP[arch] * 1e-3, 1)
    found["gb_s"] = round(found["images_s"] * MBYTE[arch] * (2 if kind == "tf32" else 1) * 1e-3)
    if ceilings:
        found["of_flops"] = round(found["tflop_s"] / ceilings[f"{kind}_tflop_s"], 3)
        found["of_bandwidth"] = round(found["gb_s"] / ceilings["copy_gb_s"], 3)
    return found


def rows(options):
    """In order of interest."""
    archs = [a for a in ("resnet50", "resnet18", "resnet101", "resnet152", "resnet34") if a in options.only]
    for batch in (256, 64):
        for arch in archs:
            for kind in TYPES:
                yield arch, kind, batch


def print_row(r):
    share = f"{r['of_bandwidth']:5.0%} {r['of_flops']:5.0%}" if "of_flops" in r else "    -     -"
    peer = f"{r['peer_images_s']:9.0f}  {r['ratio']:5.2f}  {r['peer_mode']}" if "ratio" in r else f"        -      -  {r.get('peer_error', '-')}"
    print(f"{r['arch']:10} {r['type']:5} {r['batch']:5} {r['images_s']:9.0f} {r['spread']:6.1%} {r['gb_s']:7} {r['tflop_s']:7.0f}  {share}  {peer}", flush=True)


def open_peer(options, results):
    if not options.peer:
        return None
    try:
        peer = PyTorch(options)
    except (Ended, ValueError) as why:
        print(f"no PyTorch beside: {why}")
        results["failed"].append(f"PyTorch: {why}")
        return None
    results["peer"] = dict(peer.about, compile_mode=options.compile_mode)
    return peer


def table(options, results):
    peer = open_peer(options, results)
    took = {mode: min(seconds, options.budget / 6) for mode, seconds in EXPECTED_S.items()}
    print("\nmodel      type  batch  images/s spread    GB/s TFLOP/s  of copy, of product  PyTorch  ratio  mode")
    for arch, kind, batch in rows(options):
        mode = peer.mode(arch, batch) if peer else "alone"
        if left(options) < options.keep_back + took[mode]:
            results["cut"].append(f"{arch} {kind} {batch}")
            continue
        began = time.monotonic()
        try:
            r = row(options, peer, results.get("ceilings"), arch, kind, batch)
            results["rows"].append(r)
            print_row(r)
            if "peer_error" in r:
                results["failed"].append(f"{arch} {kind} {batch}: {r['peer_error']}")
        except (Ended, ValueError, KeyError) as why:
            print(f"{arch} {kind} {batch}: {why}", flush=True)
            results["failed"].append(f"{arch} {kind} {batch}: {why}")
        took[mode] = time.monotonic() - began
        if results["rows"]:
            results["rows"][-1].setdefault("took_s", round(took[mode], 1))
        save(options, results)
    if peer:
        peer.p.end()


# --- where a step's time goes

PRODUCTS = 0.38  # of the measured speed of large products: what 7,950 images/s of ResNet-50 need of this plan (gpu_budget)
NODE_MS = 0.0015


def budget_ms(step, ceilings):
    """As gpu_budget reckons: 90 % of a copy's speed, or PRODUCTS of a large product's."""
    if not step["mb"] and not step["gflop"]:
        return 0
    return max(step["mb"] / (0.9 * ceilings["copy_gb_s"]), step["gflop"] / (PRODUCTS * ceilings["fp16_tflop_s"])) + NODE_MS


def print_kind(name, steps, total):
    ms, mb, gflop = (sum(s[k] for s in steps) for k in ("ms", "mb", "gflop"))
    print(f"  {ms:8.3f} {ms / total:6.1%} {sum(s['budget_ms'] for s in steps):7.3f} {len(steps):6} {mb / ms:7.0f} {gflop / ms:8.0f}  {name}")


def profile(options, results):
    if left(options) < min(30, options.keep_back / 3):
        results["cut"].append("profile")
        return
    ours = Ours(options, "resnet50", 256, "fp16", profile=1)
    whole = statistics.median(ours.seconds(10) / 10 for _ in range(5)) * 1e3
    said = ours.p.end()
    steps = json.loads(said or "[]")
    if not steps:
        raise Ended("the device tells nothing of its steps")
    for s in steps:
        s["budget_ms"] = budget_ms(s, results["ceilings"]) if "ceilings" in results else 0
    total, budget = sum(s["ms"] for s in steps), sum(s["budget_ms"] for s in steps)
    results["profile"] = {"step_ms": whole, "steps": steps}
    print(f"\nResNet-50, fp16, batch 256: {whole:.2f} ms a step as a graph; {total:.2f} ms launched one by one, {budget:.2f} by the budget:")
    print("        ms  share  budget  steps    GB/s  TFLOP/s")
    for name in sorted({s["step"] for s in steps}, key=lambda n: -sum(s["ms"] for s in steps if s["step"] == n)):
        print_kind(name, [s for s in steps if s["step"] == name], total)
    print("  the longest steps:")
    for s in sorted(steps, key=lambda s: -s["ms"])[:12]:
        print(f"  {s['ms']:8.3f} ms of {s['budget_ms']:6.3f}  {s['step']} {s['of']} {s['engine']}")


# --- the program itself

def make_jpegs(folder, count):
    """Pictures of ImageNet's usual size and weight (500 x 375, some 100 KB), each of which is also there under 8 names."""
    import numpy as np
    from PIL import Image
    rng = np.random.default_rng(1)
    for i in range(count):
        coarse = rng.integers(0, 256, (25, 33, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.BICUBIC), dtype=np.int16) + rng.integers(-24, 25, (375, 500, 3), dtype=np.int16)
        at = folder / f"class{i % 8}"
        at.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(at / f"{i}.jpg", quality=90)
        for k in range(7):
            os.link(at / f"{i}.jpg", at / f"{i}-{k}.jpg")


def trainer_speed(options, data, arch, *args):
    with tempfile.TemporaryDirectory() as log:
        p = subprocess.run([str(a) for a in (options.build / "worker/trainer", "--train-data", data, "--arch", arch, "--image-size", 224, "--batch-size", 256,
                                             "--device", "cuda", "--amp", "fp16", "--num-epochs", 100, "--max-steps", 60, "--log-dir", log,
                                             "--plan-cache", options.build / "gpu-cache", *args)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=left(options), check=False)
        if p.returncode:
            raise Ended(f"trainer: {' '.join(p.stderr.strip().splitlines()[-1:])}")
        lines = [json.loads(line) for line in (pathlib.Path(log) / "metrics.jsonl").read_text().splitlines()]
    steps = [m for m in lines if "lr" in m][-40:]
    return statistics.median(m["images_per_sec"] for m in steps)


def trainer_row(options, results, name, arch, *args):
    if left(options) < min(15, options.keep_back / 6):
        results["cut"].append(f"trainer {arch} {name}")
        return
    try:
        speed = trainer_speed(options, args[0], arch, *args[1:])
    except (Ended, OSError, ValueError, subprocess.SubprocessError) as why:
        results["failed"].append(f"trainer {arch} {name}: {why}")
        print(f"  {arch:10} {name:10} {why}", flush=True)
        return
    results["trainer"][f"{arch} {name}"] = round(speed, 1)
    print(f"  {arch:10} {name:10} {speed:9.0f} images/s", flush=True)
    save(options, results)


def trainer(options, results):
    """Synthetic images first: JPEGs need a library that may be missing."""
    results["trainer"] = {}
    print("\ntrainer, fp16, batch 256:", flush=True)
    for arch in ("resnet50", "resnet18"):
        trainer_row(options, results, "synthetic", arch, "null", "--null-images", 25600, "--num-labels", 1000)
    with tempfile.TemporaryDirectory() as folder:
        jpegs = pathlib.Path(folder)
        make_jpegs(jpegs, options.jpegs)
        weight = statistics.mean(f.stat().st_size for f in jpegs.glob("*/*.jpg"))
        print(f"  JPEGs of {weight / 1000:.0f} KB, {os.cpu_count()} cores decode:", flush=True)
        for arch in ("resnet50", "resnet18"):
            trainer_row(options, results, "JPEG", arch, jpegs)


def attempt(what, options, results):
    """One part's failure, whatever it is, is told of and loses nothing of the others."""
    if what.__name__ in options.skip:
        return
    try:
        what(options, results)
    except Exception as why:  # pylint: disable=broad-except
        results["failed"].append(f"{what.__name__}: {type(why).__name__}: {why}")
        print(f"{what.__name__}: {type(why).__name__}: {why}", flush=True)


def ceilings(options, results):
    out = subprocess.run([options.build / "tests/bench/gpu/ceilings"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    results["ceilings"] = json.loads(out)
    print("ceilings: " + ", ".join(f"{k} {v}" for k, v in results["ceilings"].items()), flush=True)


def arguments():
    p = argparse.ArgumentParser("./dev gpu-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)  # ./dev gives these two
    p.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    p.add_argument("--budget", type=float, default=540, help="seconds for all (540)")
    p.add_argument("--only", default=",".join(GFLOP), help="models, with commas between them (all)")
    p.add_argument("--no-peer", dest="peer", action="store_false", help="leave PyTorch out")
    p.add_argument("--compile-mode", default="reduce-overhead",
                   help="of torch.compile; both reduce-overhead and max-autotune use CUDA graphs, the latter compiles for minutes a model")
    p.add_argument("--skip", default="", help="of ceilings, table, profile, trainer")
    p.add_argument("--peer-program", type=pathlib.Path, default=HERE / "pytorch_gpu.py", help="what is measured beside (for tests)")
    p.add_argument("--jpegs", type=int, default=512, help="different pictures; each is there under 8 names")
    options = p.parse_args()
    unknown = [a for a in options.only.split(",") if a not in GFLOP]
    if unknown:
        p.error(f"--only: '{unknown[0]}' is none of {', '.join(GFLOP)}")
    options.skip = options.skip.split(",")
    options.build = options.build.resolve()
    os.environ["CRUN_CUDA_MODULE"] = str(options.build / "worker/device/cuda/trainer-cuda.so")
    options.only = options.only.split(",")
    options.keep_back = min(90, options.budget / 4)  # for what comes after the table
    return options


def main():
    options = arguments()
    info = subprocess.run([options.build / "worker/trainer", "gpu-info", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if info.returncode:
        print(f"skipped: {info.stderr.strip().removeprefix('trainer gpu-info: ')}")
        return 0
    results = {"date": time.strftime("%Y-%m-%d"), "gpu": json.loads(info.stdout)["gpus"][0], "rows": [], "cut": [], "failed": []}
    print(results["gpu"]["description"])
    for what in (ceilings, table, profile, trainer):
        attempt(what, options, results)
        save(options, results)
    if results["failed"]:
        print("\nfailed:\n  " + "\n  ".join(results["failed"]))
    print(f"\n{time.monotonic() - START:.0f} of {options.budget:.0f} s; left out for lack of time: {', '.join(results['cut']) or 'nothing'}")
    return 1 if results["failed"] else 0


sys.exit(main())
