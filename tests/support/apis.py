"""Servers whose APIs are homes of a rendezvous: an etcd of one or more members, each a process of its own."""
import re
import shutil
import subprocess
import urllib.request

import pytest

from processes import wait
from support import free_port


class Etcd:
    """args: more of its options; tls: options of its TLS, whose clients dial https."""

    def __init__(self, tmp, members=1, args=(), tls=()):
        if not shutil.which("etcd"):
            pytest.skip("no etcd (Debian: etcd-server)")
        self.dir = tmp / "etcd"
        self.dir.mkdir(exist_ok=True)
        self.scheme = "https" if tls else "http"
        self.ports = [(free_port(), free_port()) for _ in range(members)]
        self.args = [*map(str, args), *map(str, tls)]
        self.processes = [None] * members
        for i in range(members):
            self.start(i)
        for i in range(members):
            wait(f"member {i} of etcd", lambda i=i: "ready to serve client requests" in (self.dir / f"log-{i}").read_text(errors="replace"))

    def start(self, i):
        client, peer = self.ports[i]
        with open(self.dir / f"log-{i}", "ab") as log:
            self.processes[i] = subprocess.Popen(
                ["etcd", "--name", f"m{i}", "--data-dir", self.dir / f"data-{i}", "--listen-client-urls", f"{self.scheme}://127.0.0.1:{client}",
                 "--advertise-client-urls", f"{self.scheme}://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-cluster", ",".join(f"m{k}=http://127.0.0.1:{p}" for k, (_, p) in enumerate(self.ports)), *self.args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def url(self):
        return ("etcds" if self.scheme == "https" else "etcd") + "://" + ",".join(f"127.0.0.1:{c}" for c, _ in self.ports)

    def metric(self, name, i=0):
        """The sum of its series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[i][0]}/metrics", timeout=10) as r:
            text = r.read().decode()
        return sum(float(v) for v in re.findall(rf"(?m)^{name}(?:{{[^}}]*}})? (\S+)$", text))

    def leads(self, i):
        return self.processes[i].poll() is None and self.metric("etcd_server_is_leader", i) == 1

    def leader(self):
        return wait("a leader of the etcd", lambda: [i for i in range(len(self.ports)) if self.leads(i)])[0]

    def keys(self):
        """How many there are."""
        return int(self.metric("etcd_debugging_mvcc_keys_total"))

    def kill(self, i):
        self.processes[i].kill()
        self.processes[i].wait()

    def stop(self):
        for i in range(len(self.ports)):
            self.kill(i)
