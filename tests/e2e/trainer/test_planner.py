"""How long a step would take, and the plan that --auto-parallel chooses."""
import json
import re

import pytest

from metrics_file import losses, records
from support import TRAINER, run
from tensors import newest

NET = ["--train-data", "null", "--null-images", 48, "--num-labels", 101, "--arch", "convnet", "--image-size", 28, "--num-channels", 1, "--batch-size", 8, "--device", "cpu",
       "--threads", 1, "--loader-threads", 1]
MIB = 1 << 20


def plan(*args, code=0):
    p = run(TRAINER, "plan", *NET, *args, timeout=300)
    assert p.returncode == code, p.stdout + p.stderr
    return p


def plan_json(*args):
    return json.loads(plan(*args, "--json").stdout)


@pytest.fixture(scope="module")
def needs():
    """Bytes a rank of each plan for two ranks, from the smallest."""
    return sorted(r["need"] for r in plan_json("--world-size", 2, "--auto-parallel")["plans"])


# --- the time of a step

@pytest.mark.parametrize("world, args", [(1, []), (2, ["--stages", 2, "--microbatches", 4]), (2, ["--zero", 3, "--accumulate", 2, "--sync-bn"])], ids=["alone", "stages", "zero 3"])
def test_the_time_of_a_step_is_predicted(world, args):
    """From measured operations and links; what else is said is what the plan says without."""
    timed, counted = plan_json(*args, "--world-size", world, "--step-time"), plan_json(*args, "--world-size", world)
    step = timed.pop("step")
    assert 0 < step["computes"] < 60 and step["seconds"] >= step["computes"] * 0.99
    assert (step["reduces"] > 0) == (world > 1 and "--stages" not in args)
    links = timed.pop("inside", None)
    assert (links is not None) == (world > 1)
    for call, link in (links or {}).items():
        assert link["alpha"] >= 0 and (link["beta"] > 0 or call in ("hand_over", "ask"))
    assert timed == counted


