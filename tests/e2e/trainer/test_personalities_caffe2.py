"""trainer caffe2: the printed command lines of resnet50_trainer.py, its defaults, its refusals."""
import re
import time

import pytest

from command_lines import config, refused, start, result, together, trained
from metrics_file import losses
from servers import Redis
from support import TRAINER, run

SMALL = " --arch convnet --image_size 28 --num_epochs 1 --loader-threads 1"
HEADER = ("time_spent,cumulative_time_spent,input_count,cumulative_input_count,cumulative_batch_count,inputs_per_sec,accuracy,epoch,"
          "learning_rate,loss,test_accuracy")


@pytest.fixture(scope="module")
def dbs(shapes, tmp_path_factory):
    """Folder with 64 training records as LMDB and LevelDB, and 16 test records."""
    out = tmp_path_factory.mktemp("dbs")
    data = shapes(32, 64, 16)
    for src, dst, kind in (("train", "train.lmdb", "lmdb"), ("train", "train.leveldb", "leveldb"), ("val", "test.lmdb", "lmdb")):
        p = run(TRAINER, "make-db", "--src", data / src, "--dst", out / dst, "--db_type", kind)
        assert p.returncode == 0, p.stderr
    return out


def log_of(folder):
    (log,) = folder.glob("*.log")
    lines = log.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[1] == HEADER
    return log.name, [dict(zip(HEADER.split(","), row.split(","))) for row in lines[2:]]


def test_with_nothing_but_a_data_base(dbs, tmp_path):
    p = trained(tmp_path, f"caffe2 --train_data {dbs}/train.lmdb" + SMALL)
    name, rows = log_of(tmp_path)
    assert re.fullmatch(r"convnet_gpu1_b32_L1000_lr0\.10_v2_\d{8}_\d{6}\.log", name)
    assert len(rows) == 1 and rows[0]["test_accuracy"] == "-1" and rows[0]["input_count"] == "64"
    assert "Finished iteration 2/2 of epoch 0" in p.stderr_text
    assert "32 global, 32 per node, up to 32 per rank" in p.stderr_text and "using CPU, this will be slow" in p.stderr_text


def test_a_leveldb_gives_the_same_as_an_lmdb(dbs, tmp_path):
    for kind in "leveldb", "lmdb":
        (tmp_path / kind).mkdir()
        trained(tmp_path / kind, f"caffe2 --train_data {dbs}/train.{kind} --db_type {kind}" + SMALL)
    assert losses(tmp_path / "leveldb") == losses(tmp_path / "lmdb")


def test_two_devices_and_twice_the_batch_take_half_the_iterations(dbs, tmp_path):
    p = trained(tmp_path, f"caffe2 --train_data {dbs}/train.lmdb --num_gpus 2 --batch_size 64 --test_data {dbs}/test.lmdb" + SMALL)
    name, rows = log_of(tmp_path)
    assert name.startswith("convnet_gpu2_b64_L1000_lr0.10_v2_") and 0 <= float(rows[0]["test_accuracy"]) <= 1
    assert "Finished iteration 1/1 of epoch 0" in p.stderr_text and "64 global, 64 per node, up to 32 per rank (2 ranks" in p.stderr_text


def test_a_list_of_devices_goes_before_their_number(dbs, tmp_path):
    p = trained(tmp_path, f"caffe2 --train_data {dbs}/train.lmdb --gpus 0,1,3 --num_gpus 2 --batch_size 33 --max-steps 1 --use_cpu" + SMALL)
    assert "up to 11 per rank (3 ranks" in p.stderr_text and "no GPU" not in p.stderr_text


def shards(cwd, dbs, place, run_id):
    line = f"caffe2 --train_data {dbs}/train.lmdb --num_shards 2 --run_id {run_id} --batch_size 16 {place}" + SMALL
    ps = together([(cwd, f"{line} --log-dir log{i} --shard_id {i}", {}) for i in range(2)])
    assert "32 global, 16 per node" in ps[0].stderr_text and "Finished iteration 2/2" in ps[0].stderr_text
    return losses(cwd / "log0")


