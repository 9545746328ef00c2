"""PyTorch's side of the GPU benchmark, on PyTorch's CPU device: its orders, and that what fails is an answer."""
import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "bench/gpu/pytorch_gpu.py"


def obey(*orders, timeout=600):
    p = subprocess.run([sys.executable, PROGRAM, "--device", "cpu", "--image", "32"], input="".join(json.dumps(o) + "\n" for o in orders),
                       capture_output=True, text=True, timeout=timeout)
    assert p.returncode == 0, p.stderr
    about, *answers = map(json.loads, p.stdout.splitlines())
    assert about["torch"] and len(answers) == len(orders)
    return answers


@pytest.mark.parametrize("kind", ["fp16", "bf16", "tf32"])
def test_a_model_is_made_timed_and_dropped(kind):
    made, ran, dropped, after = obey({"make": ["resnet18", 2, kind, "eager"]}, {"steps": 2}, {"drop": 1}, {"steps": 1})
    assert made["mode"] == "eager" and made["ready"] > 0
    assert ran["seconds"] > 0 and ran["events"] > 0
    assert dropped == {} and "KeyError" in after["error"]


def test_what_fails_is_an_answer_and_the_next_order_is_obeyed():
    bad, made = obey({"make": ["resnet19", 2, "fp16", "eager"]}, {"make": ["resnet18", 2, "bf16", "eager"]})
    assert "resnet19" in bad["error"] and made["mode"] == "eager"


def test_a_model_that_compiles_says_so_and_one_that_does_not_too(monkeypatch):
    made, ran = obey({"make": ["resnet18", 2, "bf16", "compile"]}, {"steps": 1})
    assert made["mode"] == "reduce-overhead" and ran["seconds"] > 0
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    made, ran = obey({"make": ["resnet18", 2, "bf16", "compile"]}, {"steps": 1})
    assert made["mode"].startswith("eager (not compiled: ") and ran["seconds"] > 0
