# SPDX-License-Identifier: Apache-2.0
"""What of a state lies on this rank, where tensors are cut over ranks (DTensors), and its pickle without them."""
from __future__ import annotations

import hashlib
import io
import itertools
from typing import Any, Iterable, Iterator, List, Tuple

from . import _tensors


def _place(t: Any, meshes: List[Any]) -> str:
    """Of a tensor of a model: what of it this rank has."""
    if not hasattr(t, "placements"):
        return f"{tuple(t.shape)} {t.dtype}"
    if t.device_mesh not in meshes:
        meshes.append(t.device_mesh)
    chunks = [(tuple(c.offsets), tuple(c.sizes)) for c in t.__create_chunk_list__()]
    return f"{tuple(t.shape)} {t.dtype} {meshes.index(t.device_mesh)} {t.placements} {chunks}"


def _states_of_models(parts: Iterable[Any]) -> Iterator[Any]:
    for part in parts:
        modules = list(_tensors.modules([part]))
        yield from (module.state_dict() for module in modules)
        if not modules and not hasattr(part, "crun_lends") and not isinstance(part, _tensors.torch().optim.Optimizer):
            yield part.state_dict()


def layout(parts: Iterable[Any], shard: Any) -> Tuple[str, List[Any]]:
    """-> key, and the meshes. What optimizers have follows from their models, and is not there yet in a new one. "": each rank
    has everything."""
    meshes: List[Any] = []
    places, cut = [repr(shard)], shard is not None
    for state in _states_of_models(parts) if _tensors.torch() is not None else ():
        pickler = _tensors.Pickler(io.BytesIO())
        pickler.dump(state)
        names = state if len(state) == len(pickler.tensors) else itertools.repeat("")
        places += [f"{len(places)} {name} {_place(t, meshes)}" for name, t in zip(names, pickler.tensors)]
        cut = cut or any(hasattr(t, "placements") for t in pickler.tensors)
    return hashlib.sha256("\n".join(places).encode()).hexdigest()[:16] if cut else "", meshes


class Pickler(_tensors.Pickler):
    """tensors: what of them this rank has. A DTensor's number comes with what makes one of it again."""

    def __init__(self, file: Any, meshes: List[Any]):
        super().__init__(file)
        self.meshes = meshes

    def persistent_id(self, value: Any) -> Any:
        n = super().persistent_id(value)
        if n is None or not hasattr(value, "placements"):
            return n
        if value.device_mesh not in self.meshes:
            raise TypeError("crun.State: a tensor lies on a mesh of its own: expected one of those that the models' parameters have")
        self.tensors[n] = self.tensors[n].to_local()
        return n, self.meshes.index(value.device_mesh), value.placements, tuple(value.shape), value.stride()


class Unpickler(_tensors.Unpickler):
    def __init__(self, text: bytes, tensors: List[Any], meshes: List[Any]):
        super().__init__(text, tensors)
        self.meshes = meshes

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, int):
            return self.tensors[pid].clone()
        n, mesh, placements, shape, stride = pid
        cut = _tensors.torch().distributed.tensor.DTensor
        return cut.from_local(self.tensors[n].clone().to(self.meshes[mesh].device_type), self.meshes[mesh], placements, run_check=False,
                              shape=_tensors.torch().Size(shape), stride=stride)
