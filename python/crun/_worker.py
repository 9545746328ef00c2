# SPDX-License-Identifier: Apache-2.0
"""Who this worker is, what it does, and how it says that something went wrong."""
from __future__ import annotations

import contextlib
import enum
import errno
import functools
import math
import operator
import time
import traceback
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NoReturn, Optional, Tuple, Type, TypeVar, Union

from . import _lib
from ._lib import Part, Phase, StopReason

REQUEUE = 75  #: exit code: stopped in good order before the end; start it again to go on

Function = TypeVar("Function", bound=Callable[..., Any])
Named = TypeVar("Named", bound=enum.IntEnum)
Metric = Union[float, Tuple[float, str]]


def _one_of(kind: Type[Named], which: Union[Named, str]) -> Named:
    names = [m.name.lower() for m in kind]
    if isinstance(which, str) and which.lower() not in names:
        raise ValueError(f"crun.{kind.__name__.lower()}: '{which}': expected one of {', '.join(names)}")
    return kind[which.upper()] if isinstance(which, str) else kind(which)


@dataclass(frozen=True)
class Info:
    """Place of this worker in its job."""

    rank: int  #: -1 of a warm spare that waits for a round
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int  #: of this node
    group_world_size: int  #: nodes
    round: int  #: grows with every rendezvous; 0 without crun
    restart_count: int  #: of the job
    run_id: str  #: "" without a launcher
    store: str  #: "resp://host:port", or ""


def info() -> Info:
    """The same until the process ends, or its round does (inprocess()). OSError: the environment contradicts itself (RANK=3, WORLD_SIZE=2)."""
    c = _lib.attached().info
    return Info(c.rank, c.world_size, c.local_rank, c.local_world_size, c.group_rank, c.group_world_size, c.round,
                c.restart_count, c.run_id.decode(errors="replace"), c.store.decode())


# --- at work


class _Reported:
    """What crun knows of us. One thread trains, so there is no lock."""

    phase = Phase.STEP
    step: Optional[int] = None


def _tell_metric(lib: Any, name: str, value: float, unit: str) -> None:
    rc = lib.crun_metric(_no_nul(name), _no_nul(unit), float(value))
    if rc == -errno.ENOSPC:
        raise ValueError(f"crun.report: metric '{name}': eight others are reported already: expected no more names than that in a process")
    if rc < 0:
        raise ValueError(f"crun.report: metric '{name}' in '{unit}': expected a name of 1 to 31 letters, digits and _./-, and a unit of at "
                         "most 15 of these and %^*()")


def _no_nul(text: str) -> bytes:
    """For C, which takes what is before a NUL for the whole of it: it refuses a newline."""
    return text.encode(errors="replace").replace(b"\0", b"\n")


def report(step: int, loss: Optional[float] = None, images_per_s: Optional[float] = None, *, accuracy: Optional[float] = None,
           eval_accuracy: Optional[float] = None, total_steps: Optional[int] = None, wait_s: Optional[float] = None,
           metrics: Optional[Mapping[str, Metric]] = None) -> None:
    """Heartbeat: step `step` is done. Some stores to shared memory, no system call; --hang-timeout counts from here.

    For status pages, each with any step: loss, images_per_s, accuracy (0 to 1) of a recent step, eval_accuracy of the
    latest evaluation, total_steps (the number of the last step), all of the whole job; those of rank 0 count. wait_s: how
    long this rank waited for others in this step; every rank tells its own, and the page shows who is waited for. What is
    no finite number is left out. A tensor will do for loss, but float() of one waits for the GPU: give it now and then.

    metrics: up to eight figures of your own, a name each, and a number or (number, unit): {"lr": 0.1, "tokens": (3.1e5, "tokens/s")};
    those of rank 0 count. ValueError: a ninth name, or one that is not 1 to 31 letters, digits and _./-, or a unit of more than 15.
    From one thread at a time."""
    step = operator.index(step)  # ctypes takes int alone, and -1 for 2**64 - 1
    if not 0 <= step < 1 << 64:
        raise ValueError(f"crun.report: step {step}: expected 0 or more, in 64 bits")
    lib = _lib.library()
    _lib.is_watched("crun.report()")
    if lib is None:
        return
    if _lib.attached().info.rank == 0:
        figures = ((_lib.Figure.LOSS, loss), (_lib.Figure.IMAGES_PER_S, images_per_s), (_lib.Figure.ACCURACY, accuracy),
                   (_lib.Figure.EVAL_ACCURACY, eval_accuracy), (_lib.Figure.TOTAL_STEPS, total_steps))
        for figure, value in figures:
            if value is not None and math.isfinite(value):
                lib.crun_figure(int(figure), float(value))
        for name, metric in (metrics or {}).items():
            _tell_metric(lib, name, *(metric if isinstance(metric, tuple) else (metric, "")))
    if wait_s is not None and math.isfinite(wait_s):
        lib.crun_figure(int(_lib.Figure.WAIT_S), float(wait_s))
    lib.crun_progress(step)
    _Reported.step = step
    if _Reported.phase == Phase.STARTING:
        _Reported.phase = Phase.STEP


