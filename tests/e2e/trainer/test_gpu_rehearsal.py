"""The command lines of tests/gpu, rehearsed without a GPU: trainer on the processor in its place, gloo in NCCL's, small runs. A wrong option, or a line that
is looked for and never printed, shows here and not on the first GPU. What a small run does not reach, or finds no GPU for, may fail at that very line."""
import json
import os
import subprocess
import sys

import pytest

from support import BUILD, CRUN, ROOT, TRAINER

pytestmark = pytest.mark.gpu_emulated

MAY_FAIL = {  # test: what its assertion says
    "test_nccl_by_caffe2s_name": r'assert p.returncode == 0 and re.search(rf"^comm = {comm} "',  # it counts GPUs by itself, and finds none
    "test_resnet18_learns_the_shapes": "assert reached >= 97",
}
WRITTEN = ROOT / "tests/worker/device/cuda/h200.json"
# Who is killed and who goes on is the same with a small network.
SMALL = {"test_gpu_recovery.py": ["--arch", "convnet", "--image-size", "28"]}
STANDIN = f"""#!{sys.executable}
import json, os, sys
trainer, args = {str(TRAINER)!r}, sys.argv[1:]
more = [] if any(a.endswith(".net") for a in args) else os.environ["REHEARSED_NETWORK"].split()
if args[0] == "gpu-info":
    print(json.dumps({{"nccl": True, "gpus": [{{"description": "a stand-in", "properties": json.load(open({str(WRITTEN)!r}))}}]}}))
    sys.exit()
if args[0] != "caffe2":
    args = [{{"cuda": "host" if args[0].startswith("comm-") else "cpu", "ref": "cpu", "nccl": "gloo"}}.get(a, a) for a in args]
if args[0].startswith("--"):
    args += [*more, "--batch-size", "4"] + ([] if "--max-steps" in args else ["--max-steps", "40"])
os.execv(trainer, [trainer, *args])
"""
SANITIZER = "#!/bin/sh\n[ \"$1 $3\" = '--tool --error-exitcode' ] && [ $# = 6 ] && echo 'ERROR SUMMARY: 0 errors'\n"


@pytest.fixture
def rehearse(tmp_path):
    """rehearse(file) -> exit status and output of pytest, what it told all.py"""
    for name, text in (("worker/trainer", STANDIN), ("bin/compute-sanitizer", SANITIZER)):
        at = tmp_path / "build" / name
        at.parent.mkdir(parents=True)
        at.write_text(text)
        at.chmod(0o755)
    (tmp_path / "build/launcher").mkdir()
    (tmp_path / "build/launcher/crun").symlink_to(CRUN)
    for shared in ("tests", "common"):
        (tmp_path / "build" / shared).symlink_to(BUILD / shared)
    lines = tmp_path / "lines"
    env = dict(os.environ, CRUN_BUILD=str(tmp_path / "build"), CRUN_GPU_LINES=str(lines), CRUN_TEST_TORCH_CPU="1", PATH=f"{tmp_path}/build/bin:{os.environ['PATH']}")

    def go(file):
        env["REHEARSED_NETWORK"] = " ".join(SMALL.get(file, ["--image-size", "32"]))
        p = subprocess.run([sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--basetemp", tmp_path / "t", ROOT / "tests/gpu" / file],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=900, check=False)
        return p.stdout, [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []

    return go


@pytest.mark.long
@pytest.mark.parametrize("file", ["test_gpu_info.py", "test_gpu_ranks.py", "test_gpu_recovery.py", "test_gpu_sanitizer.py",
                                  pytest.param("test_gpu_recovery_torch.py", marks=pytest.mark.slow), pytest.param("test_gpu_training.py", marks=pytest.mark.slow)])
def test_every_command_is_understood(rehearse, file):
    out, told = rehearse(file)
    assert told, out
    for line in told:
        if line.get("outcome", "passed") == "failed":
            path, number, error = line["why"].split(":")
            said = (ROOT / path).read_text().splitlines()[int(number) - 1].strip()
            assert error == " AssertionError" and said.startswith(MAY_FAIL.get(line["name"].split("[")[0], "nothing")), out
        assert line.get("outcome") != "skipped" or "no redis-server" in line["why"], out
