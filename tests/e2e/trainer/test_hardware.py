"""Steps on machines that are not here: charts of others, predicted from what one GPU alone does."""
import json
import re

import pytest

import charts
from support import ROOT, TRAINER, run

RATES = re.compile(r'X\(HARDWARE_\w+,\s*"([\w-]+)",.*?HARDWARE_\w+,\s*([\d.]+),\s*(\d+),\s*DT_F(32|16)\)', re.S)


def published():
    """(name, images/s, batch, half) of the rows that have a rate of their own."""
    rows = RATES.findall((ROOT / "worker/planner/hardware.def").read_text())
    return [(name, float(rate), int(batch), bits == "16") for name, rate, batch, bits in rows if float(rate) > 0]


def plan(*args, code=0):
    p = run(TRAINER, "plan", "--train-data", "null", "--num-labels", 1000, "--arch", "resnet50", "--image-size", 224, *args, timeout=300)
    assert p.returncode == code, p.stdout + p.stderr
    return p


def test_one_gpu_alone_does_what_was_published():
    """It is what the efficiency comes from."""
    rows = published()
    assert {"titan-x", "p100", "v100", "a100", "h200"} <= {name for name, *_ in rows}
    for name, rate, batch, half in rows:
        p = json.loads(plan("--hardware", name, "--batch-size", batch, "--amp", "fp16" if half else "off", "--json").stdout)
        assert batch / p["step"]["seconds"] == pytest.approx(rate, rel=1e-6), name
        assert p["hardware"] == {"name": name, "rate": rate, "batch": batch, "efficiency": pytest.approx(p["hardware"]["efficiency"])}
        assert 0.3 < p["hardware"]["efficiency"] < 1, name


def test_caffe2s_speed_ups_are_predicted_within_a_tenth():
    ours = charts.speed_ups(TRAINER, [2, 8, 16, 64])
    for gpus, s in ours.items():
        assert s < gpus and s == pytest.approx(charts.CAFFE2[gpus], rel=0.1), (gpus, s)


def test_torchshards_sweep_is_predicted_within_a_fifth():
    for row, s in charts.torchshard(TRAINER).items():
        assert s == pytest.approx(charts.TORCHSHARD[row], rel=0.2), (row, s)


def test_the_machines_are_said_and_counted():
    text = plan("--hardware", "p100", "--nodes", 2, "--batch-size", 512).stdout
    assert "16 ranks = 16 data" in text
    assert re.search(r"hardware: Tesla P100, NVLink, 50 Gbit/s; 2 nodes of 8; efficiency 0\.\d+, by 195 images/s of ResNet-50 on one Tesla P100.*, 32 at a time\n", text)
    slow, slower = (json.loads(plan("--hardware", "p100", "--nodes", 2, "--batch-size", 512, "--network", n, "--json").stdout)["step"]["seconds"] for n in ("5us,10", "5us,1"))
    assert slower > 2 * slow


@pytest.mark.parametrize("args, says", [
    (["--nodes", 2], "--nodes 2: of which machines? --hardware names them"),
    (["--hardware", "p100", "--nodes", 2, "--world-size", 12], "--nodes 2 of 8 ranks are not --world-size 12"),
    (["--hardware", "abacus"], "--hardware: 'abacus'")])
def test_what_makes_no_sense_is_refused(args, says):
    p = plan(*args, code=2)
    assert says in p.stderr and p.stdout == "", p.stderr
