"""What a user of `trainer` sees: results, logs, checkpoints, stops, refusals."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from processes import wait
from stand import Stand
from support import CRUN, TRAINER, run, worker_pid
from tensors import load, newest


FOREVER = 100_000  # epochs


def resnet(data, *args, out=None, epochs=1, model=("--arch", "resnet18", "--image-size", 32)):
    a = [TRAINER, "--train-data", data / "train", *model, "--batch-size", 32, "--num-epochs", epochs, "--device", "cpu"]
    if out is not None:
        a += ["--checkpoint-dir", out]
    return a + list(args)


def small(data, *args, **kwargs):
    """For what does not depend on the model."""
    return resnet(data, *args, **kwargs, model=("--arch", "convnet", "--image-size", 28, "--num-channels", 1))


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(32, 160, 41)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    p = run(*resnet(data, "--test-data", data / "val", out=out, epochs=2))
    assert p.returncode == 0, p.stderr
    return out, p


@pytest.fixture(scope="module")
def small_trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("small")
    p = run(*small(data, "--test-data", data / "val", out=out, epochs=2))
    assert p.returncode == 0, p.stderr
    return out, p


def test_the_last_line_is_the_accuracy(trained):
    assert re.fullmatch(r" \* Acc@1 \d+\.\d{3} Acc@5 \d+\.\d{3}", trained[1].stdout.splitlines()[-1])


def test_a_finished_run_started_again_only_evaluates(data, trained):
    out, p = trained
    again = run(*resnet(data, "--test-data", data / "val", "--resume", "auto", out=out, epochs=2))
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == p.stdout.splitlines()[-1]
    rows = [line for line in next(out.glob("*.log")).read_text().splitlines() if re.match(r"\d", line)]
    assert len(rows) == 2, rows


def test_the_caffe2_log_has_its_columns_and_a_row_an_epoch(trained):
    log = next(trained[0].glob("*.log"))
    assert re.fullmatch(r"resnet18_gpu1_b32_L10_lr0\.10_v2_\d{8}_\d{6}\.log", log.name)
    comment, header, *rows = log.read_text().splitlines()
    assert comment.startswith("# ")
    assert header == ("time_spent,cumulative_time_spent,input_count,cumulative_input_count,cumulative_batch_count,"
                      "inputs_per_sec,accuracy,epoch,learning_rate,loss,test_accuracy")
    assert [row.split(",")[2:5] for row in rows] == [["160", "160", "5"], ["160", "320", "10"]]


def test_metrics_have_a_line_a_step(trained):
    lines = [json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in lines if "lr" in m] == list(range(1, 11))


def test_model_file_has_torchvisions_names_and_shapes(trained):
    t = load(newest(trained[0]) / "model.safetensors")
    assert len(t) == 122  # torchvision's resnet18: 62 parameters and 60 buffers
    assert t["conv1.weight"].shape == (64, 3, 7, 7)
    assert t["layer4.0.downsample.0.weight"].shape == (512, 256, 1, 1)
    assert t["fc.weight"].shape == (10, 512) and t["fc.bias"].shape == (10,)
    assert t["bn1.num_batches_tracked"].shape == () and t["bn1.num_batches_tracked"] == 10
    assert all(v.dtype == np.float32 for k, v in t.items() if not k.endswith("num_batches_tracked"))
    trainable = sum(v.size for k, v in t.items() if "running" not in k and "num_batches" not in k)
    assert trainable == 11_689_512 - 990 * 513


@pytest.mark.parametrize("net, trained_one", [(small, "small_trained"), pytest.param(resnet, "trained", marks=pytest.mark.slow)], ids=["small", "resnet18"])
def test_evaluation_is_exact_for_uneven_shards(request, data, tmp_path, net, trained_one):
    lines = []
    for world in (1, 2, 3):
        out = tmp_path / str(world)
        shutil.copytree(request.getfixturevalue(trained_one)[0], out)
        p = run(CRUN, "--standalone", "--nproc_per_node", world,
                *net(data, "--test-data", data / "val", "--resume", "auto", out=out, epochs=2))
        assert p.returncode == 0, p.stderr
        lines.append(re.search(r"\* Acc@1 .*", p.stdout).group())
        evals = [json.loads(m) for m in (out / "metrics.jsonl").read_text().splitlines() if "test_images" in m]
        assert [m["test_images"] for m in evals] == [41, 41]  # one of each epoch, the second done anew
    assert len(set(lines)) == 1, lines


def test_two_runs_of_one_seed_are_equal_and_loader_threads_do_not_matter(data, tmp_path):
    files = []
    for threads in (1, 4):
        out = tmp_path / str(threads)
        p = run(*small(data, "--loader-threads", threads, "--threads", 1, out=out))
        assert p.returncode == 0, p.stderr
        files.append((newest(out) / "model.safetensors").read_bytes())
    assert files[0] == files[1]


TWO_RANKS = [CRUN, "--standalone", "--nproc_per_node", 2, "--max-restarts", 3]


@pytest.mark.parametrize("launcher", [[], TWO_RANKS], ids=["alone", "two ranks"])
def test_sigterm_saves_one_step_of_all_ranks_and_a_new_start_goes_on(data, tmp_path, launcher):
    args = [*launcher, *small(data, "--print-freq", 1, out=tmp_path, epochs=FOREVER)]
    p = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in p.stderr:
        if "[3/5]" in line:
            p.send_signal(signal.SIGTERM)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=60) == 75, rest
    step = int(re.search(r"stopped at step (\d+)", rest).group(1))
    assert json.loads((newest(tmp_path) / "manifest.json").read_text())["meta"]["updates"] == step
    again = run(*args, "--resume", "auto", "--max-steps", step + 1, "--check-replicas", 1)
    assert again.returncode == 0, again.stderr
    assert f"resumed from step {step}" in again.stderr


@pytest.mark.parametrize("launcher", [[], TWO_RANKS], ids=["alone", "two ranks"])
def test_max_time_stops_in_good_order(data, tmp_path, launcher):
    p = run(*launcher, *small(data, "--max-time", "1s", out=tmp_path, epochs=FOREVER))
    assert p.returncode == 75, p.stderr
    assert newest(tmp_path).is_dir() and "restart " not in p.stderr


def test_a_restart_goes_on_without_being_told_to_resume(data, tmp_path):
    run_id = f"restart-{os.getpid()}"
    args = [CRUN, "--standalone", "--nproc_per_node", 2, "--max-restarts", 1, "--recovery", "restart", "--run-id", run_id,
            *small(data, "--print-freq", 1, "--checkpoint-every", 2, "--checkpoint-sync", out=tmp_path, epochs=4)]
    stand = Stand(tmp_path / "stand", 6)
    p = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **stand.env()})
    seen = []
    for line in p.stderr:
        seen.append(line)
        if "Epoch 2/4 [1/5]" in line:
            os.kill(worker_pid(run_id, 1), signal.SIGKILL)
            stand.go()
            break
    text = "".join(seen) + p.stderr.read()
    assert p.wait(timeout=120) == 0, text
    resumed = re.findall(r"resumed from step (\d+)", text)
    assert resumed in (["4"], ["6"]), text  # rank 0 may save step 6 before crun stops it
    steps = [json.loads(m)["step"] for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"lr"' in m]
    assert steps == list(range(1, 21)), "each step is logged once"
    seconds = [json.loads(m)["seconds"] for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"lr"' in m]
    assert seconds == sorted(seconds), "times are carried on"


def test_a_restart_does_not_take_up_another_runs_checkpoints(data, small_trained, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(small_trained[0], out)
    before = sorted(p.name for p in out.iterdir())
    p = run(*TWO_RANKS, *small(data, out=out, epochs=4))
    assert p.returncode == 2, p.stderr
    assert "holds a checkpoint of step 10" in p.stderr and "resumed" not in p.stderr
    assert sorted(p.name for p in out.iterdir()) == before


def test_two_live_runs_do_not_share_a_checkpoint_folder(data, tmp_path):
    first = subprocess.Popen([str(a) for a in small(data, "--print-freq", 1, out=tmp_path, epochs=FOREVER)],
                             stderr=subprocess.PIPE, text=True)
    try:
        for line in first.stderr:
            if "[1/5]" in line:
                break
        p = run(*small(data, "--resume", "auto", out=tmp_path, epochs=FOREVER))
        assert p.returncode == 73 and "another run that is still alive" in p.stderr, p.stderr
    finally:
        first.kill()
        first.wait()
    assert run(*small(data, "--resume", "auto", "--max-steps", 1, out=tmp_path)).returncode == 0


def opened(pid, path):
    for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(fd) == str(path):
                return True
    return False


def naps(pid):
    """How often its first thread has gone to sleep."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])


