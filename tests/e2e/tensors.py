"""A reader of safetensors files, independent of the project's own: {name: numpy array}."""
import json
import pathlib

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def load(path):
    raw = pathlib.Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        first, end = t["data_offsets"]
        out[name] = np.frombuffer(raw[8 + n + first:8 + n + end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def save(path, tensors):
    """The reverse of load(), float32 and float64 only."""
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": {"float64": "F64", "float32": "F32"}[t.dtype.name], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def newest(folder):
    """The newest complete checkpoint folder."""
    return max(p for p in pathlib.Path(folder).glob("step-*") if (p / "manifest.json").exists())


def gradients(folder):
    """After one step with weight decay 0 the momentum buffer is the gradient: one flat vector in name order."""
    t = load(newest(folder) / "train.safetensors")
    return np.concatenate([t[k].astype(np.float64).ravel() for k in sorted(t)])
