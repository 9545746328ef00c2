"""What is shipped for Prometheus and Grafana (docs/examples/monitoring): checked by promtool, and by what a daemon and an agent really tell."""
import json
import re
import shutil
import subprocess
import sys

import pytest

from daemon import Client, Daemon
from support import ROOT
from test_history import ask, begin

FOLDER = ROOT / "docs" / "examples" / "monitoring"


def promtool(*args, text=None):
    if not shutil.which("promtool"):
        pytest.skip("no promtool (Debian's package: prometheus)")
    return subprocess.run(["promtool", *map(str, args)], input=text, capture_output=True, text=True, timeout=60, check=False, cwd=FOLDER)


@pytest.mark.parametrize("args", [("check", "rules", "rendezvousd.rules.yml"), ("test", "rules", "rendezvousd.rules.test.yml"),
                                  ("check", "config", "--syntax-only", "prometheus.yml")], ids=["rules", "their tests", "configuration"])
def test_promtool_takes_what_is_shipped(args):
    p = promtool(*args)
    assert p.returncode == 0 and "SUCCESS" in p.stdout, p.stdout + p.stderr


@pytest.fixture
def told():
    """/metrics of a daemon with a job that has told all there is to tell."""
    with Daemon("--http-port", "0") as d, Client(d.port) as c:
        begin(c, 'a "run" \\ of \n lines')
        c("RDZV.REPORT", 'a "run" \\ of \n lines', "n1", "step=5", "base=0", "steps=5,5", "step_ms=1,2", "loss=1", "accuracy=0.5", "eval_accuracy=0.5", "images_per_s=3", "total_steps=100")
        c("RDZV.REPORT", 'a "run" \\ of \n lines', "n1", "step=6", "base=0", "steps=6,6", "step_ms=1,2")
        yield ask(d, "/metrics")[1]


def test_promtool_takes_the_metrics(told):
    p = promtool("check", "metrics", text=told)
    assert p.returncode == 0, p.stdout + p.stderr


def test_rules_and_panels_speak_of_metrics_that_there_are(told):
    there = set(re.findall(r"^# TYPE (\S+)", told, re.M))
    there |= {f"{name}_bucket" for name in there} | {f"{name}_sum" for name in there} | {"up"}
    there |= set(re.findall(r"`(crun_[a-z_]+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    asked = re.findall(r"expr: (.*)", (FOLDER / "rendezvousd.rules.yml").read_text())
    board = json.loads((FOLDER / "rendezvousd.dashboard.json").read_text())
    asked += [t["expr"] for p in board["panels"] for t in p["targets"]]
    names = {n for expr in asked for n in re.findall(r"\b(?:rendezvousd|process|crun)_[a-z_]+", re.sub(r'"[^"]*"', "", expr))}
    assert len(names) > 25 and names <= there, names - there


def test_the_dashboard_is_the_one_that_its_list_makes():
    p = subprocess.run([sys.executable, "-c", "import dashboard, json; print(json.dumps(dashboard.dashboard()))"], cwd=FOLDER, capture_output=True, text=True, timeout=60,
                       check=True, env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"})
    board = json.loads((FOLDER / "rendezvousd.dashboard.json").read_text())
    assert json.loads(p.stdout) == board
    boxes = [p["gridPos"] for p in board["panels"]]
    assert all(b["x"] + b["w"] <= 24 for b in boxes) and len({(b["x"], b["y"]) for b in boxes}) == len(boxes), "no panel over another"
