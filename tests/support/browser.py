"""A headless Chromium, told what to do over its own protocol on a pair of pipes: no other module is needed."""
import base64
import json
import os
import shutil
import subprocess

import pytest

from processes import wait


def chromium():
    found = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
    if not found:
        pytest.skip("no Chromium is installed")
    return found


class Browser:
    """One tab. errors: exceptions and messages of the console that are errors, as they came."""

    def __init__(self, folder, width=1440, height=900, dark=False, phone=False):
        inward, self.write = os.pipe()
        self.read, outward = os.pipe()
        command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
                   "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]

        def wire():  # the protocol is spoken on descriptors 3 and 4
            a, b = os.dup(inward), os.dup(outward)
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=wire, close_fds=False,
                                  start_new_session=True)
        os.close(inward)
        os.close(outward)
        self.rest, self.number, self.session, self.errors = b"", 0, None, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self(domain + ".enable")
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self("Emulation.setTouchEmulationEnabled", enabled=phone)
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def _message(self):
        while b"\0" not in self.rest:
            more = os.read(self.read, 1 << 16)
            assert more, "the browser has gone"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def _note(self, m):
        if m.get("method") == "Runtime.exceptionThrown":
            self.errors.append(m["params"]["exceptionDetails"])
        elif m.get("method") == "Log.entryAdded" and m["params"]["entry"]["level"] == "error":
            self.errors.append(m["params"]["entry"])
        elif m.get("method") == "Runtime.consoleAPICalled" and m["params"]["type"] == "error":
            self.errors.append(m["params"])

    def __call__(self, method, **params):
        self.number += 1
        m = {"id": self.number, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.write, json.dumps(m).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == m["id"]:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def js(self, expression):
        r = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def open(self, url):
        self("Page.navigate", url=url)

    def wait(self, expression, what, timeout=60):
        return wait(what, lambda: self.js(f"document.readyState !== 'loading' && Boolean({expression})"), timeout)

    def text(self):
        return self.js("document.body.innerText")

    def html(self):
        return self.js("document.documentElement.outerHTML")

    def picture(self, path, full=True):
        data = base64.b64decode(self("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"])
        path.write_bytes(data)
        return data

    def close(self):
        try:
            self.session = None
            self("Browser.close")
        except (AssertionError, OSError):
            pass
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        os.close(self.read)
        os.close(self.write)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# --- the status page


def log_in(b, user):
    b.wait("!document.getElementById('log').hidden", "the button to log in is there")
    b.js("document.getElementById('login').hidden && document.getElementById('log').click()")
    b.js(f"document.getElementById('name').value = {user[0]!r}; document.getElementById('secret').value = {user[1]!r}; document.querySelector('#login form').requestSubmit()")
    b.wait(f"document.getElementById('who').textContent === {user[0]!r} || last.reader.sees === 'all'", "logged in")


def open_job(b, run):
    b.js(f"[...document.querySelectorAll('.job h2 button')].find(e => e.textContent === {run!r}).click()")


def card(run):
    return f"[...document.querySelectorAll('article')].find(a => a.querySelector('h2').textContent === {run!r})"
