"""What tests/gpu say of ranks that do not end, seen on the processor."""
import os
import re
import subprocess
import sys

import pytest

from support import CRUN, ROOT, TRAINER, run

sys.path.append(str(ROOT / "tests/gpu"))
import hung  # noqa: E402
from hung import run_ranks  # noqa: E402


@pytest.fixture
def shapes(tmp_path):
    p = run(TRAINER, "make-data", "shapes", "--out", tmp_path / "set", "--classes", 4, "--train-images", 640, "--test-images", 40, "--image-size", 28, "--seed", 0)
    assert p.returncode == 0, p.stderr
    return tmp_path / "set"


ENDLESS = ["--arch", "convnet", "--num-channels", 1, "--image-size", 28, "--batch-size", 4, "--num-epochs", 100000, "--device", "cpu", "--print-freq", 1]


def test_ranks_are_told_thread_by_thread(shapes):
    job = hung.new_job()
    place = r"\w+\.c:\d+" if b".debug_info" in TRAINER.read_bytes() else r"\?\?:[0?]"  # -g: functions have lines
    command = [CRUN, "--standalone", "--nproc_per_node", 2, TRAINER, "--train-data", shapes / "train", *ENDLESS]
    with subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, hung.MARK: job}) as p:
        assert any("Epoch 1/" in line for line in p.stdout)
        seen = hung.dissect(job)
        said = hung.named(p.stdout.read())
    for rank in range(2):
        assert re.search(rf"^rank {rank}, pid \d+:\n  trainer +[RSD] ", seen, re.M), seen
        assert re.search(rf"^\[default{rank}\]: \w+ {place}$", said, re.M), said


def test_a_program_in_a_folder_whose_name_has_a_blank_keeps_the_names_of_its_functions(tmp_path):
    (tmp_path / "it's here").symlink_to(TRAINER.parent)
    at = next(line.split()[0] for line in run("nm", TRAINER).stdout.splitlines() if line.endswith(" T main"))
    frame = f"[default0]: {tmp_path}/it's here/{TRAINER.name}(+0x{at.lstrip('0')})[0x5555]"
    assert re.fullmatch(r"\[default0\]: main (main\.c:\d+|\?\?:[0?])", hung.named(frame)), hung.named(frame)


def test_a_job_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(hung, "hung", [])
    with pytest.raises(pytest.fail.Exception, match="^no end within 1 s\n(begun\n)?\nthere are no ranks$"):
        run_ranks("sh", "-c", "echo begun; exec sleep 1000", seconds=1)


def test_a_job_that_ends_gives_what_it_printed():
    p = run_ranks("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (p.returncode, p.stdout, p.stderr) == (3, "out\n", "err\n")


def test_after_two_that_hang_no_other_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(hung, "hung", [])
    for _ in range(2):
        p = run_ranks("sh", "-c", "echo 'NCCL: messages has not ended within 60 ms' >&2; exit 1")
        assert p.returncode == 1
    with pytest.raises(pytest.skip.Exception, match="2 jobs before it hung, the first in test_after_two_that_hang_no_other_is_begun"):
        run_ranks("touch", tmp_path / "begun")
    assert not (tmp_path / "begun").exists()
