# SPDX-License-Identifier: Apache-2.0
"""A state that is cut over ranks: FSDP2, HSDP, tensor parallelism, stages of a pipeline.

- What a rank has is a *part*. Its key is a hash of what lies where, so ranks with the same key have copies of each other.
- After a commit each rank copies its part to CPU memory, and keeps the one before: ranks that are interrupted are at most one
  step apart, for a step needs all of them, so all have the older one.
- A part that one rank alone has is lost with it. With a second owner it is also on another rank, of another node where there
  are several: the ranks pass their parts on in a ring, in pieces between two steps, all of it at once or a share after each
  of some steps. It counts once it is whole; the one before stays until all have the new one, which they have when the next
  commit begins.
- After a round that broke: the newest step of which every part that a rank needs is somewhere, else the program's checkpoint.
"""
from __future__ import annotations

import io
import itertools
import json
import pathlib
import pickle
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _layout, _lib, _rounds, _tensors
from ._groups import RoundOver
from ._store import store

NOTHING = -1  # instead of a step
WAIT_S = 600.0  # for ranks that start up
ALIGNED = 64
TOLD = 10  # the cost is that of so many copies


class Report(NamedTuple):
    """What a rank tells all others when a round begins."""

    step: int  # of its commit, where each rank has everything
    key: str  # of the part that it needs; "": everything
    node: int
    held: List[Tuple[str, int]]  # copies of parts: key, step


# --- copies


def _extent(shape: Any, dtype: Any) -> int:
    return int(_tensors.torch().Size(shape).numel() * dtype.itemsize)