def spent(*, data: float = 0.0, forward: float = 0.0, backward: float = 0.0, wait: float = 0.0, update: float = 0.0) -> None:
    """What the step that report() will tell of was made of, in seconds; several calls add up. Each rank tells its own, and
    crun names the one that the others wait for (--straggler-action). data: waiting for the next batch; wait: waiting for
    other ranks (report(wait_s=…) tells the same: one of the two). Where forward and backward cannot be timed apart, either will
    do: crun adds them up. On a GPU measure with events, or not at all: what a call took that only enqueues says nothing. Same
    thread as report()."""
    lib = _lib.library()
    if lib is None:
        return
    for part_, seconds in ((Part.DATA, data), (Part.FORWARD, forward), (Part.BACKWARD, backward), (Part.WAIT, wait), (Part.UPDATE, update)):
        lib.crun_spent(int(part_), float(seconds))


@contextlib.contextmanager
def part(which: Union[Part, str]) -> Iterator[None]:
    """`with crun.part("data"):` the time that the block takes goes to that part of the step: spent()."""
    part_ = _one_of(Part, which)
    began = time.monotonic()
    yield
    lib = _lib.library()
    if lib is not None:
        lib.crun_spent(int(part_), time.monotonic() - began)


def links(best_s: float, worst_s: float) -> None:
    """How long a small message to another rank and back took lately, in seconds: to the rank that answered first, and to the
    last one. With it crun names the rank whose network is slow, where all of them wait. Same thread as report()."""
    lib = _lib.library()
    if lib is not None:
        lib.crun_links(float(best_s), float(worst_s))


def _enter(which: Phase) -> None:
    lib = _lib.library()
    if lib is not None:
        lib.crun_phase(int(which))
        _Reported.phase = which


@contextlib.contextmanager
def _until_left(before: Phase) -> Iterator[None]:
    try:
        yield
    except BaseException as e:
        with contextlib.suppress(AttributeError):  # for record_error(): where it happened, though the block has ended
            e.crun_phase = getattr(e, "crun_phase", _Reported.phase)  # type: ignore[attr-defined]
        raise
    finally:
        _enter(before)


def _phase_of(error: Optional[BaseException]) -> Optional[Phase]:
    """That in which it was raised, or what it was raised from, where that one has ended since."""
    seen = set()
    while error is not None and id(error) not in seen:  # `raise e from e` is a circle
        if hasattr(error, "crun_phase"):
            return error.crun_phase  # type: ignore[no-any-return]
        seen.add(id(error))
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return None


def phase(which: Union[Phase, str]) -> "contextlib.AbstractContextManager[None]":
    """Enter a phase: `crun.phase("starting")`. As `with crun.phase("checkpoint"):` it ends with the block, and the one
    before goes on. Every rank that waits for another one's checkpoint should say so too. Same thread as report()."""
    phase_ = _one_of(Phase, which)
    before = _Reported.phase
    _enter(phase_)
    return _until_left(before)


# --- stops


def stop_reason() -> StopReason:
    """What the launcher wants; NONE: go on. One load from memory. on_preemption() keeps SIGTERM from ending the process
    before the loop has looked here."""
    lib = _lib.library()
    return StopReason.NONE if lib is None else StopReason(lib.crun_stop_reason())


def stopping() -> bool:
    """Whether to save and leave with requeue(): the reason is DRAIN or RESIZE. Ranks learn it at different steps: where
    they must stop at the same one, they agree on it (the callbacks of crun.integrations do)."""
    return stop_reason() in (StopReason.DRAIN, StopReason.RESIZE)


def requeue() -> NoReturn:
    """End with REQUEUE, by way of SystemExit: the job is not done, and should be started again."""
    raise SystemExit(REQUEUE)


# --- what went wrong


def describe(error: BaseException) -> str:
    """'ValueError: text (train.py:12 in step)': the innermost frame."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name})"


def where() -> str:
    """', after step 7, in phase checkpoint', as of the last report() and phase()."""
    step = "" if _Reported.step is None else f", after step {_Reported.step}"
    return step + ("" if _Reported.phase == Phase.STEP else f", in phase {_Reported.phase.name.lower()}")


def record_error(error: Union[BaseException, str], code: int = 1) -> None:
    """Leave what went wrong, with step and phase, for the launcher's failure report; at most 511 bytes of it are kept.
    The first one of a process counts. Call it before exiting with an error."""
    lib = _lib.library()
    if lib is not None:
        ended = _phase_of(error) if isinstance(error, BaseException) else None
        if ended is not None:
            _enter(ended)  # the launcher's own line about it says the same
        text = (error if isinstance(error, str) else describe(error)) + where()
        lib.crun_record_error(code, text.encode(errors="replace").replace(b"\0", b"?"))


def record(function: Function) -> Function:
    """Decorator for a worker's main function: an exception that leaves it is recorded, and goes on."""
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            record_error(e)
            raise
    return recorded  # type: ignore[return-value]


def catch_crashes() -> None:
    """SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT leave an error record with the C call stack, print it to stderr, and
    then do what they would have done. With faulthandler enabled before, Python's stack is printed too."""
    lib = _lib.library()
    if lib is not None:
        _lib.attached()
        _lib.check(lib.crun_catch_crashes(), "crun.catch_crashes")
