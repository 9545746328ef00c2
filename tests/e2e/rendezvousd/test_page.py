"""The status page in a browser, as people see it: three sizes and colours of window, over a day of jobs some of which mean harm. CRUN_PICTURES=DIR keeps
the pictures (docs/pictures holds those of the project)."""
import json
import math
import os
import pathlib
import re
import time

import pytest

from browser import Browser, card, log_in, open_job
from daemon import ALICE, BOB, Client, Daemon, write_tokens
from support import ROOT
from test_history import ADMIN, JOIN, api, basic, log_of

pytestmark = [pytest.mark.slow, pytest.mark.serial]

EVIL = "<img src=x onerror=document.title='taken'>\"'&</script><script>document.title='taken'</script>"
EVIL_RUN = "night-" + EVIL.replace(" ", "%20")[:180]
STDERR = ["Traceback (most recent call last):", '  File "train.py", line 12, in <module>', "    loss.backward()",
          EVIL, "RuntimeError: CUDA error: an illegal memory access was encountered \x1b[31m\u202e"]
REPORT = {"run_id": "lr-0.8", "program": "train.py", "exit_code": 1, "failures": [
    {"rank": 3, "local_rank": 1, "pid": 4711, "host": "gpu2" + EVIL, "node": "gpu2", "ending": "exited with code 1", "message": "RuntimeError: " + EVIL, "message_from": "error.json",
     "phase": "step", "step": 2119, "gpu": "1", "stderr": STDERR},
    {"rank": 0, "local_rank": 0, "pid": 4710, "host": "gpu1", "ending": "killed by SIGTERM"}]}
SECRET = "a-line-of-bob-that-nobody-else-may-see"
# A report that no crun writes, for a reader who is an administrator: its values are no text, and their conversions no functions.
ODD = {"toString": 1, "valueOf": 1, "toLocaleString": 1}
MISSHAPEN = {"program": ODD, "more": ODD, "failures": [
    {"rank": ODD, "local_rank": ODD, "pid": ODD, "host": ODD, "step": ODD, "phase": "step", "message": ODD, "stderr": [None, ODD, "a line as it should be"]}, None, 5, {"rank": ODD}]}
HOURS = 6.5


class Job:
    """A job of some nodes, each a connection."""

    def __init__(self, d, user, run, nodes=2, slots=2, names="gpu", more=(), wanted=None):
        self.run, self.seq = run, [0] * nodes
        self.names = [f"{names}{i + 1}" for i in range(nodes)]
        self.slots, self.round = slots, 0
        self.c = [Client(d.port).authenticate(*user) for _ in self.names]
        self.settings = (f"slots={slots}", "v=1", "max_restarts=3", "silence=600000", f"nnodes={wanted or nodes}:{wanted or nodes}", *more)
        self.instance = self.join()[0].split("instance=")[1].split()[0]

    def join(self):
        return [c("RDZV.JOIN", self.run, n, f"round={self.round}", *self.settings) for c, n in zip(self.c, self.names)]

    def news(self, kind):
        for i, c in enumerate(self.c):
            while kind not in (said := c("RDZV.NEXT", self.run, self.names[i], self.seq[i], "20000")):
                self.seq[i] = int(re.search(r"seq=(\d+)", said)[1])
            self.seq[i] = int(re.search(r"seq=(\d+)", said)[1])
        if "kind=round" in kind:
            self.round += 1
        return self

    def tell(self, step, **job):
        for i, (c, name) in enumerate(zip(self.c, self.names)):
            ranks = [i * self.slots + k for k in range(self.slots)]
            took = [82 + 0.3 * r for r in ranks]
            waits = [3.1 if r == 2 else 31 + 1.3 * r for r in ranks]
            fields = [f"step={step}", f"base={ranks[0]}", "steps=" + ",".join([str(step)] * self.slots), "step_ms=" + ",".join(f"{t:.4g}" for t in took),
                      "wait_ms=" + ",".join(f"{w:.4g}" for w in waits), f"cpu={0.31 + 0.22 * i}", f"mem={52311 + 9000 * i}", "mem_total=257600",
                      "gpus=" + ",".join(f"{97 - 9 * (r == 2)}:{61234 + 120 * r}:81559" for r in ranks)]
            if i == 0:
                fields += [f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in job.items()]
            assert c("RDZV.REPORT", self.run, name, *fields) == "OK"

    def fail(self, code, rank, text, fatal=False):
        more = ("fatal=1",) if fatal else ()
        assert self.c[0]("RDZV.FAIL", self.run, self.names[0], self.round, f"code={code}", f"rank={rank}", "text=" + text, *more) == "OK"
        self.news("kind=end" if fatal else "kind=stop")

    def again(self):
        self.join()
        self.news("kind=round")

    def back(self, d, user):
        """After a restart of the daemon."""
        for c in self.c:
            c.close()
        self.c = [Client(d.port).authenticate(*user) for _ in self.names]
        for i, c in enumerate(self.c):
            assert c("RDZV.NEXT", self.run, self.names[i], self.seq[i], "0") is None


