"""Nodes of two versions in one job: they work, or whoever comes last is refused by a sentence with both versions. docs/guide/operating.md says which."""
import re
import socket
import threading

import pytest

from cluster import free_port, joined, wait
from daemon import ALICE, write_tokens

SENTENCE = "protocol version 2, but this program speaks version 1"


class Later:
    """A way to a rendezvous on which each JOIN says that it is of the next version."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ends = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                client, _ = self.listener.accept()
                host = socket.create_connection(("127.0.0.1", self.to))
                self.ends += [client, host]
                threading.Thread(target=self.carry, args=(client, host, lambda b: re.sub(rb"(\bv=)1(?=[\r ])", rb"\g<1>2", b)), daemon=True).start()
                threading.Thread(target=self.carry, args=(host, client, bytes), daemon=True).start()
        except OSError:
            return

    @staticmethod
    def carry(source, to, change):
        try:
            while data := source.recv(65536):
                to.sendall(change(data))
            to.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self):
        for s in (self.listener, *self.ends):
            s.close()


@pytest.mark.parametrize("home", ["rendezvousd", "c10d"])
def test_a_node_of_another_version_is_refused_with_both_and_the_job_goes_on(cluster, home):
    tokens = write_tokens(cluster.tmp / "tokens", ALICE)
    cluster.env["CRUN_TOKEN_FILE"] = str(tokens)
    port = free_port()
    if home == "rendezvousd":
        cluster.rendezvousd("--token-file", tokens, port=port)

    def start(to):
        return cluster.node("--nnodes", 2, "--rdzv_backend", home, "--rdzv_endpoint", f"127.0.0.1:{to}", "--rdzv_id", "j")

    first = joined(start(port), 1, 2)
    way = Later(port)
    try:
        other = start(way.port)
        assert other.wait() == 69, other.text()
        assert SENTENCE in other.text()
    finally:
        way.close()
    second = start(port)
    cluster.wait_round(2)
    cluster.finish(first, second)


def test_a_home_of_an_older_version_is_refused_by_name(cluster):
    """As crun left it whose nodes did not dial their leader: by its files, by its keys."""
    (cluster.tmp / "shared" / "crun-j").mkdir(parents=True, mode=0o700)
    redis = cluster.redis()
    redis.cli("SET", "crun:{j}:epoch", "1-5f0c9a77d1e2b344")
    for url, words in ((f"file://{cluster.tmp}/shared", "is of an older version of crun"), (redis.url, "is led there by an older version of crun")):
        node = cluster.node("--nnodes", 2, "--rdzv-endpoint", url, "--rdzv-id", "j")
        assert node.wait() == 2, node.text()
        assert words in node.text() and "all nodes of a job must have the same" in node.text(), node.text()


def test_older_versions_find_a_log_of_a_format_that_they_refuse(cluster):
    (cluster.tmp / "shared").mkdir()
    redis = cluster.redis()
    for url in f"file://{cluster.tmp}/shared", redis.url:
        joined(cluster.node("--nnodes", 2, "--rdzv-endpoint", url, "--rdzv-id", "j"), 1, 2)
    wait("the mark in the folder", lambda: "format=4" in (cluster.tmp / "shared" / "crun-j" / "decision-00000001").read_text())
    wait("the mark in the Redis", lambda: "format=4" in redis.cli("XRANGE", "crun:{j}:log", "-", "+"))
