"""What a run tells: progress lines of several programs, event files, timelines, memory, plots."""
import json
import os
import re
import subprocess

import pytest

from event_files import curves, events
from support import CRUN, TRAINER, faulty_disk, run
from tensors import newest


@pytest.fixture(scope="module")
def data(shapes):
    return shapes(32, 160, 41)


def convnet(data, *args, epochs=1):
    return [TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "convnet", "--image-size", 28,
            "--batch-size", 32, "--num-epochs", epochs, "--device", "cpu", *args]


VALUE = r"\s*\d+\.\d{3} \(\s*\d+\.\d{3}\)"
PERCENT = r"\s*\d+\.\d\d \(\s*\d+\.\d\d\)"
TORCH_EPOCH = rf"Epoch: \[(\d)\]\[(\d)/5\]\tTime {VALUE}\tData {VALUE}\tLoss \d\.\d{{4}}e[+-]\d\d \(\d\.\d{{4}}e[+-]\d\d\)\tAcc@1 {PERCENT}\tAcc@5 {PERCENT}"
APEX_EPOCH = (r"Epoch: \[(\d)\]\[(\d)/5\]\tTime \d+\.\d{3} \(\d+\.\d{3}\)\tSpeed \d+\.\d{3} \(\d+\.\d{3}\)\tLoss \d+\.\d{10} \(\d+\.\d{4}\)\t"
              r"Prec@1 \d+\.\d{3} \(\d+\.\d{3}\)\tPrec@5 \d+\.\d{3} \(\d+\.\d{3}\)")


def steps(stderr, pattern):
    return [m.groups() for m in (re.fullmatch(pattern, line) for line in stderr.splitlines()) if m]


def test_torchs_lines_come_every_so_many_steps_of_an_epoch_from_the_first(data):
    p = run(*convnet(data, "--progress", "torch", "--print-freq", 2, epochs=2))
    assert p.returncode == 0, p.stderr
    assert steps(p.stderr, TORCH_EPOCH) == [(e, i) for e in "01" for i in "135"], p.stderr
    test = rf"Test: \[(\d)/2\]\tTime {VALUE}\tLoss \d\.\d{{4}}e[+-]\d\d \(\d\.\d{{4}}e[+-]\d\d\)\tAcc@1 {PERCENT}\tAcc@5 {PERCENT}"
    assert steps(p.stderr, test) == [("1",), ("1",)], p.stderr
    summary = r" \* Acc@1 \d+\.\d{3} Acc@5 \d+\.\d{3}"
    assert len(steps(p.stderr, summary)) == 1 and len(steps(p.stdout, summary)) == 1  # the last one is the result


def test_apexs_lines_tell_the_speed_of_all_ranks(data):
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, *convnet(data, "--progress", "apex", "--print-freq", 2))
    assert p.returncode == 0, p.stderr
    found = [line for line in p.stderr.splitlines() if "Prec@1" in line]
    assert sum(bool(re.search(APEX_EPOCH, line)) for line in found) == 2, p.stderr
    assert sum(bool(re.search(r" \* Prec@1 \d+\.\d{3} Prec@5 \d+\.\d{3}$", line)) for line in found) == 1
    time, speed = map(float, re.search(r"Time (\S+) \(.*Speed (\S+) \(", found[0]).groups())
    assert abs(speed * time - 32) < 0.02 * 32 + 32 * 0.0006 / time, found[0]  # both are rounded


def test_the_articles_lines_and_its_last_one(data):
    p = run(*convnet(data, "--progress", "article", "--print-freq", 2, epochs=2))
    assert p.returncode == 0, p.stderr
    assert steps(p.stderr, r"Epoch \[(\d)/2\], Step \[(\d)/5\], Loss: \d+\.\d{4}") == [(e, i) for e in "12" for i in "24"]
    assert re.fullmatch(r"Training complete in: 0:0\d:\d\d(\.\d{6})?", p.stderr.splitlines()[-1]) or \
        re.search(r"^Training complete in: 0:0\d:\d\d(\.\d{6})?$", p.stderr, re.M), p.stderr


UNSAVED = "--checkpoint-dir DIR"


def about_saving(p):
    assert p.returncode == 0, p.stderr
    return [line.split("]: ")[-1] for line in p.stderr.splitlines() if UNSAVED in line or re.search(r"(^|: )saved: ", line)]


