#!/usr/bin/env python3
"""Read checkpoints from Python: with numpy, and with the safetensors package where it is installed.

check_safetensors.py WRITE_SAMPLE   has that program save a state whose values are known, and checks all of it (TAP)
check_safetensors.py FILE           prints name, type and shape of every tensor of a safetensors file
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP python3-numpy is not installed")
    sys.exit(0)

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def load(path):
    """The whole format in a dozen lines: {name: array}; BF16 comes as its 16 bits."""
    with open(path, "rb") as f:
        blob = f.read()
    size = int.from_bytes(blob[:8], "little")
    assert size % 8 == 0, "the header is padded to 8 bytes"
    tensors = {}
    for name, entry in json.loads(blob[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = blob[8 + size + begin : 8 + size + end]
            tensors[name] = np.frombuffer(data, TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def values(shape, dtype, step):
    i = np.arange(int(np.prod(shape)))
    flat = step * 1000 + i if dtype == "i8" else np.float32(step) + i.astype(np.float32) / np.float32(1024)
    return flat.astype(dtype).reshape(shape)


MODEL = {"conv1.weight": ((600, 100), "f4"), "bn1.num_batches_tracked": ((), "i8"), "fc.weight": ((10, 512), "f4"),
         "fc.bias": ((10,), "f4")}
TRAIN = {"momentum.conv1.weight": ((60000,), "f4"), "sampler.position": ((3,), "i8")}


def same(tensors, expected):
    assert sorted(tensors) == sorted(expected), (sorted(tensors), sorted(expected))
    for name, (shape, dtype) in expected.items():
        want = values(shape, dtype, 7)
        assert tensors[name].shape == want.shape and tensors[name].dtype == want.dtype, (name, tensors[name].shape)
        assert np.array_equal(tensors[name], want), name


def a_reader_of_the_format_finds_every_value(folder):
    same(load(folder + "/model.safetensors"), MODEL)
    same(load(folder + "/train.safetensors"), TRAIN)


def the_safetensors_package_finds_every_value(folder):
    try:
        from safetensors.numpy import load_file
    except ImportError:
        return "SKIP the safetensors package is not installed"
    same(load_file(folder + "/model.safetensors"), MODEL)
    same(load_file(folder + "/train.safetensors"), TRAIN)


def the_manifest_lists_every_tensor(folder):
    with open(folder + "/manifest.json") as f:
        manifest = json.load(f)
    assert manifest["step"] == 7 and manifest["meta"] == {"half": 3.5}, manifest
    for name, expected in (("model", MODEL), ("train", TRAIN)):
        entry = manifest["files"][name]
        assert entry["bytes"] == os.path.getsize(f"{folder}/{name}.safetensors"), entry["bytes"]
        assert sorted(entry["crc32c"]) == sorted(expected), entry["crc32c"]


def main(path):
    if path.endswith(".safetensors"):
        for name, t in sorted(load(path).items()):
            print(name, t.dtype, list(t.shape))
        return 0
    cases = [a_reader_of_the_format_finds_every_value, the_safetensors_package_finds_every_value,
             the_manifest_lists_every_tensor]
    failed = 0
    print(f"1..{len(cases)}")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([path, scratch], check=True, timeout=60)
        for i, case in enumerate(cases, 1):
            try:
                note = case(scratch + "/step-00000007")
                print(f"ok {i} {case.__name__}" + (f" # {note}" if note else ""))
            except Exception as error:
                failed += 1
                print(f"not ok {i} {case.__name__}\n# {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
