"""`trainer plan` says what a run comes to; --mem-report shows the run beside it."""
import json
import pathlib
import re

import pytest

from metrics_file import records
from support import CRUN, TRAINER, run

NET = ["--train-data", "null", "--null-images", 96, "--num-labels", 1001, "--arch", "resnet18", "--image-size", 32, "--batch-size", 24,
       "--device", "cpu", "--threads", 1]
SPLIT = ["--model-parallel-size", 2, "--model-parallel-dim"]
MIB = 1 << 20
SLOW = pytest.mark.slow


def plan(*args):
    p = run(TRAINER, "plan", *NET, *args, "--json", timeout=60)
    assert p.returncode == 0 and p.stderr == "", p.stderr
    return json.loads(p.stdout)


def report(tmp_path, ranks, *args, steps=2):
    """What a run of so many steps says at its end, rank by rank."""
    p = run(TRAINER, *NET, *args, "--procs", ranks, "--max-steps", steps, "--mem-report", "--log-dir", tmp_path / "log", timeout=300)
    assert p.returncode == 0, p.stderr
    assert "--mem-report, after the first step:" in p.stderr and "--mem-report, at the end:" in p.stderr
    first, last = [r["ranks"] for r in records(tmp_path / "log") if r.get("event") == "mem-report"]
    assert len(first) == len(last) == ranks
    return last


# oneDNN's kernels for AMX ask for scratch memory that they do not all touch.
AMX = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text()

# The held memory is above the plan by what no plan counts: stacks, compiled kernels, scratch of Gloo's ring.
LAYOUTS = {
    "plain": (2, ["--image-size", 64]), "zero 1, adam, averages": (2, ["--zero", 1, "--optimizer", "adam", "--ema", 0.9]), "zero 2, parts": (3, ["--zero", 2, "--accumulate", 2]),
    "zero 3, parts": (2, ["--zero", 3, "--accumulate", 2]), "zero 1, second owners": (3, ["--zero", 1, "--replicate-state", 1, "--optimizer", "adam"]),
    "zero 3, second owners": (3, ["--zero", 3, "--replicate-state", 1, "--ema", 0.9]), "stages": (2, ["--stages", 2, "--microbatches", 4]),
    "stages, recomputing": (4, ["--stages", 2, "--microbatches", 4, "--schedule", "gpipe", "--recompute", "--zero", 1]), "stages, zero 3": (4, ["--stages", 2, "--microbatches", 4, "--zero", 3]),
    "classes, zero 1, sync bn": (4, [*SPLIT, 1, "--zero", 1, "--sync-bn"]), "features, parts": (2, [*SPLIT, 0, "--accumulate", 2]),
    "classes, halves": (2, [*SPLIT, 1, "--amp", "bf16", "--allreduce-dtype", "bf16"])}
DAILY = "plain", "zero 1, adam, averages", "zero 3, second owners", "features, parts", "classes, halves"  # of ResNet-18; all, of a small network


def counted(tmp_path, ranks, *args, steps=2):
    """-> of each rank what is planned and what the run reports, whose counts are the same."""
    planned = plan(*args, "--world-size", ranks)["ranks"]
    for k, there in zip(planned, report(tmp_path, ranks, *args, steps=steps), strict=True):
        assert {name: there["memory"][name] for name in k["memory"]} == k["memory"]
        assert there["sends"] == k["sends"]
        assert k["sends"]["sum"] * 0.999 <= there["sent"] <= k["sends"]["sum"] * 1.02
        yield k, there


@pytest.mark.parametrize("ranks, args", LAYOUTS.values(), ids=LAYOUTS)
def test_a_small_run_is_counted_as_planned(tmp_path, ranks, args):
    assert len(list(counted(tmp_path, ranks, *args, "--arch", "mlp"))) == ranks


@pytest.mark.parametrize("ranks, args, steps", [pytest.param(*LAYOUTS[name], 2, id=name) for name in DAILY] + [
    pytest.param(ranks, [*args, "--image-size", 64], 3, id=f"{name}, 64 pixels", marks=SLOW) for name, (ranks, args) in LAYOUTS.items()])
