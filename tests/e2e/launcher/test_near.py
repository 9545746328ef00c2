"""Network adapters near each worker's GPU, on machines that are made up: HWLOC_FSROOT names their /sys and /proc."""
import os
import re
import subprocess

import pytest

from crun_run import BUILD, CRUN

FAKE_NVML = os.path.join(BUILD, "tests", "launcher")
ASK = 'echo "of $LOCAL_RANK: HCA ${CRUN_NEAR_HCAS-unset} NIC ${CRUN_NEAR_NICS-unset} ${NCCL_IB_HCA-unset} ${NCCL_SOCKET_IFNAME-unset}"'


class Machine:
    """Two switches on two NUMA nodes; a GPU and adapters below each."""

    def __init__(self, root):
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def device(self, address, path, node):
        at = self.root / "sys/devices" / path / address
        at.mkdir(parents=True)
        (at / "numa_node").write_text(f"{node}\n")
        (self.root / "sys/bus/pci/devices" / address).symlink_to(at)
        return at

    def gpu(self, address, path, node, uuid):
        self.device(address, path, node)
        at = self.root / "proc/driver/nvidia/gpus" / address
        at.mkdir(parents=True)
        (at / "information").write_text(f"Model: \t\t Fake GPU\nGPU UUID: \t GPU-{uuid}\n")

    def adapter(self, kind, name, device, **files):
        at = self.root / "sys/class" / kind / name
        at.mkdir(parents=True)
        (at / "device").symlink_to(device)
        for file, text in files.items():
            to = at / file.replace("_in_", "/")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text + "\n")
        return at

    def env(self, **more):
        return dict({"HWLOC_FSROOT": str(self.root)}, **more)


A, B = "pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0"


@pytest.fixture
def machine(tmp_path):
    m = Machine(tmp_path / "other")
    m.gpu("0000:03:00.0", f"{A}/0000:02:00.0", 0, "a0000000")
    m.gpu("0000:83:00.0", f"{B}/0000:82:00.0", 1, "b0000000")
    for i, (address, path, node) in enumerate((("0000:04:00.0", f"{A}/0000:02:01.0", 0), ("0000:04:00.1", f"{A}/0000:02:01.0", 0),
                                               ("0000:84:00.0", f"{B}/0000:82:01.0", 1))):
        m.adapter("infiniband", f"mlx5_{i}", m.device(address, path, node), ports_in_1_in_state="4: ACTIVE")
    slow = m.device("0000:90:00.0", "pci0000:80/0000:80:02.0", 1)
    m.adapter("net", "eno1", slow, operstate="up")
    (m.root / "sys/class/net/lo").mkdir()
    return m


def told(crun, machine, *words, env=None, n=2):
    rc, out, err = crun.run("--log-prefix=off", "--nproc_per_node", n, *words, "sh", "-c", ASK, extra_env=machine.env(**(env or {})))
    assert rc == 0, err
    return {int(r): (hca, nic, ib, ifname) for r, hca, nic, ib, ifname in re.findall(r"of (\d+): HCA (\S+) NIC (\S+) (\S+) (\S+)", out)}


def test_each_worker_is_told_the_adapters_of_its_gpu_and_nccl_nothing(crun, machine):
    assert told(crun, machine) == {0: ("mlx5_0,mlx5_1", "eno1", "unset", "unset"), 1: ("mlx5_2", "eno1", "unset", "unset")}


def test_a_spare_is_told_none_for_its_place_is_not_known(crun, machine):
    ask = ('[ -z "$CRUN_SPARE" ] || { echo "${CRUN_NEAR_HCAS-unset} ${CRUN_NEAR_NICS-unset}" >new; mv new said; }; '
           'until [ -e said ]; do sleep 0.05; done')
    rc, _, err = crun.run("--max-restarts", 1, "--warm-spares", 1, "--nproc_per_node", 2, "sh", "-c", ask, extra_env=machine.env(), cwd=crun.tmp)
    assert rc == 0, err
    assert (crun.tmp / "said").read_text() == "unset unset\n"