def loss(step):
    return 0.35 + 6.5 * math.exp(-step / 9000) + 0.13 * math.sin(step * 0.7) * math.exp(-step / 20000) + 0.05 * math.sin(step * 3.1)


def age(state, instance, hours, at_restart=None, steps=50000):
    """Give the record of a job a past: a curve over some hours, with a restart from a checkpoint in it."""
    f = state / "history" / "jobs" / f"{instance}.log"
    text = f.read_text(encoding="utf-8").splitlines()[2]
    r = json.loads(text)
    r["started"] -= hours * 3600
    n, lost = 400, 0
    t, at, break_at = [], [], int(0.55 * n) if at_restart else n
    for i in range(n):
        if i == break_at:
            lost = 2600
            r["marks"][0].update(t=hours * 3600 * i / n, step=int(steps * i / n))
        t.append(hours * 3600 * (i + (1 if i >= break_at else 0)) / (n + 1))
        at.append(int(steps * i / n) - lost)
    r["curve"] = {"t": t, "at_step": at, "loss": [loss(s) for s in at], "accuracy": [0.78 * (1 - math.exp(-s / 12000)) + 0.01 * math.sin(s) for s in at],
                  "eval_accuracy": [0.74 * (1 - math.exp(-(s - s % 2500) / 11000)) if s >= 2500 else None for s in at],
                  "images_per_s": [6210 + 180 * math.sin(s * 0.37) - (900 if i % 50 == 30 else 0) for i, s in enumerate(at)],
                  "step_ms": [82.4 + 2.2 * math.sin(s * 0.41) + (12 if i % 50 == 30 else 0) for i, s in enumerate(at)]}
    r["stride"] = r["in_last"] = 64
    r["step"] = at[-1]
    if r["ended"]:
        r["ended"] = r["started"] + t[-1]
    f.write_bytes(log_of(json.dumps(r, ensure_ascii=False)))
    return at[-1]


