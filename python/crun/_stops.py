# SPDX-License-Identifier: Apache-2.0
"""SIGTERM with a reason.

- The launcher writes a reason into this worker's page, then sends SIGTERM, and SIGKILL when the grace is over.
- on_preemption() takes SIGTERM over. Python's own handlers wait until a call into C returns (an all-reduce may never), so
  a thread watches: the signal wakes it through the descriptor of signal.set_wakeup_fd(), and it looks from time to time
  as well, for that descriptor is one for the whole process, and asyncio may take it.
- DRAIN and RESIZE: the callback is called in that thread, and the process goes on until its loop ends it.
- FAILURE and ABORT: the process ends at once, as by the signal.
- A SIGTERM without a reason is somebody's kill: what was there before on_preemption() gets it. One with a reason is never
  theirs: Lightning's handler, for one, calls a collective from wherever it was interrupted.
- HOLD comes without a signal, and is inprocess()'s matter: here it is no reason. Callbacks that its function gave go with
  their round: they are of models that are not trained any more.
"""
from __future__ import annotations

import os
import select
import signal
import threading
import traceback
from typing import Any, Callable, List, Optional

from . import _lib
from ._lib import StopReason
from ._worker import stop_reason

LOOK_S = 0.1
Callback = Callable[[StopReason], Any]


class _Callbacks:
    """Each is called once, in the order in which they came."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: List[Callback] = []
        self.called = 0
        self.lasting = 0  # so many are of the process, the others of a round

    def add(self, callback: Callback) -> None:
        with self.lock:
            if callback not in self.all:  # a function of inprocess() asks in each round
                self.all.append(callback)

    def next(self) -> Optional[Callback]:
        with self.lock:
            if self.called == len(self.all):
                return None
            self.called += 1
            return self.all[self.called - 1]

    def begin_rounds(self) -> None:
        with self.lock:
            self.lasting = len(self.all)

    def end_round(self) -> None:
        with self.lock:
            del self.all[self.lasting:]
            self.called = min(self.called, self.lasting)


callbacks = _Callbacks()
_watched = False


def _reason() -> StopReason:
    reason = stop_reason()
    return StopReason.NONE if reason == StopReason.HOLD else reason


class _Handler:
    """Of SIGTERM: one with a reason is for _watch(), one without for who was there before."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, signo: int, frame: Any) -> None:
        if _reason() != StopReason.NONE:
            return
        if callable(self.before):
            self.before(signo, frame)
            return
        signal.signal(signo, self.before if self.before is not None else signal.SIG_DFL)
        os.kill(os.getpid(), signo)


def on_preemption(callback: Optional[Callback] = None) -> bool:
    """Call callback(reason) once when the launcher asks for a stop in good order, or has asked already, in a thread of its
    own; the training loop asks stopping() after each step. What a callback raises is printed, and ends nothing else. Without
    a callback SIGTERM is only kept from ending the process. Called again, it takes SIGTERM back from a handler that was put
    in its place, as trainers do: that one gets those without a reason. A callback that the function of inprocess() gives
    counts until its round ends.

    -> whether crun is there; if not, nothing is changed. Main thread only (ValueError)."""
    if callback is not None and not callable(callback):
        raise TypeError(f"crun.on_preemption: {type(callback).__name__}: expected a function")
    if not _lib.is_watched("crun.on_preemption()"):
        return False
    before = signal.getsignal(signal.SIGTERM)
    if not isinstance(before, _Handler):
        signal.signal(signal.SIGTERM, _Handler(before))
    if callback is not None:
        callbacks.add(callback)
    if not _watched:
        _start_watching()
    return True


def _start_watching() -> None:
    global _watched
    ours, theirs = os.pipe()
    for fd in (ours, theirs):
        os.set_blocking(fd, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    if before >= 0:  # somebody was first
        signal.set_wakeup_fd(before)
    threading.Thread(target=_watch, args=(ours,), name="crun-stops", daemon=True).start()
    _watched = True


def _watch(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    reason = _reason()
    while reason not in (StopReason.FAILURE, StopReason.ABORT):  # a peer may die while the others save
        callback = callbacks.next() if reason != StopReason.NONE else None
        if callback is not None:
            _call(callback, reason)
            del callback
        elif poll.poll(LOOK_S * 1000):
            os.read(fd, 4096)
        reason = _reason()
    os._exit(128 + signal.SIGTERM)


def _call(callback: Callback, reason: StopReason) -> None:
    """This thread has to go on: it is who ends the process where a peer dies later."""
    try:
        callback(reason)
    except BaseException:  # a SystemExit ends no process from here
        traceback.print_exc()
