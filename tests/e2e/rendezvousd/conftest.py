"""Fixtures: a token file, certificates, a network namespace with an address of its own."""
import os
import secrets
import shutil
import socket
import ssl
import subprocess

import pytest

from daemon import ALICE, BOB, write_tokens
from support import lease


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "tokens", ALICE, BOB)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """dir with cert.pem, key.pem (server) and client.pem (certificate and key), each signed by itself."""
    if not shutil.which("openssl"):
        pytest.skip("openssl(1) is not installed")
    d = tmp_path_factory.mktemp("tls")
    for cert, key in (("cert.pem", "key.pem"), ("client.pem", "client-key.pem")):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", d / key,
                        "-out", d / cert, "-days", "2", "-subj", "/CN=store.example", "-addext", "subjectAltName=DNS:store.example,IP:127.0.0.1"],
                       check=True, capture_output=True, timeout=60)
    return d


@pytest.fixture(scope="session")
def tls(certificates):
    context = ssl.create_default_context(cafile=certificates / "cert.pem")
    return context


def free_subnet():
    """n of 10.213.n.0/24 that no other test has, and no link, be it one that a killed test left."""
    for n in range(256):
        with socket.socket() as s:
            try:
                s.bind((f"10.213.{n}.1", 0))
            except OSError:
                if lease(f"subnet-10.213.{n}"):
                    return n
    raise OSError("all of 10.213.0.0/16 is taken")


@pytest.fixture(scope="session")
def namespace():
    """(name, address of its side, address of ours): another host, as far as the network goes."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip(8)")
    n, unique = free_subnet(), secrets.token_hex(4)
    ours, theirs = f"10.213.{n}.1", f"10.213.{n}.2"
    name, here, there = f"rdzvd{unique}", f"rda{unique}", f"rdb{unique}"
    made = [f"ip netns add {name}", f"ip link add {here} type veth peer name {there} netns {name}", f"ip addr add {ours}/24 dev {here}",
            f"ip link set {here} up", f"ip -n {name} addr add {theirs}/24 dev {there}", f"ip -n {name} link set {there} up"]
    try:
        for command in made:
            p = subprocess.run(command.split(), capture_output=True, text=True, timeout=20, check=False)
            if p.returncode:
                pytest.skip(f"no network namespace here: {command}: {p.stderr.strip()}")
        yield name, theirs, ours
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
        subprocess.run(["ip", "link", "del", here], capture_output=True, timeout=20, check=False)
