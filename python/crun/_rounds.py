# SPDX-License-Identifier: Apache-2.0
"""A process that outlives its rounds: crun_stay(), crun_wait_hold() and crun_next_round() of libcrun."""
from __future__ import annotations

import ctypes
import errno
import os
import signal

from . import _lib
from ._lib import CInfo, Phase, StopReason
from ._worker import REQUEUE, _Reported, stop_reason

SLICE_S = 1.0  # a wait of the main thread is cut into such, so that Python's signal handlers run

_stays = False


def stay(growing: bool) -> bool:
    """Let crun hold this process from now on; growing: where a node comes, too. -> whether it does"""
    global _stays
    lib = _lib.library()
    _stays = lib is not None and (lib.crun_stay_growing() if growing else lib.crun_stay()) == 0
    return _stays


def stays() -> bool:
    return _stays and _lib.library() is not None


def keeps(step: int) -> None:
    """The state of this step is here for ranks that start anew; -1: none is."""
    lib = _lib.library()
    if lib is not None:
        lib.crun_keeps(step)


def done() -> None:
    """This process takes part in no further round."""
    lib = _lib.library()
    if lib is not None:
        lib.crun_done()


def is_held() -> bool:
    """crun wants this process to let go of its round."""
    return stays() and stop_reason() == StopReason.HOLD


def wait_hold(timeout: float) -> int:
    """0: crun wants it; -ETIMEDOUT; -ECANCELED: the process is to end."""
    lib = _lib.library()
    return -errno.ENOTSUP if lib is None else int(lib.crun_wait_hold(timeout))


def next_round() -> None:
    """It has let go of its round: wait for the next one, whose places are info()'s and os.environ's then. SystemExit: the
    process is to end instead."""
    lib = _lib.library()
    assert lib is not None
    now = CInfo()
    rc = -errno.ETIMEDOUT
    while rc == -errno.ETIMEDOUT:
        rc = lib.crun_next_round(ctypes.byref(now), SLICE_S)
    if rc == -errno.ECANCELED:
        raise SystemExit(REQUEUE if stop_reason() in (StopReason.DRAIN, StopReason.RESIZE) else 128 + signal.SIGTERM)
    _lib.check(rc, "crun: the next round")
    _enter(now.own())


def _enter(now: CInfo) -> None:
    attached = _lib.attached()
    before, attached.info = attached.info, now
    os.environ.update(environment(before, now))
    os.environ.pop("CRUN_SPARE", None)
    _Reported.phase, _Reported.step = Phase.STARTING, None


def environment(before: CInfo, now: CInfo) -> "dict[str, str]":
    """What of a worker's environment changes with a round (docs/reference/environment.md)."""
    grown = before.rank >= 0 and before.restart_count == now.restart_count
    variables = {
        "RANK": now.rank, "WORLD_SIZE": now.world_size, "LOCAL_RANK": now.local_rank, "LOCAL_WORLD_SIZE": now.local_world_size,
        "GROUP_RANK": now.group_rank, "GROUP_WORLD_SIZE": now.group_world_size, "TORCHELASTIC_RESTART_COUNT": now.restart_count,
        "CRUN_GLOBAL_RESTARTS": now.restart_count, "CRUN_ROUND": now.round, "CRUN_PREV_RANK": before.rank,
        "CRUN_RESTART_REASON": "resize" if grown else "failure", "CRUN_STORE": now.store.decode(),
    }
    if os.environ.get("ROLE_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):  # the job has one role
        variables.update(ROLE_RANK=now.rank, ROLE_WORLD_SIZE=now.world_size)
    host, _, port = now.store.decode().rpartition("//")[2].rpartition(":")
    if port:
        variables.update(MASTER_ADDR=host.strip("[]"), MASTER_PORT=port)
    return {name: str(value) for name, value in variables.items()}
