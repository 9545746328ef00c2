"""crun.inprocess(growing=True) and crun.Sampler: 4 ranks, then 2, then 4 again; processes stay, no sample is lost or comes twice, gradients are right."""
import collections
import json
import sys

import pytest
import torch

from cluster import Cluster
from processes import wait
from support import LIBCRUN, ROOT

sys.path.insert(0, str(ROOT / "python"))
import crun  # noqa: E402

SAMPLES, BATCH = 70, 16  # batches cross the ends of epochs

JOB = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import crun

folder = pathlib.Path(sys.argv[1])
data = torch.linspace(-1, 1, {samples}).reshape(-1, 1)

@crun.inprocess(growing=True)
def main():
    dist.init_process_group("gloo")
    me, sampler = crun.info(), crun.Sampler(data, batch_size={batch})
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = crun.State(model, optimizer, sampler)
    step, ddp = state.restore(), DistributedDataParallel(model)
    crun.phase("starting")
    with open(folder / f"{{os.getpid()}}", "a") as told:
        stop = torch.zeros(1)
        while not stop.item():
            for taken in sampler:
                stop += me.rank == 0 and (folder / "stop").exists()
                dist.broadcast(stop, 0)
                if stop.item():
                    break
                loss = torch.nn.functional.mse_loss(ddp(data[taken]), 3 * data[taken] + 1)
                optimizer.zero_grad()
                loss.backward()
                line = [me.round, me.world_size, step, taken, model.weight.grad.item(), os.environ["CRUN_RESTART_REASON"]]
                optimizer.step()
                step += 1
                over = None
                try:
                    state.commit(step)
                except crun.RoundOver as e:
                    over = e
                print(json.dumps(line), file=told, flush=True)
                if over:
                    raise over
                crun.report(step)
                time.sleep(0.02)
    crun.phase("closing")
    dist.barrier()
    dist.destroy_process_group()

main()
"""


def undisturbed(steps):
    """[gradient] of one process that takes each batch whole"""
    data, sampler = torch.linspace(-1, 1, SAMPLES).reshape(-1, 1), crun.Sampler(SAMPLES, batch_size=BATCH)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.1), []
    while len(gradients) < steps:
        for taken in sampler:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data[taken]), 3 * data[taken] + 1).backward()
            gradients.append(model.weight.grad.item())
            optimizer.step()
            sampler.crun_committed()
    return gradients


@pytest.fixture
def cluster(tmp_path):
    c = Cluster(tmp_path)
    c.env |= {"LIBCRUN": str(LIBCRUN), "PYTHONPATH": str(ROOT / "python"), "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}
    yield c
    c.close()


def test_nodes_leave_and_come_while_the_others_keep_their_processes(cluster, tmp_path):
    script, told = tmp_path / "job.py", tmp_path / "told"
    script.write_text(JOB.format(samples=SAMPLES, batch=BATCH))
    told.mkdir()
    address = cluster.daemon()
    arguments = ["--nnodes", "1:2", "--nproc-per-node", 2, "--rdzv-endpoint", address, "--rdzv-id", "grows", "--max-restarts", 5, "--restart-backoff", 0, "--hold-timeout", 60,
                 "--rdzv-conf", "last_call_timeout=1"]

    def node():
        return cluster.node(*arguments, program=[script, told])

    def rounds():
        """{(round, world size): {pid: [its steps]}}"""
        found = collections.defaultdict(lambda: collections.defaultdict(list))
        for path in told.iterdir():
            for line in path.read_text().splitlines(keepends=True) if path.name.isdigit() else ():
                if line.endswith("\n"):
                    round_, world, *step = json.loads(line)
                    found[round_, world][int(path.name)].append(step)
        return found

    def reached(world, after):
        """A round of so many ranks, above `after`, has done some steps."""
        def look():
            assert stays.process.poll() is None, stays.text()
            return next((r for r, ranks in rounds().items() if r[0] > after and r[1] == world and len(ranks) == world and min(map(len, ranks.values())) > 8), None)
        return wait(f"a round of {world}", look, 100)
    stays, leaves = node(), node()
    first = reached(4, 0)
    leaves.kill_agent()
    second = reached(2, first[0])
    comes = node()
    third = reached(4, second[0])
    (told / "stop").touch()
    assert stays.wait() == 0 and comes.wait() == 0, stays.text() + comes.text()

    pids = [set(rounds()[r]) for r in (first, second, third)]
    assert len(pids[0] & pids[1]) == 2 and pids[1] <= pids[2], "who was there stays"
    assert {step[3] for pid in pids[1] for step in rounds()[third][pid]} == {"resize"}, stays.text()
    done = {}  # the newest that was committed of each step
    for (round_, _), ranks in sorted(rounds().items()):
        for n in {step[0] for steps in ranks.values() for step in steps}:
            done[n] = [step for steps in ranks.values() for step in steps if step[0] == n]
    assert sorted(done) == list(range(len(done)))
    stream = [sample for n in sorted(done) for sample in sorted(s for step in done[n] for s in step[1])]
    whole = [i for n in range(len(done)) for i in sorted(order(n))]
    assert stream == whole, "each step took its samples, each of them once"
    gradients = undisturbed(len(done))
    for n, steps in done.items():
        assert {step[2] for step in steps} == {steps[0][2]} and steps[0][2] == pytest.approx(gradients[n], rel=1e-4, abs=1e-6), n


def order(n):
    """The samples of step n."""
    sampler = crun.Sampler(SAMPLES, batch_size=BATCH)
    sampler.done = n
    return next(iter(sampler))