def test_what_the_user_told_nccl_stays(crun, machine):
    said = told(crun, machine, env={"NCCL_IB_HCA": "=mlx5_7", "NCCL_SOCKET_IFNAME": "=eno9"}, n=1)
    assert said == {0: ("mlx5_0,mlx5_1", "eno1", "=mlx5_7", "=eno9")}


def test_visible_devices_are_followed(crun, machine):
    assert told(crun, machine, env={"CUDA_VISIBLE_DEVICES": "1"}, n=1)[0][0] == "mlx5_2"
    assert told(crun, machine, env={"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"})[0][0] == "mlx5_2"
    assert [v[0] for _, v in sorted(told(crun, machine, n=3).items())] == ["mlx5_0,mlx5_1", "mlx5_2", "mlx5_0,mlx5_1"]


def test_adapters_that_are_down_do_not_count(crun, machine):
    (machine.root / "sys/class/infiniband/mlx5_2/ports/1/state").write_text("1: DOWN\n")
    (machine.root / "sys/class/net/eno1/operstate").write_text("down\n")
    assert told(crun, machine)[1][:2] == ("mlx5_0,mlx5_1", "unset")


def test_a_bond_is_named_once_for_its_members(crun, machine):
    for i, address in enumerate(("0000:04:00.0", "0000:04:00.1")):
        at = machine.adapter("net", f"ens{i}", machine.root / "sys/bus/pci/devices" / address, operstate="up")
        (machine.root / "sys/class/net/bond0").mkdir(exist_ok=True)
        (at / "master").symlink_to(machine.root / "sys/class/net/bond0")
    assert [v[1] for _, v in sorted(told(crun, machine).items())] == ["bond0", "eno1"]


def test_a_virtual_adapter_lies_where_its_device_does(crun, machine):
    device = machine.device("0000:05:00.0", f"{A}/0000:02:02.0", 0) / "virtio0"
    device.mkdir()
    machine.adapter("net", "ens5", device, operstate="up")
    assert told(crun, machine)[0][1] == "ens5"


def test_without_gpus_nothing_is_said(crun, tmp_path):
    m = Machine(tmp_path / "bare")
    m.adapter("net", "eno1", m.device("0000:90:00.0", "pci0000:80/0000:80:02.0", 1), operstate="up")
    assert told(crun, m, n=1) == {0: ("unset", "unset", "unset", "unset")}
    rc, out, err = crun.run("--dry-run", "true", extra_env=m.env())
    assert rc == 0 and "CRUN_NEAR" not in out and "near its GPU" not in out


def test_a_dry_run_shows_them(crun, machine):
    rc, out, err = crun.run("--dry-run", "--nproc_per_node", 2, "true", extra_env=machine.env())
    assert rc == 0, err
    assert re.findall("adapters near its GPU: (.*)", out) == ["mlx5_0, mlx5_1 (PIX), eno1 (SYS)", "mlx5_2 (PIX), eno1 (PHB)"]
    assert out.count("    CRUN_NEAR_HCAS=mlx5_0,mlx5_1\n") == 1 and out.count("    CRUN_NEAR_NICS=eno1\n") == 2


def test_topo_shows_them_too(crun, tmp_path):
    m = Machine(tmp_path / "three")  # where the stand-in for NVML has its GPUs
    for i in range(3):
        m.device(f"ffff:f{'abc'[i]}:00.0", f"pciffff:00/ffff:00:0{i + 1}.0", 0)
    m.adapter("infiniband", "mlx5_0", m.device("ffff:e0:00.0", "pciffff:00/ffff:00:09.0", 0))
    env = dict(crun.env, LD_LIBRARY_PATH=FAKE_NVML, HWLOC_FSROOT=str(m.root), HWLOC_SYNTHETIC="node:1 core:2 pu:1")
    p = subprocess.run([CRUN, "topo"], env=env, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    assert re.findall(r"^  near (GPU\d): (.*)$", p.stdout, re.M) == [(f"GPU{i}", "mlx5_0 (PHB)") for i in range(3)]
    assert re.search(r"^NIC0\tPHB\tPHB\tPHB\t X ", p.stdout, re.M)
