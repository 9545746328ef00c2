"""How soon the others go on: usage bench_detection.py CRUN RENDEZVOUSD STAMP [runs]

kill      kill -9 of one agent of four, to the last worker of the survivors' next round; median and worst of `runs` (20)
stopped   SIGSTOP of one agent, default heartbeat: to the next round; bound 3 s + 1 s + 1 s
"""
import os
import pathlib
import signal
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


def one_run(crun, daemon, stamp, hurt):
    with tempfile.TemporaryDirectory() as tmp:
        out, port_file = pathlib.Path(tmp), pathlib.Path(tmp) / "port"
        env = dict(os.environ, OUT=tmp, HOME=tmp)
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        d = subprocess.Popen([daemon, "--port", "0", "--port-file", str(port_file)], **quiet)
        port = wait(lambda: port_file.exists() and port_file.read_text().strip())
        args = ["--nnodes", "3:4", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "bench", "--rdzv_conf", "last_call_timeout=300ms",
                "--max-restarts", "3"]
        nodes = [subprocess.Popen([crun, *args, stamp], **quiet) for _ in range(4)]
        one, _ = round_of(out / "stamps", 4, 0)
        time.sleep(0.3)
        begin = time.monotonic()
        hurt(nodes[1].pid)
        _, began = round_of(out / "stamps", 3, one)
        for n in nodes:
            n.kill()
            n.wait()
        d.kill()
        d.wait()
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


def main():
    crun, daemon, stamp = sys.argv[1:4]
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    times = sorted(1000 * one_run(crun, daemon, stamp, kill_agent) for _ in range(runs))
    print(f"kill -9 of one agent of four to the next round: median {statistics.median(times):.0f} ms, worst {times[-1]:.0f} ms of {runs} (bound: 100 ms)")
    t = one_run(crun, daemon, stamp, stop_agent)
    print(f"an agent that is stopped, to the next round: {t:.2f} s (bound: 5 s)")


if __name__ == "__main__":
    main()
