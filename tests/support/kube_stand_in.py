"""The part of a Kubernetes API that crun uses: usage kube_stand_in.py PORT CERT KEY TOKENS. Leases and ConfigMaps in memory, RBAC by token, a watch.

TOKENS: JSON, {token: null (all) or [[verb, resource], ...]}. What it answers is checked against answers of kube-apiserver (test_kubernetes.py)."""
import http.server
import json
import re
import socketserver
import ssl
import sys
import threading
import time
import urllib.parse

KINDS = {"leases": ("Lease", "coordination.k8s.io"), "configmaps": ("ConfigMap", "")}
PATH = re.compile(r"/(?:apis/coordination\.k8s\.io/v1|api/v1)/namespaces/([^/]+)/(leases|configmaps)(?:/([^/]+))?$")
MAX = 1048576


class Store:
    def __init__(self):
        self.version, self.objects, self.events, self.oldest = 1, {}, [], 0
        self.changed = threading.Condition()

    def put(self, key, o, kind):
        self.version += 1
        o["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = o
        self.events.append((self.version, kind, key, json.dumps(o)))
        self.changed.notify_all()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store, tokens = Store(), {}

    def log_message(self, *args):
        pass

    def answer(self, code, o):
        body = json.dumps(o).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, code, reason, message):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code})

    def handle_one(self, method):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if url.path == "/readyz":
            return self.answer(200, "ok")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return self.fail(401, "Unauthorized", "Unauthorized")
        m = PATH.match(url.path)
        if not m:
            return self.fail(404, "NotFound", "the server could not find the requested resource")
        space, kind, name = m.groups()
        verb = {"GET": "watch" if "watch" in query else "get" if name else "list", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
        allowed = self.tokens[token]
        if allowed is not None and [verb, kind] not in allowed:
            what = f'{kind}{"." if KINDS[kind][1] else ""}{KINDS[kind][1]}'
            return self.fail(403, "Forbidden", f'{what}{f" {json.dumps(name)}" if name else ""} is forbidden: User "weak" cannot {verb} resource "{kind}" in API '
                             f'group "{KINDS[kind][1]}" in the namespace "{space}"')
        if verb == "watch":
            return self.watch(space, query)
        with self.store.changed:
            return self.one(method, space, kind, name, query, json.loads(body) if body else {})

    def one(self, method, space, kind, name, query, o):
        s = self.store
        if method == "GET" and not name:
            want = query.get("labelSelector", "").partition("=")
            items = [x for (sp, k, _), x in s.objects.items() if (sp, k) == (space, kind) and x["metadata"].get("labels", {}).get(want[0]) == want[2]]
            return self.answer(200, {"kind": KINDS[kind][0] + "List", "metadata": {"resourceVersion": str(s.version)}, "items": items})
        name = name or o.get("metadata", {}).get("name")
        key, had = (space, kind, name), s.objects.get((space, kind, name))
        if sum(len(v) for v in o.get("data", {}).values()) > MAX:
            return self.fail(422, "Invalid", f'ConfigMap "{name}" is invalid: []: Too long: must have at most 1048576 bytes')
        if method == "POST" and had:
            return self.fail(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if method != "POST" and not had and (method, kind) != ("PUT", "leases"):
            return self.fail(404, "NotFound", f'{kind} "{name}" not found')
        if method == "GET":
            return self.answer(200, had)
        wanted = o.get("preconditions", o.get("metadata", {})).get("resourceVersion")
        if had and method in ("PUT", "DELETE") and wanted and wanted != had["metadata"]["resourceVersion"]:
            return self.fail(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": the object has been modified')
        if method == "DELETE":
            s.put(key, had, "DELETED")
            return self.answer(200, {"kind": "Status", "status": "Success"})
        if had and dict(o, metadata=dict(o["metadata"], resourceVersion="")) == dict(had, metadata=dict(had["metadata"], resourceVersion="")):
            return self.answer(200, had)  # no write
        s.put(key, o, "MODIFIED" if had else "ADDED")
        return self.answer(200 if had else 201, o)

    def watch(self, space, query):
        name = query["fieldSelector"].removeprefix("metadata.name=")
        at, end = int(query.get("resourceVersion") or 0), time.monotonic() + int(query.get("timeoutSeconds", 60))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def line(text):
            data = text.encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        while time.monotonic() < end:
            with self.store.changed:
                if at and at < self.store.oldest:
                    line(json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}))
                    break
                news = [e for e in self.store.events if e[0] > at and e[2] == (space, "leases", name)]
                if not news:
                    self.store.changed.wait(0.2)
            for version, kind, _, text in news:
                line(f'{{"type":"{kind}","object":{text}}}')
                at = version
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        self.handle_one("GET")

    def do_POST(self):
        self.handle_one("POST")

    def do_PUT(self):
        self.handle_one("PUT")

    def do_DELETE(self):
        self.handle_one("DELETE")


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *args):  # whoever looks no more closes its watch
        pass


def main():
    port, cert, key, tokens = sys.argv[1:]
    Handler.tokens = json.loads(tokens)
    server = Server(("127.0.0.1", int(port)), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main()