def test_a_model_that_is_not_saved_is_told_at_the_start_and_at_the_end(data):
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, *convnet(data, "--max-steps", 2))
    told = about_saving(p)
    assert len(told) == 2 and f"the model will not be saved: that takes {UNSAVED}" in told[0], p.stderr
    assert told[1] == f"the model was not saved: that takes {UNSAVED}", p.stderr
    assert p.stderr.index(told[0]) < p.stderr.index("Epoch 1/1") < p.stderr.index(told[1])
    assert about_saving(run(*convnet(data, "--evaluate"))) == []
    assert about_saving(run(*convnet(data, "--train-data", "null", "--test-data", "null", "--max-steps", 1, "--null-images", 64, "--eval-steps", 1))) == []


def test_the_last_line_says_what_was_saved_where(data, tmp_path):
    p = run(*convnet(data, "--checkpoint-dir", tmp_path / "ck", epochs=2))
    best = os.readlink(tmp_path / "ck" / "best")
    assert about_saving(p) == p.stderr.splitlines()[-1:] == [f"saved: {tmp_path}/ck/step-00000010; the best is {best}"]
    assert newest(tmp_path / "ck").name == "step-00000010"
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, *convnet(data, "--checkpoint-dir", tmp_path / "two", "--max-steps", 2))
    assert about_saving(p) == [f"saved: {tmp_path}/two/step-00000002; the best is step-00000002"]


def test_caffe2s_lines_come_with_every_iteration(data):
    p = run(*convnet(data, "--progress", "caffe2"))
    assert p.returncode == 0, p.stderr
    assert steps(p.stderr, r"Finished iteration (\d)/5 of epoch 0 \(\d+\.\d\d images/sec\)") == [(i,) for i in "12345"]
    assert len(steps(p.stderr, r"Training loss: \d+\.\d+, accuracy: [01]\.\d+")) == 5, p.stderr


@pytest.mark.parametrize("all_ranks", [False, True])
def test_progress_is_rank_0s_unless_all_are_asked(data, all_ranks):
    p = run(CRUN, "--standalone", "--nproc_per_node", 2,
            *convnet(data, "--print-freq", 5, *["--log-all-ranks"] * all_ranks))
    assert p.returncode == 0, p.stderr
    lines = [line for line in p.stderr.splitlines() if "Epoch 1/1 [5/5]" in line]
    assert len(lines) == 1 + all_ranks, p.stderr
    assert sum("rank 1: Epoch" in line for line in lines) == all_ranks


def test_made_up_pictures_are_called_that(data):
    p = run(TRAINER, "--train-data", "null", "--null-images", 64, "--num-labels", 10, "--arch", "convnet", "--image-size", 28,
            "--batch-size", 32, "--num-epochs", 1, "--device", "cpu")
    assert p.returncode == 0, p.stderr
    assert re.search(r"\d img/s \(synthetic\)", p.stderr), p.stderr


def test_event_files_hold_the_curves_of_the_metrics(data, tmp_path):
    p = run(*convnet(data, "--tensorboard", tmp_path / "tb", "--log-dir", tmp_path, epochs=2))
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    got = curves(tmp_path / "tb")
    for tag, key in [("train/loss", "loss"), ("train/acc1", "acc1"), ("train/lr", "lr"), ("speed/data_wait", "data_wait"),
                     ("speed/images_per_sec", "images_per_sec"), ("test/acc1", "test_acc1"), ("test/loss", "test_loss")]:
        expected = {m["step"]: m[key] for m in lines if key in m}
        assert len(expected) == (2 if "test" in tag else 10)
        assert got[tag] == pytest.approx(expected, rel=1e-6), tag


def test_event_files_of_a_run_that_goes_on_take_back_what_is_done_again(data, tmp_path):
    args = convnet(data, "--tensorboard", tmp_path / "tb", "--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 4, "--checkpoint-sync",
                   "--print-freq", 1, epochs=3)
    stuck = faulty_disk(fsync_ms=60000, only="step-00000008.")  # it is killed before this is saved
    p = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, text=True, env=stuck)
    for line in p.stderr:
        if "Epoch 2/3 [2/5]" in line:  # step 7
            p.kill()
            break
    p.stderr.close()
    p.wait(timeout=60)
    assert newest(tmp_path / "ck").name == "step-00000005"  # the best so far
    again = run(*args, "--resume", "auto")
    assert again.returncode == 0, again.stderr
    files = sorted((tmp_path / "tb").iterdir())
    assert len(files) == 2
    started = [step for f in files for step, _, start in events(f) if start]
    assert started == [1, 6]
    assert max(s for s, _, _ in events(files[0])) > 5  # something was done twice
    assert sorted(curves(tmp_path / "tb")["train/loss"]) == list(range(1, 16))


