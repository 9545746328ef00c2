# SPDX-License-Identifier: Apache-2.0
"""State: what a rank has after a step, and how those that have less are given it.

A commit is a pickle of the parts' state_dict()s in which each tensor is a number, and the tensors:

- *borrowed*, where only optimizer.step() changes it (parameters, what optimizers keep) and it lies in CPU memory. A step that
  has begun and was not committed makes these unfit: the rank then has no state, and is given one.
- *copied*, where a forward pass may change it (buffers) or nobody knows who does; and on accelerators, where a broken
  reduction may have been applied before the host hears of it.

After a round that broke all ranks tell where they are, through the round's store. Those at the furthest commit give, each to
some of the others: the pickle through the store, the tensors as messages of torch.distributed. Without tensors (no torch)
the store alone will do.
"""
from __future__ import annotations

import functools
import inspect
import io
import json
import pickle
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from . import _groups, _layout, _lib, _parts, _rounds, _tensors
from ._groups import RoundOver, StateLost
from ._sampler import Position
from ._store import store

NOTHING, LOST = -1, -2  # instead of a step
WAIT_S = 600.0  # for ranks that start up
LARGE = 16  # a tensor above this part of a message is sent from its own memory


# --- a commit


def _copied(t: Any, room: Any) -> Any:
    """In that room, where it fits."""
    if room is None or room.shape != t.shape or room.dtype != t.dtype or room.device != t.device:
        return t.clone()
    return room.copy_(t)


class _Commit:
    def __init__(self, step: int, text: bytes, tensors: List[Any], borrowed: Set[int]):
        self.step, self.text, self.tensors, self.borrowed = step, text, tensors, borrowed
        self.spoilt = False  # what is borrowed has changed since, or memory of the copies was written to

    def dicts(self) -> Any:
        """Of the parts. An optimizer may take tensors as they are, so a copy stays here."""
        own = [t if i in self.borrowed else t.clone() for i, t in enumerate(self.tensors)]
        return _tensors.Unpickler(self.text, own).load()

    def copy_of(self, i: int) -> Any:
        """Memory for another copy; None: there is none."""
        return self.tensors[i] if i < len(self.tensors) and i not in self.borrowed else None


_last: Optional[_Commit] = None  # of this process, whatever State made it
_agreed: Tuple[int, List[_parts.Report]] = (-1, [])  # round, and what each rank told when it began
_restored = -1  # round
_equal: Dict[int, int] = {}  # {address: version} of the models' tensors that restore() of this round made equal on all ranks


def _spoil() -> None:
    if _last is not None and _last.borrowed and not _last.spoilt:
        _last.spoilt = True
        _rounds.keeps(NOTHING)


def watch_steps(optimizer: Any) -> None:
    """_spoil() in each of its steps, before parameters change: after the closure, where it is given one, as Lightning does.
    Schedulers wrap optimizer.step as well, and want a method to do so."""
    step = optimizer.step
    if getattr(step, "crun_watches", False):
        return

    @functools.wraps(step)
    def watched(self: Any, closure: Any = None, **kwargs: Any) -> Any:
        if closure is None:
            _spoil()
            return step(**kwargs)

        def spoiling() -> Any:
            loss = closure()
            _spoil()
            return loss
        return step(closure=spoiling, **kwargs)
    watched.crun_watches = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(watched, optimizer)


def _lendable(parts: Iterable[Any]) -> Set[int]:
    """Addresses of the tensors that only an optimizer changes. A part may name modules and optimizers that it is made of."""
    torch, found = _tensors.torch(), set()
    for part in parts if torch is not None else ():
        found |= _lendable(part.crun_lends()) if hasattr(part, "crun_lends") else set()
        if isinstance(part, torch.nn.Module):
            found |= {p.data_ptr() for p in part.parameters()}
        elif isinstance(part, torch.optim.Optimizer):
            found |= {v.data_ptr() for values in part.state.values() for v in values.values() if isinstance(v, torch.Tensor)}
    return found


# --- what all ranks have alike


