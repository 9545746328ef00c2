"""How the GPU suites are run, with stand-ins for all of them: what fails, hangs, dies or is skipped is told, and nothing else is lost."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

from support import ROOT

pytestmark = pytest.mark.gpu_emulated

PROGRAMS = {
    "GPU ops good": 'echo 1..2; echo "ok 1 - add"; echo "ok 2 - relu"',
    "GPU ops bad": 'echo "ok 1 - add"; echo "not ok 2 - relu"; echo "# 3 != 4"; exit 1',
    "GPU ops crash": 'echo "ok 1 - add"; kill -SEGV $$',
    "GPU ops hang": 'echo "ok 1 - add"; sleep 600',
    "GPU ops none": 'echo "1..0 # SKIP no driver"',
}
TESTS = {
    "test_gpu_ranks.py": "import pytest\n\ndef test_good(keep):\n    print('a figure: 7')\n    keep('seven', [7])\n\ndef test_bad():\n    assert 1 == 2, 'they differ'\n\n"
                         "def test_absent():\n    pytest.skip('no redis-server')\n",
    "test_gpu_training.py": "import time\n\ndef test_first():\n    pass\n\ndef test_wrong():\n    assert 1 == 2, 'what rank 1 said'\n\ndef test_slow():\n"
                            "    time.sleep(600)\n",
    # Of two suites that may not run side by side: nobody else is in the folder.
    "test_gpu_recovery.py": "import test_gpu_recovery_torch\n\ndef test_alone():\n    test_gpu_recovery_torch.be_alone()\n",
    "test_gpu_recovery_torch.py": "import pathlib, time\n\ndef be_alone():\n    there = pathlib.Path(__file__).parent / 'there'\n    there.mkdir()\n    time.sleep(1)\n"
                                  "    there.rmdir()\n\ndef test_alone():\n    be_alone()\n",
}


@pytest.fixture
def suites(tmp_path):
    """suites(*args) -> exit status, output, what gpu-test.json holds, seconds"""
    build, python = tmp_path / "build", tmp_path / "tests/gpu"
    (build / "worker").mkdir(parents=True)
    (build / "worker/trainer").write_text("#!/bin/sh\necho '{}'\n")
    python.mkdir(parents=True)
    for shared in ("e2e", "support"):
        (tmp_path / "tests" / shared).symlink_to(ROOT / "tests" / shared)
    shutil.copy(ROOT / "tests/gpu/conftest.py", python)
    for name, text in TESTS.items():
        (python / name).write_text(text)
    listed = [{"name": n, "suite": ["crun:gpu"], "cmd": ["sh", "-c", c], "env": {"A": "b"}, "timeout": 15 if n == "GPU ops hang" else 300} for n, c in PROGRAMS.items()]
    listed.append({"name": "another", "suite": ["crun:unit"], "cmd": ["false"], "env": {}, "timeout": 300})
    (tmp_path / "meson").write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(listed)}\nEOF\n")
    for program in (tmp_path / "meson", build / "worker/trainer"):
        program.chmod(0o755)

    def go(*args):
        start = time.monotonic()
        p = subprocess.run([sys.executable, ROOT / "tests/gpu/all.py", "--build", build, "--out", tmp_path / "out", "--python", python, "--jobs", "1", *map(str, args)],
                           capture_output=True, text=True, timeout=500, env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", CRUN_BUILD=str(build)))
        found = pathlib.Path(tmp_path / "out/gpu-test.json")
        return p.returncode, p.stdout + p.stderr, json.loads(found.read_text()) if found.exists() else None, time.monotonic() - start

    return go


def test_each_suite_is_told_of(suites, tmp_path):
    rc, out, found, _ = suites("GPU ops", "ranks")
    assert rc == 1, out
    by = {s["suite"]: s for s in found["suites"]}
    assert list(by) == [*PROGRAMS, "ranks"] and not found["left_out"]
    assert by["GPU ops good"]["passed"] == ["add", "relu"] and not by["GPU ops good"]["failed"]
    assert by["GPU ops bad"]["failed"] == ["relu"] and "# 3 != 4" in out
    assert by["GPU ops crash"]["failed"] == ["GPU ops crash: exit status -11"]
    assert by["GPU ops hang"]["failed"] == ["GPU ops hang: no end within 15 s"] and by["GPU ops hang"]["passed"] == ["add"]
    assert by["GPU ops none"]["skipped"] == ["no driver"] and "skipped: no driver" in out
    ranks = by["ranks"]
    assert ranks["passed"] == ["test_good"] and "they differ" in ranks["output"] and "a figure: 7" in out
    assert ranks["figures"] == {"seven": [7]}
    assert len(ranks["failed"]) == 1 and ranks["failed"][0].startswith("test_bad")
    assert len(ranks["skipped"]) == 1 and "no redis-server" in ranks["skipped"][0]
    assert out.splitlines()[-1] == "6 passed, 4 failed, 2 skipped"
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["gpu-test.html", "gpu-test.json"]  # some machines give eight files back at most
    page = (tmp_path / "out/gpu-test.html").read_text()
    assert page.count("<tr class=failed>") == 4 and page.index("GPU ops bad") < page.index("GPU ops good")  # what failed comes first
    assert "they differ" in page and "no redis-server" in page and "<td>seven<td>[7]" in page


def test_the_budget_ends_a_suite_but_keeps_its_results(suites):
    budget = max(9, 5 * suites("good", "ranks")[3])  # pytest begins within it, however busy the machine is
    rc, out, found, seconds = suites("--budget", budget, "good", "training", "ranks")
    assert rc == 1 and seconds < 3 * budget
    by = {s["suite"]: s for s in found["suites"]}
    assert list(by) == ["GPU ops good", "training"] and found["left_out"] == ["ranks"]
    assert by["training"]["passed"] == ["test_first"] and "no end within" in by["training"]["failed"][1]
    assert by["training"]["failed"][0].startswith("test_wrong") and "what rank 1 said" in by["training"]["output"], "pytest tells at its end, which did not come"
    assert "left out for lack of time: ranks" in out


def test_suites_run_side_by_side(suites):
    rc, out, found, _ = suites("--jobs", 3, "good", "bad", "none")
    assert rc == 1 and sorted(s["suite"] for s in found["suites"]) == ["GPU ops bad", "GPU ops good", "GPU ops none"]
    assert out.splitlines()[-1] == "3 passed, 1 failed, 1 skipped"
    rc, out, _, _ = suites("--jobs", 0)
    assert rc == 2 and "--jobs 0 (expected at least 1)" in out


def test_suites_whose_ranks_share_the_card_take_turns(suites):
    rc, out, _, _ = suites("--jobs", 3, "recovery", "good")
    assert rc == 0 and out.splitlines()[-1] == "4 passed, 0 failed, 0 skipped", out


def test_who_waits_for_a_turn_past_the_budget_is_left_out(suites, tmp_path):
    for name in "ranks", "recovery", "recovery_torch":
        (tmp_path / f"tests/gpu/test_gpu_{name}.py").write_text("import time\n\ndef test_slow():\n    time.sleep(600)\n")
    budget = 5 + max(4, 5 * suites("good")[3])  # no suite begins in the last five seconds, and one is to
    rc, out, found, _ = suites("--jobs", 3, "--budget", budget, "ranks", "recovery")
    assert rc == 1 and len(found["suites"]) == 1 and len(found["left_out"]) == 2, out


def test_a_suite_that_is_none_is_refused(suites):
    rc, out, found, _ = suites("opps")
    assert rc == 1 and "'opps' is part of no suite's name: GPU ops good" in out and found is None