@pytest.mark.parametrize("a_node", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_links_between_nodes_are_given_or_asked_for(a_node):
    p = plan("--world-size", 4, "--local-world-size", 2, "--step-time", code=2)
    assert "links between nodes are not here to be measured: --network TIME,GIGABIT" in p.stderr
    two = ["--world-size", 2 * a_node, "--local-world-size", a_node, "--step-time"]  # of one rank: no link that is measured
    slow, slower = (plan_json(*two, "--network", n)["step"]["seconds"] for n in ("100us,1", "100us,0.1"))
    # the gradients at 1 and at 0.1 gigabit a second, and nothing to hide them behind
    sends = plan_json(*two[:4])["ranks"][0]["sends"]["gradients"]
    assert slower - slow == pytest.approx(sends * 8 * (10 - 1) / 1e9, rel=0.5)
    p = plan(*two, "--network", "fast", code=2)
    assert p.stderr == "trainer plan: --network: 'fast' is not TIME,GIGABIT (such as 50us,10)\n"


def test_a_network_is_only_for_predictions():
    said = "--network 50us,10: nothing is predicted here"
    assert said in plan("--world-size", 4, "--network", "50us,10", code=2).stderr
    p = run(TRAINER, *NET, "--procs", 2, "--max-steps", 1, "--network", "50us,10", timeout=60)
    assert p.returncode == 2 and p.stderr.count(said) == 1, p.stderr


# --- --auto-parallel

def mechanisms(options):
    """As worker/planner/plans.h counts them: an option each, but for those that say how."""
    named = re.findall(r"--[a-z-]+", options)
    return sum(o not in ("--model-parallel-dim", "--schedule") for o in named) + options.count("interleaved")


def test_the_chosen_plan_is_the_simplest_of_the_fastest_that_fit(needs):
    limit = needs[12]
    p = plan_json("--world-size", 2, "--auto-parallel", "--memory-limit", limit)
    rows = p["plans"]
    (chosen,) = [r for r in rows if r["chosen"]]
    assert len(rows) > 30 and 0 < sum(r["fits"] for r in rows) < len(rows)
    for r in rows:
        assert r["fits"] == (r["need"] <= limit)
    alike = [r for r in rows if r["fits"] and r["seconds"] <= min(k["seconds"] for k in rows if k["fits"]) * 1.08]
    assert chosen in alike and all(mechanisms(chosen["options"]) <= mechanisms(r["options"]) for r in alike)
    assert (f"simplest of {len(alike)} within 8 % of" if len(alike) > 1 else "it is the fastest, by more than 8 %") in p["why"]
    assert max(r["memory"]["sum"] for r in p["ranks"]) == chosen["need"]
    assert p["step"]["seconds"] == chosen["seconds"]
    # and what it says of a plan is what the plan says of itself
    for r in (rows[0], chosen, rows[-1]):
        alone = plan_json("--world-size", 2, *r["options"].split())
        assert max(k["memory"]["sum"] for k in alone["ranks"]) == r["need"]


def test_a_limit_that_nothing_fits_is_refused():
    p = plan("--world-size", 2, "--auto-parallel", "--memory-limit", "10K", code=2)
    said = re.search(r"trainer plan: --memory-limit: nothing fits 0\.00976562 MiB a rank; the smallest need is ([\d.]+) MiB \((.*)\)", p.stderr)
    assert said, p.stderr
    alone = plan_json("--world-size", 2, *said[2].split())
    assert max(k["memory"]["sum"] for k in alone["ranks"]) / MIB == pytest.approx(float(said[1]), abs=0.06)


def auto(ranks, *args, code=0):
    """The run's stderr, and the options that it chose."""
    p = run(TRAINER, *NET, "--procs", ranks, "--auto-parallel", "--seed", 3, "--check-replicas", 1, *args, timeout=300)
    assert p.returncode == code, p.stdout + p.stderr
    said = re.search(r"  as options: (.*)", p.stderr)
    return p, said and said[1]


def test_a_run_goes_by_the_plan_it_chose(tmp_path):
    p, options = auto(2, "--max-steps", 3, "--mem-report", "--log-dir", tmp_path / "auto")
    assert re.search(r"auto-parallel: (\d+) of \1 plans fit\n", p.stderr) and "  chosen " in p.stderr and "  why: " in p.stderr and re.search("  (next best|fastest) ", p.stderr)
    options = [] if options == "none" else options.split()
    q = run(TRAINER, *NET, "--procs", 2, "--seed", 3, "--max-steps", 3, "--mem-report", "--log-dir", tmp_path / "said", *options, timeout=300)
    assert q.returncode == 0, q.stderr
    assert losses(tmp_path / "auto") == losses(tmp_path / "said")
    one, two = ([r["ranks"] for r in records(tmp_path / name) if r.get("event") == "mem-report"][-1] for name in ("auto", "said"))
    assert [r["memory"] for r in one] == [r["memory"] for r in two] and [r["sends"] for r in one] == [r["sends"] for r in two]


def test_another_plan_goes_on_from_the_checkpoint(needs, tmp_path):
    """Under a limit, then without, then on another number of ranks: whichever plans come out."""
    where = ["--checkpoint-dir", tmp_path / "ckpt", "--resume", "auto", "--checkpoint-every", 2]
    limit = needs[2]
    first, one = auto(2, *where, "--max-steps", 2, "--memory-limit", limit)
    second, two = auto(2, *where, "--max-steps", 4, "--microbatches", 4)
    third, three = auto(1, *where, "--max-steps", 6)
    assert one != "none" and f"{limit / MIB:.1f} MiB a rank" in first.stderr
    assert "resumed from step 2 (" in second.stderr and "resumed from step 4 (" in third.stderr
    assert "--microbatches 4" in two and three is not None
    assert newest(tmp_path / "ckpt").name == "step-00000006"


@pytest.mark.parametrize("args, says", [
    (["--auto-parallel", "--zero", 1], "--zero: --auto-parallel chooses that itself"), (["--auto-parallel", "--stages", 2], "--stages: --auto-parallel chooses"),
    (["--memory-limit", "1G"], "--memory-limit is what --auto-parallel may choose within"), (["--auto-parallel", "--memory-limit", "much"], "--memory-limit: 'much': expected a size such as 1.5G")])
def test_what_contradicts_is_refused(args, says):
    p = plan(*args, "--world-size", 2, code=2)
    assert says in p.stderr and p.stdout == ""