def test_event_files_of_a_run_that_begins_again_are_not_drawn_twice(data, tmp_path):
    p = subprocess.Popen([str(a) for a in convnet(data, "--tensorboard", tmp_path, "--print-freq", 1, epochs=1000)], stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "Epoch 2/1000 [3/5]" in line:  # nothing is saved
            p.kill()
            break
    p.stderr.close()
    p.wait(timeout=60)
    again = run(*convnet(data, "--tensorboard", tmp_path))
    assert again.returncode == 0, again.stderr
    assert sorted(curves(tmp_path)["train/loss"]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("epochs", [8, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", ["tfevents", "metrics.jsonl", "_v2_"])
def test_a_log_that_cannot_be_written_ends_alone(data, tmp_path, which, epochs):
    full = tmp_path / "full"
    full.touch()
    args = convnet(data, "--arch", "mlp", "--tensorboard", tmp_path / "tb", "--log-dir", tmp_path, "--eval-every", 0, "--print-freq", 1, epochs=epochs)
    p = run(*args, env=faulty_disk(full=full, only=which, room=4))
    assert p.returncode == 0, p.stderr
    told = [line for line in p.stderr.splitlines() if "No space left on device" in line]
    assert len(told) == 1 and which in told[0], p.stderr
    whole = {f"over {5 * epochs - 2} steps" in p.stderr}  # the meters went on
    if which != "metrics.jsonl":
        whole.add(json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "end")
    if which != "_v2_":
        whole.add(len(next(tmp_path.glob("mlp_*_v2_*")).read_text().splitlines()) == 2 + epochs)
    if which != "tfevents":
        whole.add(sorted(curves(tmp_path / "tb")["train/loss"]) == list(range(1, 5 * epochs + 1)))
    assert whole == {True}, p.stderr


@pytest.mark.parametrize("clip", [True, False])
def test_gradients_norm_is_told_where_it_is_clipped(data, tmp_path, clip):
    p = run(*convnet(data, "--log-dir", tmp_path, "--tensorboard", tmp_path / "tb", *["--clip-grad-norm", "1e-3"] * clip))
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    norms = {m["step"]: m["grad_norm"] for m in lines if "grad_norm" in m}
    assert len(norms) == 5 * clip and all(v > 1e-3 for v in norms.values())  # as it was before clipping
    assert curves(tmp_path / "tb").get("train/grad_norm", {}) == pytest.approx(norms, rel=1e-6)


def test_a_step_whose_pictures_are_all_broken_has_no_loss(tmp_path):
    for kind, picture in ("a", b"P6 2 2 255\n" + bytes(12)), ("b", b"this is no picture"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        for i in range(2):
            (tmp_path / "data" / kind / f"{i}.ppm").write_bytes(picture)
    p = run(TRAINER, "--train-data", tmp_path / "data", "--arch", "convnet", "--image-size", 28, "--batch-size", 1, "--num-epochs", 1,
            "--device", "cpu", "--log-dir", tmp_path, "--tensorboard", tmp_path / "tb")
    assert p.returncode == 0, p.stderr
    steps_ = [m for m in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()) if "lr" in m]
    assert sorted(m["bad_samples"] for m in steps_) == [0, 0, 1, 1]
    assert all((m["loss"] is None, m["acc1"] is None) == (m["bad_samples"] == 1,) * 2 for m in steps_)
    assert sorted(curves(tmp_path / "tb")["train/loss"]) == [m["step"] for m in steps_ if m["bad_samples"] == 0]


def test_the_csv_log_counts_the_images_of_shortened_epochs(data, tmp_path):
    p = run(*convnet(data, "--log-dir", tmp_path, "--epoch-size", 100, epochs=3))  # three whole batches of 32
    assert p.returncode == 0, p.stderr
    rows = [line.split(",") for line in next(tmp_path.glob("convnet_gpu1_*.log")).read_text().splitlines()[1:]]
    assert [r[rows[0].index("cumulative_input_count")] for r in rows[1:]] == ["96", "192", "288"]


def test_training_time_goes_on_from_what_was_logged(data, tmp_path):
    """A checkpoint, or a rank that takes over, may have a smaller one: by its own clock."""
    metrics = tmp_path / "metrics.jsonl"
    args = convnet(data, "--arch", "mlp", "--checkpoint-dir", tmp_path, "--resume", "auto")
    assert run(*args).returncode == 0
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**r, "seconds": 1000.0} if r.get("step") == 5 and "lr" in r else r) + "\n" for r in rows))
    assert run(*args, "--num-epochs", 2).returncode == 0
    seconds = [m["seconds"] for m in map(json.loads, metrics.read_text().splitlines()) if "lr" in m]
    assert len(seconds) == 10 and seconds[4] == 1000 < seconds[5] <= seconds[9]


