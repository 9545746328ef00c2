"""Ctrl-C as a person types it, in a real terminal multiplexer: every worker cleans up, the codes are those of obedience, nobody is left."""
import os
import shutil
import subprocess

import pytest

from crun_run import CRUN
from processes import wait
from support import TRAINER
from test_signal_as_it_came import CLEANS_UP


class Tmux:
    """A server of its own with one window, in which a shell runs."""

    def __init__(self, folder, env):
        self.socket = folder / "tmux"
        keep = {k: v for k, v in env.items() if k != "TMUX"}
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "50", "exec env PS1='ready> ' bash --norc --noprofile -i", env=keep | {"TERM": "xterm"})

    def tmux(self, *words, **kw):
        return subprocess.run(["tmux", "-S", self.socket, *words], check=True, capture_output=True, text=True, timeout=30, **kw).stdout

    def type(self, *keys):
        self.tmux("send-keys", *keys)

    def shows(self, text):
        return text in self.tmux("capture-pane", "-p", "-S", "-200")

    def run(self, line):
        self.type("-l", line)
        self.type("Enter")


@pytest.fixture
def tmux(crun):
    if not shutil.which("tmux"):
        pytest.skip("no tmux")
    t = Tmux(crun.tmp, crun.env | {"HERE": str(crun.tmp)})
    yield t
    t.tmux("kill-server")


def run_until_ctrl_c(crun, tmux, line, is_up):
    """-> its exit code"""
    tmux.run(f"{line}; echo $? > {crun.tmp}/code.new; mv {crun.tmp}/code.new {crun.tmp}/code")
    wait("all workers", is_up)
    tmux.type("C-c")
    return int(crun.wait_file("code"))


def test_python_cleans_up_at_ctrl_c(crun, tmux):
    (crun.tmp / "script.py").write_text(CLEANS_UP)
    here = set(os.listdir(crun.tmp))
    code = run_until_ctrl_c(crun, tmux, f"{CRUN} --nproc_per_node 2 --max-restarts 3 {crun.tmp}/script.py",
                            lambda: {"up-0", "up-1"} <= set(os.listdir(crun.tmp)))
    assert code == 130 and set(os.listdir(crun.tmp)) - here >= {"finally-0", "finally-1", "atexit-0", "atexit-1"}
    wait("its word on the screen", lambda: tmux.shows("stopped by SIGINT"))
    assert not tmux.shows(" failed: ")
    assert len(crun.processes()) == 2, "tmux and its shell"


def test_trainer_saves_at_ctrl_c_and_says_that_it_is_to_be_started_again(crun, tmux, shapes):
    out = crun.tmp / "ck"
    code = run_until_ctrl_c(
        crun, tmux, f"{CRUN} --nproc_per_node 2 --max-restarts 3 {TRAINER} --train-data {shapes(28, 148, 20)}/train --arch convnet --num-channels 1 "
        f"--image-size 28 --batch-size 64 --threads 1 --device ref --num-epochs 100000 --checkpoint-dir {out} --checkpoint-every 1000000",
        lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text().count("\n") > 3)
    assert code == 75 and any((p / "train.safetensors").exists() for p in out.iterdir() if p.is_dir()), os.listdir(out)
    assert len(crun.processes()) == 2, "tmux and its shell"
