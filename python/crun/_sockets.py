# SPDX-License-Identifier: Apache-2.0
"""The sockets of this process: which there are, what moves on them, and how to end them."""
from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
import time
from typing import Callable, Dict, List, Optional, Tuple

_INFO = struct.Struct("=120xQQ")  # of Linux's tcp_info: bytes that have been acknowledged, and that have come
_INT = struct.Struct("=i")
LOOK_S = 0.001


def sockets() -> Dict[int, str]:
    """{descriptor: "socket:[inode]"} of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found[int(name)] = link
    return found


def shut(fd: int, name: str, listening: bool = False) -> None:
    """If it is still the one of this name, and connected; or listening."""
    with contextlib.suppress(OSError):
        with socket.socket(fileno=os.dup(fd)) as s:
            if os.readlink(f"/proc/self/fd/{s.fileno()}") == name and s.family in (socket.AF_INET, socket.AF_INET6):
                if not listening:
                    s.getpeername()
                s.shutdown(socket.SHUT_RDWR)


def _traffic(fd: int) -> Tuple[int, int, int]:
    """-> bytes that it has sent, that it has got, and how many of these nobody has read."""
    with socket.socket(fileno=os.dup(fd)) as s:
        sent, got = _INFO.unpack(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
        return sent, got, *_INT.unpack(fcntl.ioctl(s, termios.FIONREAD, bytes(_INT.size)))


def settle(ours: Callable[[], Dict[int, str]], quiet: float, longest: float) -> None:
    """Return once nothing has moved on these for so long, and all that came has been read; both in seconds."""
    began = since = time.monotonic()
    before: Optional[List[Tuple[str, Tuple[int, int, int]]]] = None
    while True:
        traffic = []
        for fd, name in ours().items():
            with contextlib.suppress(OSError, struct.error):  # closed meanwhile, or no TCP
                traffic.append((name, _traffic(fd)))
        now = time.monotonic()
        if traffic != before or any(unread for _, (_, _, unread) in traffic):
            before, since = traffic, now
        if now - since >= quiet or now - began >= longest:
            return
        time.sleep(LOOK_S)
