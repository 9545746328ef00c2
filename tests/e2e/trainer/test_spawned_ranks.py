"""Processes that trainer starts itself: they train as one, fail as one, and none is left behind."""
import os
import pathlib
import signal
import time

import pytest

from command_lines import refused, result, start, trained
from metrics_file import losses
from support import TRAINER, preload, run

LINE = "--arch convnet --image-size 28 --num-channels 1 --device ref --sync-bn --batch-size 16"


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 64, 20)


def test_they_train_as_one_process_does(data, tmp_path):
    for name, more in ("alone", ""), ("two", "--procs 2"), ("three", "--data-parallel --gpus 0,1,2"):
        trained(tmp_path, f"--train-data {data}/train {LINE} --max-steps 3 --log-dir {name} {more}")
    alone = losses(tmp_path / "alone")
    for name in "two", "three":
        got = losses(tmp_path / name)
        assert len(got) == 3 and all(abs(a - b) <= 1e-8 * abs(b) for a, b in zip(got, alone)), name


def endless(data, cwd, procs=3, **env):
    """A run of many epochs, its parent and its ranks once all of them train."""
    p = start(cwd, f"--train-data {data}/train {LINE} --num-epochs 100000 --procs {procs} --log-dir out --checkpoint-dir ck --checkpoint-every 100000", **env)
    deadline = time.monotonic() + 60
    while not (cwd / "out" / "metrics.jsonl").exists():
        assert p.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    return p, children(p.pid)


def children(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def lives(pid):
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def gone(pids, seconds=15):
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


@pytest.mark.parametrize("args, code, sentence", [(["--train-data", "nowhere"], 65, "trainer: --train-data: 'nowhere' does not exist\n"), (["--train-data", "null", "--arch", "nonsense"], 2, "trainer: --arch: unknown architecture 'nonsense'")])
def test_what_all_of_them_refuse_is_said_once(tmp_path, args, code, sentence):
    p = run(TRAINER, *args, "--procs", 4, cwd=tmp_path)
    assert p.returncode == code and p.stderr.count(sentence) == 1 and p.stderr.count("\n") == 2, p.stderr  # and which rank ended first


def test_one_that_dies_ends_all(data, tmp_path):
    p, ranks = endless(data, tmp_path)
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    result(p, 60)
    assert p.returncode == 128 + signal.SIGKILL, p.stderr_text
    assert "rank 1 was killed by signal 9" in p.stderr_text
    gone(ranks)


def test_the_one_that_died_is_named_even_if_another_is_seen_before(data, tmp_path):
    p, ranks = endless(data, tmp_path)
    p.send_signal(signal.SIGSTOP)
    os.kill(ranks[1], signal.SIGKILL)
    gone(ranks)  # the others find it gone
    p.send_signal(signal.SIGCONT)
    result(p, 60)
    assert p.returncode == 128 + signal.SIGKILL and "rank 1 was killed by signal 9" in p.stderr_text, p.stderr_text


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_stops_all_in_good_order(data, tmp_path, sig):
    p, ranks = endless(data, tmp_path)
    p.send_signal(sig)
    result(p, 60)
    assert p.returncode == 75, p.stderr_text
    assert (tmp_path / "ck" / "latest").exists() and "stopped at step" in p.stderr_text
    gone(ranks)


def test_a_killed_parent_leaves_nobody(data, tmp_path):
    p, ranks = endless(data, tmp_path)
    p.kill()
    p.wait()
    gone(ranks)


def test_the_code_is_that_of_the_rank_that_failed(data, tmp_path):
    p = refused(tmp_path, f"--train-data {data}/none {LINE} --procs 2", 65, "does not exist")
    assert "ended with exit code 65" in p.stderr_text


def test_ranks_with_other_seeds_do_not_begin(data, tmp_path):
    ranks = [start(tmp_path, f"--train-data {data}/train {LINE} --max-steps 1 --seed {r} --log-dir out{r}", RANK=r, WORLD_SIZE=2, LOCAL_RANK=r,
                   LOCAL_WORLD_SIZE=2) for r in range(2)]
    ranks = [result(p) for p in ranks]
    assert [p.returncode for p in ranks] == [78, 78], [p.stderr_text for p in ranks]
    assert "before the first step" in ranks[0].stderr_text and "--seed" in ranks[0].stderr_text


def test_one_that_outlives_sigkill_is_named_and_left_behind(data, tmp_path):
    p, ranks = endless(data, tmp_path, 2, **preload("fault_kill"))
    os.kill(ranks[1], signal.SIGSTOP)
    os.kill(ranks[0], signal.SIGKILL)
    time.sleep(11)  # the 10 s that ranks have to end by themselves are over
    before = spent(p.pid)
    time.sleep(1)
    assert spent(p.pid) - before < 20, "the parent spins"
    result(p)
    assert p.returncode == 137 and f"process {ranks[1]}, has not ended" in p.stderr_text, p.stderr_text
    gone(ranks)


def spent(pid):
    """Clock ticks of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
