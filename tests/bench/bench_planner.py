"""The planner beside what it plans: predicted and measured times of steps, and the chosen plan beside all others, run.

usage: bench_planner.py TRAINER [--only predict,choose] [--rounds N] [--cases 0,1,...] [--check]

Made-up images on the CPU, fp32, 64 pixels or fewer; every rank a process. predict: trainer plan --step-time beside the median step of --rounds runs
(five), for 1, 2 and 4 ranks; aim: within 15 % at 1 and 2 ranks. choose: trainer plan --auto-parallel, and every plan that fits run for some
steps; aim: the chosen one takes at most 1.1 times the best. Absolute times: they want a machine that is otherwise idle."""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

RESNET = "--arch resnet18 --image-size 64 --num-labels 1000"
PREDICTED = [(1, ""), (2, ""), (2, "--zero 1"), (2, "--zero 3"), (2, "--microbatches 4"), (2, "--model-parallel-size 2 --model-parallel-dim 1"),
             (2, "--stages 2 --microbatches 4"), (2, "--stages 2 --microbatches 8 --schedule interleaved"), (2, "--stages 2 --microbatches 4 --schedule gpipe --recompute"),
             (4, ""), (4, "--stages 2 --microbatches 4"), (4, "--zero 3")]
# What is planned, the limit in MiB (0: none): a small model, a wide last layer, a tight limit, tiny batches, a model with hardly any activations.
CHOSEN = [("--arch resnet18 --image-size 32 --num-labels 100 --batch-size 16", 0), ("--arch resnet18 --image-size 32 --num-labels 20000 --batch-size 8", 0),
          ("--arch resnet18 --image-size 32 --num-labels 100 --batch-size 16", 150), ("--arch convnet --image-size 28 --num-channels 1 --num-labels 10 --batch-size 64", 0),
          ("--arch mlp --image-size 28 --num-channels 1 --num-labels 10 --batch-size 32", 0)]


def common(batch, more):
    return ["--train-data", "null", "--null-images", str(batch * 64), "--device", "cpu", "--amp", "off", "--loader-threads", "1", *more.split()]


def call(command):
    p = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if p.returncode:
        raise SystemExit(f"{' '.join(command)}\n{p.stderr}")
    return p.stdout


def run(trainer, args, batch, ranks, steps):
    """Seconds of the median step behind the second one."""
    with tempfile.TemporaryDirectory() as folder:
        call([trainer, *args, "--procs", str(ranks), "--max-steps", str(steps), "--num-epochs", "100", "--log-dir", folder])
        records = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(batch / r["images_per_sec"] for r in records if "lr" in r and r["step"] > 2)


def predict(options, trainer):
    print(f"predicted and measured, {RESNET}, batch 32; median of {options.rounds} runs")
    missed, errors = 0, []
    for ranks, more in PREDICTED:
        args = common(32, f"{RESNET} --batch-size 32 {more}")
        said = json.loads(call([trainer, "plan", *args, "--world-size", str(ranks), "--step-time", "--json"]))["step"]["seconds"]
        took = statistics.median(run(trainer, args, 32, ranks, 7) for _ in range(options.rounds))
        off = said / took - 1
        errors += [off] * (ranks <= 2)
        aim = "" if ranks > 2 else "ok" if abs(off) <= 0.15 else "MISSED"
        missed += aim == "MISSED"
        print(f"  {ranks} rank{'s' if ranks > 1 else ' '} {more:58} predicted {1e3 * said:8.1f} ms, measured {1e3 * took:8.1f} ms, {100 * off:+6.1f} %  {aim}", flush=True)
    print(f"standard deviation of the errors at 1 and 2 ranks: {100 * statistics.stdev(errors):.1f} %")  # PLANNER_TELLS of worker/planner/planner.h is sqrt(2) times it
    return missed


def choose(options, trainer, case):
    net, limit = CHOSEN[case]
    batch = int(net.split()[-1])
    args = common(batch, net)
    more = ["--memory-limit", f"{limit}M"] if limit else []
    rows = json.loads(call([trainer, "plan", *args, "--world-size", "2", "--auto-parallel", *more, "--json"]))["plans"]
    fit = [r for r in rows if r["fits"]]

    def measure(r):  # a step of milliseconds is measured over many
        steps = min(max(options.steps, round(0.5 / r["seconds"])), 200)
        return run(trainer, [*args, *r["options"].split()], batch, 2, steps)

    for r in fit if len(fit) > 1 else ():
        r["took"] = measure(r)
    (chosen,) = [r for r in fit if r["chosen"]]
    # The least of many measured once is partly luck: the fastest ones and the chosen one run again, in turns.
    finalists = sorted(fit, key=lambda r: (r is not chosen, r["took"]))[:4] if len(fit) > 1 else fit
    again = [[measure(r) for r in finalists] for _ in range(options.rounds)]
    for r, took in zip(finalists, zip(*again)):
        r["took"] = statistics.median(took)
    best = min(finalists, key=lambda r: r["took"])
    ratio = chosen["took"] / best["took"]
    print(f"case {case}: {net}{f', limit {limit} MiB' if limit else ''}: {len(fit)} of {len(rows)} plans fit and were run")
    for what, r in (("chosen", chosen), ("best", best), ("worst", max(fit, key=lambda r: r["took"]))):
        print(f"  {what:7} {r['options'] or 'no option':62} predicted {1e3 * r['seconds']:8.1f} ms, measured {1e3 * r['took']:8.1f} ms")
    print(f"  chosen / best {ratio:.3f}  aim <= 1.10  {'ok' if ratio <= 1.1 else 'MISSED'}", flush=True)
    return ratio > 1.1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("--only", default="predict,choose")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cases", default=",".join(map(str, range(len(CHOSEN)))))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    missed = predict(options, options.trainer) if "predict" in options.only else 0
    for case in map(int, options.cases.split(",")) if "choose" in options.only else ():
        missed += choose(options, options.trainer, case)
    if options.check and missed:
        raise SystemExit(1)


main()
