"""crun topo on a machine that is made up: HWLOC_FSROOT names its /sys, a stand-in for NVML its GPUs."""
import os
import re
import subprocess

from crun_run import BUILD, CRUN

FAKE_NVML = os.path.join(BUILD, "tests", "launcher")


def device(root, address, path, node):
    at = root / "sys/devices" / path / address
    at.mkdir(parents=True)
    (at / "numa_node").write_text(f"{node}\n")
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "sys/bus/pci/devices" / address).symlink_to(at)
    return at


def test_topo_shows_how_far_adapters_are_from_gpus(crun, tmp_path):
    for i in range(3):  # where the stand-in for NVML has its GPUs
        device(tmp_path, f"ffff:f{'abc'[i]}:00.0", f"pciffff:00/ffff:00:0{i + 1}.0", 0)
    adapter = tmp_path / "sys/class/infiniband/mlx5_0"
    adapter.mkdir(parents=True)
    (adapter / "device").symlink_to(device(tmp_path, "ffff:e0:00.0", "pciffff:00/ffff:00:09.0", 0))
    env = dict(crun.env, LD_LIBRARY_PATH=FAKE_NVML, HWLOC_FSROOT=str(tmp_path), HWLOC_SYNTHETIC="node:1 core:2 pu:1")
    p = subprocess.run([CRUN, "topo"], env=env, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    assert re.search(r"^NIC0\tPHB\tPHB\tPHB\t X ", p.stdout, re.M)
