"""Every row of kill_matrix.py: the right code, the right culprit, the exact number of restarts."""

import os
import re
import signal
import sys

import pytest

from crun_run import BUILD
from kill_matrix import ALWAYS, COMPLETE, NODES, ONE, PAIRS, REQUEUE, STOPPED, WORKERS
from processes import wait, watched

# $1: what happens, $2: to which rank, $3: up to which round, $4: number of ranks. $HERE: where the ranks meet.
SCRIPT = r"""
me=$HERE/$CRUN_ROUND-$RANK
mine() { [ $RANK = $2 ] && [ $CRUN_ROUND -le $3 ]; }
[ "$1" = "early 1" ] && mine "$@" && exit 1
echo $$ > $me.tmp; mv $me.tmp $me
i=0; while [ $i -lt $4 ]; do
    [ "$1 $i" = "early 1 $2" ] || while [ ! -s $HERE/$CRUN_ROUND-$i ]; do sleep 0.01; done
    i=$((i + 1)); done
if mine "$@"; then case $1 in SIG*) kill -${1#SIG} $$; sleep 100 ;; *) exit ${1#exit } ;; esac; fi
[ $CRUN_ROUND -le $3 ] || exit 0
[ "$1" = "exit 75" ] && trap 'exit 75' TERM
[ "$1" = "exit 0" ] && { victim=$(cat $HERE/$CRUN_ROUND-$2); while kill -0 $victim 2>/dev/null; do sleep 0.01; done; exit 0; }
while :; do sleep 0.05; done
"""


def ident(row):
    return "-".join(str(x).replace(" ", "") for x in row)


def play(crun, row, *options, program=("sh", "-c", SCRIPT, "worker")):
    rc, _, err = crun.run("--nproc_per_node", WORKERS, "--max-restarts", row.max_restarts, "--restart-backoff", 0, *options,
                          *program, row.kind, row.ranks[0], row.rounds, WORKERS,
                          extra_env={"HERE": str(crun.tmp)})
    restarts = len(re.findall(r"^crun: restart \d+/", err, re.M))
    culprit = re.search(r"^(?:  culprit +|crun: the job failed: )rank (\d+)", err, re.M)
    assert (rc, restarts, culprit and int(culprit[1])) == (row.code, row.restarts, row.culprit), err


@pytest.mark.parametrize("row", ONE + COMPLETE + REQUEUE, ids=ident)
def test_one_rank_ends(crun, row):
    play(crun, row)


# The same arguments; ranks that make steps, as only libcrun can tell.
STEPS = f"""
import ctypes, os, signal, sys, time
lib = ctypes.CDLL({os.path.join(BUILD, 'common', 'crun', 'libcrun.so.0')!r})
lib.crun_init(ctypes.create_string_buffer(4096))
again = int(os.environ["CRUN_ROUND"]) <= int(sys.argv[3])
for step in range(1, 1000 if again else 20):
    if again and step == 10 and os.environ["RANK"] == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGSTOP)
    lib.crun_progress(ctypes.c_uint64(step))
    time.sleep(0.02)
"""


@pytest.mark.parametrize("row", STOPPED, ids=ident)
def test_one_rank_stands_still(crun, row):
    play(crun, row, "--hang-timeout", "5", program=(sys.executable, "-S", "-E", "-c", STEPS))


def die_while_the_agent_looks_away(crun, pair, *options):
    p = crun.start("--nproc_per_node", WORKERS, *options, "sh", "-c",
                   f"cd {crun.tmp}; [ $CRUN_ROUND = 2 ] && exit 0; echo $$ > p$RANK; mv p$RANK pid-$RANK; exec sleep 100")
    pids = [int(crun.wait_file(f"pid-{r}")) for r in range(WORKERS)]
    agent = crun.agent_of(p.pid)
    wait("the agent's watch over all workers", lambda: set(pids) <= watched(agent))  # their deaths come in order only then
    crun.wait_state(agent, "S")
    os.kill(agent, signal.SIGSTOP)
    crun.wait_state(agent, "T")
    for name, rank in pair.first, pair.second:
        os.kill(pids[rank], getattr(signal, "SIG" + name))
        crun.wait_state(pids[rank], "Z")
    os.kill(agent, signal.SIGCONT)
    err = p.communicate(timeout=60)[1].decode()
    return p.returncode, err


@pytest.mark.parametrize("pair", PAIRS, ids=ident)
def test_two_ranks_end_in_one_wake_up(crun, pair):
    rc, err = die_while_the_agent_looks_away(crun, pair, "--max-restarts", 1)
    told = re.findall(r"^crun: restart (\d)/1 \(rank (\d) killed by SIG(\w+)\)", err, re.M)
    assert (rc, told) == (0, [("1", str(pair.culprit), pair.first[0])]), err


@pytest.mark.parametrize("pair", PAIRS, ids=ident)
def test_two_ranks_end_in_one_wake_up_for_good(crun, pair):
    rc, err = die_while_the_agent_looks_away(crun, pair)
    assert rc == pair.code and re.search(rf"^  culprit +rank {pair.culprit}\b", err, re.M), err


@pytest.mark.parametrize("row", NODES, ids=ident)
def test_two_nodes_of_which_one_rank_ends(crun, row):
    port = crun.port()
    nodes = [crun.start("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--run-id", "matrix", "--insecure", "--node-rank", n,
                        "--max-restarts", row.max_restarts, "--restart-backoff", 0, "sh", "-c", SCRIPT, "worker", row.kind, row.rank, ALWAYS, 2,
                        extra_env={"HERE": str(crun.tmp)}) for n in (0, 1)]
    said = [p.communicate(timeout=90)[1].decode() for p in nodes]
    text = "\n".join(said)
    assert nodes[row.rank].returncode == row.code and nodes[1 - row.rank].returncode == row.other, text
    rounds = {int(name.split("-")[0]) for name in os.listdir(crun.tmp) if re.fullmatch(r"\d+-\d", name)}
    if row.kind != "early 1":
        assert rounds == set(range(1, row.restarts + 2)), text
    assert crun.processes() == []