@pytest.mark.parametrize("kind", ["checkpoints", "logs"])
def test_a_folder_that_a_killed_jobs_ranks_hold_yet_is_waited_for(data, tmp_path, kind):
    (tmp_path / kind).mkdir()
    where = {"checkpoints": "--checkpoint-dir", "logs": "--log-dir"}[kind], tmp_path / kind
    args = small(data, "--max-steps", 1, *where)
    held = os.open(tmp_path / kind, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    p = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, text=True)
    wait("trainer to open the folder", lambda: p.poll() is not None or opened(p.pid, tmp_path / kind))
    looked = naps(p.pid)
    wait("trainer to look and to wait", lambda: p.poll() is not None or naps(p.pid) >= looked + 3)  # whoever does not wait has failed by now
    os.close(held)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 0, err


def test_a_new_run_keeps_the_metrics_of_an_older_one_in_its_log_folder(data, tmp_path):
    for n in (1, 2):
        p = run(*small(data, "--max-steps", n, "--log-dir", tmp_path / "logs"))
        assert p.returncode == 0, p.stderr
    old, = (tmp_path / "logs").glob("metrics.jsonl.until-*")
    count = [sum('"lr"' in line for line in f.read_text().splitlines()) for f in (old, tmp_path / "logs" / "metrics.jsonl")]
    assert count == [1, 2]