def _aligned(n: int) -> int:
    return -(-n // ALIGNED) * ALIGNED


class Copy:
    """Of a part, as a step left it."""

    def __init__(self) -> None:
        self.key, self.step = "", NOTHING  # NOTHING: there is none, or it is being written
        self.text = b""
        self.shapes: List[Any] = []
        self.views: List[Any] = []  # the tensors, one after another in:
        self.room: Any = None

    def header(self) -> bytes:
        return pickle.dumps((self.key, self.text, self.shapes))

    def open(self, header: bytes) -> None:
        """Room for what comes with this header."""
        torch = _tensors.torch()
        self.step, shapes = NOTHING, self.shapes
        self.key, self.text, self.shapes = pickle.loads(header)
        if self.room is not None and shapes == self.shapes:
            return
        sizes = [_extent(shape, dtype) for shape, dtype in self.shapes]
        if self.bytes() != sum(map(_aligned, sizes)):
            self.room = torch.empty(sum(map(_aligned, sizes)), dtype=torch.uint8)
        ends = itertools.accumulate(map(_aligned, sizes))
        self.views = [self.room[end - _aligned(n):][:n].view(dtype).view(shape) for end, n, (shape, dtype) in zip(ends, sizes, self.shapes)]

    def fill(self, key: str, step: int, text: bytes, tensors: List[Any]) -> None:
        self.open(pickle.dumps((key, text, [(tuple(t.shape), t.dtype) for t in tensors])))
        for view, t in zip(self.views, tensors):
            view.copy_(t)
        if any(t.device.type != "cpu" for t in tensors) and _rounds.is_held():  # what is aborted looks as if it were done
            raise RoundOver("another rank is gone")
        self.step = step

    def states(self, meshes: List[Any]) -> Any:
        return _layout.Unpickler(self.text, self.views, meshes).load()

    def bytes(self) -> int:
        return 0 if self.room is None else int(self.room.numel())


class Pair:
    """The two newest copies of a part."""

    def __init__(self) -> None:
        self.copies = (Copy(), Copy())

    def older(self) -> Copy:
        return min(self.copies, key=lambda c: c.step)

    def of(self, key: str, step: int) -> Optional[Copy]:
        return next((c for c in self.copies if (c.key, c.step) == (key, step)), None)


def _pieces(room: Any, i: int, n: int) -> List[Any]:
    """Of the i-th of n shares."""
    first, last = (room.numel() * at // n for at in (i, i + 1)) if room is not None else (0, 0)
    return [room[at:min(at + _tensors.PIECE, last)] for at in range(first, last, _tensors.PIECE)]


def _send(message: Any, to: int, device: Any) -> Any:
    """-> what is to be waited for; the message stays as it is until then"""
    return _tensors.torch().distributed.isend(message.to(device), to)


def _receive(message: Any, source: int, device: Any) -> None:
    there = message if message.device == device else message.to(device)
    _tensors.torch().distributed.recv(there, source)
    if there is not message:
        message.copy_(there)


def _exchange(mine: Optional[Any], to: int, theirs: Optional[Any], source: int, device: Any) -> None:
    """Send and receive, or one of both (None)."""
    sent = _send(mine, to, device) if mine is not None else None
    if theirs is not None:
        _receive(theirs, source, device)
    if sent is not None:
        sent.wait()


def _bytes(data: bytes) -> Any:
    torch = _tensors.torch()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def copying(mine: Optional[Copy], to: int, theirs: Optional[Copy], source: int, device: Any, step: int, shares: int) -> Iterator[None]:
    """A copy to one rank, and one of the same step from another (None: none), in so many shares: yields between two of them."""
    torch = _tensors.torch()
    header = _bytes(mine.header()) if mine is not None else None
    length = torch.zeros(1, dtype=torch.int64) if theirs is not None else None
    _exchange(torch.tensor([header.numel()]) if header is not None else None, to, length, source, device)
    came = torch.empty(int(length.item()), dtype=torch.uint8) if length is not None else None
    _exchange(header, to, came, source, device)
    if theirs is not None and came is not None:
        theirs.open(came.numpy().tobytes())
    for i in range(shares):
        for out, room in itertools.zip_longest(_pieces(mine and mine.room, i, shares), _pieces(theirs and theirs.room, i, shares)):
            _exchange(out, to, room, source, device)
        if i + 1 < shares:
            yield
    if device.type != "cpu" and _rounds.is_held():
        raise RoundOver("another rank is gone")
    if theirs is not None:
        theirs.step = step


# --- who has what


def newest_whole(reports: Sequence[Report]) -> int:
    """The newest step of which each part that a rank needs is on some rank; NOTHING: there is none."""
    needed = {r.key for r in reports}
    at: Dict[int, Set[str]] = {}
    for key, step in itertools.chain.from_iterable(r.held for r in reports):
        at.setdefault(step, set()).add(key)
    return max((step for step, keys in at.items() if needed <= keys), default=NOTHING)


def owners(reports: Sequence[Report], key: str, step: int) -> List[int]:
    return [rank for rank, r in enumerate(reports) if (key, step) in r.held]


def _distance(nodes: Sequence[int]) -> int:
    """From each rank to the second owner of its part: so that as many as possible are on another node."""
    n = len(nodes)
    return max(range(1, n), key=lambda d: sum(nodes[r] != nodes[(r + d) % n] for r in range(n)))


def available() -> int:
    """Bytes of memory that this node, or container, has left."""
    left = next(int(line.split()[1]) << 10 for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable"))
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        most, now = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        files = next(int(line.split()[1]) for line in (group / "memory.stat").read_text().splitlines() if line.startswith("inactive_file "))
        return left if most == "max" else min(left, int(most) - int(now) + files)
    except (OSError, StopIteration):
        return left


def _megabytes(n: float) -> str:
    return f"{n / 1e6:.1f} MB"


class Parts:
    """Those that this process has, whatever State made them."""

    def __init__(self) -> None:
        self.own, self.others = Pair(), Pair()  # others: of the rank whose second owner this one is
        self.key = ""
        self.meshes: List[Any] = []
        self.device: Any = None
        self.ring: Optional[Tuple[int, int]] = None  # to, and from where
        self.shares = 1
        self.moving: Optional[Iterator[None]] = None
        self.last = NOTHING  # the newest step that is whole here
        self.checked = 0  # how often memory was looked at in this round
        self.spent, self.copies, self.warned = 0.0, 0, False

    def held(self) -> List[Tuple[str, int]]:
        return [(c.key, c.step) for c in self.own.copies + self.others.copies if c.step != NOTHING]

    def begin_round(self, key: str, meshes: List[Any], device: Any) -> None:
        self.key, self.meshes, self.device = key, meshes, device
        self.ring, self.moving, self.last, self.checked = None, None, NOTHING, 0

    def forget_after(self, step: int) -> None:
        """What is of later steps would not fit what comes now."""
        for c in self.own.copies + self.others.copies:
            if c.step > step:
                c.step = NOTHING

    def collect(self, reports: Sequence[Report], step: int) -> Any:
        """-> the states of this rank, as that step left them. All ranks."""
        me = int(_lib.attached().info.rank)
        taken: Dict[str, int] = {}
        for taker, r in enumerate(reports):  # in the same order on all ranks, so that nobody waits in a circle
            have = owners(reports, r.key, step)
            if taker in have:
                continue
            giver = have[taken.get(r.key, 0) % len(have)]
            taken[r.key] = taken.get(r.key, 0) + 1
            if me == giver:
                list(copying(self._find(r.key, step), taker, None, 0, self.device, step, 1))
            elif me == taker:
                list(copying(None, 0, self.own.older(), giver, self.device, step, 1))
        return self._find(self.key, step).states(self.meshes)

    def _find(self, key: str, step: int) -> Copy:
        found = self.own.of(key, step) or self.others.of(key, step)
        assert found is not None
        return found

    def begin(self, reports: Sequence[Report], step: int, states: Any, replicas: int, shares: int) -> None:
        """All ranks are where this step left them. Each of their parts gets its second owner."""
        me, world = int(_lib.attached().info.rank), len(reports)
        keys = [r.key for r in reports]
        if replicas > 1 and world > 1 and any(keys.count(key) < replicas for key in keys):
            far = _distance([r.node for r in reports])
            self.ring = (me + far) % world, (me - far) % world
        self.shares = shares
        self._fill(step, states)
        while self.moving is not None:
            self._move()
        self._has(step)
        alone = [str(rank) for rank, key in enumerate(keys) if keys.count(key) == 1]
        if world > 1 and alone and self.ring is None and not self.warned:
            self.warned = True
            say(f"the parts of {len(alone)} of {world} ranks are on one rank alone: a death leads back to the checkpoint (replicas=2: a "
                "second owner)")

    def commit(self, step: int, states: Any) -> None:
        began = time.monotonic()
        if self.moving is None:
            self._fill(step, states)
        if self.moving is not None:
            self._move()
        self.spent += time.monotonic() - began
        if self.moving is None:
            self._has(step)
            self._tell_cost()

    def _has(self, step: int) -> None:
        """This rank has all it is to have of it. So does each of the step before."""
        _rounds.keeps(self.last if self.last != NOTHING else step)
        self.last = step

    def _fill(self, step: int, states: Any) -> None:
        file = io.BytesIO()
        pickler = _layout.Pickler(file, self.meshes)
        pickler.dump(states)
        self._check_memory(sum(_aligned(_extent(t.shape, t.dtype)) for t in pickler.tensors))
        copy = self.own.of(self.key, step) or self.own.older()
        copy.fill(self.key, step, file.getvalue(), pickler.tensors)
        if self.ring is not None:
            to, source = self.ring
            self.moving = copying(copy, to, self.others.older(), source, self.device, step, self.shares)

    def _move(self) -> None:
        assert self.moving is not None
        if next(self.moving, self) is self:  # it was the last share
            self.moving = None

    def _check_memory(self, size: int) -> None:
        """Twice a round: now, and when optimizers have what they keep. MemoryError: the node has less than all its ranks need."""
        if self.checked == 2:
            return
        me, pairs = _lib.attached().info, 1 if self.ring is None else 2
        self.checked += 1
        name = f"crun.state/memory/{me.group_rank}/{self.checked}"
        if me.local_rank == 0:
            store.set(name, str(available()))
        left = int(store.get(name, WAIT_S))
        lacks = 2 * pairs * size - sum(c.bytes() for c in self.own.copies + self.others.copies)
        if lacks * me.local_world_size > left:
            raise MemoryError(f"crun.State: it needs {_megabytes(2 * pairs * size)} of CPU memory in each process for copies of "
                              f"{_megabytes(size)} of state, {_megabytes(lacks * me.local_world_size)} more on this node: "
                              f"{_megabytes(left)} are left")

    def _tell_cost(self) -> None:
        self.copies += 1
        if self.copies == TOLD:
            size = self.own.copies[0].bytes()
            second = f", and by its second owner, after {self.shares} steps each" if self.ring is not None else ""
            say(f"keeping {_megabytes(size)} of each rank, twice{second}: {1e3 * self.spent / TOLD:.1f} ms, "
                f"{_megabytes(sum(c.bytes() for c in self.own.copies + self.others.copies))} of CPU memory in each process")


def say(text: str) -> None:
    """Rank 0 alone."""
    if _lib.attached().info.rank == 0:
        print(f"crun.State: {text}", file=sys.stderr, flush=True)


def tell_of(reports: Sequence[Report], chosen: int) -> str:
    """What is not whole, of the newest step that a rank has; "": that is where all go on."""
    newest = max((step for r in reports for _, step in r.held), default=NOTHING)
    if newest <= chosen:
        return ""
    without = [str(rank) for rank, r in enumerate(reports) if not owners(reports, r.key, newest)]
    return f"step {newest} is not whole: nobody has the part of rank{'s' if len(without) > 1 else ''} {', '.join(without)}"


parts = Parts()


def decode(text: Union[str, bytes]) -> List[Report]:
    """Of a list in JSON."""
    return [Report(step, key, node, [(k, s) for k, s in held]) for step, key, node, held in json.loads(text)]
