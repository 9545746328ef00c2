"""trainer imagenet: the printed command lines of TorchShard and PyTorch's example, their defaults, their refusals."""
import json
import os
import subprocess

import pytest

from command_lines import clean, config, refused, together, trained
from metrics_file import losses
from support import TRAINER, free_port

SMALL = " -a convnet --image-size 28 --epochs 1 -j 1"


@pytest.fixture(scope="module")
def folder(shapes):
    return shapes(32, 32, 16)


def test_one_machine(folder, tmp_path):
    p = trained(tmp_path, f"imagenet --multiprocessing-distributed --num-classes 1000 {folder} --procs 2 -b 16" + SMALL)
    assert "1000 classes" in p.stderr_text and "16 global, 16 per node, up to 8 per rank (2 ranks, 1 nodes); 2 steps" in p.stderr_text
    assert p.stdout_text.splitlines()[-1].startswith(" * Acc@1 ")
    assert "Epoch: [0][" in p.stderr_text + p.stdout_text and (tmp_path / "checkpoint.pth.tar" / "latest").exists()


def test_what_is_not_supported_is_said(folder, tmp_path):
    p = refused(tmp_path, f"imagenet --multiprocessing-distributed --num-classes 1000 --use-adasum {folder}", 69, "adaptive summation is not supported")
    assert p.stderr_text.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", ["--enable-model-parallel", "--enable-model-parallel --model-parallel-dim -1"])
def test_a_layer_that_nobody_shares_is_whole(folder, tmp_path, more):
    trained(tmp_path, f"imagenet --num-classes 1000 {more} {folder} -b 16 --max-steps 1" + SMALL)


def test_mixed_precision_by_torchshards_name(folder, tmp_path):
    p = trained(tmp_path, f"imagenet --multiprocessing-distributed --num-classes 1000 --enable-amp-mode {folder} -b 16 --max-steps 1" + SMALL)
    assert "(O1" in p.stderr_text


def nodes(folder, tmp_path, url, **env):
    line = f"imagenet {folder} --multiprocessing-distributed --dist-url {url} --batch-size 8 --num-classes 2000 --world-size 2 --procs 2" + SMALL
    ps = together([(tmp_path, f"{line} --rank {r}", env) for r in range(2)])
    assert "16 global, 8 per node, up to 4 per rank (4 ranks, 2 nodes); 2 steps" in ps[0].stderr_text and "ranks" not in ps[1].stderr_text
    return losses(tmp_path / "checkpoint.pth.tar")


def test_two_machines_meet_at_tcp_and_by_environment(folder, tmp_path):
    tcp, env = tmp_path / "tcp", tmp_path / "env"
    tcp.mkdir(), env.mkdir()
    first = nodes(folder, tcp, f"tcp://127.0.0.1:{free_port()}")
    assert nodes(folder, env, "env://", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()) == first and len(first) == 2


# What the machine of a test is: two processes, a small network and small batches.
SCALED = "#!/bin/sh\nshift\nexec {trainer} imagenet \"$@\" --procs 2 -a {arch} --image-size 32 --epochs 1 -j 1 -b {batch} --device cpu\n"


