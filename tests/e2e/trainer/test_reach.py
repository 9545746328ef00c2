"""./dev reach fashion, with a small set in place of the package's."""
import gzip
import pathlib
import random
import re
import sys

from metrics_file import records
from support import ROOT, TRAINER, run

SCRIPT = ROOT / "tests/reach/fashion.py"


def write_set(folder, part, n):
    """Pictures whose brightness tells their label."""
    draw = random.Random(n)
    labels = [draw.randrange(10) for _ in range(n)]
    pictures = b"".join(bytes([25 * k]) * 784 for k in labels)
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"".join(v.to_bytes(4, "big") for v in (0x803, n, 28, 28)) + pictures))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"".join(v.to_bytes(4, "big") for v in (0x801, n)) + bytes(labels)))


def reach(data, out, *args):
    return run(sys.executable, SCRIPT, TRAINER, "--data", data, "--out", out, *args, timeout=300)


def test_a_run_that_is_cut_goes_on_and_ends_beside_what_is_published(tmp_path):
    data, out = tmp_path / "data", pathlib.Path(tmp_path / "out")
    data.mkdir()
    write_set(data, "train", 300)
    write_set(data, "t10k", 100)
    first = reach(data, out, "--epochs", 4, "--arch", "mlp", "--seed", 5, "--minutes", 0.0001)
    assert first.returncode == 75, first.stdout + first.stderr
    fp32, bf16, amp = re.search(r"fp32 ([\d,]+) images/s, bf16 ([\d,]+) images/s: --amp (off|bf16)", first.stdout).groups()
    assert (amp == "bf16") == (int(bf16.replace(",", "")) > int(fp32.replace(",", ""))) or fp32 == bf16
    assert "4.0 of 4 epochs are left" in first.stdout and "--resume goes on" in first.stdout
    begun = max(r["step"] for r in records(out) if "step" in r)
    assert 0 < begun < 12
    again = reach(data, out, "--epochs", 4)
    assert again.returncode == 1 and "holds a run: --resume goes on with it" in again.stderr
    other = reach(data, out, "--resume", "--seed", 6)
    assert other.returncode == 1 and "began with seed 5" in other.stderr
    last = reach(data, out, "--resume")
    assert last.returncode == 0, last.stderr
    assert f"resumed from step {begun} (" in last.stderr and f"--amp {amp}" in last.stdout
    top1 = [r["test_acc1"] for r in records(out) if "test_acc1" in r][-1]
    assert f"{top1:6.2f} %  mlp, 4 epochs, seed 5, --amp {amp}, last weights\n" in last.stdout
    assert " 94.90 %  published: ResNet-18\n" in last.stdout and "PyTorch" not in last.stdout
