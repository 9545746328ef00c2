"""A read of a picture that never ends, as of a file server that is gone."""
import os
import shutil
import subprocess

from support import CRUN, preload


def test_of_two_ranks_the_one_whose_read_never_ends_names_the_file(shapes, tmp_path):
    """Before the other one gives up to wait for it. Unshuffled, a picture is the same rank's in each epoch."""
    train = shutil.copytree(shapes(32, 100, 200) / "train", tmp_path / "train")
    victim = sorted(train.glob("*/*"))[4]  # rank 0's: of an even number
    line = [CRUN, "--standalone", "--nproc_per_node", 2, "trainer", "--train-data", train, "--arch", "mlp", "--image-size", 32, "--device", "cpu", "--comm", "gloo",
            "--batch-size", 10, "--sampler", "distributed", "--shuffle", "off", "--num-epochs", 100000, "--progress", "torch", "--print-freq", 1, "--comm-timeout", 40]
    gone = tmp_path / "gone"
    env = {**os.environ, **preload("fault_slow"), "FAULT_SLOW_RANK": "0", "FAULT_SLOW_PATH": victim.name, "FAULT_SLOW_MS": "600000", "FAULT_SLOW_WHEN": str(gone)}
    p = subprocess.Popen([str(a) for a in line], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path, env=env)
    for text in p.stderr:
        if "Epoch: [1][" in text:
            gone.touch()
            break
    rest = p.stderr.read()
    assert p.wait(timeout=60) == 1, rest
    assert f"no batch was ready within 20000 ms: '{victim}' is still being read" in rest, rest
    assert "culprit   rank 0 " in rest, rest
