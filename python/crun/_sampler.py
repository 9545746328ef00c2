# SPDX-License-Identifier: Apache-2.0
"""Data positions. Sampler: which samples each rank takes, by steps that are done and not by what a loader has fetched.

The order is one without end: epoch 0's, then epoch 1's, and so on. Step n takes the n-th `batch_size` of it, whatever the
number of ranks then, and each rank takes its part of that. A step that is done again takes the same samples; what a loader
had fetched ahead when a round broke was not taken. So none is left out and none comes twice in an epoch, with ranks that
come and go meanwhile.
"""
from __future__ import annotations

import operator
import random
from typing import Any, Dict, Iterator, List, Sized, Union

from . import _lib


def _number(what: str, value: Any, least: int) -> int:
    n = operator.index(value)
    if n < least:
        raise ValueError(f"crun.Sampler: {what} {n}: expected {least} or more")
    return n


class Sampler:
    """For DataLoader(batch_sampler=…), and for State, which counts a step with each commit:

        sampler = crun.Sampler(dataset, batch_size=256)               # of all ranks together
        state = crun.State(model, optimizer, sampler)
        step = state.restore()
        while step < steps:
            for x, y in DataLoader(dataset, batch_sampler=sampler):   # the rest of this epoch
                …
                step += 1
                state.commit(step)

    data: the dataset, or how many samples it has. shuffle: an order by seed and epoch, the same on all ranks; else as they
    are. batches: that each commit takes, where gradients are accumulated. A batch that begins in one epoch may end in the
    next one. Ranks whose number divides batch_size take equal parts. ValueError: fewer samples in a batch than ranks."""

    def __init__(self, data: Union[int, Sized], *, batch_size: int, shuffle: bool = True, seed: int = 0, batches: int = 1):
        self.samples = _number("samples", data if isinstance(data, int) else len(data), 1)
        self.batch_size = _number("batch_size", batch_size, 1)
        self.batches = _number("batches", batches, 1)
        self.shuffle, self.seed = shuffle, seed
        self.done = 0  #: batches that were taken by steps that are done
        self._orders: Dict[int, List[int]] = {}

    @property
    def epoch(self) -> int:
        """That in which the next batch begins."""
        return self.done * self.batch_size // self.samples

    def _order(self, epoch: int) -> List[int]:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1}
            order = list(range(self.samples))
            if self.shuffle:
                random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]

    def _sample(self, place: int) -> int:
        epoch, at = divmod(place, self.samples)
        return self._order(epoch)[at]

    def __len__(self) -> int:
        """Batches from here to the end of this epoch."""
        end = (self.epoch + 1) * self.samples
        return -(-end // self.batch_size) - self.done

    def __iter__(self) -> Iterator[List[int]]:
        """This rank's part of each batch, from here to the end of this epoch."""
        me = _lib.attached().info
        if self.batch_size < me.world_size:
            raise ValueError(f"crun.Sampler: batch_size {self.batch_size}: expected {me.world_size} or more, a sample for each rank")
        first, last = (self.batch_size * r // me.world_size for r in (me.rank, me.rank + 1))
        for batch in range(self.done, self.done + len(self)):
            begin = batch * self.batch_size
            yield [self._sample(place) for place in range(begin + first, begin + last)]

    def crun_committed(self) -> None:
        """A step is done: State.commit()."""
        self.done += self.batches

    def state_dict(self) -> Dict[str, Any]:
        return {"done": self.done, "samples": self.samples, "batch_size": self.batch_size, "seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """ValueError: it is of other data, or of another order."""
        for name in ("samples", "batch_size", "seed"):
            if state[name] != getattr(self, name):
                raise ValueError(f"crun.Sampler: {name} {getattr(self, name)}: the state that it is given has {state[name]}, and "
                                 "another order of samples with it")
        self.done = state["done"]


class Position:
    """Of a data loader, as so many ranks count it: state["data"]. Until the first step is done the loader's iterator is not to be
    there: a StatefulDataLoader makes it to say where it is, before the program has told its sampler the epoch."""

    def __init__(self, name: str, loader: Any):
        self.name, self.loader = name, loader
        self.begin: Any = None  # where it is until then
        self.moved = False

    def crun_committed(self) -> None:
        self.moved = True

    def state_dict(self) -> Dict[str, Any]:
        if not self.moved and self.begin is None:
            self.begin = self.loader.state_dict()
            self.loader.load_state_dict(self.begin)  # without an iterator again
        return {"ranks": _lib.attached().info.world_size, "position": self.loader.state_dict() if self.moved else self.begin}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        now = _lib.attached().info.world_size
        if state["ranks"] != now:
            raise ValueError(f"crun.State: state['{self.name}']: its position was counted by {state['ranks']} ranks, and now there are {now}: "
                             "expected as many, or crun.Sampler, which spreads samples over any number of them")
        self.begin = state["position"]
        self.loader.load_state_dict(self.begin)
