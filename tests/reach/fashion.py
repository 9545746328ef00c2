"""Fashion-MNIST to the published accuracy, by two commands: ./dev setup, ./dev reach fashion. docs/guide/benchmarks.md describes it.

    the package dataset-fashion-mnist -> which precision is faster here -> how long it will take -> trainer --resume auto -> the last weights' accuracy

A run that is cut, by --minutes or by anything else, goes on with --resume; options that are not given are those that it began with. The accuracy is that of the
last weights. With --peer PyTorch is trained by the same recipe (fashion_torch.py), in build/peer of ./dev peer."""
import argparse
import gzip
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Fashion-MNIST's README, benchmark of the data set: top-1 of the test set.
PUBLISHED = [("ResNet-18", 94.9), ("WRN-28-10", 95.9), ("WRN-28-10 with random erasing", 96.3)]
RECIPE = ["--input", "cifar", "--mean", "0.2860", "--std", "0.3530", "--image-size", "28", "--batch-size", "128", "--nesterov", "--base-learning-rate", "0.1",
          "--lr-policy", "cosine", "--weight-decay", "5e-4", "--label-smoothing", "0.1"]
BATCH = 128
MEASURED_STEPS, FIRST = 20, 4  # of which the first ones are left out
STOPPED = 75  # exit code of a run that --max-time stopped


def options():
    parser = argparse.ArgumentParser(prog="./dev reach fashion")
    parser.add_argument("--epochs", type=int, help="30")
    parser.add_argument("--seed", type=int, help="1")
    parser.add_argument("--arch", help="resnet18_small, or any that trainer knows: wrn_28_10")
    parser.add_argument("--amp", choices=["off", "bf16", "fp16"], help="precision; by default the faster one of off and bf16, as a short trial has it")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"), help="where its four files are (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/reach/fashion"), help="where checkpoints and curves are kept (%(default)s)")
    parser.add_argument("--minutes", type=float, help="stop in good order after so many; --resume goes on")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--peer", action="store_true", help="train PyTorch by the same recipe, too, afterwards (build/peer)")
    parser.add_argument("trainer_options", nargs="*", metavar="-- OPTION", help="more options for trainer: -- --device cuda")
    return parser.parse_args(sys.argv[2:])


def begin(o):
    """What the run in o.out began with, or begins with now."""
    kept, chosen = o.out / "reach.json", {"epochs": 30, "seed": 1, "arch": "resnet18_small", "amp": None, "more": []}
    given = {k: v for k, v in (("epochs", o.epochs), ("seed", o.seed), ("arch", o.arch), ("amp", o.amp), ("more", o.trainer_options)) if v}
    if kept.exists() and not o.resume:
        raise SystemExit(f"reach: {o.out} holds a run: --resume goes on with it, --out takes another folder")
    if kept.exists():
        began = json.loads(kept.read_text())
        differs = [k for k, v in given.items() if v != began[k]]
        if differs:
            raise SystemExit(f"reach: the run in {o.out} began with {', '.join(f'{k} {began[k]}' for k in differs)}: --out takes another folder")
        return began
    return {**chosen, **given}


def pictures(data):
    """How many the training set has."""
    with gzip.open(data / "train-images-idx3-ubyte.gz") as f:
        return int.from_bytes(f.read(8)[4:], "big")


def command(trainer, o, run, *more):
    return [str(a) for a in [trainer, "--train-data", o.data, *RECIPE, "--arch", run["arch"], "--seed", run["seed"], "--amp", run["amp"],
                             *run["more"], *more]]


def rate(trainer, o, run):
    """Images/s of a short trial, its first steps left out."""
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run(command(trainer, o, run, "--num-epochs", 1000, "--max-steps", MEASURED_STEPS, "--log-dir", folder),
                           capture_output=True, text=True, check=False)
        if p.returncode:
            raise SystemExit(p.stderr)
        steps = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    rates = sorted(s["images_per_sec"] for s in steps if s.get("step", 0) > FIRST and "lr" in s)
    return rates[len(rates) // 2]


def choose(trainer, o, run):
    """The precision, and its images/s."""
    if run["amp"]:
        return rate(trainer, o, run)
    rates = {amp: rate(trainer, o, {**run, "amp": amp}) for amp in ("off", "bf16")}
    run["amp"] = max(rates, key=rates.get)
    print(", ".join(f"{'fp32' if amp == 'off' else amp} {r:,.0f} images/s" for amp, r in rates.items()) + f": --amp {run['amp']}", flush=True)
    return rates[run["amp"]]


def epochs_done(o):
    log = o.out / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return max((r["step"] for r in lines if "step" in r), default=0) * BATCH / pictures(o.data), lines


def train(trainer, o, run):
    images = choose(trainer, o, run)
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / "reach.json").write_text(json.dumps(run))
    done, _ = epochs_done(o)
    left = (run["epochs"] - done) * pictures(o.data) / images / 3600
    print(f"{images:,.0f} images/s: {run['epochs'] - done:.1f} of {run['epochs']} epochs are left and will take {left:.1f} hours, and evaluation", flush=True)
    stop = ["--max-time", f"{o.minutes * 60:.3f}s"] if o.minutes else []
    words = command(trainer, o, run, "--test-data", o.data, "--num-epochs", run["epochs"], "--eval-every", 5, "--checkpoint-dir", o.out / "ckpt", "--checkpoint-seconds", 300,
                    "--checkpoint-keep", 1, "--resume", "auto", "--log-dir", o.out, *stop)
    print(shlex.join(words), flush=True)
    code = subprocess.run(words, check=False).returncode
    if code == STOPPED:
        print(f"stopped: ./dev reach fashion --out {o.out} --resume goes on")
    if code:
        raise SystemExit(code)


def last_accuracy(o):
    """Of the weights after the last step, in percent."""
    _, lines = epochs_done(o)
    return [r["test_acc1"] for r in lines if "test_acc1" in r][-1]


def peer(o, run):
    python = pathlib.Path("build/peer/bin/python")
    if not python.exists():
        raise SystemExit("reach: --peer needs build/peer, which ./dev peer makes")
    out = o.out / "torch"
    words = [str(python), str(HERE / "fashion_torch.py"), str(o.data), str(out), "--epochs", str(run["epochs"]), "--seed", str(run["seed"]), "--amp", run["amp"]]
    code = subprocess.run(words, check=False).returncode
    if code:
        raise SystemExit(code)


def main():
    o, trainer = options(), sys.argv[1]
    if not o.data.exists():
        raise SystemExit(f"reach: {o.data} is not here; the package dataset-fashion-mnist has it")
    run = begin(o)
    train(trainer, o, run)
    rows = [(f"{run['arch']}, {run['epochs']} epochs, seed {run['seed']}, --amp {run['amp']}, last weights", last_accuracy(o))]
    if o.peer:
        peer(o, run)
    said = o.out / "torch" / "result.json"
    if said.exists():
        rows.append(("PyTorch, the same recipe, last weights", json.loads(said.read_text())["top1"]))
    for name, top1 in rows + [(f"published: {name}", top1) for name, top1 in PUBLISHED]:
        print(f"{top1:6.2f} %  {name}")


os.environ.setdefault("PYTHONUNBUFFERED", "1")
main()
