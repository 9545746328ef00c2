"""The pages of the documentation as tests: which blocks of commands they have, and running those of one page.

    ```console run          commands of this page, run in turn in one shell and one empty folder. A line that begins with `$ `
                            is a command (one that ends with `\\` goes on in the next line), the others are its output, in any
                            order: `…` stands for anything in a line, a line `...` for further lines. No output shown: none
                            is looked at. A command fails the test if its exit code is not 0 and the next one is not
                            `$ echo $?`.
    ```console run until    the same, again and again until the output is the one that is shown
    ```console needs=WHAT   not run, for it needs WHAT, which a test has not
    ```LANGUAGE file=NAME   a file that the page asks its reader to save
"""
import os
import pathlib
import re
import signal
import subprocess
import time

from support import BUILD, LIBCRUN, ROOT

WAIT = float(os.environ.get("CRUN_TEST_WAIT", 60))
BLOCK = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^ *```$", re.M | re.S)
PROGRAMS = {**dict.fromkeys(("crun", "crun-launch", "crun-launcher"), "launcher/crun"), "rendezvousd": "rendezvousd/rendezvousd",
            "trainer": "worker/trainer"}


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block:
    def __init__(self, indent, language, info, text):
        self.language, self.info = language, info.split()
        self.text = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        self.run, self.until = "run" in self.info, "until" in self.info
        words = dict(w.split("=", 1) for w in self.info if "=" in w)
        self.file, self.needs = words.get("file"), words.get("needs")

    def commands(self):
        """[(command, [lines of output])]"""
        found, going_on = [], False
        for line in self.text.splitlines():
            if going_on:
                found[-1][0] += "\n" + line
                going_on = line.endswith("\\")
            elif line.startswith("$ "):
                found.append([line[2:], []])
                going_on = line.endswith("\\")
            elif found:
                found[-1][1].append(line)
        return found


def blocks(text):
    return [Block(*m) for m in BLOCK.findall(text)]


def pattern(line):
    return re.compile(".*".join(re.escape(part) for part in re.split("…", line.rstrip())))


def differences(expected, output):
    """What is wrong with the output; None: nothing."""
    lines = [line.rstrip() for line in output.splitlines()]
    more = "..." in expected
    wanted = [line for line in expected if line not in ("...", "")]
    left = [line for line in lines if line]
    for line in sorted(wanted, key=lambda line: ("…" in line, -len(line))):  # what fits fewest lines chooses first
        hit = next((got for got in left if pattern(line).fullmatch(got)), None)
        if hit is None:
            return f"not in the output: {line}"
        left.remove(hit)
    return f"not on the page: {left[0]}" if wanted and left and not more else None


class Shell:
    """One shell for a page. Its commands write to one pipe; a line of ours says how each ended."""

    END = "\x01end"

    def __init__(self, folder):
        bin_dir = folder / ".bin"
        bin_dir.mkdir()
        for name, program in PROGRAMS.items():
            (bin_dir / name).symlink_to(BUILD / program)
        (folder / "docs").symlink_to(ROOT / "docs")
        keep = {k: v for k, v in os.environ.items() if k in ("LANG", "TMPDIR") or k.startswith(("STARTED_BY", "ASAN", "UBSAN"))}
        env = {**keep, "PATH": f"{bin_dir}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder / ".home"), "PYTHONPATH": str(ROOT / "python"),
               "LIBCRUN": str(LIBCRUN)}
        (folder / ".home").mkdir()
        self.process = subprocess.Popen(["bash", "--norc", "-s"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)

    def run(self, command, limit=6 * WAIT):
        """(exit code, what came meanwhile). Commands read nothing: the shell's own input is the next command."""
        script = f"{{ (exit ${{rc:-0}}); {command}\n}} </dev/null; rc=$?; printf '{self.END} %d\\n' $rc\n"
        self.process.stdin.write(script.encode())
        self.process.stdin.flush()
        got, until = b"", time.monotonic() + limit
        while not (m := re.search(rb"\x01end (\d+)\n", got)):
            assert time.monotonic() < until, f"no end of '{command}' within {limit} s: {got.decode(errors='replace')}"
            assert self.process.poll() is None, f"the shell ended at '{command}': {got.decode(errors='replace')}"
            piece = self.process.stdout.read()
            got += piece or b""
            if not piece:
                time.sleep(0.01)
        return int(m[1]), (got[:m.start()] + got[m.end():]).decode(errors="replace")

    def end(self):
        """What a page left in the background gets SIGTERM, as by closing a terminal, and has to obey."""
        self.process.stdin.write(b"kill $(jobs -p) 2>/dev/null; wait; exit\n")
        self.process.stdin.close()
        try:
            self.process.wait(WAIT)
        finally:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_page(text, folder: pathlib.Path):
    """The first thing that is not as the page shows it, as a sentence and the output; None: all is."""
    shell = Shell(folder)
    try:
        for block in blocks(text):
            if block.file:
                (folder / block.file).write_text(block.text)
            commands = block.commands() if block.run else []
            for at, (command, expected) in enumerate(commands):
                asks = at + 1 < len(commands) and commands[at + 1][0] == "echo $?"
                until = time.monotonic() + 2 * WAIT
                while True:
                    rc, output = shell.run(command)
                    fault = differences(expected, output)
                    if rc and not asks:
                        fault = f"exit code {rc}"
                    if not (fault and block.until and time.monotonic() < until):
                        break
                    time.sleep(0.1)
                if fault:
                    return f"$ {command}: {fault}\n{output}"
    finally:
        shell.end()
    return None