def test_a_row_that_is_written_again_keeps_the_rate_of_its_steps(data, tmp_path):
    def rows(*args):
        p = run(*convnet(data, "--arch", "mlp", "--checkpoint-dir", tmp_path, "--resume", "auto", *args))
        assert p.returncode == 0, p.stderr
        lines = [line.split(",") for line in next(tmp_path.glob("mlp_*_v2_*")).read_text().splitlines()[1:]]
        return [r[lines[0].index("learning_rate")] for r in lines[1:]]

    first = rows("--num-epochs", 2)
    assert rows("--num-epochs", 3)[:2] == first and len(first) == 2


def spans(path):
    """{(rank, track): [event]} of a timeline, in order of time."""
    out = {}
    for e in json.loads(path.read_text()):
        if e["ph"] == "X":
            out.setdefault((e["pid"], e["tid"]), []).append(e)
    for track in out.values():
        track.sort(key=lambda e: (e["ts"], -e["dur"]))
    return out


def assert_nested(track):
    open_until = []
    for e in track:
        end = e["ts"] + e["dur"]
        while open_until and open_until[-1] <= e["ts"]:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.0015, e  # microseconds, rounded to three digits
        open_until.append(end)


@pytest.mark.parametrize("words", [[], ["--virtual-local-rank"]])
def test_a_timeline_tells_what_steps_spend_their_time_on(data, tmp_path, words):
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, *words,
            *convnet(data, "--timeline", tmp_path / "t.json", "--timeline-steps", "2,3", "--checkpoint-dir", tmp_path / "ck"))
    assert p.returncode == 0, p.stderr
    tracks = spans(tmp_path / "t.json")
    assert {rank for rank, _ in tracks} == {0, 1}
    for track in tracks.values():
        assert_nested(track)
    for rank in (0, 1):
        training = tracks[rank, 0]
        steps_ = [e for e in training if e["cat"] == "step"]
        assert len(steps_) == 3
        names = [e["name"] for e in training]
        assert names.count("evaluation") == 1 and names.count("checkpoint") == (rank == 0)
        inner = [e for e in training if e["cat"] in ("data", "compute", "collective", "optimizer")]
        assert {"data", "compute", "collective", "optimizer"} <= {e["cat"] for e in inner}
        assert any("layer1.0" in e["name"] for e in inner)
        told = [sum(e["dur"] for e in inner if step["ts"] <= e["ts"] < step["ts"] + step["dur"]) for step in steps_]
        assert any(t >= 0.8 * step["dur"] for t, step in zip(told, steps_))  # nearly whole, unless the machine stood still in between
        assert sum("all-reduce" in e["name"] for e in tracks[rank, 1]) >= 3  # a bucket a step at least


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_a_timeline_names_layer_kernel_and_shape_of_every_operation(data, tmp_path, device):
    p = run(*convnet(data, "--timeline", tmp_path / "t.json", "--timeline-steps", "2,1", "--device", device))
    assert p.returncode == 0, p.stderr
    ops = {e["name"]: e.get("args", {}) for e in spans(tmp_path / "t.json")[0, 0] if e["cat"] == "compute"}
    wanted = {"layer1.0 conv", "layer2.0 conv", "layer1.0 conv_bwd_param", "layer2.0 conv_bwd_data", "layer2.0 conv_bwd_param", "fc linear"}
    assert wanted <= set(ops), sorted(ops)
    size = "3x28x28 -> 16x28x28"
    assert ops["layer1.0 conv"]["shape"] == ops["layer1.0 conv_bwd_param"]["shape"] == size
    assert all(("kernel" in args) == (device == "cpu") for args in ops.values())  # ref has one of each, and no name for it
    if device == "cpu":
        assert re.search("jit|gemm|brg|ref", ops["layer1.0 conv"]["kernel"]), ops  # oneDNN's names
        assert ops["layer1.1 bn+relu"]["kernel"].startswith("kern_"), ops


