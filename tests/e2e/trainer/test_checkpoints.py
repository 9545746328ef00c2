"""Saving beside training: slow, full and killed disks, the best checkpoint, names and folders."""
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest

from processes import WAIT
from support import CRUN, TRAINER, faulty_disk, free_port, run
from tensors import newest

STILL = ("--arch", "mlp", "--base-learning-rate", 0, "--warmup-epochs", 0, "--weight-decay", 0)  # nothing moves: all accuracies are equal
STEPS = 20  # of the whole run: 5 epochs of 4


def command(data, out, *args):
    """Tiny and the same on every machine."""
    return [str(a) for a in (
        TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
        "--num-channels", 1, "--batch-size", 16, "--num-epochs", 5, "--device", "ref", "--base-learning-rate", 0.05,
        "--lr-policy", "fixed", "--log-level", "info", "--print-freq", 1, "--checkpoint-dir", out, *args)]


def lines(out):
    return [json.loads(m) for m in (out / "metrics.jsonl").read_text().splitlines()]


def saved(out):
    return [m for m in lines(out) if m.get("event") == "checkpoint"]


def wait_for(path, seconds=30):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.005)


def steps(out):
    return sorted(int(p.name[5:]) for p in pathlib.Path(out).glob("step-*"))


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(28, 64, 40, 4)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    p = run(*command(data, out))
    assert p.returncode == 0, p.stderr
    return (newest(out) / "model.safetensors").read_bytes()


def test_steps_go_on_while_a_slow_disk_writes(data, undisturbed, tmp_path):
    p = run(*command(data, tmp_path, "--checkpoint-every", 1, "--checkpoint-keep", 0, "--eval-every", 0),
            env=faulty_disk(fsync_ms=400))
    assert p.returncode == 0, p.stderr
    done = saved(tmp_path)
    assert all(m["write_ms"] >= 800 and m["copy_ms"] > 0 and m["bytes"] > 0 for m in done), done
    at = [m["step"] for m in done]
    print("saved at steps", at)
    assert at[0] == 1 and at[-1] == STEPS and len(at) < STEPS
    assert max(b - a for a, b in zip(at, at[1:])) > 1, "no step was done while a checkpoint was written"
    assert steps(tmp_path) == at
    assert (newest(tmp_path) / "model.safetensors").read_bytes() == undisturbed


def test_checkpoint_sync_writes_every_checkpoint_between_two_steps(data, undisturbed, tmp_path):
    p = run(*command(data, tmp_path, "--checkpoint-every", 2, "--checkpoint-keep", 0, "--checkpoint-sync", "--eval-every", 0),
            env=faulty_disk(fsync_ms=20))
    assert p.returncode == 0, p.stderr
    assert [m["step"] for m in saved(tmp_path)] == list(range(2, STEPS + 1, 2))
    assert (newest(tmp_path) / "model.safetensors").read_bytes() == undisturbed