class Day:
    """Alice: three running (one restarted in mid-curve, one with a hostile name), one waiting, two failed. Bob: one running, one failed."""

    def __init__(self, d):
        self.trains = Job(d, ALICE, "resnet50-imagenet").news("kind=round")
        self.evil = Job(d, ALICE, EVIL_RUN[:200], names="n<b>").news("kind=round")
        self.short = Job(d, ALICE, "probe", nodes=1, names="gpu3-").news("kind=round")
        self.waits = Job(d, ALICE, "vit-large", nodes=1, names="gpu5-", more=("node_rank=0", "join_timeout=600000"), wanted=2)
        self.failed = Job(d, ALICE, "lr-0.8").news("kind=round")
        self.broke = Job(d, ALICE, "oom-batch-4096", nodes=1, names="gpu7-").news("kind=round")
        self.bob = Job(d, BOB, "bobs-own", names="bobs-host-").news("kind=round")
        self.bob_failed = Job(d, BOB, "bobs-failure", nodes=1, names="bobs-host-").news("kind=round")
        self.trains.tell(27500, loss=1.0, logs="/data/alice/logs/resnet50-imagenet", total_steps=62500)
        self.trains.fail(137, 3, "rank%203%20on%20gpu2%20killed%20by%20SIGKILL")
        self.trains.again()
        for job in (self.trains, self.evil, self.bob):
            job.tell(10, loss=2.0, total_steps=62500, logs="/data/%s/logs" % ("bob" if job is self.bob else "alice"))
        self.failed.tell(2119, loss=9.5)
        self.failed.fail(1, 3, "rank%203%20on%20gpu2%20exited%20with%20code%201:%20" + EVIL.replace(" ", "%20").replace("=", "%3D"), fatal=True)
        assert self.failed.c[0]("RDZV.POSTMORTEM", "lr-0.8", "gpu1", json.dumps(REPORT)) == "OK"
        self.broke.fail(137, 0, "rank%200%20on%20gpu7%20killed%20by%20SIGKILL", fatal=True)
        assert self.broke.c[0]("RDZV.POSTMORTEM", "oom-batch-4096", "gpu7-1", json.dumps(MISSHAPEN)) == "OK"
        self.bob_failed.fail(3, 0, SECRET, fatal=True)
        self.bob_failed.c[0]("RDZV.POSTMORTEM", "bobs-failure", "bobs-host-1", json.dumps({"program": SECRET, "failures": [{"rank": 0, "stderr": [SECRET]}]}))

    def grow_old(self, state):
        self.step = age(state, self.trains.instance, HOURS, at_restart=True)
        age(state, self.evil.instance, 1.2, steps=9000)
        age(state, self.bob.instance, 2, steps=9000)
        age(state, self.failed.instance, 0.4, steps=2119)

    def go_on(self, d):
        for job, user in ((self.trains, ALICE), (self.evil, ALICE), (self.short, ALICE), (self.waits, ALICE), (self.bob, BOB)):
            job.back(d, user)
        self.step += 40
        self.trains.tell(self.step, loss=loss(self.step), accuracy=0.7601, eval_accuracy=0.7312, images_per_s=6214.0, total_steps=62500,
                         logs="/data/alice/logs/resnet50-imagenet")
        self.evil.tell(9040, loss=2.71, images_per_s=6190.0, total_steps=62500)
        self.bob.tell(9040, loss=2.71, images_per_s=6190.0, logs="/data/bob/logs")


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """-> (daemon, the jobs)"""
    tmp = tmp_path_factory.mktemp("page")
    options = ("--http-port", "0", "--state-dir", tmp / "state", "--token-file", write_tokens(tmp / "tokens", ALICE, BOB),
               "--http-token-file", write_tokens(tmp / "http-tokens", ADMIN))
    with Daemon(*options) as d:
        jobs = Day(d)
        assert d.stop() == 0
    jobs.grow_old(tmp / "state")
    with Daemon(*options) as d:
        jobs.go_on(d)
        yield d, jobs
        for job in vars(jobs).values():
            for c in getattr(job, "c", []):
                c.close()


def keep(b, name):
    folder = os.environ.get("CRUN_PICTURES")
    data = b.picture(pathlib.Path(folder or "/tmp") / f"status-{name}.png") if folder else b("Page.captureScreenshot", format="png")
    assert data


VIEWS = [pytest.param(1440, 1000, False, id="1440"), pytest.param(420, 900, False, id="420"), pytest.param(1440, 1000, True, id="dark")]