def typed(cwd, folder, script, batch, port="0", arch="mlp"):
    """A script of TorchShard's page, as it stands there: only the directory, the interface and the address are this machine's."""
    (cwd / "bin").mkdir(parents=True)
    (cwd / "bin/python3").write_text(SCALED.format(trainer=TRAINER, batch=batch, arch=arch))
    (cwd / "bin/python3").chmod(0o755)
    for there, here in (("${imagenet directory}", str(folder)), ("ens1f1", "lo"), ("172.20.10.22", "127.0.0.1"), ("12355", str(port))):
        script = script.replace(there, here)
    return subprocess.Popen(["bash", "-c", script], cwd=cwd, env=clean(PATH=f"{cwd}/bin:{os.environ['PATH']}"), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def ended(p):
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    return err


@pytest.mark.parametrize("arch", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_torchshards_lines_for_one_machine(folder, tmp_path, arch):
    curves = {}
    for name, line in {
            "base": "python3 main.py --multiprocessing-distributed --num-classes 1000 ${imagenet directory} ",
            "shard": "python3 main.py --multiprocessing-distributed --num-classes 1000 --enable-model-parallel --model-parallel-dim 0 ${imagenet directory} ",
            "amp": "python3 main.py --multiprocessing-distributed --num-classes 1000 --enable-model-parallel --model-parallel-dim 0 --enable-amp-mode ${imagenet directory} ",
            "zero": "python3 main.py --multiprocessing-distributed --num-classes 1000 --enable-model-parallel --model-parallel-dim 0 --enable-zero-optim ${imagenet directory}"}.items():
        err = ended(typed(tmp_path / name, folder, line, 16, arch=arch))
        assert ("that share the last layer, split over features" in err) == (name != "base") and ("(O1" in err) == (name == "amp"), err
        curves[name] = losses(tmp_path / name / "checkpoint.pth.tar")
        assert (tmp_path / name / "checkpoint.pth.tar/latest").exists()
    assert len(curves["base"]) == 2
    assert curves["shard"] == pytest.approx(curves["base"], rel=1e-5) and curves["zero"] == pytest.approx(curves["base"], rel=1e-5)
    assert curves["amp"][0] == pytest.approx(curves["base"][0], rel=1e-2) and curves["amp"][0] != curves["base"][0]  # a first step may overflow


NODE = """#!/usr/bin/env bash

export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
export NCCL_SOCKET_IFNAME=ens1f1  # SOCKET_OF_NODE0
export MASTER_ADDR=172.20.10.22   # IP_OF_NODE0
export MASTER_PORT=12355          # FREEPORT

python3 main.py \\
    ${imagenet directory} \\
    --multiprocessing-distributed --dist-url tcp://$MASTER_ADDR:$MASTER_PORT \\
    --enable-model-parallel --model-parallel-dim 1 \\
    --batch-size 128 --num-classes 2000000 \\
    --world-size 2 --rank RANK \\
    # --enable-amp-mode or --enable-zero-optim """


@pytest.mark.parametrize("arch, classes", [("mlp", 2000), pytest.param("resnet18", 20000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("more", ["", "--enable-zero-optim", "--enable-amp-mode"])
def test_torchshards_lines_for_two_machines(folder, tmp_path, more, arch, classes):
    text = NODE.replace("2000000", str(classes)).replace("# --enable-amp-mode or --enable-zero-optim ", more)
    port = free_port()
    ps = [typed(tmp_path / str(r), folder, text.replace("RANK", str(r)), 8, port, arch) for r in range(2)]
    err = [ended(p) for p in ps][0]
    for says in ("16 global, 8 per node, up to 4 per rank (4 ranks, 2 nodes); 2 steps", "that share the last layer, split over classes", f"{classes} classes"):
        assert says in err, err
    assert len(losses(tmp_path / "0/checkpoint.pth.tar")) == 2 and (tmp_path / "0/checkpoint.pth.tar/latest").exists()


def test_a_second_run_sets_the_first_ones_checkpoints_aside(folder, tmp_path):
    for _ in range(2):
        p = trained(tmp_path, f"imagenet {folder} -b 16" + SMALL)
    kept = list(tmp_path.glob("checkpoint.pth.tar.until-*"))
    assert len(kept) == 1 and (kept[0] / "latest").exists() and (tmp_path / "checkpoint.pth.tar" / "latest").exists()
    assert "\nsaved: checkpoint.pth.tar/step-00000002; the best is step-" in p.stderr_text and "not be saved" not in p.stderr_text


def test_what_is_refused_renames_nothing(folder, tmp_path):
    trained(tmp_path, f"imagenet {folder} -b 16" + SMALL)
    (tmp_path / "file").write_text("")
    for more, code, text in [("--resume checkpoint.pth", 2, "no checkpoint found"), ("--pretrained nope.pth", 2, "nope.pth"),
                             ("--tensorboard file/tb", 73, "file"),
                             ("--pretrained checkpoint.pth.tar -a resnet18", 78, "tensor")]:
        refused(tmp_path, f"imagenet {folder} -b 16{SMALL} {more}", code, text)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.pth.tar", "file"], more
    p = trained(tmp_path, f"imagenet {folder} -b 16 --resume checkpoint.pth.tar --prof 1" + SMALL.replace("--epochs 1", "--epochs 2"))
    assert "resumed from step 2" in p.stderr_text, p.stderr_text
    trained(tmp_path, f"imagenet {folder} -b 16 --prof 1 --multiprocessing-distributed --procs 2" + SMALL)
    kept = list(tmp_path.glob("checkpoint.pth.tar.until-*"))
    assert len(kept) == 1 and not (tmp_path / "checkpoint.pth.tar" / "step-00000004").exists()
    assert {e["pid"] for e in json.loads((tmp_path / "checkpoint.pth.tar" / "timeline.json").read_text())} == {0, 1}


def test_resume_and_evaluate(folder, tmp_path):
    trained(tmp_path, f"imagenet {folder} -b 16" + SMALL)
    p = trained(tmp_path, f"imagenet {folder} -b 16 --resume checkpoint.pth.tar" + SMALL.replace("--epochs 1", "--epochs 2"))
    assert "resumed from step 2 (epoch 1" in p.stderr_text, p.stderr_text
    p = trained(tmp_path, f"imagenet {folder} -b 16 -e --resume checkpoint.pth.tar" + SMALL)
    assert "Acc@1" in p.stdout_text
    refused(tmp_path, f"imagenet {folder} --resume no.pth.tar" + SMALL, 2, "no.pth.tar")


def test_a_start_epoch_has_its_rate(folder, tmp_path):
    trained(tmp_path, f"imagenet {folder} -b 16 --epochs 31 --start-epoch 30 -a convnet --image-size 28 --max-steps 61 --lr 0.01")
    steps = [m for m in map(json.loads, (tmp_path / "checkpoint.pth.tar" / "metrics.jsonl").read_text().splitlines()) if "lr" in m]
    assert len(steps) == 1 and abs(steps[0]["lr"] - 0.001) < 1e-12


def test_one_device_and_made_up_images(tmp_path):
    p = trained(tmp_path, "imagenet --dummy --gpu 0 -b 4 --max-steps 1 --null-images 8 --eval-steps 1" + SMALL)
    for text in ("=> Dummy data is used!", "completely disable data parallelism", "using CPU, this will be slow"):
        assert text in p.stderr_text
    p = trained(tmp_path, "imagenet --dummy --no-accel --print-config")
    assert "CPU" not in p.stderr_text


def test_defaults_are_those_of_the_examples():
    c = config("imagenet DIR --no-cuda")
    want = {"train-data": "DIR/train", "test-data": "DIR/val", "batch-size": "256", "arch": "resnet50", "num-epochs": "90", "start-epoch": "0",
            "base-learning-rate": "0.1", "momentum": "0.9", "weight-decay": "0.0001", "lr-policy": "step", "lr-step": "30", "lr-gamma": "0.1",
            "warmup-epochs": "0", "print-freq": "10", "num-labels": "1000", "image-size": "224", "loader-threads": "4", "resume": "off",
            "evaluate": "off", "sampler": "distributed", "input": "torch", "progress": "torch", "checkpoint-dir": "checkpoint.pth.tar",
            "if-checkpoint": "aside", "zero-init-residual": "off", "bn-decay": "on", "net-style": "torch", "dist-url": ""}
    assert {k: c[k] for k in want} == want
    assert config("imagenet")["train-data"] == "imagenet/train"
    assert config("imagenet --train-dir a --val-dir b")["test-data"] == "b"


def test_numbers_of_machines_and_processes():
    c = config("imagenet D --world-size 2 --rank 1 --dist-url tcp://h:8000 --multiprocessing-distributed --procs 4 -j 6 --batch-size 128")
    assert (c["batch-size"], c["nodes"], c["node-rank"], c["loader-threads"]) == ("256", "2", "1", "2")
    c = config("imagenet D --batch-per-process 256 --multiprocessing-distributed --procs 8 --lr-policy apex --sync_bn")
    assert (c["batch-size"], c["warmup-epochs"], c["sync-bn"]) == ("2048", "-1", "on")
    c = config("imagenet D --batch-per-process 32 --base-lr 0.0125 --wd 5e-5 --warmup-epochs 5 --lr-policy horovod --batches-per-allreduce 2")
    assert (c["batch-size"], c["base-learning-rate"], c["accumulate"]) == ("32", "0.0125", "2")


@pytest.mark.parametrize("line, code, text", [
    ("D --world-size 2 --rank 0", 2, "2 machines need a place to meet"),
    ("D --world-size 2 --dist-url tcp://h:1", 2, "--world-size 2 needs --rank"),
    ("D --rank 1", 2, "--rank 1 needs --world-size"),
    ("D --world-size 2 --rank 2 --dist-url tcp://h:1", 2, "counted from 0 to 1"),
    ("D --world-size 2 --rank 0 --dist-url tcp://224.66.41.62:23456", 2, "multicast"),
    ("D --world-size 2 --rank 0 --dist-url tcp://h", 2, "expected tcp://HOST:PORT"),
    ("D --world-size 2 --rank 0 --dist-url env://", 2, "MASTER_ADDR and MASTER_PORT"),
    ("D --world-size 2 --rank 0 --dist-url redis://h:1", 2, "give --run-id"),
    ("D --dist-url mpi://", 2, "expected env://"),
    ("D --procs 2", 2, "goes with --multiprocessing-distributed"),
    ("D E", 2, "unexpected argument 'E'"),
    ("D -a resnet19", 2, "unknown architecture 'resnet19' (expected one of resnet18"),
    ("/no/such/folder", 65, "/no/such/folder/train"),
    ("D --use-adasum", 69, "adaptive summation"),
    ("D --start-epoch 90", 2, "the run has 90 epochs"),
    ("D --resume", 2, "'--resume' needs a value"),
    ("--pretrained -e D", 2, "--pretrained takes a file of weights, '-e' is an option: save those of torchvision"),
    ("--pretrained {data}", 2, "is a folder of data: save those of torchvision in Python (torch.save(resnet50(weights='DEFAULT').state_dict(), 'w.pth')), then --pretrained w.pth {data}"),
])
def test_refusals(tmp_path, line, code, text):
    if "resnet19" in line:
        (tmp_path / "D").mkdir()
        line = line.replace("D ", "--dummy ")
    (tmp_path / "data/train").mkdir(parents=True)
    line, text = (s.replace("{data}", str(tmp_path / "data")) for s in (line, text))
    refused(tmp_path, "imagenet " + line, code, text)


def test_under_a_launcher_ranks_are_not_counted_anew(tmp_path):
    env = dict(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)
    refused(tmp_path, "imagenet D --multiprocessing-distributed", 2, "a launcher has started 2 processes", **env)
    refused(tmp_path, "imagenet D --local_rank=1", 2, "LOCAL_RANK is 0", **env)
    refused(tmp_path, "train --train-data D --procs 2", 2, "a launcher has started this as rank 0 of 2", **env)
    assert config("imagenet D -b 64", **env)["batch-size"] == "64"
