# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed has open, and how to end it from another thread.

- Gloo: a collective that waits for a rank that is gone returns as soon as its own sockets are shut down; PyTorch's abort
  functions leave it waiting. So the sockets that a process group opens are noted as it is made. Listening ones are left
  alone: Gloo ends the process when accept() fails.
- NCCL: _abort_process_group() ends what the GPU waits in. It cannot end a communicator that is being made, which NCCL
  does in a group's first call: State.restore() makes that call, and its sockets are noted, listening ones too.
- The two functions that every way to make a group goes through are wrapped: PyTorch 1.13 to 2.15 have both.
Without torch there is nothing to do.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import warnings
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Set

from . import _reconnect, _rounds, _sockets

HOOKED = ("rendezvous", "_new_process_group_helper")
QUIET_S, SETTLE_S = 0.003, 0.05  # without a byte between the ranks; at most


class RoundOver(Exception):
    """crun wants this process to let go of its round: another rank is gone. For inprocess() to catch."""


class StateLost(RuntimeError):
    """There is nothing that another round could go on from: this process is to end, whatever crun wants."""


class Groups:
    """Any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: Set[str] = set()
        self.before: Set[str] = set()
        self.making = 0
        self.connecting = 0  # of making: NCCL, which may wait in accept()
        self.aborted = False
        self.kept: Optional[_reconnect.Kept] = None

    def are_there(self) -> bool:
        return bool(self.making or self.opened)

    @contextlib.contextmanager
    def noted(self, nccl: bool = False) -> Iterator[None]:
        """What is opened in this block is torch's; nccl: NCCL's."""
        with self.lock:
            if self.making == 0:
                self.before = set(_sockets.sockets().values())
            self.making += 1
            self.connecting += nccl
        try:
            if _rounds.is_held():  # after it was counted: the watcher sees one or the other
                raise RoundOver("another rank is gone")
            yield
        finally:
            with self.lock:
                self.opened |= set(_sockets.sockets().values()) - self.before
                self.making -= 1
                self.connecting -= nccl

    def interrupt(self) -> None:
        """End what the others are waited for in. To be called again until the thread that waits has let go: it may be making
        a group, whose connections come one after another."""
        if self.making:  # an abort may wait for it
            self._shut_all()
        if not self.aborted and self.abort_nccl():
            self.aborted = True
        self._shut_all()

    def settle(self) -> None:
        """Before the first interrupt(): let the ranks that are left finish what they can without the one that is gone. A step that
        it has committed is then a step of all. And Gloo forgets whoever waits for a message that is half written when its
        socket is shut down."""
        if not self.making:
            _sockets.settle(self._ours, QUIET_S, SETTLE_S)

    def _ours(self) -> Dict[int, str]:
        now = _sockets.sockets()
        with self.lock:
            new = set(now.values()) - self.before if self.making else set()
            ours = self.opened | new
        return {fd: name for fd, name in now.items() if name in ours}

    def _shut_all(self) -> None:
        for fd, name in self._ours().items():
            _sockets.shut(fd, name, self.connecting > 0 and name not in self.opened)

    def abort_nccl(self) -> bool:
        c10d = distributed()
        if not uses_nccl(c10d):
            return False
        try:
            c10d._abort_process_group()
        except Exception as e:  # PyTorch's own trouble with a broken group; crun ends this process if it does not let go
            warnings.warn(f"crun.inprocess: NCCL could not be aborted: {e}", RuntimeWarning, stacklevel=2)
        return True

    def leave(self) -> None:
        """Nothing of the round is open any more. Of the thread that used it."""
        self.interrupt()
        c10d = distributed()
        if self.kept is not None:
            self.kept.leave()
        if c10d is not None and c10d.is_initialized():
            c10d.destroy_process_group()
        elif c10d is not None:  # an init_process_group() that failed has counted its group; all ranks have to name the next one alike
            c10d._group_count = 0
        _forget_meshes()
        with self.lock:
            self.opened.clear()
        self.aborted = False


def _forget_meshes() -> None:
    """What DTensors have remembered of their operations names meshes, and with them groups, of this round."""
    if "torch.distributed.tensor" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # older ones remember in another place
            importlib.import_module("torch.distributed.tensor.debug")._clear_sharding_prop_cache()


def distributed() -> Any:
    """The module, if the program has imported it."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d if c10d is not None and hasattr(c10d, HOOKED[1]) else None


def uses_nccl(c10d: Any) -> bool:
    return c10d is not None and c10d.is_initialized() and "nccl" in getattr(c10d, "get_backend_config", str)()


current: Optional[Groups] = None  # of inprocess()


def messages() -> ContextManager[None]:
    """Around calls to other ranks for which NCCL may have to connect."""
    return current.noted(nccl=True) if current is not None and uses_nccl(distributed()) else contextlib.nullcontext()


def connect(device: Any) -> None:
    """Where there is NCCL: make its communicator of all ranks, on this device of theirs. All ranks."""
    c10d = distributed()
    if current is None or not uses_nccl(c10d):
        return
    torch = sys.modules["torch"]
    with messages():
        c10d.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    if _rounds.is_held():  # what is aborted returns as if it were done
        raise RoundOver("another rank is gone")


def _noting(groups: Groups, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        with groups.noted():
            return function(*args, **kwargs)
    return noting


def _noting_first(groups: Groups, function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a generator: the store is opened when the first value is asked for."""
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with groups.noted():
            values = function(*args, **kwargs)
            first = next(values)
        yield first
        yield from values
    return noting


def hook(groups: Groups) -> None:
    global current
    current = groups
    c10d = distributed()
    if c10d is not None:
        groups.kept = _reconnect.Kept(c10d)
        groups.kept.hook()
        c10d.rendezvous = _noting_first(groups, c10d.rendezvous)
        c10d._new_process_group_helper = _noting(groups, c10d._new_process_group_helper)
