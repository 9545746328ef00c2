"""Launch lines of public repositories (tests/peer/launch_lines.txt), run with stub programs on as many machines as they name. torchrun ends all of them
with 0 where its ports are free, so crun must; tests/peer/test_torchrun_lines.py compares the words, this what runs."""
import re
import shlex

import pytest

import machines as rig
from support import CRUN, ROOT

pytestmark = pytest.mark.serial

LINES = [re.fullmatch(r"(\S+): (torchrun|launch) (.*)", line).groups()
         for line in (ROOT / "tests" / "peer" / "launch_lines.txt").read_text().splitlines() if not line.startswith("#")]
# In place of Python: what a worker is told, without the time that Python takes to start.
STUB = '#!/bin/sh\necho "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $*" >"$OUT/rank-$RANK"\n'


def nodes_of(words):
    """(MIN, MAX) of --nnodes."""
    typed = re.search(r"--nnodes?[= ](\S+)", words)
    low, _, high = (typed[1] if typed else "1").partition(":")
    return int(low), int(high or low)


def typed_on(words, node, machines):
    """The line as it is typed on this node: with the first machine's address, and a node rank of its own."""
    here = words.replace("192.0.2.7", machines[0].addr).replace("node-1:6000", "node1:6000")
    return shlex.split(re.sub(r"(--node_rank[= ])\d", rf"\g<1>{node}", here) if nodes_of(words)[1] > 1 else here)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    why = rig.available()
    if why:
        pytest.skip(why)
    made = rig.Machines(tmp_path_factory.mktemp("lines"), 4)
    yield made
    made.close()


@pytest.fixture
def machines(net, cluster):
    stub = cluster.tmp / "python-stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    for name in ("torchrun", "crun-launch"):
        (cluster.tmp / name).symlink_to(CRUN)
    for m in net.v:
        for word in {word for _, _, words in LINES for word in shlex.split(words) if word.endswith(".py")}:
            (m.home / word).parent.mkdir(parents=True, exist_ok=True)
            (m.home / word).touch()
    cluster.env |= {"PYTHON_EXEC": str(stub), "CRUN_TOKEN": "a-secret-of-enough-bytes", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return net.v


def launch(cluster, machines, number, launcher, words):
    """-> (exit codes, what each rank was told, what was said)"""
    out = cluster.out / str(number)
    out.mkdir()
    program = cluster.tmp / ("torchrun" if launcher == "torchrun" else "crun-launch")
    nodes = [cluster.node(*typed_on(words, i, machines), prefix=m.prefix(), crun=program, program=[], env={**m.env, "OUT": str(out)})
             for i, m in enumerate(machines[:nodes_of(words)[0]])]
    codes = [n.wait() for n in nodes]
    return codes, sorted(tuple(f.read_text().split()) for f in out.iterdir()), "\n".join(n.text() for n in nodes)


@pytest.mark.parametrize("many", [False, True])
def test_lines_of_public_repositories_run_as_they_are(cluster, machines, many):
    assert len({repository for repository, _, _ in LINES}) >= 20
    bad = []
    for number, (repository, launcher, words) in enumerate(LINES):
        if (nodes_of(words)[0] > 1) != many or re.search(r"--nproc.per.node[= ](gpu|auto)", words):
            continue
        low, high = nodes_of(words)
        cluster.env["CRUN_RDZV_CONF"] = "last_call_timeout=100ms" if low < high else ""  # 30 s, as torchrun's
        codes, ranks, said = launch(cluster, machines, number, launcher, words)
        world = nodes_of(words)[0] * int(re.search(r"--nproc.per.node[= ](\d+)", words)[1])
        told = [rank[:2] for rank in ranks]
        right = set(codes) == {0} and told == sorted((str(i), str(world)) for i in range(world)) and len({rank[3] for rank in ranks}) == 1
        if not right:
            bad.append(f"{repository}: {launcher} {words}\n  codes {codes}, ranks {ranks}\n{said}")
    assert not bad, "\n".join(bad)
