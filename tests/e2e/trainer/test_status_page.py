"""What trainer tells of itself reaches the history of a rendezvousd."""
import json
import os
import subprocess
import urllib.request

from daemon import Daemon
from processes import wait
from stand import Stand
from support import CRUN, TRAINER


def get(url):
    with urllib.request.urlopen(url, timeout=30) as r:
        return json.loads(r.read())


def test_figures_of_a_training(shapes, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    data, stand = shapes(28, 160, 64), Stand(tmp_path / "stand", 5)
    with Daemon("--http-port", "0") as d:
        command = [CRUN, "--nnodes", 1, "--nproc_per_node", 2, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "trains",
                   "--log-dir", tmp_path / "logs", "--rdzv_conf", "keep_alive_interval=0.3,keep_alive_max_attempt=100", TRAINER, "--train-data", data / "train", "--test-data", data / "val",
                   "--arch", "convnet", "--num-channels", 1, "--image-size", 28, "--batch-size", 16, "--num-epochs", 4, "--device", "cpu", "--amp", "off", "--print-freq", 1]
        p = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **stand.env()})

        def shown(step):
            jobs = get(d.http + "/api/jobs")["jobs"]
            curve = get(d.http + "/api/job?instance=" + jobs[0]["instance"])["curve"] if jobs else {"at_step": []}
            return curve["at_step"] and curve["at_step"][-1] == step

        for step in 5, 15, 25, 35:  # after evaluations, but for the first
            stand.at(step)
            wait(f"step {step} on the page", lambda step=step: shown(step))
        stand.go()
        text, _ = p.communicate(timeout=300)
        assert p.returncode == 0, text
        over, = get(d.http + "/api/history")["jobs"]
        assert (over["run"], over["state"], over["world_size"], over["total_steps"]) == ("trains", "succeeded", 2, 40)
        j = get(d.http + "/api/job?instance=" + over["instance"])
        c = j["curve"]
        assert {5, 15, 25, 35} <= set(c["at_step"]) and c["at_step"] == sorted(c["at_step"]) and c["at_step"][-1] <= 40
        assert all(x is not None and x > 0 for x in c["loss"] + c["images_per_s"]) and all(0 <= x <= 1 for x in c["accuracy"])
        assert c["eval_accuracy"][-1] is not None and any(x for x in c["step_ms"]) and j["logs"] == str(tmp_path / "logs" / "trains")
