"""How soon the others go on: usage bench_detection.py CRUN RENDEZVOUSD STAMP [--beside CRUN] [--homes HOME,...] [--runs N]

For each home (rendezvousd, redis, file, and where it is named etcd), median and worst of `runs` (20):
worker    kill -9 of one worker of four nodes, to the last worker of the next round
member    kill -9 of one agent of four, to the last worker of the survivors' next round; a home without a daemon has no proof of its death
and over rendezvousd once
stopped   SIGSTOP of one agent, default heartbeat: to the next round; bound 3 s + 1 s + 1 s

--beside: another build of crun, in turns with the first one; the ratio of their medians is printed. STAMP: build/tests/fault/stamp."""
import argparse
import contextlib
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def stamps(path):
    """{round: {rank: first}}"""
    rounds = {}
    if path.exists():
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 3:
                rounds.setdefault(int(words[0]), {}).setdefault(int(words[1]), int(words[2]) / 1e9)
    return rounds


def wait(look, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = look()
        if value:
            return value
        time.sleep(0.005)
    sys.exit("bench_detection: it did not happen within %d s" % seconds)


def round_of(path, world, after):
    def look():
        for number, ranks in sorted(stamps(path).items()):
            if number > after and len(ranks) == world:
                return number, max(ranks.values())
        return None

    return wait(look)


def agent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@contextlib.contextmanager
def home(name, tmp, daemon, quiet):
    """The endpoint of a home of its own."""
    port_file = pathlib.Path(tmp) / "port"
    if name == "file":
        (pathlib.Path(tmp) / "shared").mkdir()
        yield f"file://{tmp}/shared"
        return
    if name == "etcd":
        ports = []
        for _ in range(2):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                ports.append(s.getsockname()[1])
        client, peer = (f"http://127.0.0.1:{p}" for p in ports)
        server = subprocess.Popen(["etcd", "--data-dir", f"{tmp}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"], **quiet)
        wait(lambda: subprocess.run(["curl", "-sf", f"{client}/health"], capture_output=True, check=False).returncode == 0)
        endpoint = client.replace("http://", "etcd://")
    elif name == "redis":
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", tmp], **quiet)
        wait(lambda: subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False).returncode == 0)
        endpoint = f"redis://127.0.0.1:{port}"
    else:
        server = subprocess.Popen([daemon, "--port", "0", "--port-file", str(port_file)], **quiet)
        endpoint = f"127.0.0.1:{wait(lambda: port_file.exists() and port_file.read_text().strip())}"
    yield endpoint
    server.kill()
    server.wait()


def one_run(crun, daemon, stamp, where, hurt):
    """Seconds."""
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp)
        env = dict(os.environ, OUT=tmp, HOME=tmp)
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        with home(where, tmp, daemon, quiet) as endpoint:
            args = ["--nnodes", "3:4", "--rdzv_endpoint", endpoint, "--rdzv_id", "bench", "--rdzv_conf", "last_call_timeout=300ms",
                    "--max-restarts", "3"]
            nodes = [subprocess.Popen([crun, *args, stamp], **quiet) for _ in range(4)]
            one, _ = round_of(out / "stamps", 4, 0)
            time.sleep(0.3)
            begin = time.monotonic()
            hurt(nodes[1].pid)
            _, began = round_of(out / "stamps", 4 if hurt is kill_worker else 3, one)
            for n in nodes:
                n.kill()
                n.wait()
        wait(lambda: not left(tmp))
        return began - begin


def left(mark):
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"OUT={mark}".encode() in (p / "environ").read_bytes().split(b"\0"):
                found.append(p)
        except OSError:
            pass
    return found


def kill_agent(pid):
    os.kill(agent_of(pid), signal.SIGKILL)


def stop_agent(pid):
    os.kill(agent_of(pid), signal.SIGSTOP)


def kill_worker(pid):
    agent = agent_of(pid)
    found = [int(c) for task in pathlib.Path(f"/proc/{agent}/task").iterdir() for c in (task / "children").read_text().split()]
    os.kill(found[0], signal.SIGKILL)


def main():
    p = argparse.ArgumentParser()
    for name in ("crun", "daemon", "stamp"):
        p.add_argument(name)
    p.add_argument("--beside")
    p.add_argument("--homes", default="rendezvousd,redis,file")
    p.add_argument("--runs", type=int, default=20)
    a = p.parse_args()
    builds = [a.crun] + ([a.beside] if a.beside else [])
    for where in a.homes.split(","):
        for what, hurt in (("worker", kill_worker), ("member", kill_agent)):
            times = {crun: [] for crun in builds}
            for _ in range(a.runs):
                for crun in builds:
                    times[crun].append(1000 * one_run(crun, a.daemon, a.stamp, where, hurt))
            medians = [statistics.median(times[crun]) for crun in builds]
            bound = " (bound: 100 ms)" if where == "rendezvousd" and what == "member" else ""
            beside = f"; beside it {medians[1]:.0f} ms, ratio {medians[0] / medians[1]:.2f}" if a.beside else ""
            print(f"{where}: kill -9 of one {what} of four to the next round: median {medians[0]:.0f} ms, worst {max(times[a.crun]):.0f} ms of {a.runs}"
                  f"{bound}{beside}", flush=True)
    if "rendezvousd" in a.homes:
        print(f"an agent that is stopped, to the next round: {one_run(a.crun, a.daemon, a.stamp, 'rendezvousd', stop_agent):.2f} s (bound: 5 s)")


if __name__ == "__main__":
    main()
