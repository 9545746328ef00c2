"""What trainer tells of itself reaches the history of a rendezvousd."""
import json
import subprocess
import urllib.request

from daemon import Daemon
from support import CRUN, TRAINER


def get(url):
    with urllib.request.urlopen(url, timeout=30) as r:
        return json.loads(r.read())


def test_figures_of_a_training(shapes, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    data = shapes(32, 640, 64)
    with Daemon("--http-port", "0") as d:
        command = [CRUN, "--nnodes", 1, "--nproc_per_node", 2, "--rdzv_backend", "rendezvousd", "--rdzv_endpoint", d.address, "--rdzv_id", "trains",
                   "--log-dir", tmp_path / "logs", "--rdzv_conf", "keep_alive_interval=0.3,keep_alive_max_attempt=100", TRAINER, "--train-data", data / "train", "--test-data", data / "val",
                   "--arch", "resnet18", "--image-size", 32, "--batch-size", 16, "--num-epochs", 4, "--device", "cpu", "--amp", "off"]
        p = subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=300, check=False)
        assert p.returncode == 0, p.stdout + p.stderr
        over, = get(d.http + "/api/history")["jobs"]
        assert (over["run"], over["state"], over["world_size"], over["total_steps"]) == ("trains", "succeeded", 2, 160)
        j = get(d.http + "/api/job?instance=" + over["instance"])
        c = j["curve"]
        assert len(c["t"]) > 2 and c["at_step"] == sorted(c["at_step"]) and 0 < c["at_step"][-1] <= 160
        assert all(x is not None and x > 0 for x in c["loss"] + c["images_per_s"]) and all(0 <= x <= 1 for x in c["accuracy"])
        assert c["eval_accuracy"][-1] is not None and any(x for x in c["step_ms"]) and j["logs"] == str(tmp_path / "logs" / "trains")
