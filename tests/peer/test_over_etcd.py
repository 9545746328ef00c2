"""PyTorch on four machines that meet at an etcd on a fifth: each is killed in turn, another takes its place, and the training goes on from its checkpoint."""
import sys

import pytest

import machines as rig
from cluster import Cluster, kill_and_wait, wait
from support import LIBCRUN, ROOT

pytestmark = [pytest.mark.serial, pytest.mark.slow]

JOB = """
import json, os, pathlib, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import crun

folder, me = pathlib.Path(sys.argv[1]), crun.info()
crun.phase("starting")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
at, path = 0, folder / "checkpoint.pt"
if path.exists():
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    at = state["step"]
told = folder / f"round-{os.environ['CRUN_ROUND']}"
told.mkdir(exist_ok=True)
(told / f"rank-{me.rank}.new").write_text(json.dumps(dict(os.environ, STEP=str(at))))
os.rename(told / f"rank-{me.rank}.new", told / f"rank-{me.rank}.json")
while True:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(at * 100 + me.rank))
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    at += 1
    end = torch.tensor([float((folder / "finish").exists())])
    dist.all_reduce(end)
    crun.report(at)
    if me.rank == 0 and at % 5 == 0:
        torch.save({"step": at, "model": model.module.state_dict()}, str(path) + ".new")
        os.replace(str(path) + ".new", path)
    if end > 0:
        break
if me.rank == 0:
    (folder / "loss").write_text(f"{at} {loss.item()}")
dist.destroy_process_group()
"""


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    why = rig.available()
    if why:
        pytest.skip(why)
    made = rig.Machines(tmp_path_factory.mktemp("machines"), 5)
    yield made
    made.close()


def test_each_of_four_machines_is_killed_in_turn(cluster, net):
    etcd = cluster.etcd(host=net.v[4].host)
    job = cluster.tmp / "job.py"
    job.write_text(JOB)
    env = {"CRUN_TOKEN": "a-secret-of-enough-bytes", "LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1",
           "GLOO_SOCKET_IFNAME": "eth0"}  # else it takes 127.0.1.1, which Debian gives a machine's own name

    def start(m):
        return cluster.node("--nnodes", "3:4", "--max-restarts", 20, "--rdzv-endpoint", etcd.url, "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=500ms",
                            prefix=m.prefix(), program=[sys.executable, job, cluster.out], env={**m.env, **env})

    nodes = [start(m) for m in net.v[:4]]
    at, _ = cluster.wait_round(4)
    steps = [0]
    for i, m in enumerate(net.v[:4]):
        wait("a checkpoint", (cluster.out / "checkpoint.pt").exists)
        kill_and_wait(nodes[i])
        again, ranks = cluster.wait_round(3, after=at)
        assert again == at + 1, "one round for one death"
        steps.append(int(ranks[0]["STEP"]))
        nodes[i] = start(m)
        at, _ = cluster.wait_round(4, after=again)
    assert steps == sorted(steps), steps
    cluster.finish(*nodes)
    end, loss = (cluster.out / "loss").read_text().split()
    assert int(end) > steps[-1] > 0 and float(loss) < 4
