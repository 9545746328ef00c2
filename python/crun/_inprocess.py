# SPDX-License-Identifier: Apache-2.0
"""inprocess(): a function that is called again, in the same process, when another rank is gone, or more have come.

- The process says that it stays (crun_stay()). A warm spare waits for its first round, then all is the same.
- The function is called. A thread waits for crun's wish that the round ends, and then frees the main thread from whatever
  torch.distributed waits in, again and again, until that one has left the function.
- An exception leaves the function. If crun holds the process within VERDICT_S, another rank was the cause: the process
  groups are destroyed, the next round is waited for, and the function is called again with its places in os.environ.
- Else it is an exception of this rank: it is recorded, and goes on.
- The function has returned: crun is told so (crun_done()), and does not begin the job anew if a rank dies after all have.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import os
import sys
import threading
import traceback
from typing import Any, Callable, Optional, Set, TypeVar, overload

from . import _groups, _rounds, _state, _stops
from ._lib import attached
from ._worker import record, record_error

VERDICT_S = 2.0  # for crun to say that a rank is gone, after a call to one has failed
SWEEP_S = 0.02

Function = TypeVar("Function", bound=Callable[..., Any])


class _Watcher:
    """The thread, and what it shares with the main one."""

    def __init__(self, groups: _groups.Groups):
        self.groups = groups
        self.changed = threading.Condition()
        self.wanted = False
        threading.Thread(target=self._watch, name="crun-rounds", daemon=True).start()

    def _watch(self) -> None:
        while True:
            rc = _rounds.wait_hold(3600.0)
            if rc == -errno.ETIMEDOUT:
                continue
            if rc < 0:  # the process is to end: _stops.py, or SIGTERM
                return
            with self.changed:
                self.wanted = _rounds.is_held()  # else the main thread was faster, and has let go already
            if self.wanted:
                self.groups.settle()
            with self.changed:
                while self.wanted:
                    if self.groups.are_there():
                        self.groups.interrupt()
                    self.changed.wait(SWEEP_S if self.groups.are_there() else None)

    def next_round(self) -> None:
        _stops.callbacks.end_round()
        with self.changed:
            self.groups.leave()
        _rounds.next_round()
        with self.changed:
            self.wanted = False
            self.changed.notify()


def _forget(error: Optional[BaseException], seen: Set[int]) -> None:
    """The frames that it came through hold models, gradients and communicators."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        _forget(error.__cause__, seen)
        error = error.__context__


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> "tuple[bool, Any]":
    """-> is it done, and what it returned. False: crun wants the round to end."""
    try:
        value = function(*args, **kwargs)
        return not _rounds.is_held(), value
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:  # torch.distributed.checkpoint's are no Exceptions
        if isinstance(e, _groups.StateLost) or _rounds.wait_hold(VERDICT_S) != 0:
            record_error(e)
            raise
        _forget(e, set())
    return False, None


def _warm_up() -> None:
    """What the first optimizer of a process imports takes a second or more: a spare has to have it, and the others do so now.
    What is there by then is out of the garbage collector's sight, so that a look at what a round has left takes no time."""
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):  # older ones have no such part
            importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


def _run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    groups = _groups.Groups()
    _groups.hook(groups)
    try:
        return _rounds_of(function, args, kwargs, groups)
    finally:
        if groups.kept is not None:
            groups.kept.let_go()


def _rounds_of(function: Callable[..., Any], args: Any, kwargs: Any, groups: _groups.Groups) -> Any:
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is not None:
        _state.skip_first_broadcast(parallel.DistributedDataParallel)
    # crun and the watcher end what hangs: NCCL's own watchdog would end the process
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    watcher = _Watcher(groups)
    _stops.callbacks.begin_rounds()
    _warm_up()
    if attached().info.rank < 0:
        watcher.next_round()
    done, value = _call(function, args, kwargs)
    while not done:
        value = None
        watcher.next_round()
        gc.collect()
        done, value = _call(function, args, kwargs)
    _rounds.done()
    return value


_called = False


@overload
def inprocess(function: Function) -> Function: ...


@overload
def inprocess(*, growing: bool = False) -> Callable[[Function], Function]: ...


def inprocess(function: Optional[Callable[..., Any]] = None, *, growing: bool = False) -> Any:
    """Decorator for a worker's main function: when another rank dies or hangs, the function is called again in this process
    instead of the process being started anew.

        @crun.inprocess
        def main():
            torch.distributed.init_process_group("gloo")
            model, optimizer = …
            state = crun.State(model, optimizer)
            start = state.restore()
            model = DistributedDataParallel(model)
            for step in range(start, steps):
                …
                optimizer.step()
                state.commit(step + 1)

    Each call has the RANK, WORLD_SIZE, MASTER_ADDR and the like of its round in os.environ, and makes its process groups and
    wrappers anew; State carries weights and optimizer over. Import torch before the call. Between two calls to other ranks
    less than --hold-timeout may pass, or crun starts the process anew.

    @crun.inprocess(growing=True): also when a node comes, where all workers of a node say so. The next call has more ranks, and State
    gives them what the others have; crun.Sampler spreads the data over them anew. Without it all are to save and start again.

    A state that is cut over ranks (FSDP2) needs a second copy of each part: State(replicas=2). One
    function of a process, called once (RuntimeError). Under torchrun, without crun, and with `crun --recovery restart` it is
    called as it is. A warm spare calls it when it has got a place. An exception that counts is recorded as record() does."""
    if function is None:
        return functools.partial(inprocess, growing=growing)
    if not callable(function):
        raise TypeError(f"crun.inprocess: {type(function).__name__}: expected a function")
    run = function

    @functools.wraps(run)
    def called(*args: Any, **kwargs: Any) -> Any:
        global _called
        if _called:
            raise RuntimeError("crun.inprocess: a process has one such function, and calls it once: a rank that joins later has to "
                               "come to the same place")
        _called = True
        attached()
        return _run(run, args, kwargs) if _rounds.stay(growing) else record(run)(*args, **kwargs)
    return called
