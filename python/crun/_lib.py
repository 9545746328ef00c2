# SPDX-License-Identifier: Apache-2.0
"""libcrun by ctypes: where it is found, and what its functions take (common/include/crun.h)."""
from __future__ import annotations

import ctypes
import enum
import os
import pathlib
import threading
import warnings
from typing import Any, Dict, Iterator, List, Optional, Tuple

SONAME = "libcrun.so.0"


class Named(enum.IntEnum):
    """str() and format() give the name, as the launcher prints it, in every version of Python."""

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class StopReason(Named):
    """Why the launcher wants this process to end. False as a truth value: NONE alone."""

    NONE = 0  #: go on
    FAILURE = 1  #: a peer died: save nothing, be gone within a second
    RESIZE = 2  #: all ranks are healthy: agree on a step, save, exit with REQUEUE; the job goes on by itself
    DRAIN = 3  #: the same, and the job does not go on by itself
    ABORT = 4  #: the user wants it gone: exit now
    HOLD = 5  #: to processes that outlive a round (inprocess()) alone: let go of it, do not end


class Phase(Named):
    """What a worker is doing, for --hang-timeout: each has a time of its own that it may take."""

    STEP = 0  #: at work: report() is called after each step
    CHECKPOINT = 1  #: writes or reads one, or waits for the rank that does
    EVALUATION = 2
    CLOSING = 3  #: no step will follow
    PAUSED = 4  #: waits for a person or another job: may take for ever
    STARTING = 5  #: steps will be reported; ends by itself with the first one


class Figure(enum.IntEnum):
    """enum crun_figure."""

    LOSS = 0
    IMAGES_PER_S = 1
    ACCURACY = 2
    EVAL_ACCURACY = 3
    TOTAL_STEPS = 4
    WAIT_S = 5


class Part(Named):
    """What a step is made of (enum crun_part)."""

    DATA = 0  #: this rank waits for its next batch
    FORWARD = 1
    BACKWARD = 2
    WAIT = 3  #: this rank waits for others, in collectives
    UPDATE = 4


class CInfo(ctypes.Structure):
    """struct crun_info."""

    _fields_ = [(name, ctypes.c_int) for name in ("rank", "world_size", "local_rank", "local_world_size", "group_rank",
                                                  "group_world_size", "round", "restart_count")]
    _fields_ += [("run_id", ctypes.c_char_p), ("store", ctypes.c_char_p)]

    def own(self) -> CInfo:
        """A copy whose strings are not the library's: those change with the round."""
        return CInfo(*(getattr(self, name) for name, _ in self._fields_))


SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "crun_init": (ctypes.c_int, [ctypes.POINTER(CInfo)]),
    "crun_progress": (None, [ctypes.c_uint64]),
    "crun_phase": (None, [ctypes.c_int]),
    "crun_figure": (None, [ctypes.c_int, ctypes.c_double]),
    "crun_metric": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_double]),
    "crun_spent": (None, [ctypes.c_int, ctypes.c_double]),
    "crun_links": (None, [ctypes.c_double, ctypes.c_double]),
    "crun_stop_reason": (ctypes.c_int, []),
    "crun_record_error": (None, [ctypes.c_int, ctypes.c_char_p]),
    "crun_catch_crashes": (ctypes.c_int, []),
    "crun_set": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
    "crun_get": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t),
                                ctypes.c_double]),
    "crun_add": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]),
    "crun_delete": (ctypes.c_int, [ctypes.c_char_p]),
    "crun_barrier": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_double]),
    "crun_stay": (ctypes.c_int, []),
    "crun_stay_growing": (ctypes.c_int, []),
    "crun_wait_hold": (ctypes.c_int, [ctypes.c_double]),
    "crun_node_memory": (ctypes.c_int, []),
    "crun_keeps": (None, [ctypes.c_int64]),
    "crun_done": (None, []),
    "crun_next_round": (ctypes.c_int, [ctypes.POINTER(CInfo), ctypes.c_double]),
}