def test_a_run_that_begins_at_a_later_epoch_is_a_new_one_in_the_log_folder(data, tmp_path):
    logs = "--log-dir", tmp_path / "logs"
    assert run(*small(data, "--max-steps", 7, *logs, epochs=3)).returncode == 0
    p = run(*small(data, "--start-epoch", 1, "--max-steps", 8, *logs, epochs=3))
    assert p.returncode == 0, p.stderr
    old, = (tmp_path / "logs").glob("metrics.jsonl.until-*")
    now = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert now[0]["event"] == "start" and min(line["step"] for line in now if "lr" in line) > 5, now
    assert len(old.read_text().splitlines()) > 7


def test_two_live_runs_do_not_share_a_log_folder(data, tmp_path):
    logs = "--log-dir", tmp_path / "logs"
    first = subprocess.Popen([str(a) for a in small(data, "--print-freq", 1, *logs, epochs=FOREVER)], stderr=subprocess.PIPE, text=True)
    try:
        for line in first.stderr:
            if "[1/5]" in line:
                break
        p = run(*small(data, *logs))
        assert p.returncode == 73 and f"another run that is still alive writes its logs to {logs[1]}" in p.stderr, p.stderr
        assert not list(logs[1].glob("*.until-*"))
    finally:
        first.kill()
        first.wait()
    assert run(*small(data, *logs, "--max-steps", 1, out=logs[1])).returncode == 0


def test_one_sigint_sent_twice_at_once_still_saves(data, tmp_path):
    """As timeout(1) does: to its child, then to its group."""
    args = [str(a) for a in small(data, "--print-freq", 1, out=tmp_path, epochs=FOREVER)]
    p = subprocess.Popen(args, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    for line in p.stderr:
        if "[1/5]" in line:
            p.send_signal(signal.SIGINT)
            os.killpg(p.pid, signal.SIGINT)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=60) == 75 and "stopped at step" in rest, rest
    assert newest(tmp_path).is_dir()


