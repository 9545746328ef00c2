"""trainer mnist: the tutorial's command lines, defaults and refusals."""
import struct

import pytest

from command_lines import config, refused, together, trained
from support import free_port


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """400 pictures in MNIST's format, where torchvision puts them."""
    root = tmp_path_factory.mktemp("mnist")
    raw = root / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    n = 400
    pixels = bytes((i // 784 % 10 * 25 + i % 784 // 28) % 256 for i in range(n * 784))
    (raw / "train-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, n, 28, 28) + pixels)
    (raw / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, n) + bytes(i % 10 for i in range(n)))
    return root


def test_two_processes_of_one_machine(data):
    p = trained(data, "mnist -n 1 -g 2 -nr 0")
    assert "29034 parameters" in p.stderr_text and "200 global, 200 per node, up to 100 per rank (2 ranks, 1 nodes); 2 steps" in p.stderr_text
    assert "Training complete in: 0:0" in p.stderr_text + p.stdout_text
    assert p.stderr_text.count("the model will not be saved") == p.stderr_text.count("the model was not saved") == 1


def test_two_machines_of_two_processes(data):
    place = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    ps = together([(data, f"mnist -n 2 -g 2 -nr {i} --epochs 1", place) for i in range(2)])
    assert "400 global, 200 per node, up to 100 per rank (4 ranks, 2 nodes); 1 steps" in ps[0].stderr_text
    assert "Training complete in" not in ps[1].stderr_text + ps[1].stdout_text


def test_defaults_are_those_of_the_tutorial():
    c = config("mnist")
    want = {"train-data": "./data", "arch": "convnet", "batch-size": "100", "num-epochs": "2", "base-learning-rate": "0.0001", "momentum": "0",
            "weight-decay": "0", "lr-policy": "fixed", "warmup-epochs": "0", "optimizer": "sgd", "sgd-rule": "torch", "seed": "0", "image-size": "28",
            "num-channels": "1", "num-labels": "10", "sampler": "distributed", "input": "plain", "progress": "article", "checkpoint-dir": ""}
    assert {k: c[k] for k in want} == want
    c = config("mnist -n 4 -g 8 -nr 3", MASTER_ADDR="a", MASTER_PORT="8888")
    assert (c["batch-size"], c["procs"], c["nodes"], c["node-rank"], c["dist-url"]) == ("3200", "8", "4", "3", "env://")
    assert config("mnist --nodes 1 --gpus 2 --nr 0 --batch-size 7")["batch-size"] == "14"


@pytest.mark.parametrize("line, code, text", [
    ("-n 2 -g 2 -nr 0", 2, "set MASTER_ADDR and MASTER_PORT"),
    ("-n 2 -nr 2", 2, "counted from 0 to 1"),
    ("-nr i", 2, "'i'"),
    ("-n 0", 2, "--nodes"),
    ("--data /no/such", 65, "/no/such"),
])
def test_refusals(tmp_path, line, code, text):
    refused(tmp_path, "mnist " + line, code, text)