def test_two_machines_meet_in_a_folder_whose_run_id_was_used_before(dbs, tmp_path):
    first = shards(tmp_path, dbs, "--file_store_path share", "run")
    assert list((tmp_path / "share").iterdir()) == []
    stale = tmp_path / "share" / "crun-meet-run"
    stale.mkdir()
    for name, text in (("hello-1", "2 1\n"), ("welcome-1", "nobody 127.0.0.1 1\n"), (".part-hello-2", "")):
        (stale / name).write_text(text)
    assert shards(tmp_path, dbs, "--file_store_path share", "run") == first
    assert not stale.exists()


def test_two_machines_meet_in_a_redis_whose_run_id_was_used_before(dbs, tmp_path):
    redis = Redis(tmp_path)
    try:
        first = shards(tmp_path, dbs, f"--redis_host 127.0.0.1 --redis_port {redis.port}", "run")
        assert shards(tmp_path, dbs, f"--redis_host 127.0.0.1 --redis_port {redis.port}", "run") == first
    finally:
        redis.stop()


def test_mpirun_s_ranks_go_before_shards(dbs, tmp_path):
    line = f"caffe2 --train_data {dbs}/train.lmdb --num_shards 7 --shard_id 3 --batch_size 32 --max-steps 1" + SMALL
    ranks = [dict(OMPI_COMM_WORLD_RANK=r, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_RANK=r, OMPI_COMM_WORLD_LOCAL_SIZE=2) for r in range(2)]
    ps = together([(tmp_path, line, env) for env in ranks])
    assert ps[1].stderr_text == ""
    assert "--num_shards 7 and --shard_id do not count" in ps[0].stderr_text and "up to 16 per rank (2 ranks" in ps[0].stderr_text


def test_a_missing_machine_is_told_by_folder(dbs, tmp_path):
    line = f"caffe2 --train_data {dbs}/train.lmdb --num_shards 2 --run_id x --file_store_path share --comm-timeout 1"
    before = time.monotonic()
    refused(tmp_path, line + " --shard_id 0", 1, "not all of the other 1 ranks came to", "the same run id?")
    refused(tmp_path, line + " --shard_id 1", 1, "rank 0 did not come to", "do all machines see this folder")
    assert time.monotonic() - before < 60


def test_defaults_are_those_of_its_documentation():
    c = config("caffe2 --train_data x")
    want = {"batch-size": "32", "image-size": "227", "num-channels": "3", "num-labels": "1000", "num-epochs": "1000", "epoch-size": "0",
            "base-learning-rate": "0.1", "weight-decay": "0.0001", "max-loss": "40", "momentum": "0.9", "sgd-rule": "caffe2", "nesterov": "off", "bn-decay": "off",
            "lr-policy": "step", "lr-step": "30", "lr-gamma": "0.1", "warmup-epochs": "0", "lr-scale": "none", "arch": "resnet50",
            "net-style": "caffe2", "input": "caffe2", "sampler": "sharded", "progress": "caffe2", "data-format": "auto", "log-dir": ".",
            "checkpoint-dir": "", "resume": "off", "nodes": "0", "procs": "0", "dist-url": "", "zero-init-residual": "off"}
    assert {k: c[k] for k in want} == want


def test_batch_size_is_that_of_a_machine():
    c = config("caffe2 --train_data x --num_shards 4 --shard_id 1 --batch_size 64 --num_gpus 2 --run_id r --redis_host h")
    assert (c["batch-size"], c["procs"], c["nodes"], c["node-rank"], c["dist-url"]) == ("256", "2", "4", "1", "redis://h:6379")
    c = config("caffe2 --train_data x --num_shards 2 --run_id r --file_store_path /nfs")
    assert c["dist-url"] == "file:///nfs"


def test_models_have_the_name_and_the_epoch_and_can_be_loaded(dbs, tmp_path):
    line = f"caffe2 --train_data {dbs}/train.lmdb --base_learning_rate 0.001 --save_model_name model" + SMALL.replace("--num_epochs 1", "")
    trained(tmp_path, line + " --save_dir saved --num_epochs 1")
    assert [p.name for p in (tmp_path / "saved").glob("*.mdl")] == ["model_1.mdl"]
    p = trained(tmp_path, line.replace("--save_model_name model", "--max-steps 1"))
    assert p.stderr_text.count("the model will not be saved") == p.stderr_text.count("the model was not saved") == 1
    p = trained(tmp_path, line + " --save_dir saved --num_epochs 2 --load_model_path saved/model_1.mdl")
    assert "resumed from step 2" in p.stderr_text and [m.name for m in (tmp_path / "saved").glob("*.mdl")] == ["model_2.mdl"]
    (tmp_path / "saved" / "model_2.mdl").rename(tmp_path / "saved" / "model_7.mdl")
    p = trained(tmp_path, line + " --file_store_path other --num_epochs 3 --load_model_path saved/model_7.mdl")
    assert "resumed from step 4" in p.stderr_text and "7" in p.stderr_text.split("resumed")[0] and (tmp_path / "other" / "model_3.mdl").is_dir()
    refused(tmp_path, line + " --load_model_path saved/model_9.mdl --save_dir new --num_epochs 3", 2, "model_9.mdl")