def _all_of(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def are_equal(module: Any) -> bool:
    """restore() of this round has given all ranks these parameters, and nobody has written to them since."""
    try:
        return _restored == _lib.attached().info.round and all(_equal.get(t.data_ptr()) == t._version for t in _all_of(module))
    except RuntimeError:  # a tensor without an address, or without a version
        return False


def skip_first_broadcast(wrapper: Any) -> None:
    """A DistributedDataParallel of such a module has no need of the broadcast that it begins with."""
    init = wrapper.__init__
    signature = inspect.signature(init)
    if "init_sync" not in signature.parameters:
        return

    @functools.wraps(init)
    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if "init_sync" not in signature.bind(self, module, *args, **kwargs).arguments and are_equal(module):
            kwargs["init_sync"] = False
        init(self, module, *args, **kwargs)
    wrapper.__init__ = __init__


# --- who has what


def _agree(key: str = "") -> List[_parts.Report]:
    """By rank: the step of its commit, NOTHING or LOST, and the parts that it needs and has (_parts.py). The same on all ranks;
    once a round."""
    global _agreed
    me = _lib.attached().info
    if _agreed[0] != me.round:
        mine = NOTHING if _last is None else LOST if _last.spoilt else _last.step
        _agreed = (me.round, _gathered(_parts.Report(mine, key, me.group_rank, _parts.parts.held()), me.rank, me.world_size))
    elif _agreed[1][me.rank].key != key:
        raise TypeError("crun.State: the state is cut over ranks, and was asked for where each rank has all of it: Lightning's and "
                        "Hugging Face's InProcess are for DDP")
    return _agreed[1]


def _gathered(mine: _parts.Report, rank: int, world: int) -> List[_parts.Report]:
    """Rank 0 collects what all ranks tell and publishes the list."""
    if world == 1:
        return [mine]
    if rank > 0:
        store.set(f"crun.state/at/{rank}", json.dumps(mine))
        return _parts.decode(store.get("crun.state/all", WAIT_S))
    told = [json.dumps(mine)] + [store.get(f"crun.state/at/{r}", WAIT_S).decode() for r in range(1, world)]
    store.set("crun.state/all", f"[{','.join(told)}]")
    return _parts.decode(f"[{','.join(told)}]")


def agreed_step() -> Optional[int]:
    """Where restore() of this round will lead; None: nobody has a commit. All ranks call it, or restore(), after the round
    has begun. For states that each rank has whole."""
    if not _rounds.stays():
        return None
    furthest = max(r.step for r in _agree())
    return furthest if furthest >= 0 else None


# --- tensors on their way


def _runs(tensors: List[Any]) -> Iterator[List[Tuple[Any, int]]]:
    """Of the tensors, as bytes one after another: pieces, each a list of (bytes of one tensor, place in the piece). A large tensor
    has pieces of its own."""
    run: List[Tuple[Any, int]] = []
    n = 0
    for t in tensors:
        flat = t.reshape(-1).view(_tensors.torch().uint8)
        if run and n + flat.numel() > _tensors.PIECE // LARGE:
            yield run
            run, n = [], 0
        if flat.numel() <= _tensors.PIECE // LARGE:
            run.append((flat, n))
            n += flat.numel()
        else:
            yield from ([(flat[at:at + _tensors.PIECE], 0)] for at in range(0, flat.numel(), _tensors.PIECE))
    if run:
        yield run


def _message(run: List[Tuple[Any, int]], device: Any) -> Any:
    """Memory of a piece, on the device: the tensor's own where it can be."""
    torch, (last, at) = _tensors.torch(), run[-1]
    return last if len(run) == 1 and last.device == device else torch.empty(at + last.numel(), dtype=torch.uint8, device=device)


def _give(tensors: List[Any], device: Any, to: int) -> None:
    for run in _runs([t.contiguous() for t in tensors]):
        piece = _message(run, device)
        for part, at in run if piece is not run[0][0] else []:
            piece[at:at + part.numel()].copy_(part)
        _tensors.torch().distributed.send(piece, to)


def _take(tensors: List[Any], device: Any, source: int) -> None:
    for run in _runs(tensors):
        piece = _message(run, device)
        _tensors.torch().distributed.recv(piece, source)
        for part, at in run if piece is not run[0][0] else []:
            part.copy_(piece[at:at + part.numel()])


def _hand_over(last: Optional[_Commit], all_: List[int], accelerator: Any) -> _Commit:
    """-> the furthest commit; this rank's own, or as it was given. accelerator: _tensors.accelerator()"""
    rank, furthest = _lib.attached().info.rank, max(all_)
    have = [r for r, step in enumerate(all_) if step == furthest]
    need = [r for r, step in enumerate(all_) if step != furthest]
    giver = {r: have[i % len(have)] for i, r in enumerate(need)}
    if rank in giver:
        text, shapes = pickle.loads(store.get(f"crun.state/text/{giver[rank]}", WAIT_S))
        tensors = [_tensors.torch().empty(shape, dtype=dtype) for shape, dtype in shapes]
        if tensors:
            _take(tensors, _tensors.message_device(accelerator), giver[rank])
        return _Commit(furthest, text, tensors, set(range(len(tensors))))
    assert last is not None
    mine = [r for r in need if giver[r] == rank]
    if mine:
        shapes = [(tuple(t.shape), t.dtype) for t in last.tensors]
        store.set(f"crun.state/text/{rank}", pickle.dumps((last.text, shapes)))
    for r in mine if last.tensors else []:
        _give(last.tensors, _tensors.message_device(accelerator), r)
    return last


def _is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


class State:
    """What the ranks of a job have in common: models, optimizers, schedulers, and whatever else has state_dict() and
    load_state_dict(). The newest commit of a process outlives the State: one that is made anew, of new parts, goes on from
    there.

    copy: keep a second copy of everything, not only of buffers and of what lies on an accelerator (which always is). Then
    anything may change the parameters between two commits, not only optimizers.

    state["data"] = loader: its position too, of a StatefulDataLoader or the like: the next batch is the one after the last
    that was committed. Positions are to be the same on all ranks, and hold for as many ranks.

    Where tensors are cut over ranks (DTensors: FSDP2, HSDP, tensor parallelism), each rank keeps copies of its part in CPU
    memory, two steps of it. Parts are given to whoever lacks them by ranks that have the same ones. replicas: so many ranks
    are to have each part; with 2, where the model is laid out over the ranks only once, another rank keeps it for each, of
    another node if there are several. spread: steps over which such a copy is spread, after each a share; up to twice as
    many are done again after a death. shard: names the part of this rank where no DTensor tells: a stage of a pipeline.

    Random generators are not in it: seed them by step and rank, and a step that is done again is the same."""

    def __init__(self, *parts: Any, copy: bool = False, replicas: int = 1, spread: int = 1, shard: Any = None):
        for part in parts:
            if not _is_stateful(part):
                raise TypeError(f"crun.State: {type(part).__name__} has no state_dict() and load_state_dict(): expected a model, an "
                                "optimizer, or the like")
        if replicas not in (1, 2):
            raise ValueError(f"crun.State: replicas {replicas}: expected 1 or 2")
        if spread < 1:
            raise ValueError(f"crun.State: spread {spread}: expected 1 or more steps")
        self.parts, self.copy, self.replicas, self.spread, self.shard = parts, copy, replicas, spread, shard
        self.is_cut = False  # as restore() has found it
        torch = _tensors.torch()
        for part in parts:
            if torch is not None and isinstance(part, torch.optim.Optimizer):
                watch_steps(part)

    def __setitem__(self, name: str, loader: Any) -> None:
        """Before restore()."""
        if not _is_stateful(loader):
            raise TypeError(f"crun.State: state['{name}']: {type(loader).__name__} has no state_dict() and load_state_dict(): expected a "
                            "StatefulDataLoader, or the like")
        others = (part for part in self.parts if not (isinstance(part, Position) and part.name == name))
        self.parts = (*others, Position(name, loader))

    def commit(self, step: int) -> None:
        """The parts are as step `step` has left them: call it right after optimizer.step(), before anything that may fail. The
        round's collectives are over by then. Takes about as long as the state_dict()s do. Without inprocess(): nothing.

        RoundOver: another rank is gone, and inprocess() goes on from here. RuntimeError: restore() was not called yet."""
        for part in self.parts:
            if hasattr(part, "crun_committed"):
                part.crun_committed()
        if not _rounds.stays():
            return
        if _restored != _lib.attached().info.round:
            raise RuntimeError("crun.State.commit: expected a call of restore() before, in each call of the function")
        if self.is_cut:
            _parts.parts.commit(step, self._states())
        else:
            self._take(step)
        if _rounds.is_held():
            raise RoundOver("another rank is gone")

    def _states(self) -> List[Any]:
        return [part.state_dict() for part in self.parts]

    def _take(self, step: int) -> None:
        global _last
        file = io.BytesIO()
        pickler = _tensors.Pickler(file)
        pickler.dump(self._states())
        self._await_accelerators(pickler.tensors)
        lendable = set() if self.copy else _lendable(self.parts)
        borrowed = {i for i, t in enumerate(pickler.tensors) if t.device.type == "cpu" and t.data_ptr() in lendable}
        _rounds.keeps(NOTHING)
        if _last is not None:
            _last.spoilt = True  # its memory is written to from here on: what ends this halfway leaves a mixture
        kept = [t if i in borrowed else _copied(t, _last.copy_of(i) if _last else None) for i, t in enumerate(pickler.tensors)]
        _last = _Commit(step, file.getvalue(), kept, borrowed)
        _rounds.keeps(step)

    @staticmethod
    def _await_accelerators(tensors: List[Any]) -> None:
        """Whether the step was whole is known when it is over; ended from outside it may look as if."""
        devices = {t.device for t in tensors if t.device.type != "cpu"}
        for device in devices:
            getattr(_tensors.torch(), device.type).synchronize(device)
        if devices and _rounds.is_held():
            raise RoundOver("another rank is gone")

    def restore(self, begin: Union[int, Callable[[], int]] = 0) -> int:
        """Bring this rank to the furthest commit that any has; all of them call it, once in each call of the function, after
        init_process_group(). -> steps that are done.

        begin: where nobody has a commit yet: the step to begin at, or a function that loads a checkpoint into the parts and
        returns it. RuntimeError: there were commits, and each is lost with its rank, or spoilt by a step that was not
        committed."""
        global _equal, _restored
        me = _lib.attached().info
        if not _rounds.stays():
            return begin() if callable(begin) else begin
        _equal = {}
        key, meshes = _layout.layout((part for part in self.parts if not isinstance(part, Position)), self.shard)
        reports = _agree(key)
        self.is_cut = any(r.key for r in reports)
        if self.is_cut:
            step = self._restore_parts(reports, meshes, begin)
            _restored = me.round
            return step
        all_ = [r.step for r in reports]
        if max(all_) < 0 and LOST in all_:
            raise StateLost("crun.State: no rank has its state any more: each had begun a step that was not committed")
        accelerator = _tensors.accelerator(self.parts)
        if accelerator is not None:
            _groups.connect(accelerator)
        if max(all_) >= 0:
            with _groups.messages():
                commit = _hand_over(_last, all_, accelerator)
            if _rounds.is_held():  # what is aborted returns as if it were done
                raise RoundOver("another rank is gone")
            for part, state in zip(self.parts, commit.dicts()):
                part.load_state_dict(state)
            step = commit.step
            _equal = {t.data_ptr(): t._version for module in _tensors.modules(self.parts) for t in _all_of(module)}
        else:
            step = begin() if callable(begin) else begin
        _restored = me.round
        self._take(step)
        return step

    def _restore_parts(self, reports: List[_parts.Report], meshes: List[Any], begin: Union[int, Callable[[], int]]) -> int:
        here, accelerator = _parts.parts, _tensors.accelerator(self.parts)
        if accelerator is not None:
            _groups.connect(accelerator)
        here.begin_round(reports[_lib.attached().info.rank].key, meshes, _tensors.message_device(accelerator))
        step = whole = _parts.newest_whole(reports)
        lost = _parts.tell_of(reports, step)
        if lost and step == NOTHING and not callable(begin):
            raise StateLost(f"crun.State: {lost}, and restore() was given no function that loads a checkpoint")
        here.forget_after(step)
        if step != NOTHING:
            with _groups.messages():
                states = here.collect(reports, step)
            for part, state in zip(self.parts, states):
                part.load_state_dict(state)
        else:
            step = begin() if callable(begin) else begin
        if lost:
            _parts.say(f"{lost}: all go on from step {step}" + (", of the checkpoint" if whole == NOTHING else ", which is"))
        with _groups.messages():
            here.begin(reports, step, self._states(), self.replicas, self.spread)
        return step