def test_another_batch_size_and_rate_are_taken_and_told(data, tmp_path):
    assert run(*small(data, "--max-steps", 3, out=tmp_path, epochs=4)).returncode == 0
    p = run(*small(data, "--batch-size", 16, "--base-learning-rate", 0.05, "--lr-policy", "fixed", "--resume", "auto", "--max-steps", 8, out=tmp_path, epochs=4))
    assert p.returncode == 0, p.stderr
    assert "step 6 of 10" in p.stderr, "96 of 160 images are done"
    assert "batch was 32 and is now 16" in p.stderr
    assert "--base-learning-rate was 0.1 and is now 0.05" in p.stderr
    assert "--lr-policy was cosine and is now fixed" in p.stderr
    rates = [json.loads(m)["lr"] for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"lr"' in m]
    assert len(rates) == 8 and all(0 < r <= 0.1 for r in rates), rates


CHANGED = {"lr-scale": ("none", "batch256"), "lr-warmup": ("linear", "caffe2"), "warmup-start": ("0.1", "0.5"),
           "lr-milestones": ("[30,60,80]", "[1,2]"), "sampler": ("global", "distributed"), "shuffle": ("auto", "off")}


def test_options_with_names_are_told_by_name_when_they_change(data, tmp_path):
    assert run(*small(data, "--max-steps", 5, out=tmp_path, epochs=2)).returncode == 0
    args = [w for name, (_, now) in CHANGED.items() for w in ("--" + name, now.strip("[]"))]
    p = run(*small(data, "--resume", "auto", "--nesterov", "--max-steps", 6, *args, out=tmp_path, epochs=2))
    assert p.returncode == 0, p.stderr
    for name, (was, now) in CHANGED.items():
        assert f"--{name} was {was} and is now {now}" in p.stderr, p.stderr
    assert "--nesterov was false and is now true" in p.stderr, p.stderr


@pytest.mark.parametrize("args", [("--sampler", "distributed"), ("--shuffle", "off")])
def test_another_order_of_the_samples_is_refused_in_the_middle_of_an_epoch(data, tmp_path, args):
    assert run(*small(data, "--max-steps", 3, out=tmp_path, epochs=2)).returncode == 0
    p = run(*small(data, "--resume", "auto", *args, out=tmp_path, epochs=2))
    assert p.returncode == 78 and "in the middle of an epoch" in p.stderr and " ".join(args) in p.stderr, p.stderr
    p = run(*small(data, "--resume", "auto", "--shuffle", "on", "--max-steps", 4, out=tmp_path, epochs=2))
    assert p.returncode == 0, "what auto means is no other order: " + p.stderr


def test_a_set_of_another_size_is_refused_in_the_middle_of_an_epoch(data, tmp_path):
    own = tmp_path / "data"
    shutil.copytree(data, own)
    out = tmp_path / "out"
    assert run(*small(own, "--max-steps", 3, out=out, epochs=2)).returncode == 0
    sorted((own / "train").glob("*/*"))[0].unlink()
    p = run(*small(own, "--resume", "auto", out=out, epochs=2))
    assert p.returncode == 78 and "in the middle of an epoch of" in p.stderr and "samples" in p.stderr, p.stderr


def test_fewer_epochs_than_done_end_the_run_with_an_evaluation(data, tmp_path):
    assert run(*small(data, "--max-steps", 13, out=tmp_path, epochs=4)).returncode == 0
    p = run(*small(data, "--test-data", data / "val", "--resume", "auto", out=tmp_path, epochs=2))
    assert p.returncode == 0, p.stderr
    assert re.match(r" \* Acc@1 ", p.stdout)


def test_evaluations_come_every_so_many_epochs_and_at_the_end(data, tmp_path):
    p = run(*small(data, "--test-data", data / "val", "--eval-every", 2, out=tmp_path, epochs=3))
    assert p.returncode == 0, p.stderr
    evals = [json.loads(m)["step"] for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if "test_images" in m]
    assert evals == [10, 15]


def test_checkpoints_come_by_time_too(data, tmp_path):
    p = run(*small(data, "--checkpoint-every", 1000, "--checkpoint-seconds", "1ms", "--checkpoint-keep", 0, "--checkpoint-sync",
                   out=tmp_path))
    assert p.returncode == 0, p.stderr
    assert len(list(tmp_path.glob("step-*"))) == 5


def test_a_set_without_one_good_image_is_refused_after_two_batches(data, tmp_path):
    mine = tmp_path / "data"
    shutil.copytree(data, mine)
    for f in (mine / "train").glob("*/*.jpg"):
        f.write_bytes(b"no image")
    p = run(*small(mine))
    assert p.returncode == 65 and "not one of the first 64 images of " in p.stderr and "could be used" in p.stderr, p.stderr


def test_a_run_that_blew_up_leaves_no_checkpoint_of_it(data, tmp_path):
    p = run(*small(data, "--base-learning-rate", 1e9, "--warmup-epochs", 0, "--checkpoint-every", 1, out=tmp_path, epochs=4))
    assert p.returncode == 1 and "diverged" in p.stderr, p.stderr
    for f in tmp_path.glob("step-*/model.safetensors"):
        assert all(np.isfinite(v).all() for v in load(f).values())


def test_ps_calls_the_trainer_by_its_name(data, tmp_path):
    p = subprocess.Popen([str(a) for a in small(data, "--print-freq", 1, epochs=FOREVER)], stderr=subprocess.PIPE, text=True)
    p.stderr.readline()
    name = pathlib.Path(f"/proc/{p.pid}/comm").read_text().strip()
    p.kill()
    p.wait()
    assert name == "trainer"


def test_bf16_trains(data, tmp_path):
    p = run(*resnet(data, "--amp", "bf16", out=tmp_path))
    assert p.returncode == 0, p.stderr
    losses = [json.loads(m)["loss"] for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"lr"' in m]
    assert len(losses) == 5 and all(0 < x < 10 for x in losses)


def test_bad_samples_weigh_nothing_and_are_counted(data, tmp_path):
    mine = tmp_path / "data"
    shutil.copytree(data, mine)
    victims = sorted((mine / "train").glob("*/*.jpg"))[::40]
    victims[0].write_bytes(b"this is no image")
    victims[1].write_bytes(victims[1].read_bytes()[:200])
    out = tmp_path / "out"
    p = run(*small(mine, out=out))
    assert p.returncode == 0, p.stderr
    lines = [json.loads(m) for m in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum(m.get("bad_samples", 0) for m in lines) == 2
    assert victims[0].name in p.stderr and victims[1].name in p.stderr
    strict = run(*small(mine, "--strict-data"))
    assert strict.returncode == 65
    assert any(v.name in strict.stderr for v in victims)


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:-1] + bytes([b[-1] ^ 1])], ids=["truncated", "flipped bit"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(data, small_trained, tmp_path, damage):
    out = tmp_path / "out"
    shutil.copytree(small_trained[0], out)
    model = newest(out) / "model.safetensors"
    model.write_bytes(damage(model.read_bytes()))
    p = run(*small(data, "--test-data", data / "val", "--resume", "auto", out=out, epochs=2))
    assert p.returncode == 0, p.stderr
    assert "passed over" in p.stderr and "resumed from step 5" in p.stderr
    assert p.stdout == small_trained[1].stdout


@pytest.fixture(scope="module")
def bad(data, trained, tmp_path_factory):
    """A folder of inputs that are no good."""
    tmp_path, trained = tmp_path_factory.mktemp("bad"), trained[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    extra = tmp_path / "extra"
    shutil.copytree(data / "val", extra)
    (extra / "zebra").mkdir()
    shutil.copy(next(extra.glob("*/*.jpg")), extra / "zebra" / "a.jpg")
    cut = tmp_path / "cut"
    shutil.copytree(trained, cut)
    for model in cut.glob("step-*/model.safetensors"):
        model.write_bytes(model.read_bytes()[:-100])
    flipped = tmp_path / "flipped"
    shutil.copytree(trained, flipped)
    for model in flipped.glob("step-*/model.safetensors"):
        raw = bytearray(model.read_bytes())
        raw[-1] ^= 1
        model.write_bytes(raw)
    foreign = tmp_path / "foreign"
    shutil.copytree(trained, foreign)
    for model in foreign.glob("step-*/model.safetensors"):
        model.write_bytes(b"PK\x03\x04 some zip file of another program")
    fewer = tmp_path / "fewer"
    shutil.copytree(data / "train", fewer)
    shutil.rmtree(sorted(fewer.iterdir())[0])
    single = tmp_path / "single"
    shutil.copytree(sorted((data / "train").iterdir())[0], single / "a")
    return tmp_path


def refusals(data, trained, bad, out):
    """{name: (arguments, exit status, words of the sentence)}"""
    t = ["--train-data", data / "train"]
    r = ["--resume", "auto", "--image-size", 32, "--arch", "resnet18", "--batch-size", 32, "--checkpoint-dir"]
    return {
        "missing folder": (["--train-data", bad / "nowhere"], 65, ["nowhere", "does not exist"]),
        "no classes": (["--train-data", bad / "empty"], 65, ["empty", "class"]),
        "one class": (["--train-data", bad / "single"], 65, ["--train-data", "single", "one class", "--num-labels"]),
        "no folder for checkpoints": ([*t, "--checkpoint-dir", ""], 2, ["--checkpoint-dir ''"]),
        "no folder for logs": ([*t, "--log-dir", ""], 2, ["--log-dir ''"]),
        "no weights": ([*t, "--arch", "resnet18", "--image-size", 32, "--batch-size", 32, "--pretrained", bad / "gone"], 2, ["--pretrained: no weights found"]),
        "unknown class": ([*t, "--test-data", bad / "extra"], 65, ["zebra"]),
        "too many classes": ([*t, "--num-labels", 4], 65, ["10", "4"]),
        "unknown option": ([*t, "--batchsize", 3], 2, ["batchsize", "batch-size"]),
        "unknown arch": ([*t, "--arch", "resnet19"], 2, ["resnet19", "resnet18"]),
        "unknown device": ([*t, "--device", "tpu"], 2, ["tpu", "cpu"]),
        "no such device": ([*t, "--device", "cuda"], 69, ["cuda"]),
        "no such device, with folders": ([*t, "--device", "cuda", "--checkpoint-dir", out / "ck", "--log-dir", out / "lg"], 69, ["cuda"]),
        "batch 0": ([*t, "--batch-size", 0], 2, ["batch-size", "0"]),
        "word for a number": ([*t, "--num-epochs", "many"], 2, ["num-epochs", "many"]),
        "an end before the start": ([*t, "--arch", "convnet", "--image-size", 28, "--start-epoch", 5, "--max-steps", 3], 2, ["--start-epoch 5", "--max-steps 3", "begins after step"]),
        "a warm-up longer than the run": ([*t, "--arch", "convnet", "--image-size", 28, "--warmup-epochs", 5, "--max-steps", 3], 2,
                                          ["--warmup-epochs 5: warm-up of", "the run's 3"]),
        "required": ([], 2, ["train-data"]),
        "resume without folder": ([*t, "--resume", "auto"], 2, ["checkpoint-dir"]),
        "unwritable folder": ([*t, "--checkpoint-dir", "/proc/nowhere", "--max-steps", 1], 73, ["/proc/nowhere"]),
        "checkpoint of another arch": ([*t, *r, trained, "--arch", "resnet34"], 78, ["resnet18", "resnet34"]),
        "checkpoint of another seed": ([*t, *r, trained, "--seed", 5], 78, ["seed", "5"]),
        "checkpoint of other classes": (["--train-data", bad / "fewer", "--num-labels", 10, *r, trained], 78, ["class"]),
        "a new run over an old one": ([*t, "--checkpoint-dir", trained], 2, ["step 10", "--resume auto"]),
        "truncated checkpoint": ([*t, *r, bad / "cut"], 65, ["model.safetensors"]),
        "flipped bit": ([*t, *r, bad / "flipped"], 65, ["model.safetensors"]),
        "foreign checkpoint": ([*t, *r, bad / "foreign"], 65, ["model.safetensors"]),
        "unknown command": (["pretrain"], 2, ["pretrain"]),
    }


REFUSALS = sorted(refusals(*4 * [pathlib.Path("x")]))


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_input_gets_one_clear_sentence_and_the_right_code(data, trained, bad, tmp_path, name):
    args, code, words = refusals(data, trained[0], bad, tmp_path)[name]
    p = run(TRAINER, *args, cwd=tmp_path)
    said = [line for line in p.stderr.splitlines() if line.startswith("trainer")]
    assert p.returncode == code and len(said) == 1 and all(w in said[0] for w in words), f"exit {p.returncode}: {p.stderr}"
    assert os.listdir(tmp_path) == [], "what it left"


def test_plot_draws_a_png(trained, tmp_path):
    png = tmp_path / "p.png"
    p = run(TRAINER, "plot", trained[0], "--out", png)
    assert p.returncode == 0, p.stderr
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_help_names_every_command():
    known = run(TRAINER, "no-such-command").stderr
    names = re.findall(r"[a-z0-9-]+", known.split("command;")[1].replace("(the default)", ""))
    text = " ".join(run(TRAINER, "--help").stdout.split("Other commands")[1].split())
    assert "convert" in names and [n for n in names if n not in ("train", "and", "are") and not re.search(rf"\b{n}\b", text)] == []


def test_a_last_test_loss_that_is_no_number_fails_though_the_weights_are_finite(data, tmp_path):
    args = "--test-data", data / "val", "--base-learning-rate", 1e9, "--warmup-epochs", 0, "--max-steps", 1
    p = run(*small(data, *args, out=tmp_path))
    assert p.returncode == 1 and "every weight is finite" in p.stderr, p.stderr
    assert "-nan" not in p.stderr and "Acc@1" not in p.stdout, p.stderr
