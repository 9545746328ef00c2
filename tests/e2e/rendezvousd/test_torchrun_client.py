"""crun.integrations.torchrun: its connection to a rendezvousd, with tokens and TLS. tests/peer/test_torchrun_backend.py has it below torchrun."""
import ssl
import sys

import pytest

from daemon import ALICE, BOB, Daemon
from support import ROOT

sys.path.insert(0, str(ROOT / "python"))
from crun.integrations import torchrun  # noqa: E402


def test_it_goes_by_token_and_tls_and_comes_back_after_a_broken_connection(tokens, certificates):
    trusted = ssl.create_default_context(cafile=certificates / "cert.pem")
    with Daemon("--token-file", tokens, "--tls-only", "--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem") as d:
        resp = torchrun.Resp("127.0.0.1", d.port, ALICE, trusted)
        assert resp("SET", "state", b"one\r\n") == "OK" and resp("GET", "state") == b"one\r\n" and resp("GET", "none") is None
        assert resp("STORE.CAS", "state", 1, "two", "three") == [0, b"one\r\n"] and resp("STORE.CAS", "fresh", 0, "", "x") == [1, b"x"]
        resp.socket.close()
        resp.file.close()
        assert resp("GET", "state") == b"one\r\n"
        assert torchrun.Resp("127.0.0.1", d.port, BOB, trusted)("GET", "state") is None, "each principal has keys of its own"
        with pytest.raises(ValueError, match="unknown command 'NONE'"):
            resp("NONE")
        with pytest.raises(torchrun.Denied, match=r"certificate of the rendezvous at 127\.0\.0\.1:\d+: .*: expected one that --rdzv-conf ca=FILE vouches for"):
            torchrun.Resp("127.0.0.1", d.port, ALICE, ssl.create_default_context())("PING")
        with pytest.raises(torchrun.Denied, match="do not trust each other: the server does not hold the secret that we hold for principal 'alice'"):
            torchrun.Resp("127.0.0.1", d.port, ("alice", "something-else-0123456789"), trusted)("PING")


def test_without_a_token_it_says_what_helps(tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "_token_of_environment", None)
    monkeypatch.delenv("CRUN_TOKEN", raising=False)
    with pytest.raises(torchrun.Denied, match=f"the token file {tmp_path}/none: No such file or directory: expected a secret that all nodes share"):
        torchrun.read_token(f"{tmp_path}/none")
    with Daemon() as d:
        with pytest.raises(torchrun.Denied, match="the server does not prove who it is: give it a token file, or say --rdzv-conf insecure=1"):
            torchrun.Resp("127.0.0.1", d.port, ALICE, None)("PING")
        assert torchrun.Resp("127.0.0.1", d.port, None, None)("PING") == "PONG"
    with pytest.raises(ConnectionError, match=rf"the rendezvous at 127\.0\.0\.1:{d.port}: "):
        torchrun.Resp("127.0.0.1", d.port, None, None)("PING")
    monkeypatch.setenv("CRUN_TOKEN", "short")
    with pytest.raises(torchrun.Denied, match="the token: expected 'principal secret', or a secret alone, of 16 to 255 characters"):
        torchrun.read_token(None)
