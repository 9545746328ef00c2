# SPDX-License-Identifier: Apache-2.0
"""Tensors in state_dict()s, and where the messages lie that carry them. Nothing here imports torch."""
from __future__ import annotations

import io
import pickle
import sys
from typing import Any, Iterable, Iterator, List, Optional

PIECE = 16 << 20  # bytes of a message


def torch() -> Any:
    """None: nobody has imported it, so there are no tensors."""
    return sys.modules.get("torch")


class Pickler(pickle.Pickler):
    """Of what has tensors: each is a number in the pickle."""

    def __init__(self, file: Any):
        super().__init__(file, protocol=4)
        self.tensors: List[Any] = []
        self.tensor = getattr(torch(), "Tensor", ())

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, self.tensor):
            return None
        self.tensors.append(value.detach())
        return len(self.tensors) - 1


class Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, tensors: List[Any]):
        super().__init__(io.BytesIO(text))
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self.tensors[pid]


def modules(parts: Iterable[Any]) -> Iterator[Any]:
    """Those of the parts, and those that a part names which is made of them."""
    for part in parts if torch() is not None else ():
        if hasattr(part, "crun_lends"):
            yield from modules(part.crun_lends())
        if isinstance(part, torch().nn.Module):
            yield part


def accelerator(parts: Iterable[Any]) -> Any:
    """The CUDA device that this rank's models lie on, whichever is the current one; None: on none."""
    return next((t.device for module in modules(parts) for t in module.parameters() if t.device.type == "cuda"), None)


def message_device(on: Optional[Any]) -> Any:
    """Where messages lie: in CPU memory, but for a group of NCCL alone. on: accelerator()"""
    t = torch()
    if not t.distributed.is_available() or not t.distributed.is_initialized():
        raise RuntimeError("crun.State.restore: it has tensors to pass on: expected a call after init_process_group()")
    if t.distributed.get_backend() != "nccl":
        return t.device("cpu")
    return on if on is not None else t.device("cuda", t.cuda.current_device())
