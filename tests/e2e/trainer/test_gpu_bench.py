"""The GPU benchmark's own logic, with stand-ins for all that needs a GPU: what is lost when a part of it fails, hangs or runs out of time."""
import json
import os
import re
import subprocess
import sys
import time

import pytest

from support import ROOT
from support import TRAINER as REAL

pytestmark = pytest.mark.gpu_emulated

BENCH = ROOT / "tests/bench/gpu/bench_gpu.py"

TRAINER = f"""
TRAINER = {str(REAL)!r}
""" + """
import json, subprocess, sys
if sys.argv[1] == "gpu-info":
    print(json.dumps({"gpus": [{"description": "stand-in"}]}))
else:
    assert "--plan-cache" in sys.argv
    subprocess.run([TRAINER, *sys.argv[1:], "--print-config"], stdout=subprocess.DEVNULL, check=True)  # are these its options?
    out = sys.argv[sys.argv.index("--log-dir") + 1]
    with open(out + "/metrics.jsonl", "w") as f:
        for step in range(60):
            f.write(json.dumps({"lr": 0.1, "images_per_sec": 4000}) + "\\n")
"""
CEILINGS = 'print(\'{"copy_gb_s": 4000, "fp16_tflop_s": 800, "bf16_tflop_s": 800, "tf32_tflop_s": 400}\')'
DEVICE = """
import json, os, sys, time
o = dict(a.split("=", 1) for a in sys.argv[1:])
row = f"{o['arch']} {o['type']} {o['batch']}"
trouble = json.loads(os.environ["STANDIN"])
if row in trouble.get("dies", []):
    sys.exit("out of memory")
if row in trouble.get("hangs", []):
    time.sleep(600)
print(json.dumps({"device": "stand-in", "activations": 1, "weights": 1, "workspace": 1}), flush=True)
for line in sys.stdin:
    print(0.01 * int(line), flush=True)
if o["profile"] == "1":
    print(json.dumps([{"step": "conv", "op": "CONV", "of": "conv1", "engine": "eng1", "mb": 360, "gflop": 30.4, "ms": 1.5},
                      {"step": "update", "op": "XENT", "of": "", "engine": "", "mb": 0, "gflop": 0, "ms": 0.5}]))
"""
PEER = """
import json, os, sys
trouble = json.loads(os.environ["STANDIN"])
print(json.dumps({"torch": "stand-in"}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    said = {"seconds": 0.02 * order.get("steps", 0), "events": 0.02 * order.get("steps", 0)}
    if "make" in order:
        row = "{} {} {}".format(order["make"][0], order["make"][2], order["make"][1])
        if row in trouble.get("peer dies", []):
            sys.exit(3)
        said = {"error": "OutOfMemoryError: a lot"} if row in trouble.get("peer fails", []) else {"ready": 1.0, "mode": order["make"][3]}
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def bench(tmp_path):
    """bench(*args, trouble={}) -> exit status, output, what bench.json holds, seconds"""
    for name, text in (("worker/trainer", TRAINER), ("tests/bench/gpu/ceilings", CEILINGS), ("tests/bench/gpu/bench_gpu_device", DEVICE)):
        at = tmp_path / "build" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"#!{sys.executable}\n{text}")
        at.chmod(0o755)
    (tmp_path / "peer.py").write_text(PEER)

    def go(*args, **trouble):
        out, start = tmp_path / "bench.json", time.monotonic()
        p = subprocess.run([sys.executable, BENCH, "--build", tmp_path / "build", "--out", out, "--peer-program", tmp_path / "peer.py", "--jpegs", "2",
                            *map(str, args)], capture_output=True, text=True, timeout=500, env=dict(os.environ, STANDIN=json.dumps(trouble)))
        return p.returncode, p.stdout + p.stderr, json.loads(out.read_text()) if out.exists() else None, time.monotonic() - start

    return go


def test_the_whole_table_profile_and_trainer(bench):
    rc, out, found, _ = bench()
    assert rc == 0, out
    rows = found["rows"]
    assert len(rows) == 30 and found["cut"] == found["failed"] == []
    assert {r["ratio"] for r in rows} == {2.0}
    first = rows[0]
    assert (first["arch"], first["type"], first["batch"], first["peer_mode"]) == ("resnet50", "fp16", 256, "compile")
    assert first["images_s"] == 25600 and first["tflop_s"] == pytest.approx(622, abs=1) and first["of_flops"] == pytest.approx(0.778, abs=0.001)
    assert sum(r["peer_mode"] == "compile" for r in rows) == 9
    assert found["profile"]["step_ms"] == pytest.approx(10) and len(found["profile"]["steps"]) == 2
    assert [round(s["budget_ms"], 4) for s in found["profile"]["steps"]] == [0.1015, 0]  # 360 MB at 90 % of a copy, 30.4 GFLOP at 38 % of a product
    assert set(found["trainer"]) == {"resnet50 synthetic", "resnet18 synthetic", "resnet50 JPEG", "resnet18 JPEG"}
    assert "resnet152  tf32     64" in out and "left out for lack of time: nothing" in out


def test_a_row_that_fails_loses_no_other(bench):
    rc, out, found, _ = bench("--only", "resnet50,resnet18", **{"dies": ["resnet50 bf16 256"], "peer fails": ["resnet50 tf32 256"],
                                                                "peer dies": ["resnet18 fp16 256", "resnet18 tf32 64"]})
    assert rc == 1
    assert len(found["rows"]) == 11 and len(found["failed"]) == 4
    alone = {f"{r['arch']} {r['type']} {r['batch']}": r["peer_error"] for r in found["rows"] if "ratio" not in r}
    assert set(alone) == {"resnet50 tf32 256", "resnet18 fp16 256", "resnet18 tf32 64"}
    assert "a lot" in alone["resnet50 tf32 256"] and "exit status 3" in alone["resnet18 fp16 256"]
    assert "bench_gpu_device ended early (exit status 1)" in out and found["trainer"] and found["profile"]


@pytest.mark.long
def test_a_row_that_hangs_costs_no_more_than_the_budget(bench):
    rc, out, _, seconds = bench("--only", "resnet50", "--skip", "ceilings,profile,trainer")
    assert rc == 0, out
    budget = min(120, max(20, 5 * seconds))  # two rows are measured within it
    rc, out, found, _ = bench("--budget", budget, **{"hangs": ["resnet50 tf32 256"]})
    assert rc == 1 and len(found["rows"]) == 2 and "resnet152 tf32 64" in found["cut"], out
    waited = re.search(r"resnet50 tf32 256: .* gave no answer within (\d+) s", "\n".join(found["failed"]))
    assert int(waited[1]) <= budget, out
    # How much there was time for, the machine says; but each row, and each part after them, is accounted for once.
    outcomes = [f"{r['arch']} {r['type']} {r['batch']}" for r in found["rows"]] + found["cut"] + [f.split(":")[0] for f in found["failed"]]
    outcomes += ["profile"] * ("profile" in found) + [f"trainer {name}" for name in found["trainer"]]
    assert len(outcomes) == len(set(outcomes)) == 30 + 1 + 4, outcomes


def test_without_pytorch_ours_is_measured_alone(bench, tmp_path):
    (tmp_path / "peer.py").write_text("import no_such_module_here")
    rc, out, found, _ = bench("--only", "resnet18")
    assert rc == 1 and "no PyTorch beside" in out
    assert len(found["rows"]) == 6 and not any("ratio" in r for r in found["rows"])


def test_an_unknown_model_is_refused(bench):
    rc, out, found, _ = bench("--only", "resnet19")
    assert rc == 2 and "'resnet19'" in out and found is None
