"""Who trains on what, proved from --debug-batch-sha through the real programs."""
import json
import pathlib
import re

import pytest

from support import CRUN, TRAINER, run

IMAGES, BATCH = 50, 12  # 4 whole batches and one of 2


@pytest.fixture(scope="module")
def folder(shapes):
    return shapes(32, IMAGES, 10) / "train"


def train(data, log, *args, world=1, env=None, code=0):
    options = ["--train-data", data, "--arch", "convnet", "--image-size", 28, *([] if "--batch-size" in args else ["--batch-size", BATCH]),
               "--device", "ref", "--lr", 0.01, "--lr-policy", "fixed", "--debug-batch-sha", log, *args]
    program = [TRAINER] if world == 1 else [CRUN, "--standalone", "--nproc_per_node", world, "trainer"]
    p = run(*program, *options, env=env)
    assert p.returncode == code, p.stdout + p.stderr
    return p


def lines(log):
    return [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]


def ids_by_epoch(log):
    epochs = {}
    for line in lines(log):
        epochs.setdefault(line["epoch"], []).extend(line["ids"])
    return epochs


def test_ranks_share_an_epoch_without_a_sample_twice(folder, tmp_path):
    train(folder, tmp_path / "log", "--num-epochs", 2, world=3)
    epochs = ids_by_epoch(tmp_path / "log")
    assert sorted(epochs) == [0, 1]
    for ids in epochs.values():
        assert sorted(ids) == list(range(IMAGES))
    assert {line["rank"] for line in lines(tmp_path / "log")} == {0, 1, 2}
    assert epochs[0] != epochs[1]


def test_batches_do_not_depend_on_the_number_of_loader_threads(folder, tmp_path):
    for threads in (1, 8):
        train(folder, tmp_path / str(threads), "--num-epochs", 2, "--seed", 3, "--loader-threads", threads)
    assert lines(tmp_path / "1") == lines(tmp_path / "8")
    train(folder, tmp_path / "other", "--num-epochs", 2, "--seed", 4)
    ours, others = lines(tmp_path / "1"), lines(tmp_path / "other")
    assert all(a["sha256"] != b["sha256"] for a, b in zip(ours, others))


@pytest.mark.parametrize("size,kept", [("64M", IMAGES), ("32K", None)])
def test_ranks_of_a_node_keep_decoded_pictures_together(folder, tmp_path, size, kept):
    by_rank = {}
    for name, args in (("plain", []), ("kept", ["--cache-decoded", size, "--log-level", "info"])):
        p = train(folder, tmp_path / name, "--num-epochs", 3, *args, world=2)
        by_rank[name] = sorted(lines(tmp_path / name), key=lambda m: (m["epoch"], m["step"], m["rank"]))
    assert by_rank["plain"] == by_rank["kept"]
    found = int(re.search(r"(\d+) of 50 decoded pictures were kept", p.stderr)[1])
    assert found == kept if kept else 0 < found < IMAGES


def test_a_cache_that_cannot_be_is_refused_with_both_numbers(folder, tmp_path):
    p = train(folder, tmp_path / "log", "--cache-decoded", 100, code=2)
    assert re.search(r"--cache-decoded 100: the table of 50 pictures alone takes \d+ bytes", p.stderr), p.stderr
    p = train(folder, tmp_path / "log", "--cache-decoded", "1000000G", code=2)
    assert re.search(r"--cache-decoded \d+: this machine has \d+ bytes of memory", p.stderr), p.stderr


def test_batches_go_to_standard_output_for_a_dash(folder):
    p = train(folder, "-", "--num-epochs", 1, "--max-steps", 2)
    told = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    assert [line["step"] for line in told] == [0, 1]


@pytest.mark.parametrize("then", [2, 4])
def test_a_run_resumed_by_another_number_of_ranks_takes_each_sample_once(folder, tmp_path, then):
    args = ["--num-epochs", 2, "--checkpoint-dir", tmp_path / "ckpt", "--resume", "auto"]
    train(folder, tmp_path / "log", *args, "--max-steps", 2, world=3)
    assert len(ids_by_epoch(tmp_path / "log")[0]) == 2 * BATCH  # in mid-epoch
    train(folder, tmp_path / "log", *args, world=then)
    epochs = ids_by_epoch(tmp_path / "log")
    assert sorted(epochs) == [0, 1]
    for ids in epochs.values():
        assert sorted(ids) == list(range(IMAGES))
    assert {line["world"] for line in lines(tmp_path / "log")} == {3, then}