def test_a_run_is_as_planned(tmp_path, ranks, args, steps):
    for k, there in counted(tmp_path, ranks, *args, steps=steps):
        above = there["held"]["first step"] - there["held"]["begin"]
        untouched = k["memory"]["workspace"] if AMX and "bf16" in args else 0
        assert k["memory"]["sum"] - k["memory"]["batches"] - untouched - 16 * MIB <= above <= k["memory"]["sum"] + 32 * MIB


@pytest.mark.parametrize("ranks, args", [
    (2, ["--ema", 0.9]), pytest.param(3, ["--zero", 1, "--optimizer", "adam"], marks=SLOW), (3, ["--zero", 3, "--replicate-state", 1, "--ema", 0.9]), (2, ["--stages", 2, "--microbatches", 4])],
    ids=["plain, averages", "zero 1, adam", "zero 3, second owners", "stages"])
def test_copies_in_memory_are_as_planned(tmp_path, ranks, args):
    args = [*args, "--memory-checkpoints", 2]
    planned = [k["memory"] for k in plan(*args, "--world-size", ranks)["ranks"]]
    p = run(CRUN, "--standalone", "--nproc_per_node", ranks, TRAINER, *NET, *args, "--log-level", "info", "--max-steps", 3, "--mem-report", "--log-dir", tmp_path / "log", timeout=300)
    assert p.returncode == 0, p.stderr
    there = [r["ranks"] for r in records(tmp_path / "log") if r.get("event") == "mem-report"][-1]
    for k, of in zip(there, planned, strict=True):
        assert {name: k["memory"][name] for name in of} == of
    taken = [int(n) for n in re.findall(r"checkpoints in memory take (\d+) bytes", p.stdout + p.stderr)]
    assert sorted(taken) == sorted(of["kept"] for of in planned if of["kept"]) and len(taken) == (1 if "--zero" not in args and "--stages" not in args else ranks)


def test_what_zero_saves_is_what_the_plan_says(tmp_path):
    def held(of):
        return of["held"]["first step"] - of["held"]["begin"]

    args = ["--optimizer", "adam"]
    plain, cut = report(tmp_path / "0", 2, *args)[1], report(tmp_path / "1", 2, *args, "--zero", 1)[1]
    saved = plain["memory"]["sum"] - cut["memory"]["sum"]
    assert saved == pytest.approx(plain["memory"]["optimizer"] / 2, rel=0.02)
    assert held(plain) - held(cut) == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("zero, twice", [(1, ["optimizer"]), (2, ["optimizer"]), (3, ["parameters", "optimizer"])])
def test_a_second_owner_of_each_part_takes_as_much_again(zero, twice):
    one, two = (plan("--optimizer", "adam", "--zero", zero, "--world-size", 8, "--local-world-size", 4, "--replicate-state", n)["ranks"][0] for n in (0, 1))
    for what in twice:
        assert two["memory"][what] == pytest.approx(2 * one["memory"][what], rel=0.02), what
    p = run(TRAINER, "plan", *NET, "--zero", zero, "--world-size", 8, "--replicate-state", 1, timeout=60)
    assert f"layout: 8 ranks = 8 data x 1 tensor x 1 stages; ZeRO {zero}, each part on two ranks" in p.stdout
    part = one["memory"]["optimizer"] / 2  # of each: Adam has two moments
    assert two["sends"]["gradients"] - one["sends"]["gradients"] == pytest.approx(part, rel=0.02)


