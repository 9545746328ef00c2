"""The picture of README: a job whose rank is killed twice, as a terminal shows it. usage: terminal.py CRUN OUT.svg

Nothing is drawn by hand: crun runs here with a small program, ranks are killed by kill -9, and each line of output is put down with the time at which it
came. The picture plays them with pauses cut to a second; where nothing moves (a reader's wish, a tool that makes bitmaps) it shows the end."""
import html
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

TRAIN = """import os, pathlib, sys, time
rank, state = int(os.environ["RANK"]), pathlib.Path("checkpoint")
step = int(state.read_text()) if state.exists() else 0
if rank == 0 and step:
    print(f"resumed from step {step}")
if rank == 2 and step:
    print("rank 2 reads shard 17", file=sys.stderr)
while True:
    time.sleep(0.1)
    step += 1
    if rank == 0 and step % 10 == 0:
        state.write_text(str(step))
        print(f"step {step:3}  loss {2.3 * 0.985 ** step:.3f}")
"""
COMMAND = "crun-launcher --nproc-per-node 4 --max-restarts 1 train.py"
COLUMNS, LINE, CHAR, TOP, LEFT = 80, 17, 7.8, 40, 16
LONGEST, TYPING, LAST = 1.0, 0.8, 6.0  # seconds: a pause, a command, the end before it begins anew


class Screen:
    def __init__(self):
        self.lines, self.begun = [], time.monotonic()

    def say(self, kind, text):
        for line in text.split("\n"):
            self.lines.append((time.monotonic() - self.begun, kind, line))


def rank_pid(guardian, rank):
    """Of the worker: a descendant of this crun with this RANK."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            env = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"RANK=%d" % rank in env and b"PICTURE=%d" % guardian in env:
            return int(entry.name)
    raise RuntimeError(f"no rank {rank}")


def play(crun, screen):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "train.py").write_text(TRAIN)
        launcher = pathlib.Path(folder) / COMMAND.split()[0]
        launcher.symlink_to(crun)
        screen.say("typed", f"$ {COMMAND}")
        env = dict(os.environ, PICTURE=str(os.getpid()), OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        p = subprocess.Popen([launcher, *COMMAND.split()[1:]], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        heard = threading.Condition()

        def listen():
            for line in p.stdout:
                with heard:
                    screen.say("out", line.rstrip("\n"))
                    heard.notify_all()

        listener = threading.Thread(target=listen)
        listener.start()

        def until(words, times):
            with heard:
                if not heard.wait_for(lambda: sum(words in line for _, _, line in screen.lines) >= times, 60):
                    raise RuntimeError(f"'{words}' did not come: {screen.lines}")

        for kills, steps in ((1, 2), (2, 4)):
            until("step ", steps + kills - 1)
            pid = rank_pid(os.getpid(), 2)
            screen.say("typed", f"$ kill -9 {pid}                # rank 2, in another terminal")
            os.kill(pid, signal.SIGKILL)
            if kills == 1:
                until("resumed", 1)
        code = p.wait(60)
        listener.join()
        screen.say("typed", "$ echo $?")
        screen.say("shell", str(code))


def folded(lines):
    """At the width of a terminal."""
    for at, kind, text in lines:
        for part in textwrap.wrap(text, COLUMNS, drop_whitespace=False) or [""]:
            yield at, kind, part


def timed(lines):
    """Pauses cut, and time to read what is typed."""
    now, before = 0.0, 0.0
    for at, kind, text in lines:
        now += min(at - before, LONGEST) + (TYPING if kind == "typed" else 0)
        before = at
        yield now, kind, text


def svg(lines):
    lines = list(timed(folded(lines)))
    whole = lines[-1][0] + LAST
    width, height = int(COLUMNS * CHAR + 2 * LEFT), TOP + LINE * len(lines) + 12
    rows, frames = [], []
    for i, (at, kind, text) in enumerate(lines):
        kind = "crun" if kind == "out" and not re.match(r"\[default\d", text) else kind
        rows.append(f'<text class="{kind}" x="{LEFT}" y="{TOP + LINE * i + 12}" style="animation-name:l{i}">{html.escape(text)}</text>')
        frames.append(f"  @keyframes l{i} {{ 0% {{ opacity: 0 }} {100 * at / whole:.1f}%, 100% {{ opacity: 1 }} }}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"
 aria-label="A terminal: crun starts four workers; rank 2 is killed and the job restarts; it is killed again and crun reports it">
<style>
.back {{ fill: #f6f8fa; stroke: #d0d7de }} .dot {{ fill: #d0d7de }}
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #24292f }}
.typed {{ font-weight: bold; fill: #0550ae }} .crun {{ fill: #953800 }}
@media (prefers-color-scheme: dark) {{
  .back {{ fill: #0d1117; stroke: #30363d }} .dot {{ fill: #30363d }} text {{ fill: #e6edf3 }} .typed {{ fill: #79c0ff }} .crun {{ fill: #ffa657 }}
}}
@media (prefers-reduced-motion: no-preference) {{
  text {{ animation: {whole:.2f}s infinite step-end }}
{chr(10).join(frames)}
}}
</style>
<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>
<circle class="dot" cx="20" cy="18" r="6"/><circle class="dot" cx="40" cy="18" r="6"/><circle class="dot" cx="60" cy="18" r="6"/>
{chr(10).join(rows)}
</svg>
"""


def main():
    crun, out = sys.argv[1:]
    screen = Screen()
    play(os.path.abspath(crun), screen)
    pathlib.Path(out).write_text(svg(screen.lines))


if __name__ == "__main__":
    main()
