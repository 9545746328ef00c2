"""./dev nightly: everything that can be run, one page about it. usage: nightly.py [--only STEP,...] OUT

OUT/report.md has a row for each step and the figures of those that have any; OUT/STEP.log all that a step said. A step that fails stops no other."""
import argparse
import contextlib
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITE = "trixie"


def root():
    return [] if os.geteuid() == 0 else ["sudo"]


def dev(*args):
    return lambda out: [str(ROOT / "dev"), *args]


def demo(out):
    return [str(ROOT / "dev"), "demo", "--out", str(out / "demo-run")]


def mutants(out):
    return ["/usr/bin/python3", str(ROOT / "tests" / "mutants.py"), str(out / "mutants")]


def mutants_drawn(out):
    return ["/usr/bin/python3", str(ROOT / "tests" / "mutants_drawn.py"), "--seed", str(int(time.time() // 86400)), str(out / "mutants")]


def chaos(out):
    test = ROOT / "tests" / "e2e" / "elastic" / "test_trainer_chaos.py"
    return ["env", "CRUN_CHAOS_SECONDS=3600", "/usr/bin/python3", "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(test)]


def debian_13(out):
    """A fresh Debian 13 in a folder, and in it a copy of what git has here: it is built, tested and demonstrated there."""
    return ["bash", "-euxc", r"""
        out=$1 root=$1/debian-13
        command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap
        mountpoints() { awk -v r="$root/" 'index($2, r) == 1 { print $2 }' /proc/mounts | sort -r; }
        clean() { mountpoints | xargs -r umount -l; rm -rf --one-file-system "$root"; }
        clean
        trap clean EXIT
        debootstrap --variant=minbase """ + SUITE + r""" "$root"
        mount -t proc proc "$root/proc"; mount --rbind /sys "$root/sys"; mount --make-rslave "$root/sys"; mount --rbind /dev "$root/dev"; mount --make-rslave "$root/dev"
        cp /etc/resolv.conf "$root/etc/"
        mkdir "$root/src"
        git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$root/src"
        chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 sh -exc '
            apt-get update -qq; apt-get install -y -qq --no-install-recommends git ca-certificates >/dev/null
            cd /src; git init -q .; git add -A; ./dev setup; ./dev build; ./dev demo --out /tmp/demo; ./dev test'
        """, "debian-13", str(out)]


STEPS = {  # name: (what it is, command, hours at most)
    "test": ("all tests, the slow ones too", dev("test", "--slow"), 5),
    "asan": ("the same under AddressSanitizer and UndefinedBehaviorSanitizer", dev("test", "--slow", "--asan"), 10),
    "tsan": ("launcher, rendezvousd, common, collectives, loader, checkpoints under ThreadSanitizer", dev("test", "--tsan"), 6),
    "peer": ("beside PyPI's PyTorch", dev("peer"), 3),
    "mutants": ("faults sown into the programs, each of which a fast test must see", mutants, 3),
    "mutants-drawn": ("100 more, drawn by the day: nine of ten must be seen", mutants_drawn, 3),
    "chaos": ("an hour of chaos over each home, while trainer trains", chaos, 6),
    "demo": ("two processes, one killed", demo, 1),
    "bench": ("benchmarks with their aims", dev("bench"), 2),
    "arm": ("C tests, conformance and DDP for aarch64, under qemu-user", dev("arm-test"), 4),
    "debian-13": ("build, demo and test in a fresh Debian 13", debian_13, 4),
}
FIGURES = {"mutants": r".*: (missed|does not build),", "mutants-drawn": r".*: missed,", "bench": r"(?!\[|ninja|▶|Full log)", "chaos": r".* faults, "}  # step: lines that are worth a look also where all is well


def end(p):
    """With all that it started; a minute to clean up before."""
    for signo in signal.SIGTERM, signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signo)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(60)


class Step:
    def __init__(self, name, out):
        self.name, self.log = name, out / f"{name}.log"
        self.what, command, hours = STEPS[name]
        self.command, self.limit = command(out), 3600 * hours
        if name == "debian-13":
            self.command = root() + self.command

    def run(self):
        print(f"{self.name}: {self.what} … ", end="", flush=True)
        begun = time.monotonic()
        with open(self.log, "wb") as log:
            p = subprocess.Popen(self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                self.code = p.wait(self.limit)
            except subprocess.TimeoutExpired:
                self.code = "out of time"
                end(p)
        self.seconds = time.monotonic() - begun
        self.lines = self.log.read_text(errors="replace").splitlines()
        print(f"{self.result()} after {self.minutes()}, {self.last()}", flush=True)

    def result(self):
        return "passed" if self.code == 0 else f"FAILED ({self.code})"

    def minutes(self):
        return f"{self.seconds // 3600:.0f}:{self.seconds // 60 % 60:02.0f}:{self.seconds % 60:02.0f}"

    def last(self):
        sums = [line for line in self.lines if re.fullmatch(r"=*\s*\d+ passed.*", line)]
        return (sums or [line for line in self.lines if line.strip()] or [""])[-1].strip("= ").replace("|", "\\|")

    def details(self):
        """What a reader wants to see of it: figures, failures, unsteady tests; of a step that failed without any, its last words."""
        keep = [line for line in self.lines
                if re.match(r"(failed|unsteady|FAILED|ERROR|SKIPPED)\b|  tests/", line) or re.match(FIGURES.get(self.name, "$."), line)]
        return keep or (self.lines[-40:] if self.code else [])


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    with open("/proc/meminfo", encoding="utf-8") as f:
        memory = int(f.readline().split()[1]) // 1048576
    release = platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{os.cpu_count()} × {cpu}, {memory} GiB, {release}, Linux {platform.release()}"


def page(steps, out, begun):
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    text = [f"# Night of {time.strftime('%Y-%m-%d', begun)}", "", f"Commit {commit}, {machine()}, begun at {time.strftime('%H:%M %Z', begun)}.", "",
            "| step | what | result | h:mm:ss | last line |", "|---|---|---|---|---|"]
    text += [f"| {s.name} | {s.what} | {s.result()} | {s.minutes()} | {s.last()} |" for s in steps]
    for s in steps:
        if s.details():
            text += ["", f"## {s.name}", "", "```", *s.details(), "```"]
    (out / "report.md").write_text("\n".join(text) + "\n")


def main():
    p = argparse.ArgumentParser(prog="./dev nightly", usage="%(prog)s [--only STEP,...]")
    p.add_argument("--only", metavar="STEP,...", help=", ".join(STEPS))
    p.add_argument("out", help=argparse.SUPPRESS)
    args = p.parse_args()
    names = args.only.split(",") if args.only else list(STEPS)
    if unknown := set(names) - set(STEPS):
        p.error(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    out, begun = pathlib.Path(args.out).resolve(), time.localtime()
    shutil.rmtree(out / "demo-run", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    done = []
    for name in names:
        done.append(Step(name, out))
        done[-1].run()
        page(done, out, begun)
    print(out / "report.md")
    sys.exit(any(s.code != 0 for s in done))


main()