def candidates() -> Iterator[str]:
    """Where libcrun may be: $LIBCRUN alone if it is set; beside this module (wheel); under the prefix that this module was
    installed to; where the loader looks."""
    named = os.environ.get("LIBCRUN")
    if named:
        yield named
        return
    here = pathlib.Path(__file__).resolve().parent
    yield str(here / SONAME)
    lib = here.parent.parent.parent  # PREFIX/lib of PREFIX/lib/python3/dist-packages/crun
    yield str(lib / SONAME)
    for found in sorted(lib.glob(f"*-linux-gnu*/{SONAME}")):
        yield str(found)
    yield str(lib.parent / "lib64" / SONAME)
    yield SONAME


def declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    """-> lib, its functions typed. AttributeError: it is another library of this name."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def open_library() -> Tuple[Optional[ctypes.CDLL], str]:
    """-> (library or None, what was tried in vain, as a sentence)"""
    tried = []
    for path in candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(f"{path} does not exist")
            continue
        try:
            return declare(ctypes.CDLL(path)), ""
        except OSError as e:
            tried.append(str(e))
        except AttributeError as e:
            tried.append(f"{path} is another library of this name ({e})")
    return None, f"libcrun was not found: {'; '.join(tried)}"


class Attached:
    """The library and what it reported of this process; made on first use."""

    def __init__(self) -> None:
        self.lib: Optional[ctypes.CDLL] = None
        self.missing = ""
        self.watched = False  #: crun sees what this process reports, and can ask it to stop
        if not _forked:
            self.lib, self.missing = open_library()
        self.info = CInfo(0, 1, 0, 1, 0, 1, 0, 0, b"", b"")
        if self.lib is None:
            if self.missing and "CRUN_PAGE_FD" in os.environ:  # crun will miss what we do not tell
                warnings.warn(f"{self.missing}. This worker runs without heartbeat, stop reasons and store", RuntimeWarning,
                              stacklevel=4)
            self.info = info_of_environment()
            return
        rc = self.lib.crun_init(ctypes.byref(self.info))
        self.info = self.info.own()
        self.watched = self.lib.crun_node_memory() >= 0
        if rc < 0:
            raise OSError(-rc, f"crun: the environment contradicts itself (RANK, WORLD_SIZE and their like): {os.strerror(-rc)}")


def info_of_environment() -> CInfo:
    """What torchrun's variables say, for lack of libcrun."""
    def number(name: str, default: int) -> int:
        text = os.environ.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else default

    return CInfo(number("RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1),
                 number("GROUP_RANK", 0), number("GROUP_WORLD_SIZE", 1), number("CRUN_ROUND", 0),
                 number("TORCHELASTIC_RESTART_COUNT", 0), os.environ.get("TORCHELASTIC_RUN_ID", "").encode(), b"")


_attached: Optional[Attached] = None
_forked = False
_warned = False
_lock = threading.Lock()


def attached() -> Attached:
    global _attached
    if _attached is None:
        with _lock:
            if _attached is None:
                _attached = Attached()
    return _attached


def library() -> Optional[ctypes.CDLL]:
    """None: nobody to tell. A child of fork() shares its parent's page, and must not speak for it."""
    return None if _forked else attached().lib


def is_watched(what: str) -> bool:
    """Whether crun sees what this process reports. If it is below one that crun started, and not that itself, there is a
    warning, once in a process: for calls of who trains, which a data loader's child does not make."""
    global _warned
    watched = not _forked and attached().watched
    if not watched and not _warned and "CRUN_PAGE_FD" in os.environ and (_forked or attached().lib is not None):
        _warned = True
        why = ("in a child of fork(), which does not speak for its parent" if _forked else
               "in this process: crun's descriptors were closed when it was started, as subprocess and `conda run` do (exec and "
               "close_fds=False keep them)")
        without = "heartbeat, stop reasons and store" if _forked else "heartbeat and stop reasons"
        warnings.warn(f"{what} does nothing {why}. Training in this process runs without {without}", RuntimeWarning, stacklevel=3)
    return watched


def _in_child() -> None:
    global _forked, _lock
    _forked = True
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def check(rc: int, what: str) -> int:
    """-> rc, or OSError (TimeoutError after a deadline)."""
    if rc < 0:
        raise OSError(-rc, f"{what}: {os.strerror(-rc)}")
    return rc