def test_damaged_pictures_weigh_nothing_and_are_counted(folder, tmp_path):
    for i, path in enumerate(sorted(folder.glob("*/*.jpg"))):
        copy = tmp_path / "set" / path.parent.name / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        copy.write_bytes(data[:len(data) // 2] if i in (3, 30) else data)
    p = train(tmp_path / "set", tmp_path / "log", "--num-epochs", 2, "--log-dir", tmp_path)
    assert sum(line["bad"] for line in lines(tmp_path / "log")) == 2 * 2  # they are tried again each epoch
    for ids in ids_by_epoch(tmp_path / "log").values():
        assert sorted(ids) == list(range(IMAGES))
    assert p.stderr.count("is left out") == 2
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(m["bad_samples"] for m in steps if "lr" in m) == 2 * 2
    assert p.stderr.count("2 training images could not be read or decoded, or are of no class, and weighed nothing") == 2
    train(tmp_path / "set", tmp_path / "log", "--num-epochs", 1, "--strict-data", code=65)


def test_pictures_that_are_gone_weigh_nothing_and_are_counted(folder, tmp_path):
    for path in folder.glob("*/*.jpg"):
        copy = tmp_path / "set" / path.parent.name / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    kind = copy.parent
    (kind / "nowhere.jpg").symlink_to("gone.jpg")
    (kind / "loop.jpg").symlink_to("loop.jpg")
    p = train(tmp_path / "set", tmp_path / "log", "--num-epochs", 1, "--log-dir", tmp_path)
    assert p.stderr.count("is left out: cannot be read") == 2 and "No such file" in p.stderr, p.stderr
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(m["bad_samples"] for m in steps if "lr" in m) == 2
    p = train(tmp_path / "set", tmp_path / "log", "--num-epochs", 1, "--strict-data", code=65)
    assert "No such file" in p.stderr or "Too many levels" in p.stderr, p.stderr


def test_distributed_ranks_take_turns_and_repeat_the_head(folder, tmp_path):
    train(folder, tmp_path / "log", "--num-epochs", 1, "--sampler", "distributed", world=4)
    by_rank = {rank: [] for rank in range(4)}
    for line in sorted(lines(tmp_path / "log"), key=lambda m: m["step"]):
        by_rank[line["rank"]] += line["ids"]
    assert [len(ids) for ids in by_rank.values()] == [13] * 4
    order = [ids[i] for i in range(13) for ids in by_rank.values()]
    assert sorted(order[:IMAGES]) == list(range(IMAGES)) and order[IMAGES:] == order[:2]


def test_distributed_can_drop_the_rest(folder, tmp_path):
    train(folder, tmp_path / "log", "--num-epochs", 1, "--sampler", "distributed", "--drop-last", world=4)
    ids = ids_by_epoch(tmp_path / "log")[0]
    assert len(ids) == len(set(ids)) == 48


@pytest.mark.parametrize("more, images", [([], 52), (["--drop-last"], 48)])
def test_distributed_takes_one_step_where_the_batch_is_larger_than_the_set(folder, tmp_path, more, images):
    train(folder, tmp_path / "log", "--num-epochs", 2, "--batch-size", 1000, "--sampler", "distributed", *more, world=4)
    assert {line["step"] for line in lines(tmp_path / "log")} == {0} and [len(ids) for ids in ids_by_epoch(tmp_path / "log").values()] == [images, images]


def test_sharded_nodes_take_turns_in_the_order_of_the_records(folder, tmp_path):
    train(folder, tmp_path / "log", "--num-epochs", 2, "--sampler", "sharded", "--epoch-size", 30, world=2)
    seen = {0: [], 1: []}  # two ranks of one node: one reader serves both
    for line in sorted(lines(tmp_path / "log"), key=lambda m: (m["epoch"], m["step"])):
        seen[line["rank"]].append(line["ids"])
    assert [ids[0] for ids in seen[0]] == [0, 12, 24, 36] and [ids[0] for ids in seen[1]] == [6, 18, 30, 42]


def test_an_unshuffled_run_takes_the_samples_as_they_lie(folder, tmp_path):
    train(folder, tmp_path / "log", "--num-epochs", 1, "--shuffle", "off")
    assert ids_by_epoch(tmp_path / "log")[0] == list(range(IMAGES))


def test_drop_last_without_its_sampler_is_refused(folder, tmp_path):
    p = train(folder, tmp_path / "log", "--drop-last", code=2)
    assert "--drop-last" in p.stderr


@pytest.mark.parametrize("typed, world, scale", [(3, 1, 3), (3, 2, 6), (64, 1, BATCH), (64, 2, BATCH)])
def test_horovods_rate_counts_the_parts_that_a_batch_has(folder, tmp_path, typed, world, scale):
    train(folder, tmp_path / "log", "--lr-policy", "horovod", "--warmup-epochs", 0, "--accumulate", typed, "--max-steps", 1, "--checkpoint-dir", tmp_path / "ck", world=world)
    rates = [line["lr"] for line in lines(tmp_path / "ck" / "metrics.jsonl") if "lr" in line]
    assert rates[0] == pytest.approx(0.01 * scale), rates