@pytest.mark.parametrize("many", [20001, pytest.param(40001, marks=SLOW)])
def test_zero_3_holds_what_the_plan_says(tmp_path, many):
    """At most, beyond what the same model with a small last layer holds: what grows is nearly all of the memory."""
    def of(classes, *args):
        there = report(tmp_path / f"{classes}", 2, "--zero", 3, "--optimizer", "adam", "--num-labels", classes, *args)[1]
        return there["held"]["peak"], there["memory"]["sum"]

    (small, small_plan), (large, large_plan) = of(8), of(many)
    print(f"held {(large - small) / MIB:.1f} MiB, planned {(large_plan - small_plan) / MIB:.1f} MiB")
    assert large - small == pytest.approx(large_plan - small_plan, rel=0.05)


def test_a_plan_takes_no_memory():
    """Some 150 GiB of activations are counted by a process that may have half a GiB."""
    p = run("prlimit", f"--data={512 * MIB}", TRAINER, "plan", "--train-data", "null", "--num-labels", 1000, "--arch", "resnet50", "--batch-size", 2048, "--json",
            timeout=60)
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout)["ranks"][0]["memory"]["activations"] > 100 << 30


def test_copies_of_weights_are_kept_only_where_they_serve_several_parts():
    once, twice = (plan("--accumulate", n)["ranks"][0]["memory"] for n in (1, 2))
    assert once["weights"] == 0 and twice["weights"] > 80 * MIB
    assert once["activations"] + once["workspace"] < twice["activations"] + twice["workspace"] + 40 * MIB


def test_the_reference_device_is_planned(tmp_path):
    small = ["--train-data", "null", "--num-labels", 10, "--null-images", 20, "--arch", "convnet", "--image-size", 28, "--num-channels", 1,
             "--batch-size", 10, "--device", "ref"]
    p = run(TRAINER, "plan", *small, "--world-size", 2, "--json", timeout=60)
    q = run(TRAINER, *small, "--procs", 2, "--max-steps", 1, "--mem-report", "--log-dir", tmp_path / "log", timeout=60)
    assert p.returncode == q.returncode == 0, p.stderr + q.stderr
    (event,) = [r for r in records(tmp_path / "log") if r.get("event") == "mem-report"]
    for k, there in zip(json.loads(p.stdout)["ranks"], event["ranks"], strict=True):
        assert {name: there["memory"][name] for name in k["memory"]} == k["memory"] and k["memory"]["activations"] > 0


def test_groups_are_named():
    p = run(TRAINER, "plan", *NET, *SPLIT, 1, "--zero", 1, "--world-size", 5, timeout=60)
    assert p.returncode == 0
    for line in ("layout: 4 ranks = 2 data x 2 tensor x 1 stages; ZeRO 1; 1 spare", "batch groups: 0 1 2 3", "data groups: 0 2; 1 3",
                 "tensor groups: 0 1; 2 3", "rank 0,2", "rank 1,3"):  # 501 classes, and 500
        assert line in p.stdout.splitlines(), p.stdout
    groups = plan(*SPLIT, 1, "--world-size", 4)["groups"]
    assert groups == {"batch": [[0, 1, 2, 3]], "data": [[0, 2], [1, 3]], "tensor": [[0, 1], [2, 3]], "stage": [[0], [1], [2], [3]]}


@pytest.mark.parametrize("args, says", [
    (["--world-size", 1, *SPLIT, 0], "1 rank cannot hold a model over 1 stage of tensor groups of 2: that takes at least 2"),
    (["--world-size", 2, "--local-world-size", 3], "--local-world-size 3: the run has 2 ranks in all"),
    (["--replicate-state", 1], "--replicate-state 1: without --zero every rank has the whole state already"),
    (["--zero", 1, "--replicate-state", 2], "--replicate-state: 2 is out of range, expected 0 to 1"),
    (["--world-size", 0], "--world-size: 0 is out of range"), (["--world-size", 4, "--num-labels", 3, "--model-parallel-size", 4, "--model-parallel-dim", 1], "3 classes cannot be split over 4 ranks")])
def test_what_cannot_be_planned(args, says):
    p = run(TRAINER, "plan", *NET, *args, timeout=60)
    assert p.returncode == 2 and p.stderr.startswith("trainer plan: ") and says in p.stderr and p.stdout == "", p.stderr
