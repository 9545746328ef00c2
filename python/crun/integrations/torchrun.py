# SPDX-License-Identifier: Apache-2.0
"""`torchrun --rdzv-backend crun --rdzv-endpoint HOST:PORT`: torchrun's nodes meet over a rendezvousd.

The wheel names handler() as an entry point of `torchrun.handlers`. States and decisions are torch's own
(DynamicRendezvousHandler); here is where it keeps them: a key that is changed by compare-and-set, and a store for what the
nodes tell each other, in the key-space of the token's principal.

- A job's keys have a name of this incarnation. The name and the state go KEEP_S after the last write (a node writes each
  5 s), as with crun itself: the run id of a job that is over may be used again a minute later.
- --rdzv-conf token_file=FILE, ca=FILE (certificates, implies TLS), tls=1, insecure=1 (no token). Without token_file:
  CRUN_TOKEN, CRUN_TOKEN_FILE, ~/.config/crun/token. Workers do not get CRUN_TOKEN.
Nothing here imports torch before torchrun asks for a rendezvous.
"""
from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pathlib
import secrets
import socket
import ssl
import stat
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Tuple, Union

PORT = 29400
ANSWER_S = 60.0
KEEP_S, STORE_S = 60, 86400

Word = Union[str, bytes, int]
_token_of_environment: Optional[str] = None


class Denied(Exception):
    """The server or its network is right, and we are not."""


def _token_text(named: Optional[str]) -> str:
    """'principal secret', or 'secret'"""
    global _token_of_environment
    _token_of_environment = os.environ.pop("CRUN_TOKEN", _token_of_environment)
    path = named or (None if _token_of_environment else os.environ.get("CRUN_TOKEN_FILE"))
    if path is None and _token_of_environment:
        return _token_of_environment
    file = pathlib.Path(path) if path else pathlib.Path.home() / ".config" / "crun" / "token"
    try:
        mode = file.stat().st_mode
        lines = [line.strip() for line in file.read_text().splitlines()]
    except OSError as e:
        raise Denied(f"the token file {file}: {e.strerror}: expected a secret that all nodes share (CRUN_TOKEN, --rdzv-conf token_file=FILE), "
                     "or --rdzv-conf insecure=1") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP):
        raise Denied(f"the token file {file}: mode {mode & 0o777:o}: expected 0600, so that nobody else reads it")
    return next((line for line in lines if line and not line.startswith("#")), "")


def read_token(named: Optional[str]) -> Tuple[str, str]:
    """-> principal, secret. Denied: there is none that can be used."""
    words = _token_text(named).split()
    if not 1 <= len(words) <= 2 or not 16 <= len(words[-1]) <= 255:
        raise Denied("the token: expected 'principal secret', or a secret alone, of 16 to 255 characters")
    return (words[0] if len(words) == 2 else "crun"), words[-1]