def test_a_timeline_shows_reductions_beside_the_backward_pass_they_hide_behind(data, tmp_path):
    args = ["--arch", "resnet18", "--bucket-mb", 1, "--timeline", tmp_path / "t.json", "--timeline-steps", "2,4", "--max-steps", 5]
    p = run(CRUN, "--standalone", "--nproc_per_node", 2, *convnet(data, *args))
    assert p.returncode == 0, p.stderr
    tracks = spans(tmp_path / "t.json")
    for rank in (0, 1):
        beside = []
        for step in (e for e in tracks[rank, 0] if e["cat"] == "step"):
            backward, buckets = ([e for e in tracks[rank, track] if step["ts"] <= e["ts"] < step["ts"] + step["dur"]] for track in (0, 1))
            end = max(e["ts"] + e["dur"] for e in backward if e["cat"] == "compute" and "_bwd" in e["name"])
            buckets = [e for e in buckets if e["name"].startswith("all-reduce bucket")]
            assert len(buckets) > 10
            beside.append(min(e["ts"] for e in buckets) < end)
        assert len(beside) == 4 and any(beside)  # how many begin while backward runs is the machine's to say


def test_a_timeline_shows_checkpoints_that_are_written_beside_training(data, tmp_path):
    args = ["--timeline-steps", "1,2", "--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 5]
    p = run(*convnet(data, "--timeline", tmp_path / "t.json", *args, epochs=2))
    assert p.returncode == 0, p.stderr
    saved = [json.loads(line) for line in (tmp_path / "ck" / "metrics.jsonl").read_text().splitlines() if '"checkpoint"' in line]
    saved = {m["step"]: m["write_ms"] for m in saved if m.get("event") == "checkpoint"}
    tracks = spans(tmp_path / "t.json")
    assert {e["name"]: e["dur"] / 1000 for e in tracks[0, 2]} == pytest.approx({f"write step {k}": v for k, v in saved.items()}, abs=0.01)
    assert_nested(tracks[0, 2])
    copied = [e for e in tracks[0, 0] if e["name"] == "checkpoint"]
    assert tracks[0, 2][0]["ts"] >= copied[0]["ts"]
    p = run(*convnet(data, "--timeline", tmp_path / "sync.json", *args[:2], "--checkpoint-dir", tmp_path / "ck2", "--checkpoint-sync"))
    assert p.returncode == 0, p.stderr
    assert set(spans(tmp_path / "sync.json")) == {(0, 0)}  # in training's own thread


def test_the_steps_of_a_timeline_add_up_to_the_time_of_training(data, tmp_path):
    p = run(*convnet(data, "--timeline", tmp_path / "t.json", "--timeline-steps", "1,1000", "--log-dir", tmp_path))
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seconds = [0, *(m["seconds"] for m in lines if "lr" in m)]
    took = [b - a for a, b in zip(seconds, seconds[1:])]
    shown = [e["dur"] / 1e6 for e in spans(tmp_path / "t.json")[0, 0] if e["cat"] == "step"]
    more = sorted(b - a for a, b in zip(took, shown))
    assert len(took) == len(shown) == 5 and more[0] >= -1e-5
    assert sum(more[:-1]) <= 0.1 * seconds[-1] + 0.05  # one may have met with a machine that stood still


def test_a_killed_runs_timeline_lacks_a_bracket_at_most(data, tmp_path):
    file = tmp_path / "t.json"
    p = subprocess.Popen([str(a) for a in convnet(data, "--timeline", file, "--timeline-steps", "1,1000000", "--print-freq", 1, epochs=1000)],
                         stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "Epoch 2/1000 [3/5]" in line:
            p.kill()
            break
    p.stderr.close()
    p.wait(timeout=60)
    events_ = json.loads(file.read_text() + "]")
    assert sum(e.get("cat") == "step" for e in events_) >= 6


def test_prof_is_a_timeline_of_ten_steps(data, tmp_path):
    p = run(*convnet(data, "--prof", 4, "--log-dir", tmp_path, epochs=4))
    assert p.returncode == 0, p.stderr
    assert sum(e["cat"] == "step" for e in spans(tmp_path / "timeline.json")[0, 0]) == 10


@pytest.mark.parametrize("args, words", [
    (("--timeline-steps", "1,2"), "--timeline-steps is of use with --timeline only"),
    (("--prof", 3, "--timeline-steps", "1,2"), "--timeline-steps 1,2 is of no use: --prof 3 takes ten steps"),
    (("--prof", 500), "the timeline has no steps: it was to begin with step 500, this run made 5"),
    (("--prof", 5), None)])
def test_a_timelines_options_that_are_of_no_use_are_told(data, tmp_path, args, words):
    p = run(*convnet(data, "--arch", "mlp", "--checkpoint-dir", tmp_path, *args))
    assert p.returncode == 0 and p.stderr.count(" warn ") == (words is not None) and (words or "") in p.stderr, p.stderr


def test_metrics_begin_with_the_whole_configuration_and_end_with_memory(data, tmp_path):
    p = run(*convnet(data, "--log-dir", tmp_path, "--lr", 0.05, "--nesterov", "--amp", "bf16", "--mean", "0.5,0.4,0.25", "--cache-decoded", "3072M"))
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    start, end = lines[0], lines[-1]
    assert start["event"] == "start" and start["world"] == 1 and start["train_images"] == 160 and "--lr 0.05" in start["command_line"]
    config = start["config"]
    assert config["base-learning-rate"] == 0.05 and config["nesterov"] is True and config["optimizer"] == "sgd"
    shown = {line.split(" = ")[0] for line in run(*convnet(data, "--print-config")).stdout.splitlines()}
    assert len(shown) > 100 and shown == set(config)
    of_forms_of_their_own = {"amp": "bf16", "opt-level": None, "loss-scale": None, "mean": "0.5,0.4,0.25", "std": None, "crop-scale": "0.08,1",
                             "cache-decoded": "3G", "lr-milestones": "30,60,80", "timeline-steps": "3,10", "drill-corrupt": None}
    assert config == config | of_forms_of_their_own
    assert end["event"] == "end" and end["mean_images_per_sec"] > 0
    memory = end["memory"]
    parameters = 16 * 3 * 25 + 16 * 3 + 32 * 16 * 25 + 32 * 3 + 10 * 32 * 49 + 10
    assert 4 * parameters <= memory["parameters"] <= 4 * parameters + 4096
    assert memory["optimizer"] <= memory["parameters"] <= memory["gradients"]
    assert memory["batches"] % (28 * 28 * 3) == 0 and memory["batches"] >= 4 * 32 * 28 * 28 * 3  # four batches ahead
    assert memory["activations"] >= 4 * 32 * 16 * 28 * 28  # the largest tensor of a batch at least
    assert sum(v for k, v in memory.items() if k != "resident_peak") < memory["resident_peak"] < 2 << 30
    for text in ("parameters", "activations", "peak of the process"):
        assert re.search(rf"^memory: .*{text} \d+\.\d MiB", p.stderr, re.M), p.stderr


def test_several_runs_are_drawn_in_one_picture(data, tmp_path):
    logs = ["--log-dir", tmp_path / "sgd"], ["--log-dir", tmp_path / "adam", "--optimizer", "adam", "--lr", "0.001"]
    for args in logs:
        p = run(*convnet(data, *args))
        assert p.returncode == 0, p.stderr
    csv = next((tmp_path / "sgd").glob("convnet_gpu1_*.log"))
    p = run(TRAINER, "plot", "sgd", "adam", csv, "--smooth", 2, "--out", "all.png", cwd=tmp_path)
    assert (p.returncode, p.stdout) == (0, "all.png\n"), p.stderr
    one = run(TRAINER, "plot", "sgd", cwd=tmp_path)
    assert (one.returncode, one.stdout) == (0, "sgd/plot.png\n"), one.stderr
    both = run(TRAINER, "plot", "sgd", "adam", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (0, "plot.png\n"), both.stderr
    pictures = [(tmp_path / name).read_bytes() for name in ("all.png", "sgd/plot.png", "plot.png")]
    assert all(p.startswith(b"\x89PNG") and len(p) > 10000 for p in pictures)
    assert len(set(pictures)) == 3


@pytest.mark.parametrize("args, code, words", [
    (["nowhere"], 65, "open nowhere: No such file"),
    (["text"], 65, "text is neither metrics.jsonl nor a CSV log of Caffe2's trainer: it has no column cumulative_batch_count"),
    (["text", "--smooth", "1.5"], 2, "--smooth: '1.5': expected a number of steps (1: none) or a share of them below 1"),
    (["text"] * 8, 2, "8 runs in one picture: 1 to 7 can be distinguished"),
    ([], 2, "a run is needed"),
])
def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path, args, code, words):
    (tmp_path / "text").write_text("time_spent,loss\n1,2\n")
    p = run(TRAINER, "plot", *args, cwd=tmp_path)
    assert p.returncode == code and p.stderr.count("\n") == 1 and words in p.stderr, p.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["text"]
