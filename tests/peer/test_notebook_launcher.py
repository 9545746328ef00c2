"""crun.integrations.torch_launcher in the place of PyTorch's elastic_launch, with what Accelerate's notebook_launcher gives it."""
import importlib.util
import os
import sys

import pytest

from support import CRUN, ROOT, run

NOTEBOOK = """
import os, sys
import accelerate
import crun
from crun.integrations import torch_launcher

def train(folder):
    accelerator = accelerate.Accelerator(cpu=True)
    open(os.path.join(folder, f"{accelerator.process_index}-of-{accelerator.num_processes}-{crun.info().run_id != ''}"), "w").close()

if __name__ == "__main__":
    crun._launch.find_program = lambda: sys.argv[2]
    torch_launcher.install()
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    assert elastic_launch is torch_launcher.elastic_launch
    elastic_launch(config=LaunchConfig(nproc_per_node=2, run_id="none", min_nodes=1, max_nodes=1, rdzv_backend="static", rdzv_endpoint="127.0.0.1:29500",
                                       rdzv_configs={"rank": 0}, max_restarts=0, monitor_interval=0.1), entrypoint=train)(sys.argv[1])
"""


def test_what_a_notebook_launches_runs_under_crun(tmp_path):
    if not importlib.util.find_spec("accelerate"):
        pytest.skip("no accelerate here")
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    (tmp_path / "out").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    p = run(sys.executable, script, tmp_path / "out", CRUN, env=env, timeout=200)
    assert p.returncode == 0, p.stderr
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["0-of-2-True", "1-of-2-True"], p.stderr
