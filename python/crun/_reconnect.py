# SPDX-License-Identifier: Apache-2.0
"""The back end of the default process group outlives its round, and is connected with the ranks of the next one.

PyTorch 2.15 has that for Gloo: a back end made with enable_reconfigure names itself by a handle, and reconfigure() connects
it with those whose handles it gets, a rank's place in the list being its rank. What it connects by is a store of its own for
each round, so the back end gets one whose calls go to the store of the current round (_RoundStore).

- init_process_group() makes its group around the kept back end: the group's own ranks, names and maps are new, and right.
  All other groups are made anew.
- An attempt to connect counts if every rank says so through the store; else all of them try again, with a uuid of its own
  and twice the time. A rank that dies after it has told where it listens is waited for in vain, by threads that no closed
  socket wakes: so the first attempt takes less than --hold-timeout.
- Other back ends, several at once, and an older torch: all is made anew in each round, and rank 0 says why.
"""
from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import inspect
import sys
from typing import Any, Callable, Iterator, List, Optional, Tuple

from . import _lib

FIRST_S = 1.0  # for an attempt to connect
BACK_END = "gloo"
FORWARDED = ("add", "append", "check", "compare_set", "delete_key", "get", "has_extended_api", "multi_get", "multi_set", "num_keys",
             "queue_len", "queue_pop", "queue_push", "set", "set_timeout", "wait")


def _round_store(c10d: Any) -> Any:
    """-> an object of a class of torch's stores, with `now`, the store that does its work"""
    def to(name: str) -> Callable[..., Any]:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.now, name)(*args, **kwargs)
        return forward
    methods = {name: to(name) for name in FORWARDED if hasattr(c10d.Store, name)}
    return type("_RoundStore", (c10d.Store,), methods)()


class Kept:
    """Of the thread that makes groups."""

    def __init__(self, c10d: Any):
        self.c10d = c10d
        self.can = hasattr(c10d, "ReconfigureOptions")
        self.backend: Any = None
        self.timeout: Optional[datetime.timedelta] = None  # of the back end
        self.group: Any = None  # of PyTorch, around the back end
        self.stores: List[Any] = []  # C++ keeps no reference to what Python implements
        self.counted: Tuple[int, int] = (-1, 0)  # round, and attempts in it
        self.said = False

    def why_not(self, call: inspect.BoundArguments) -> str:
        backend = str(call.arguments["backend"]).lower()
        if ":" in backend or "," in backend:
            return f"'{backend}' names devices, or several back ends"
        if backend != BACK_END:
            return f"its back end is {backend}: {BACK_END} alone is reconnected"
        if self.c10d._use_torchcomms_enabled():
            return "it is made by torchcomms"
        return ""

    def hook(self) -> None:
        make = self.c10d._new_process_group_helper
        self.c10d._new_process_group_helper = self._asking(make) if self.can else self._saying(make)
        if self.can:
            atexit.register(self._at_exit)

    def _saying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def helper(*args: Any, **kwargs: Any) -> Any:
            self._say(f"PyTorch {getattr(sys.modules.get('torch'), '__version__', 'of this version')} cannot reconnect one")
            return function(*args, **kwargs)
        return helper

    def _asking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """_new_process_group_helper()"""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def helper(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            if call.arguments["global_ranks_in_group"] or call.arguments.get("enable_reconfigure", False):
                return function(*args, **kwargs)  # a part of the ranks, or the program reconnects by itself
            why = self.why_not(call)
            if why:
                self._say(why)
                return function(*args, **kwargs)
            call.arguments["enable_reconfigure"] = True
            with self._creating():
                made = function(*call.args, **call.kwargs)
            self.group = made[0]
            return made
        return helper

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        """PyTorch asks us for its back end."""
        back_ends = self.c10d.Backend
        back_ends._ensure_backend_registered(BACK_END)
        plugin = back_ends._plugins[BACK_END.upper()]
        back_ends._plugins[BACK_END.upper()] = plugin._replace(creator_fn=functools.partial(self._create, plugin.creator_fn))
        try:
            yield
        finally:
            back_ends._plugins[BACK_END.upper()] = plugin

    def _say(self, why: str) -> None:
        me = _lib.attached().info
        if me.restart_count > 0 and me.rank == 0 and not self.said:
            self.said = True
            print(f"crun.inprocess: the process group is made anew in each round, which takes longer than to reconnect it: {why}",
                  file=sys.stderr, flush=True)

    def _create(self, create: Callable[..., Any], opts: Any, backend_options: Any) -> Any:
        store = opts.store
        if self.backend is None or self.group is not None or self.timeout != opts.timeout:
            self.stores.append(_round_store(self.c10d))
            self.stores[-1].now = store
            opts.store = self.stores[-1]
            self.backend, self.timeout, self.group = create(opts, backend_options), opts.timeout, None
        self.stores[-1].now = store
        self._connect(store, opts.group_rank, opts.group_size)
        return self.backend

    def _attempt(self) -> int:
        """-> a number that no attempt had, and that all ranks find"""
        round_ = int(_lib.attached().info.round)
        before, n = self.counted
        self.counted = (round_, n + 1 if round_ == before else 0)
        return round_ << 16 | self.counted[1]

    def _connect(self, store: Any, rank: int, size: int) -> None:
        seconds, connected = FIRST_S, False
        while not connected:
            uuid = self._attempt()
            names = [f"crun/{uuid}/handle/{r}" for r in range(size)]
            store.set(names[rank], self.backend.get_reconfigure_handle())
            store.wait(names)
            options = self.c10d.ReconfigureOptions()
            options.uuid, options.timeout = uuid, datetime.timedelta(seconds=seconds)
            options.handles = [handle.decode() for handle in store.multi_get(names)]
            connected = self._all_say(store, f"crun/{uuid}", size, self._reconfigured(options, self.timeout))
            seconds *= 2

    def _reconfigured(self, options: Any, longest: Any) -> bool:
        try:
            self.backend.reconfigure(options).wait()
            return True
        except RuntimeError:
            if longest is not None and options.timeout >= longest:
                raise
            return False

    @staticmethod
    def _all_say(store: Any, prefix: str, size: int, fine: bool) -> bool:
        if not fine:
            store.set(f"{prefix}/bad", "")
        if store.add(f"{prefix}/tried", 1) == size:
            store.set(f"{prefix}/all", "n" if store.check([f"{prefix}/bad"]) else "y")
        return bool(store.get(f"{prefix}/all") == b"y")

    def let_go(self) -> None:
        """No round will follow: PyTorch ends the back end with its group."""
        self.backend = self.group = None

    def _at_exit(self) -> None:
        """A back end that can be reconnected aborts the process where it is still there as that one ends."""
        self.let_go()
        with contextlib.suppress(Exception):
            if self.c10d.is_initialized():
                self.c10d.destroy_process_group()

    def leave(self) -> None:
        """Before destroy_process_group(), which shuts down what it finds: the kept one is left out. One that the program has
        destroyed is gone."""
        if self.group is not None and self.group is self.c10d._world.default_pg:
            self.c10d._world.pg_names.pop(self.group, None)
        elif self.group is not None:
            self.backend = None
        self.group = None
