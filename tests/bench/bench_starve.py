"""What clients of the keys can do to a job: usage bench_starve.py CRUN RENDEZVOUSD [--keys N] [--check]

A job of 16 workers runs on a rendezvousd. One client walks over all its keys (a million), over and over; another sends 64 KiB of each command that the server has, then the
largest requests that it takes, one after the other and for half a second at least, and waits for all answers. Beside them heartbeats of a member of another job are timed,
one each 10 ms. Printed for each command: the time until all was answered, and the longest and the 99th percentile of the heartbeats meanwhile, in milliseconds; then what
the server says of its own loop. --check: exit 1 where a worker died, a heartbeat took more than 50 ms, or the loop was away from the network for longer than that.

The clients are Python and share the processors with the server: what a busy machine does to them counts too.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import flood  # noqa: E402
from daemon import Client  # noqa: E402

BOUND_MS = 50
AT_LEAST_S = 0.5
NODES, WORKERS = 2, 8
AGENT = ["--nnodes", str(NODES), "--nproc-per-node", str(WORKERS), "--rdzv-backend", "rendezvousd", "--rdzv-id", "job", "--max-restarts", "0"]


def start_daemon(rendezvousd):
    p = subprocess.Popen([rendezvousd, "--port", "0", "--http-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = int(p.stdout.readline().rsplit(":", 1)[1])
    return p, port, p.stdout.readline().split()[-1].rstrip("/")


def start_job(crun, port, tmp):
    """Two cruns; they are there once all workers run."""
    logs, agents = [tmp / f"node-{n}" for n in range(NODES)], []
    for log in logs:
        with open(log, "wb") as f:
            agents.append(subprocess.Popen([crun, *AGENT, "--rdzv-endpoint", f"127.0.0.1:{port}", "sh", "-c", "echo running; exec sleep 3600"],
                                           stdin=subprocess.DEVNULL, stdout=f, stderr=f))
    end = time.monotonic() + 60
    while sum(log.read_text().count("running") for log in logs) < NODES * WORKERS:
        if time.monotonic() > end:
            sys.exit("bench_starve: the job did not start")
        time.sleep(0.05)
    return agents


def percentile(values, p):
    return sorted(values)[int(p * (len(values) - 1))] if values else 0


def row(name, heart, attack):
    heart.beats()
    began, took = time.monotonic(), attack()
    while time.monotonic() < began + AT_LEAST_S:
        attack()
    time.sleep(2 * flood.BEAT_S)
    beats = heart.beats()
    print(f"  {name:24s} {took:8.2f} s   {max(beats, default=0):8.1f} {percentile(beats, 0.99):8.1f}   {len(beats):6d} heartbeats", flush=True)
    return max(beats, default=0)


def attacks(port):
    yield "nothing", lambda: time.sleep(2) or 2.0
    for name in flood.TCPSTORE:
        yield name, lambda name=name: flood.flood_tcpstore(port, name, seconds=5)
    for name, text in flood.largest().items():
        yield name, lambda text=text: flood.send(port, text)
    for name in flood.commands(port):
        yield name, lambda name=name: flood.flood(port, name)


def loop_of(url):
    text = urllib.request.urlopen(url + "/metrics", timeout=20).read().decode()
    longest, = re.findall(r"^rendezvousd_loop_longest_seconds (\S+)$", text, re.M)
    beyond = {float(b): float(n) for b, n in re.findall(r'^rendezvousd_loop_seconds_bucket\{le="([\d.e-]+)"\} (\S+)$', text, re.M)}
    total, = re.findall(r"^rendezvousd_loop_seconds_count (\S+)$", text, re.M)
    return float(longest) * 1e3, {b: float(total) - n for b, n in beyond.items()}, float(total)


def measure(port, url, keys):
    flood.fill(port, keys)
    print(f"{keys:,} keys; 64 KiB of each command beside a walk: time to answer all; heartbeats, ms: longest, p99")
    with flood.Heart(port) as heart, flood.Walker(port):
        worst = max(row(name, heart, attack) for name, attack in attacks(port))
    longest, beyond, total = loop_of(url)
    print(f"the loop was away from the network {total:,.0f} times: {beyond[0.01]:,.0f} beyond 10 ms, {beyond[0.02]:,.0f} beyond 20, {beyond[0.05]:,.0f} beyond 50, the longest {longest:.1f} ms")
    return worst, longest


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("crun")
    ap.add_argument("rendezvousd")
    ap.add_argument("--keys", type=int, default=1_000_000)
    ap.add_argument("--check", action="store_true")
    o = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        daemon, port, url = start_daemon(o.rendezvousd)
        agents = []
        try:
            agents = start_job(o.crun, port, pathlib.Path(tmp))
            worst, longest = measure(port, url, o.keys)
            with Client(port) as c:
                well = '"state":"running"' in c("RDZV.STATUS", "job") and '"round":1,' in c("RDZV.STATUS", "job")
        finally:
            for p in agents:
                p.terminate()
            for p in agents:
                p.wait(60)
            daemon.terminate()
            daemon.wait(60)
    print(f"the job of {NODES * WORKERS} workers {'goes on in its first round' if well else 'was broken'}; the longest heartbeat took {worst:.1f} ms (bound {BOUND_MS})")
    if o.check and (not well or max(worst, longest) > BOUND_MS):
        sys.exit(1)


main()