def test_what_a_checkpoint_is_made_of_is_on_disk_before_its_name_and_that_before_anything_else(data, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    p = run(*command(data, out, "--max-steps", 4, "--checkpoint-keep", 0), env=faulty_disk(log=log))
    assert p.returncode == 0, p.stderr
    told = [line.replace(str(out), "DIR") for line in log.read_text().splitlines() if str(out) in line and "metrics" not in line]
    tmp, step = "DIR/step-00000004.tmp", "DIR/step-00000004"
    assert sorted(told[:3]) == [f"fsync {tmp}/{name}" for name in ("manifest.json", "model.safetensors", "train.safetensors")], told
    assert told[3:6] == [f"fsync {tmp}", f"rename {tmp} {step}", "fsync DIR"], told
    assert told[6:8] == ["rename DIR/latest.tmp DIR/latest", "fsync DIR"], told


def test_a_kill_in_the_middle_of_a_write_leaves_the_checkpoint_before(data, undisturbed, tmp_path):
    p = subprocess.Popen(command(data, tmp_path), env=faulty_disk(fsync_ms=1500), stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "saving step 8" in line:
            wait_for(tmp_path / "step-00000008.tmp" / "model.safetensors")
            p.send_signal(signal.SIGKILL)
            break
    p.communicate(timeout=60)
    assert sorted(q.name for q in tmp_path.glob("step-*")) == ["step-00000004", "step-00000008.tmp"]
    again = run(*command(data, tmp_path, "--resume", "auto"))
    assert again.returncode == 0 and "resumed from step 4 " in again.stderr, again.stderr
    assert not list(tmp_path.glob("*.tmp"))
    assert (newest(tmp_path) / "model.safetensors").read_bytes() == undisturbed


def killed_while_saving(data, out, seconds, hold=None):
    """Goes on with the run in out and kills it `seconds` after its second save began; while there is a file `hold`, in the middle of the first one.
    Returns what it said and whether it was in the middle."""
    p = subprocess.Popen(command(data, out, *CHAIN), env=faulty_disk(fsync_ms=30, **{"hold": hold} if hold else {}), stderr=subprocess.PIPE, text=True)
    said, begun = [], 0
    for line in p.stderr:
        said.append(line)
        begun += "saving step" in line
        if begun == (1 if hold else 2):
            if hold:
                wait_for(out / f"step-{int(line.split()[-1]):08}.tmp" / "model.safetensors")
            time.sleep(seconds)  # any moment will do
            p.send_signal(signal.SIGKILL)
            break
    said += p.communicate(timeout=60)[1].splitlines(True)
    assert p.returncode == -signal.SIGKILL, "".join(said)
    return "".join(said), bool(list(out.glob("*.tmp")))


CHAIN = ("--checkpoint-every", 1, "--checkpoint-keep", 2, "--resume", "auto", "--num-epochs", 1000, "--eval-every", 0, "--warmup-epochs", 0)


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_at_random_points_of_saving_always_leave_a_complete_checkpoint(data, tmp_path, kills):
    seed = int(os.environ.get("CRUN_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    hold = tmp_path / "hold"
    hold.touch()
    rng, out, chain = random.Random(seed), tmp_path / "killed", CHAIN[-6:]
    newest_told, middle, write = 0, 0, 0.1
    for kill in range(kills):
        held = kill == kills // 2  # one does strike a save, whatever chance says
        text, unfinished = killed_while_saving(data, out, 1.3 * write * (kill + rng.random()) / kills, hold if held else None)
        assert unfinished or not held, text
        resumed = [int(n) for n in re.findall(r"resumed from step (\d+)", text)]
        assert kill == 0 or (resumed and resumed[0] >= newest_told), text  # what was told to be saved is there
        assert "warn" not in text and "damaged" not in text, text          # and nothing half-made looks complete
        newest_told = max([newest_told, *(int(n) for n in re.findall(r"saved step (\d+)", text))])
        write = max([write, *(m["write_ms"] / 1000 for m in saved(out)[-1:])])
        middle += unfinished
    print(f"seed {seed}: {kills} kills, {middle} with a checkpoint half written; at step {newest_told} in the end")
    last = run(*command(data, out, *CHAIN, "--max-steps", newest_told + 8))
    assert last.returncode == 0 and not list(out.glob("*.tmp")), last.stderr
    whole = run(*command(data, tmp_path / "whole", *chain, "--max-steps", newest_told + 8))
    assert whole.returncode == 0, whole.stderr
    for name in ("model", "train"):
        assert (newest(out) / f"{name}.safetensors").read_bytes() == (newest(tmp_path / "whole") / f"{name}.safetensors").read_bytes()


def test_a_full_disk_leaves_the_checkpoint_before_and_training_goes_on(data, undisturbed, tmp_path):
    full = tmp_path / "full"
    full.touch()
    disk = faulty_disk(full=full, only="step-00000008.")  # has room again afterwards
    p = run(*command(data, tmp_path / "out", "--checkpoint-keep", 0), env=disk)
    told = [line for line in p.stderr.splitlines() if "training goes on" in line]
    assert p.returncode == 0 and told and all("No space left on device" in line for line in told), p.stderr
    assert steps(tmp_path / "out") == [4, 12, 16, 20]
    assert (newest(tmp_path / "out") / "model.safetensors").read_bytes() == undisturbed
    p = run(*command(data, tmp_path / "cut", "--checkpoint-keep", 1, "--max-steps", 8), env=disk)
    assert p.returncode == 73 and steps(tmp_path / "cut") == [4], p.stderr


@pytest.mark.parametrize("more", [[], ["--checkpoint-sync"], ["--stages", 2, "--procs", 2, "--device", "cpu"]], ids=["", "sync", "together"])
def test_the_last_save_on_a_full_disk_drops_the_oldest_that_is_not_the_best(data, tmp_path, more):
    """While the first, or second, is there, the disk has no room for the third."""
    for first, rest, args in ((4, [8, 12], ["--eval-every", 0]), (8, [4, 12], STILL)):
        out = tmp_path / str(first)
        p = run(*command(data, out, "--num-epochs", 3, "--checkpoint-keep", 0, *args, *more),
                env=faulty_disk(full=out / f"step-{first:08}" / "manifest.json", only="step-00000012."))
        assert p.returncode == 0 and steps(out) == rest, p.stderr
        assert f"step {first}, the oldest that is not the best, is removed to make room for the last checkpoint" in p.stderr, p.stderr
        assert (best(out), os.readlink(out / "latest")) == (12 if first == 4 else 4, "step-00000012")


def test_a_full_disk_costs_metrics_the_lines_of_that_time_and_no_more(data, tmp_path):
    full, out = tmp_path / "full", tmp_path / "out"
    full.touch()
    p = subprocess.Popen([str(a) for a in command(data, out, "--max-steps", 10**8, "--num-epochs", 10**6, "--checkpoint-every", 10**8, "--eval-every", 0)],
                         stderr=subprocess.PIPE, text=True, env=faulty_disk(full=full, only="metrics.jsonl", room=3))
    said, end = "", time.monotonic() + 2 * WAIT
    for line in p.stderr:
        said += line
        if time.monotonic() > end:
            p.kill()
        if "lines are missing in this log until it can be written, training goes on" in line:
            full.unlink()
        if "metrics.jsonl can be written again" in line:
            p.send_signal(signal.SIGTERM)
    assert p.wait(120) == 75, said
    n = int(re.search(r"stopped at step (\d+);", said)[1])
    missing = re.findall(r"metrics.jsonl can be written again; (\d+) of its lines are missing", said)
    got = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines() if '"lr"' in line]
    assert len(missing) == 1 and len(got) == n - int(missing[0]) and got[-1] == n and got == sorted(set(got)), (missing, got)


def test_a_step_is_in_the_metrics_before_it_is_told_of(data, tmp_path):
    """Whoever kills the process upon its line finds the step there, and the process in its place does not tell of it again."""
    full = tmp_path / "full"
    full.touch()
    p = run(*command(data, tmp_path / "out", "--max-steps", 3, "--print-freq", 1), stderr=subprocess.STDOUT, env=faulty_disk(full=full, only="metrics.jsonl", room=1))
    lines = p.stdout.splitlines()
    at = {word: next(i for i, line in enumerate(lines) if word in line) for word in ("lines are missing in this log", "Epoch 1/")}
    assert p.returncode == 0 and at["lines are missing in this log"] < at["Epoch 1/"], p.stdout


@pytest.mark.parametrize("more", [[], ["--checkpoint-sync"], ["--stages", 2, "--procs", 2, "--device", "cpu"]])
def test_the_last_checkpoint_must_succeed(data, tmp_path, more):
    """Training does not go on after it, and nobody says so."""
    full, once_more = tmp_path / "full", "no step follows: it is tried once more, and must succeed"
    full.touch()
    p = run(*command(data, tmp_path / "out", "--max-steps", 8, *more), env=faulty_disk(full=full))
    said = [line for line in p.stderr.splitlines() if "save the checkpoint of step" in line]
    assert p.returncode == 73 and "the end of the run is not saved: save the checkpoint of step 8" in said[-1] and "No space left on device" in said[-1], p.stderr
    assert any(once_more in line for line in said) and not [line for line in said if "of step 4" in line and once_more in line], said
    assert not [line for line in said if "of step 8" in line and "training goes on" in line], said
    assert steps(tmp_path / "out") == []


def test_sigterm_waits_for_the_checkpoint_of_its_step(data, tmp_path):
    p = subprocess.Popen(command(data, tmp_path, "--num-epochs", 1000, "--eval-every", 0), env=faulty_disk(fsync_ms=700),
                         stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "saving step 4" in line:
            p.send_signal(signal.SIGTERM)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=60) == 75, rest
    assert f"stopped at step {steps(tmp_path)[-1]};" in rest, rest


def best(out):
    return int(os.readlink(out / "best")[5:])


def test_best_points_at_the_most_accurate_checkpoint_and_rotation_spares_it(data, tmp_path):
    where = []
    for epochs in (3, 5, 8, 12):  # each a run of its own: the value to beat survives
        p = run(*command(data, tmp_path, "--num-epochs", epochs, "--checkpoint-keep", 1, "--resume", "auto",
                         "--base-learning-rate", 0.4))
        assert p.returncode == 0, p.stderr
        acc = {m["step"]: m["test_acc1"] for m in lines(tmp_path) if "test_acc1" in m}
        first_of_best = max(acc, key=lambda s: (acc[s], -s))
        assert best(tmp_path) == first_of_best, acc
        assert steps(tmp_path) == sorted({first_of_best, 4 * epochs})
        where.append((first_of_best, 4 * epochs))
    print("best, newest:", where)
    assert any(a < b for a, b in where), "the best was always the newest: this run shows nothing"
    e = run(*command(data, tmp_path, "-e", "--resume", tmp_path / f"step-{best(tmp_path):08}"))
    assert f"* Acc@1 {acc[best(tmp_path)]:.3f}" in e.stdout


def test_what_is_no_longer_the_best_or_the_last_epoch_is_spared_no_longer(data, tmp_path):
    args = ("--test-data", data / "train", "--checkpoint-keep", 2, "--checkpoint-every", 1, "--checkpoint-sync", "--base-learning-rate")
    p = run(*command(data, tmp_path, *args, 0, "--max-steps", 1))
    assert p.returncode == 0 and best(tmp_path) == 1, p.stderr
    p = run(*command(data, tmp_path, *args, 0.05, "--resume", "auto", "--eval-every", 0))
    assert p.returncode == 0 and best(tmp_path) == STEPS, p.stderr
    assert steps(tmp_path) == [STEPS - 1, STEPS]
    p = run(*command(data, tmp_path / "named", "--checkpoint-name", "m", "--checkpoint-keep", 1, "--eval-every", 0, "--max-steps", 8))
    assert p.returncode == 0 and steps(tmp_path / "named") == [8], p.stderr


def test_a_worse_or_equal_one_after_a_resume_does_not_replace_the_best(data, tmp_path):
    def go(*args):
        return run(*command(data, tmp_path, "--arch", "mlp", "--resume", "auto", "--checkpoint-keep", 1, *args))

    first = go("--num-epochs", 2, "--base-learning-rate", 0.02, "--eval-every", 0)
    assert first.returncode == 0, first.stderr
    reached = {m["step"]: m["test_acc1"] for m in lines(tmp_path) if "test_acc1" in m}
    meta = json.loads((tmp_path / f"step-{best(tmp_path):08}" / "manifest.json").read_text())["meta"]
    assert (meta["best_updates"], 100 * meta["best_top1"]) == (best(tmp_path), pytest.approx(reached[best(tmp_path)]))
    assert best(tmp_path) == 8
    for epochs in (4, 6):  # nothing moves: equal ones. None of the old ones is evaluated again
        p = go("--num-epochs", epochs, "--base-learning-rate", 0, "--weight-decay", 0, "--eval-every", 0)
        assert p.returncode == 0, p.stderr
        assert best(tmp_path) == 8, lines(tmp_path)[-2:]
        assert steps(tmp_path) == [8, 4 * epochs]
    worse = go("--num-epochs", 8, "--base-learning-rate", 0.7, "--warmup-epochs", 0, "--eval-every", 0)
    assert worse.returncode == 0, worse.stderr
    assert best(tmp_path) == 8, lines(tmp_path)[-2:]


@pytest.mark.parametrize("more", [[], ["--checkpoint-sync"], ["--procs", 2], ["--stages", 2, "--procs", 2, "--device", "cpu"]])
def test_the_best_is_one_that_was_saved(data, tmp_path, more):
    """What could not be written is not there to be beaten."""
    full, out = tmp_path / "full", tmp_path / "out"
    full.touch()
    p = run(*command(data, out, *STILL, *more), env=faulty_disk(full=full, only="step-00000004."))
    assert p.returncode == 0 and "save the checkpoint of step 4" in p.stderr, p.stderr
    # at the end of the epoch after it at the latest, a write is waited for
    assert best(out) in ({8} if "--checkpoint-sync" in more else {8, 12}), p.stderr
    meta = json.loads((newest(out) / "manifest.json").read_text())["meta"]
    assert meta["best_updates"] == best(out), meta


def test_a_best_that_fails_after_the_one_before_was_saved_is_forgotten(data, tmp_path):
    """The one before is still being written when this one is to be saved: each has a result of its own."""
    full, out = tmp_path / "full", tmp_path / "out"
    full.touch()
    p = run(*command(data, out, "--arch", "mlp", "--seed", 2, "--base-learning-rate", 0.02, "--checkpoint-every", 1000, "--checkpoint-keep", 0),
            env=faulty_disk(fsync_ms=500, full=full, full_only="step-00000008."))
    assert p.returncode == 0 and "save the checkpoint of step 8" in p.stderr, p.stderr
    acc = {m["step"]: m["test_acc1"] for m in lines(out) if "test_acc1" in m}
    lost, rest = acc.pop(8), acc
    assert lost > max(rest.values()) > rest[4], (lost, rest)
    assert rest[best(out)] == max(rest.values()), (best(out), rest)
    meta = json.loads((newest(out) / "manifest.json").read_text())["meta"]
    assert meta["best_updates"] == best(out), meta


def test_the_folder_may_be_given_to_rank_0_alone(data, tmp_path):
    out = tmp_path / "out"
    *plain, option, folder = command(data, out)
    script = f'[ "$RANK" != 0 ] || set -- "$@" {option} {folder}; exec "$@"'
    p = run(CRUN, "--nproc-per-node", 2, "sh", "-c", script, "sh", *plain, "--comm-timeout", 20)
    assert p.returncode == 0, p.stderr
    acc = {m["step"]: m["test_acc1"] for m in lines(out) if "test_acc1" in m}
    assert acc[best(out)] == max(acc.values()) and STEPS in steps(out), acc


def test_the_best_is_one_that_is_told_to_be(data, tmp_path):
    full, out = tmp_path / "full", tmp_path / "out"
    full.touch()
    p = subprocess.Popen(command(data, out, *STILL, "--num-epochs", 10**6), stderr=subprocess.PIPE, text=True, env=faulty_disk(full=full, only="/best"))
    said = ""
    for line in p.stderr:
        said += line
        if "is the best so far, but" in line and full.exists():
            full.unlink()
        if (out / "best").exists() or "saving step 4000 " in line:
            p.send_signal(signal.SIGTERM)
    assert p.wait(WAIT) == 75 and best(out) > 4, said


@pytest.mark.parametrize("more", [[], ["--checkpoint-sync"], ["--stages", 2, "--procs", 2, "--device", "cpu"]])
def test_the_last_checkpoint_is_the_best_at_its_second_try_too(data, tmp_path, more):
    full, out = tmp_path / "full", tmp_path / "out"
    full.touch()
    p = run(*command(data, out, *STILL, "--max-steps", 4, *more), env=faulty_disk(full=full, fails=1))
    assert p.returncode == 0 and "it is tried once more" in p.stderr, p.stderr
    assert best(out) == 4 and steps(out) == [4]


def test_a_name_too_long_for_a_link_is_refused_before_training(data, tmp_path):
    p = run(*command(data, tmp_path / "ck", "--checkpoint-name", "n" * 240))
    assert p.returncode == 2 and "--checkpoint-name: 240 bytes" in p.stderr, p.stderr
    assert not (tmp_path / "ck").exists()


def test_a_link_with_caffe2s_name_leads_to_the_last_epoch(data, tmp_path):
    p = run(*command(data, tmp_path, "--checkpoint-name", "resnet50_model", "--checkpoint-every", 3, "--checkpoint-keep", 1,
                     "--checkpoint-sync", "--num-epochs", 3, "--max-steps", 11, "--eval-every", 0))
    assert p.returncode == 0, p.stderr
    link = tmp_path / "resnet50_model_2.mdl"
    assert list(tmp_path.glob("*.mdl")) == [link]
    assert os.readlink(link) == "step-00000008"
    assert set(steps(tmp_path)) >= {8, 11} and 4 not in steps(tmp_path)
    assert json.loads((link / "manifest.json").read_text())["step"] == 8
    again = run(*command(data, tmp_path / "other", "--num-epochs", 3, "--resume", link))
    assert again.returncode == 0 and "resumed from step 8 " in again.stderr and "warn" not in "".join(
        line for line in again.stderr.splitlines() if ".mdl" in line)


def test_the_epoch_in_a_links_name_gives_way_to_the_one_inside(data, tmp_path):
    p = run(*command(data, tmp_path, "--num-epochs", 1))
    assert p.returncode == 0, p.stderr
    link = tmp_path / "model_7.mdl"
    link.symlink_to("step-00000004")
    p = run(*command(data, tmp_path / "other", "--num-epochs", 2, "--resume", link))
    assert p.returncode == 0 and "resumed from step 4 (epoch 1" in p.stderr
    assert "model_7.mdl says 7 epochs in its name and 1 inside" in p.stderr


def two_nodes(data, outs, *args):
    """A rank on each of two `nodes`, each with a folder of its own."""
    port = free_port()
    ranks = [subprocess.Popen(command(data, out, *args), stderr=subprocess.PIPE, text=True, env={
        **os.environ, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(r),
        "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r, out in enumerate(outs)]
    texts = [p.communicate(timeout=120)[1] for p in ranks]
    assert [p.returncode for p in ranks] == [0, 0], texts
    return texts


def test_the_newest_checkpoint_is_streamed_to_nodes_that_do_not_see_it(data, tmp_path):
    a, b, c = (tmp_path / x for x in "abc")
    two_nodes(data, (a, b), "--max-steps", 4)
    assert steps(a) == [4] and not b.exists()
    two_nodes(data, (a, b), "--resume", "auto", "--max-steps", 10)
    assert newest(a).name == "step-00000010"
    two_nodes(data, (c, a), "--resume", "auto", "--check-replicas", 1)  # rank 0 is on another node now
    whole = tmp_path / "whole"
    two_nodes(data, (whole, b))
    assert (newest(c) / "model.safetensors").read_bytes() == (newest(whole) / "model.safetensors").read_bytes()


def test_with_checkpoint_per_node_each_node_has_every_checkpoint(data, tmp_path):
    a, b = (tmp_path / x for x in "ab")
    two_nodes(data, (a, b), "--checkpoint-per-node", "--checkpoint-sync")
    assert steps(a) == steps(b) != []
    for file in sorted(p.relative_to(a) for p in a.glob("step-*/*.safetensors")):
        assert (a / file).read_bytes() == (b / file).read_bytes()
    assert best(a) == best(b)
    assert (a / "metrics.jsonl").exists() and not (b / "metrics.jsonl").exists()


def test_of_ranks_that_all_have_local_rank_0_one_writes_for_the_node(data, tmp_path):
    p = run(CRUN, "--nproc_per_node", 2, "--virtual-local-rank", *command(data, tmp_path / "a", "--checkpoint-per-node", "--max-steps", 4))
    assert p.returncode == 0 and steps(tmp_path / "a") == [4], p.stderr
