"""Servers whose APIs are homes of a rendezvous: an etcd of one or more members, a Kubernetes API, each a process of its own."""
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from processes import wait
from support import free_port


class Etcd:
    """args: more of its options; tls: options of its TLS, whose clients dial https; host: where it runs (tests/fault/netns.py), and then its figures
    cannot be read."""

    def __init__(self, tmp, members=1, args=(), tls=(), host=None):
        if not shutil.which("etcd"):
            pytest.skip("no etcd (Debian: etcd-server)")
        self.dir = tmp / "etcd"
        self.dir.mkdir(exist_ok=True)
        self.scheme = "https" if tls else "http"
        self.addr, self.prefix = (host.addr, host.prefix()) if host else ("127.0.0.1", [])
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
                [*self.prefix, "etcd", "--name", f"m{i}", "--data-dir", self.dir / f"data-{i}", "--listen-client-urls", f"{self.scheme}://{self.addr}:{client}",
                 "--advertise-client-urls", f"{self.scheme}://{self.addr}:{client}", "--listen-peer-urls", f"http://{self.addr}:{peer}",
                 "--initial-advertise-peer-urls", f"http://{self.addr}:{peer}",
                 "--initial-cluster", ",".join(f"m{k}=http://{self.addr}:{p}" for k, (_, p) in enumerate(self.ports)), *self.args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def url(self):
        return ("etcds" if self.scheme == "https" else "etcd") + "://" + ",".join(f"{self.addr}:{c}" for c, _ in self.ports)

    def metric(self, name, i=0):
        """The sum of its series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[i][0]}/metrics", timeout=10) as r:
            text = r.read().decode()
        return sum(float(v) for v in re.findall(rf"(?m)^{name}(?:{{[^}}]*}})? (\S+)$", text))

    def serves(self, i):
        """With a majority."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[i][0]}/health", timeout=10) as r:
                return json.load(r)["health"] == "true"
        except (OSError, urllib.error.URLError):
            return False

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


def certificates(tmp):
    """A CA (ca.pem), and certificates of a server at 127.0.0.1 and of a client."""
    def run(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=60)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("req", "-x509", *key, "-days", 2, "-subj", "/CN=ca", "-keyout", tmp / "ca.key", "-out", tmp / "ca.pem")
    (tmp / "san").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        run("req", *key, "-subj", f"/CN={name}", "-keyout", tmp / f"{name}.key", "-out", tmp / f"{name}.csr")
        run("x509", "-req", "-in", tmp / f"{name}.csr", "-CA", tmp / "ca.pem", "-CAkey", tmp / "ca.key", "-CAcreateserial", "-days", 2, "-extfile", tmp / "san",
            "-out", tmp / f"{name}.pem")


class Kubernetes:
    """real: the kube-apiserver that KUBE_APISERVER names, with an etcd behind it; else a stand-in. Tokens: "secret" may all, "weak" what `rules` of
    (verb, resource) say."""

    def __init__(self, tmp, rules=(), real=False):
        self.dir = tmp / "kube"
        self.dir.mkdir()
        self.port, self.real, self.rules, self.process, self.etcd = free_port(), real, [list(r) for r in rules], None, None
        certificates(self.dir)
        if real:
            if not os.environ.get("KUBE_APISERVER"):
                pytest.skip("no KUBE_APISERVER (a kube-apiserver)")
            self.etcd = Etcd(self.dir)
            for words in (["genrsa", "-out", "sa.key", "2048"], ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"]):
                subprocess.run(["openssl", *words], cwd=self.dir, check=True, capture_output=True, timeout=60)
            (self.dir / "tokens.csv").write_text('secret,admin,1,"system:masters"\nweak,weak,2\n')
        self.start()
        if real and rules:
            self.grant()

    def start(self):
        d = self.dir
        if self.real:
            command = [os.environ["KUBE_APISERVER"], "--etcd-servers", self.etcd.url.replace("etcd://", "http://"), "--bind-address", "127.0.0.1",
                       "--advertise-address", "127.0.0.1", "--secure-port", self.port, "--tls-cert-file", d / "server.pem", "--tls-private-key-file", d / "server.key",
                       "--service-account-key-file", d / "sa.pub", "--service-account-signing-key-file", d / "sa.key",
                       "--service-account-issuer", "https://kubernetes.default.svc", "--token-auth-file", d / "tokens.csv", "--authorization-mode", "RBAC",
                       "--service-cluster-ip-range", "10.0.0.0/24", "--disable-admission-plugins", "ServiceAccount"]
        else:
            command = [sys.executable, pathlib.Path(__file__).parent / "kube_stand_in.py", self.port, d / "server.pem", d / "server.key",
                       json.dumps({"secret": None, "weak": self.rules})]
        with open(d / "log", "ab") as log:
            self.process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait("the API", lambda: self.ask("GET", "/readyz")[0] == 200)
        if self.real:
            wait("the namespace", lambda: self.ask("GET", "/api/v1/namespaces/default")[0] == 200)

    def apply(self, documents):
        """Make what they say, but what is of another than its own kinds."""
        for o in documents:
            group = o["apiVersion"].rpartition("/")[0]
            if group and not group.endswith("k8s.io") and group not in ("batch", "apps") or "x-k8s" in group:
                continue
            path = f"/apis/{o['apiVersion']}" if group else "/api/v1"
            status, answer = self.ask("POST", f"{path}/namespaces/default/{o['kind'].lower()}s", o)
            assert status == 201, answer

    def token_of(self, account):
        """A token of that service account, as its pods get one."""
        status, answer = self.ask("POST", f"/api/v1/namespaces/default/serviceaccounts/{account}/token",
                                  {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        assert status == 201, answer
        return answer["status"]["token"]

    def grant(self):
        """A Role for the user `weak`."""
        api = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/"
        rules = [{"apiGroups": ["coordination.k8s.io" if resource == "leases" else ""], "resources": [resource], "verbs": [verb]} for verb, resource in self.rules]
        for kind, more in (("Role", {"rules": rules}),
                           ("RoleBinding", {"subjects": [{"kind": "User", "name": "weak", "apiGroup": "rbac.authorization.k8s.io"}],
                                            "roleRef": {"kind": "Role", "name": "crun", "apiGroup": "rbac.authorization.k8s.io"}})):
            status, answer = self.ask("POST", api + kind.lower() + "s", {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "crun"}, **more})
            assert status == 201, answer

    def ask(self, method, path, o=None, token="secret"):
        """-> its status, and its answer."""
        context = ssl.create_default_context(cafile=self.dir / "ca.pem")
        r = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method, data=json.dumps(o).encode() if o is not None else None,
                                   headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=10, context=context) as f:
                status, text = f.status, f.read()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read()
        except (OSError, urllib.error.URLError):
            return 0, None
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def pod(self, tmp, token="secret"):
        """The environment of a pod."""
        files = tmp / f"pod-{token}"
        files.mkdir(exist_ok=True)
        shutil.copy(self.dir / "ca.pem", files / "ca.crt")
        (files / "token").write_text(token)
        (files / "namespace").write_text("default")
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port), "CRUN_K8S_FILES": str(files)}

    def lease(self, name):
        return self.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{name}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.kill()
        if self.etcd:
            self.etcd.stop()
