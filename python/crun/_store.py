# SPDX-License-Identifier: Apache-2.0
"""The round's key-value store, shared by all ranks of all nodes."""
from __future__ import annotations

import ctypes
import errno
import operator
import time
from typing import Union

from . import _lib

SLICE_S = 1.0  # a wait is cut into such, so that Ctrl-C is heard
FIRST_CAPACITY = 1 << 16


def _text(name: str) -> bytes:
    """For C, which would take what is before a NUL for the whole of it."""
    if "\0" in name:
        raise ValueError(f"crun.store: {name!r}: expected a name without NUL")
    return name.encode()


class Store:
    """Keys of an earlier round are gone. Any thread; each call has a deadline. OSError: there is no store (without crun,
    or under torchrun), or its connection broke because the round is over."""

    @staticmethod
    def _library() -> ctypes.CDLL:
        lib = _lib.library()
        if lib is None:
            why = _lib.attached().missing or "a child of fork() has none: its parent has"
            raise OSError(errno.ENOTCONN, f"crun.store: there is no store here: {why}")
        return lib

    def set(self, key: str, value: Union[bytes, str]) -> None:
        """At most 8 MiB: OSError EMSGSIZE beyond that."""
        data = value.encode() if isinstance(value, str) else bytes(memoryview(value))  # bytes(7) would be seven of them
        _lib.check(self._library().crun_set(_text(key), data, len(data)), f"crun.store.set('{key}')")

    def get(self, key: str, timeout: float = 30.0) -> bytes:
        """Waits up to `timeout` seconds until the key is there, then TimeoutError."""
        lib, capacity = self._library(), FIRST_CAPACITY
        end = time.monotonic() + timeout
        while True:
            out, n = ctypes.create_string_buffer(capacity), ctypes.c_size_t()
            left = max(0.0, end - time.monotonic())
            rc = lib.crun_get(_text(key), out, capacity, ctypes.byref(n), min(left, SLICE_S))
            if rc == -errno.ETIMEDOUT and left > SLICE_S:
                continue
            _lib.check(rc, f"crun.store.get('{key}')")
            if n.value <= capacity:
                return out.raw[:n.value]
            capacity = n.value  # cut: once more, whole

    def add(self, key: str, delta: int = 1) -> int:
        """-> the sum; a key that is not there counts as 0. OverflowError: delta takes more than 64 bits."""
        total = ctypes.c_int64()
        delta = operator.index(delta)
        if not -1 << 63 <= delta < 1 << 63:  # ctypes would cut it
            raise OverflowError(f"crun.store.add('{key}'): {delta}: expected -2**63 to 2**63 - 1")
        _lib.check(self._library().crun_add(_text(key), delta, ctypes.byref(total)), f"crun.store.add('{key}')")
        return total.value

    def delete(self, key: str) -> bool:
        """-> whether it was there"""
        return _lib.check(self._library().crun_delete(_text(key)), f"crun.store.delete('{key}')") > 0


store = Store()


def barrier(name: str = "barrier", timeout: float = 60.0) -> None:
    """Wait until all ranks have called it with this name as often as this one. Alone: at once. After a TimeoutError end
    the program: this rank counts as come."""
    if _lib.attached().info.world_size > 1:
        _lib.check(store._library().crun_barrier(_text(name), timeout), f"crun.barrier('{name}')")