@pytest.mark.parametrize("line, says", [("--dtype float16", "fp16 (O2"), ("--float16_compute", "fp16 (O3")])
def test_half_precision_by_its_names(dbs, tmp_path, line, says):
    p = trained(tmp_path, f"caffe2 --train_data {dbs}/train.lmdb --max-steps 1 --base_learning_rate 0.001 --enable_tensor_core {line}" + SMALL)
    assert says in p.stderr_text and "--enable_tensor_core has no effect on a CPU" in p.stderr_text


@pytest.mark.parametrize("line, level, scale", [("--dtype float16", "O2", "1"), ("--float16_compute", "O3", ""), ("--opt-level O1 --loss-scale dynamic", "O1", "dynamic"),
                                                ("--opt-level O1 --loss-scale 1099511627776", "O1", "1099511627776")])
def test_what_it_comes_to_has_the_precision(line, level, scale):
    came_to = config(f"caffe2 --train_data x --use_cpu {line}")
    assert (came_to["opt-level"], came_to["loss-scale"]) == (level, scale)


def test_epochs_are_whole_batches_of_the_images_asked_for(dbs, tmp_path):
    p = trained(tmp_path, f"caffe2 --train_data {dbs}/train.lmdb --epoch_size 100 --max-steps 3" + SMALL.replace("--num_epochs 1", "--num_epochs 2"))
    assert "Finished iteration 3/3 of epoch 0" in p.stderr_text


def test_the_warnings_name_what_does_not_fit():
    p = trained("/", "caffe2 --train_data x --cudnn_workspace_limit_mb 4096 --use_ideep --print-config")
    for text in ("meant for a global batch of 256", "0.0125 would fit", "--cudnn_workspace_limit_mb 4096 has no effect on a CPU", "oneDNN is used"):
        assert text in p.stderr_text
    p = trained("/", "caffe2 --train_data x --batch_size 256 --use_cpu --print-config")
    assert p.stderr_text == ""


@pytest.mark.parametrize("line, code, text", [
    ("", 2, "'--train-data' is required"),
    ("--train_data x --num_gpus 2 --batch_size 33", 2, "Number of GPUs must divide batch size"),
    ("--train_data x --gpus 0,0", 2, "device 0 is named twice"),
    ("--train_data x --image_size 299", 2, "at most 256"),
    ("--train_data x --use_cpu False", 2, "unexpected argument 'False'"),
    ("--train_data x --num_shards 2 --shard_id 2", 2, "counted from 0 to 1"),
    ("--train_data x --num_shards 2", 2, "needs --run_id"),
    ("--train_data x --epoch_size 31", 2, "--epoch_size 31 is less than one batch of 32"),
    ("--train_data x --num_layers 51", 2, "expected 18, 34, 50, 101 or 152"),
    ("--train_data x --save_dir d", 2, "--save_dir needs --save_model_name"),
    ("--train_data x --model_parallel --gpus 0,1,2", 2, "--model_parallel over 3 devices: expected an even number"),
    ("--train_data x --model_parallel --gpus 0,1 --batch_size 8 --stages 3", 2, "--stages 3: --model_parallel is two of them"),
    ("--train_data x --model resnext", 69, "that model is not supported"),
    ("--train_data x --distributed_transport ibverbs", 69, "InfiniBand"),
    ("--train_data x --use_nccl", 69, "NCCL without GPUs is not supported"),
    ("--train_data x --db_type lmbd", 2, "'lmbd' is not one of"),
])
def test_refusals(tmp_path, line, code, text):
    p = refused(tmp_path, "caffe2 " + line, code, text)
    assert text in p.stderr_text.splitlines()[-1]