@pytest.mark.parametrize("width, height, dark", VIEWS)
def test_what_alice_sees(day, tmp_path, width, height, dark):
    d, jobs = day
    with Browser(tmp_path / "profile", width, height, dark, phone=width < 600) as b:
        b.open(d.http + "/")
        b.wait("document.getElementById('live').textContent === 'live'", "the page has asked")
        assert "Log in to see your jobs." in b.text() and "resnet50" not in b.text()
        log_in(b, ALICE)
        b.wait("document.querySelectorAll('article').length === 6", "her six jobs")
        b.js("document.documentElement.style.scrollBehavior = 'auto'")
        assert b.js("document.getElementById('summary').textContent") == "3 running, 1 waiting, 2 finished"
        for run, words in (("resnet50-imagenet", ["running", "step 47,315 of 62,500", "age 6 h 3", "loss 0.4441", "accuracy 73.12 %", "left ", "restarts 1 of 3", "owner alice"]),
                           ("vit-large", ["joining", "waits for nodes: 1 of 2 are here", "given up in"]),
                           ("lr-0.8", ["failed", "exit code 1", "rank 3 on gpu2 exited with code 1: " + EVIL, "took 23 min"]),
                           ("oom-batch-4096", ["failed", "exit code 137", "killed by SIGKILL"])):
            text = re.sub(r"\s+", " ", b.js(card(run) + ".innerText"))
            for word in words:
                assert re.sub(r"\s+", " ", word) in text, (run, word, text)
        assert b.js("document.title") == "rendezvousd" and EVIL not in b.html(), "what jobs say is text"
        assert EVIL_RUN[:200] in b.js("[...document.querySelectorAll('h2')].map(e => e.textContent).join('\\n')")

        open_job(b, "resnet50-imagenet")
        b.wait(card("resnet50-imagenet") + ".querySelectorAll('figure svg').length === 4", "four charts")
        labels = b.js(card("resnet50-imagenet") + ".querySelectorAll('svg').forEach ? [..." + card("resnet50-imagenet") + ".querySelectorAll('svg')].map(s => s.getAttribute('aria-label')) : []")
        assert [re.split(": ", t)[0] for t in labels] == ["Loss", "Accuracy", "Throughput a second", "Step time, slowest rank"] and all("1 mark" in t for t in labels)
        axis = b.js("[..." + card("resnet50-imagenet") + ".querySelectorAll('svg')][0].textContent")
        assert "0s" in axis and "6h" in axis and "restart after round 1" in axis and "killed by SIGKILL (exit code 137)" in axis
        text = b.js(card("resnet50-imagenet") + ".innerText")
        for word in ("Ranks: 1 straggler", "others wait for it: +", "Hosts", "GiB of 79.65 GiB", "31 %", "53 %", "/data/alice/logs/resnet50-imagenet",
                     "Restarts and changes of size", "rank 3 on gpu2 killed by SIGKILL", "Events"):
            assert word in text, (word, text)
        assert b.js("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
        keep(b, f"{'dark' if dark else width}")

        open_job(b, "resnet50-imagenet")
        open_job(b, "lr-0.8")
        b.wait(card("lr-0.8") + ".querySelector('pre')", "the last lines of stderr")
        text = b.js(card("lr-0.8") + ".innerText")
        assert "RuntimeError: " + EVIL in text and "rank" in text and "3 (local rank 1), pid 4711 on gpu2" in text and "killed by SIGTERM" in text
        assert b.js(card("lr-0.8") + ".querySelector('pre').textContent") == "\n".join(STDERR)
        assert b.js("document.title") == "rendezvousd" and b.js("document.querySelectorAll('#jobs img, #jobs script, #jobs b').length") == 0
        assert b.js("document.documentElement.scrollWidth") <= width
        keep(b, f"failed-{'dark' if dark else width}")

        everything = b.html() + b.js("JSON.stringify([last, [...details], [...finished]])")
        assert "bob" not in everything and SECRET not in everything, "nothing of another principal"
        assert b.errors == []


def test_search_filter_and_curves_answer_to_people(day, tmp_path):
    d, jobs = day
    with Browser(tmp_path / "profile") as b:
        b.open(d.http + "/")
        log_in(b, ALICE)
        b.wait("document.querySelectorAll('article').length === 6", "her six jobs")
        names = "[...document.querySelectorAll('article h2')].map(e => e.textContent)"

        def search(words):
            b.js(f"document.getElementById('search').value = {words!r}; document.getElementById('search').dispatchEvent(new Event('input'))")
            return b.js(names)
        assert search("gpu7") == ["oom-batch-4096"] and search("FAILED lr-") == ["lr-0.8"] and search("nothing like it") == []
        assert "No job is like that." in b.text() and len(search("")) == 6
        for name, runs in (("failed", 2), ("running", 3), ("waiting", 1), ("finished", 2), ("all", 6)):
            b.js(f"[...document.querySelectorAll('#filters button')].find(e => e.name === {name!r}).click()")
            assert len(b.js(names)) == runs and b.js("document.querySelector('#filters [aria-pressed=true]').textContent") == f"{name} {runs}"

        open_job(b, "resnet50-imagenet")
        one = card("resnet50-imagenet")
        b.wait(one + ".querySelectorAll('figure svg').length === 4", "four charts")
        assert b.js("location.hash") == "#" + jobs.trains.instance

        def path(of=".line"):
            return b.js(one + f".querySelector('figure svg {of}').getAttribute('d')")

        def pick(label, value):
            b.js(f"(() => {{ const s = [...{one}.querySelectorAll('select')].find(s => s.parentNode.textContent.startsWith({label!r})); s.value = {value!r}; s.dispatchEvent(new Event('change')); }})()")
        plain = path()
        assert plain.count("M") == 2, "the line is broken where the job was restarted"
        pick("Over", "step")
        assert path() != plain and "10,000" in b.js(one + ".querySelector('svg').textContent")
        pick("Over", "t")
        pick("Range", "3600")
        shorter = path()
        assert 0 < shorter.count("L") < plain.count("L") / 3
        pick("Range", "0")
        b.js(f"(() => {{ const s = {one}.querySelector('input[type=range]'); s.value = 0.9; s.dispatchEvent(new Event('input')); }})()")
        assert path(".line:not(.raw)") != plain and path(".raw") == plain, "smoothed, over the faint line as it is"
        box = b.js(f"(() => {{ {one}.scrollIntoView(); const r = {one}.querySelector('svg').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; }})()")
        for kind, x in (("mousePressed", 0.3), ("mouseMoved", 0.4), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
            b("Input.dispatchMouseEvent", type=kind, x=box[0] + x * box[2], y=box[1] + box[3] / 2, button="left", buttons=1, clickCount=1)
        b.wait(f"!{one}.querySelector('.more .bar button').hidden", "a range is picked")
        assert path(".raw").count("L") < plain.count("L") / 2
        b("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 0.5 * box[2], y=box[1] + box[3] / 2)
        b.wait(f"/at [23]h.*, step .*: \\d/.test({one}.querySelector('figcaption').textContent)", "the value under the pointer is told")
        b.js(f"{one}.querySelector('.more .bar button').click()")
        b.wait(f"{one}.querySelector('figure svg .raw').getAttribute('d').length >= {len(plain)}", "the whole range again")
        assert b.errors == []


def test_a_report_of_any_shape_breaks_nothing(day, tmp_path):
    d, jobs = day
    with Browser(tmp_path / "profile") as b:
        b.open(d.http + "/")
        log_in(b, ADMIN)
        b.wait("document.querySelectorAll('article').length === 8", "all jobs")
        for report in (MISSHAPEN, {"failures": 5}, {"failures": [[]]}, {"failures": {"0": 1}}, {"failures": []}):
            text = b.js(f"failureBox({{private: true, failure: {json.dumps(report)}}}).map(e => e.textContent).join('|')")
            assert text.startswith("Failure report|")
        open_job(b, "oom-batch-4096")
        b.wait(card("oom-batch-4096") + ".querySelector('pre')", "its report")
        assert "a line as it should be" in b.js(card("oom-batch-4096") + ".innerText") and "valueOf" in b.text()
        assert b.js("document.getElementById('live').textContent") == "live" and b.errors == []


def test_a_table_scrolled_aside_stays_there(day, tmp_path):
    d, jobs = day
    with Browser(tmp_path / "profile", 420, 900, phone=True) as b:
        b.open(d.http + "/")
        log_in(b, ALICE)
        b.wait("document.querySelectorAll('article').length === 6", "her six jobs")
        open_job(b, "resnet50-imagenet")
        one = "[..." + card("resnet50-imagenet") + ".querySelectorAll('.wide')].at(-2)"
        b.wait(f"{one}.scrollWidth > {one}.clientWidth + 30", "nodes, wider than the phone")
        b.js(f"window.old = {one}; old.scrollLeft = 25")
        b.wait(f"!document.contains(old) && {one}.scrollWidth > 0", "it is drawn anew")
        assert b.js(one + ".scrollLeft") == 25
        assert b.js("getComputedStyle(document.querySelector('.mouse')).display") == "none", "no word of dragging where there is no mouse"


def test_nobody_sees_what_is_not_theirs(day, tmp_path):
    d, jobs = day
    with Browser(tmp_path / "profile") as b:
        b.open(d.http + "/")
        b.wait("!document.getElementById('log').hidden", "the button is there")
        b.js("document.getElementById('log').click(); document.getElementById('name').value = 'alice'; document.getElementById('secret').value = 'wrong-wrong-wrong-wrong';"
             "document.querySelector('#login form').requestSubmit()")
        b.wait("document.getElementById('login-say').textContent === 'No such principal and secret.'", "it is told")
        assert b.js("document.querySelectorAll('article').length") == 0
        log_in(b, BOB)
        b.wait("document.querySelectorAll('article').length === 2", "bob's two jobs")
        b.wait("document.querySelector('pre')", "his failure report is open, as there are few")
        assert SECRET in b.text() and "/data/bob/logs" in b.text()
        everything = b.html() + b.js("JSON.stringify([last, [...details], [...finished]])")
        assert "alice" not in everything and "resnet50" not in everything
        b.js("document.getElementById('log').click()")
        b.wait("document.querySelectorAll('article').length === 0 && last.reader.sees === 'none'", "logged out")
        assert SECRET not in b.html()
        log_in(b, ADMIN)
        b.wait("document.querySelectorAll('article').length === 8", "all jobs")
        assert b.errors == []


def test_a_thousand_jobs_can_be_searched(tmp_path):
    """The page takes them in parts, and shows some."""
    with Daemon("--http-port", "0", "--state-dir", tmp_path / "state", "--max-jobs", "2000", "--max-jobs-per-principal", "2000") as d:
        with Client(d.port) as c:
            c("RDZV.JOIN", "one", "n1", "nnodes=1:1", *JOIN)
            c("RDZV.NEXT", "one", "n1", "0", "20000")
            c("RDZV.FAIL", "one", "n1", "1", "code=7", "rank=0", "fatal=1", "text=broke")
            assert "kind=end" in c("RDZV.NEXT", "one", "n1", "1", "20000")
        assert d.stop() == 0
    files = tmp_path / "state" / "history" / "jobs"
    record = json.loads(next(files.glob("*.log")).read_text().splitlines()[2])
    for f in (tmp_path / "state" / "jobs").glob("*.log"):
        f.unlink()
    for n in range(2, 1001):
        r = {**record, "instance": f"{n:016x}", "number": n, "run": f"run-{n}", "started": record["started"] - 60 * n}
        (files / f"{n:016x}.log").write_bytes(log_of(json.dumps(r)))
    with Daemon("--http-port", "0", "--state-dir", tmp_path / "state") as d, Browser(tmp_path / "profile", 420, 900, phone=True) as b:
        b.open(d.http + "/")
        b.wait("document.getElementById('summary').textContent === '0 running, 0 waiting, 1,000 finished'", "all are known")
        assert b.js("document.querySelectorAll('article').length") == 50 and b.js("document.getElementById('further').textContent") == "Show 50 more of 1000"
        b.js("document.getElementById('further').click()")
        assert b.js("document.querySelectorAll('article').length") == 100
        b.js("document.getElementById('search').value = 'run-777'; document.getElementById('search').dispatchEvent(new Event('input'))")
        assert b.js("[...document.querySelectorAll('article h2')].map(e => e.textContent)") == ["run-777"] and b.errors == []