class Resp:
    """One connection to a rendezvousd, made anew where it broke. Any thread, one request at a time. OSError: it is not reached;
    Denied; ValueError: the server's error."""

    def __init__(self, host: str, port: int, token: Optional[Tuple[str, str]], tls: Optional[ssl.SSLContext]):
        self.host, self.port, self.token, self.tls = host, port, token, tls
        self.lock = threading.Lock()
        self.file: Any = None
        self.socket: Any = None

    def __call__(self, *words: Word, timeout: float = 0.0) -> Any:
        """-> what the server answers; timeout: that it was asked to wait for"""
        with self.lock:
            for last in False, True:
                fresh = self.file is None
                try:
                    if fresh:
                        self._connect()
                    return self._ask(words, timeout)
                except (OSError, EOFError) as e:
                    self._close()
                    if last or fresh:
                        raise ConnectionError(f"the rendezvous at {self.host}:{self.port}: {e}") from e
        raise AssertionError

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self.socket is not None:
                self.socket.close()
        self.file = self.socket = None

    def _connect(self) -> None:
        self.socket = socket.create_connection((self.host, self.port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            try:
                self.socket = self.tls.wrap_socket(self.socket, server_hostname=self.host)
            except ssl.SSLCertVerificationError as e:
                self._close()
                raise Denied(f"the certificate of the rendezvous at {self.host}:{self.port}: {e.verify_message}: expected one that "
                             "--rdzv-conf ca=FILE vouches for") from None
        self.file = self.socket.makefile("rwb")
        if self.token is not None:
            try:
                self._prove(*self.token)
            except ValueError as e:
                self._distrust(str(e))

    def _distrust(self, why: str) -> NoReturn:
        self._close()
        raise Denied(f"the rendezvous at {self.host}:{self.port} and this node do not trust each other: {why}")

    def _prove(self, principal: str, secret: str) -> None:
        nonce = secrets.token_hex(32)
        challenge = self._ask(("STORE.AUTH", principal, nonce), 0.0)
        if not isinstance(challenge, list):
            self._distrust("the server does not prove who it is: give it a token file, or say --rdzv-conf insecure=1")
        server_nonce, server_proof, instance = challenge

        def proof(role: str) -> bytes:
            text = b"\0".join([b"crun-auth-1", role.encode(), principal.encode(), nonce.encode(), server_nonce, instance, b""])
            return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(proof("server"), server_proof):
            self._distrust(f"the server does not hold the secret that we hold for principal '{principal}'")
        self._ask(("STORE.PROVE", proof("client")), 0.0)

    def _ask(self, words: Sequence[Word], timeout: float) -> Any:
        raw = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.settimeout(timeout + ANSWER_S)
        self.file.write(b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in raw))
        self.file.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("it closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise ValueError(rest.decode(errors="replace"))
        n = int(rest)
        if kind == b":":
            return n
        if n < 0:
            return None
        if kind == b"*":
            return [self._answer() for _ in range(n)]
        data = self.file.read(n + 2)
        if len(data) < n + 2:
            raise EOFError("it closed the connection")
        return data[:-2]


def _store(resp: Resp, prefix: str, seconds: float) -> Any:
    """-> one of torch's stores; get() and wait() take `seconds` at most"""
    import torch.distributed
    base: Any = torch.distributed.Store

    class RendezvousdStore(base):  # type: ignore[misc]
        timeout = timedelta(seconds=seconds)

        def set_timeout(self, timeout: timedelta) -> None:
            self.timeout = timeout

        def set(self, key: str, value: Union[str, bytes]) -> None:
            resp("SET", prefix + key, value, "EX", STORE_S)

        def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
            left = (self.timeout if timeout is None else timeout).total_seconds()
            end = time.monotonic() + left
            names = [prefix + key for key in keys]
            while names and not resp("STORE.WAIT", *names, int(max(0.0, min(left, 1.0)) * 1000), timeout=1.0):  # threads share the connection
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"the rendezvous at {resp.host}:{resp.port}: {keys[0]} was not set in time")

        def get(self, key: str) -> bytes:
            self.wait([key])
            return bytes(resp("GET", prefix + key) or b"")

        def multi_get(self, keys: List[str]) -> List[bytes]:
            self.wait(keys)
            return [bytes(value or b"") for value in resp("MGET", *[prefix + key for key in keys])]

        def multi_set(self, keys: List[str], values: List[Union[str, bytes]]) -> None:
            for key, value in zip(keys, values):
                self.set(key, value)

        def add(self, key: str, amount: int) -> int:
            return int(resp("INCRBY", prefix + key, amount))

        def append(self, key: str, value: Union[str, bytes]) -> None:
            resp("APPEND", prefix + key, value)

        def compare_set(self, key: str, expected: Union[str, bytes], desired: Union[str, bytes]) -> bytes:
            held = resp("STORE.CAS", prefix + key, 1 if expected else 0, expected, desired)[1]
            return bytes(held) if held is not None else expected.encode() if isinstance(expected, str) else expected

        def check(self, keys: List[str]) -> bool:
            return bool(resp("EXISTS", *[prefix + key for key in keys]) == len(keys))

        def delete_key(self, key: str) -> bool:
            return bool(resp("DEL", prefix + key) == 1)

        def has_extended_api(self) -> bool:
            return True

    return RendezvousdStore()


def _backend(resp: Resp, key: str, also_kept: str) -> Any:
    """-> torch's RendezvousBackend: a state is its own fencing token"""
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
    base: Any = dynamic_rendezvous.RendezvousBackend

    class CrunBackend(base):  # type: ignore[misc]
        @property
        def name(self) -> str:
            return "crun"

        def _call(self, *words: Word) -> Any:
            try:
                return resp(*words)
            except (OSError, ValueError, Denied) as e:
                raise RendezvousConnectionError(str(e)) from e

        def get_state(self) -> Optional[Tuple[bytes, Any]]:
            state = self._call("GET", key)
            return None if state is None else (state, state)

        def set_state(self, state: bytes, token: Any = None) -> Optional[Tuple[bytes, Any, bool]]:
            changed, held = self._call("STORE.CAS", key, 1 if token else 0, token or b"", state)
            if changed:
                for name in key, also_kept:
                    self._call("EXPIRE", name, KEEP_S)
            return None if held is None else (held, held, bool(changed))

    return CrunBackend()


def _yes(params: Any, name: str) -> bool:
    return bool(params.get_as_bool(name, False))


def create(params: Any) -> Any:
    """-> torch's rendezvous handler, for RendezvousParameters. RendezvousConnectionError says what is wrong in one sentence."""
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
    try:
        host, port = parse_rendezvous_endpoint(params.endpoint, PORT)
        token = None if _yes(params, "insecure") else read_token(params.get("token_file"))
        ca = params.get("ca")
        tls = ssl.create_default_context(cafile=ca) if ca or _yes(params, "tls") else None
        resp = Resp(host, port, token, tls)
        name = f"torchrun/{params.run_id}/name"
        resp("SET", name, secrets.token_hex(8), "NX", "EX", KEEP_S)
        prefix = f"torchrun/{params.run_id}/{resp('GET', name).decode()}/"
    except (Denied, OSError, ValueError) as e:
        raise RendezvousConnectionError(str(e)) from None
    store = _store(Resp(host, port, token, tls), prefix + "store/", params.get_as_int("read_timeout", 60))  # whose waits hold up no state
    return create_handler(store, _backend(resp, prefix + "state", name), params)


def handler() -> Callable[[Any], Any]:
    """For the entry point `torchrun.handlers`."""
    return create
