"""crun.inprocess and crun.State without PyTorch: a function that is called again in its process when another rank dies."""
import collections
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import types

import pytest

from processes import programs, state, wait
from support import LIBCRUN, ROOT, run
from torch_rounds import steps_of, waits

sys.path.insert(0, str(ROOT / "python"))
from crun import _groups, _rounds, _sockets, _state  # noqa: E402
from crun._lib import CInfo, Phase, StopReason  # noqa: E402

BEGINS = re.compile(r"rank (\d) \(pid (\d+)\): round (\d+) begins after step (\d+)")

# each step adds up what all ranks bring along
JOB = """
import os, sys, time
import crun

class Sum:
    total = 0
    def state_dict(self):
        return {"total": self.total}
    def load_state_dict(self, state):
        self.total = state["total"]

@crun.inprocess
def main(steps):
    me, sum_ = crun.info(), Sum()
    state = crun.State(sum_)
    start = state.restore(lambda: 0)
    variables = [os.environ[n] for n in ("RANK", "WORLD_SIZE", "CRUN_ROUND", "ROLE_RANK", "CRUN_STORE")]
    assert variables == [str(me.rank), str(me.world_size), str(me.round), str(me.rank), me.store], variables
    assert me.store == f"resp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}" and "CRUN_SPARE" not in os.environ
    assert int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == me.restart_count == me.round - 1
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step {start}", flush=True)
    for step in range(start, steps):
        time.sleep(0.005)
        crun.store.add(f"sum/{step}", me.rank + 1)
        crun.barrier("step")
        sum_.total += crun.store.add(f"sum/{step}", 0)
        state.commit(step + 1)
        crun.report(step + 1)
    turn, told = 0, False
    while not told:  # until the test has seen all that it wanted to see
        turn += 1
        if me.rank == 0 and os.path.exists(os.environ["LAST"]):
            crun.store.add(f"last/{turn}", 1)
        time.sleep(0.01)
        crun.barrier("last")
        told = crun.store.add(f"last/{turn}", 0)
    return sum_.total

if __name__ == "__main__":
    total = main(int(sys.argv[1]))
    print(f"rank {crun.info().rank} of {crun.info().world_size}: sum {total}", flush=True)
"""


class Job:
    """A crun that runs JOB or the like; who said what is read from a file as it comes."""

    def __init__(self, crun, *args, ranks=4):
        self.crun, self.out, self.ranks = crun, open(crun.tmp / "out", "wb"), ranks
        self.p = crun.start("--nproc-per-node", ranks, "--no-log-prefix", "--hold-timeout", 60, "--restart-backoff", 0, *args, stdout=self.out,
                            extra_env={"LAST": str(crun.tmp / "last")})

    def in_round(self, n):
        """-> {rank: pid}, when all have said that it begins"""
        def said():
            found = collections.defaultdict(dict)
            for rank, pid, round_, _ in BEGINS.findall((self.crun.tmp / "out").read_text()):
                found[int(round_)][int(rank)] = int(pid)
            return found[n] if len(found[n]) == self.ranks else None
        return wait(f"round {n}", said)

    def end(self):
        (self.crun.tmp / "last").touch()
        _, err = self.p.communicate(timeout=120)
        self.out.close()
        return self.p.returncode, (self.crun.tmp / "out").read_text(), err.decode()


def sums(out, steps, ranks=4):
    return sorted(re.findall(r"^rank \d of .*", out, re.M)) == [f"rank {r} of {ranks}: sum {steps * ranks * (ranks + 1) // 2}" for r in range(ranks)]


@pytest.mark.parametrize("victim", [0, 2])
def test_the_others_are_called_again_in_their_processes_and_lose_no_step(crun, script, victim):
    job = Job(crun, "--max-restarts", 3, script(JOB), 300)
    before = job.in_round(1)
    os.kill(before[victim], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300), out + err
    assert {r for r in range(4) if before[r] != after[r]} == {victim}
    assert f"restart 1/3 (rank {victim} killed by SIGKILL), kept 3 workers: detect" in err


def test_many_deaths_one_after_another(crun, script):
    job = Job(crun, "--max-restarts", 50, script(JOB), 600)
    pids = job.in_round(1)
    for n in range(8):
        os.kill(pids[n % 4], signal.SIGKILL)
        after = job.in_round(n + 2)
        assert {r for r in range(4) if pids[r] != after[r]} == {n % 4}
        pids = after
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 600), out + err


# a group of torch.distributed as inprocess() knows it: each has a name by number, under which all ranks have to meet
GROUPS = """
import types

c10d = sys.modules["torch.distributed.distributed_c10d"] = types.ModuleType("distributed_c10d")
c10d._group_count, c10d.made = 0, False

def pause(place):
    me = crun.info()
    if (place, me.round, me.rank) == (sys.argv[2], 2, 1):
        print("pause", os.getpid(), flush=True)
        time.sleep(600)

def meet(name):
    me = crun.info()
    pause("init_process_group")
    crun.store.set(f"group {name}/{me.rank}", "")
    for rank in range(me.world_size):
        crun.store.get(f"group {name}/{rank}", 60)

def init_process_group():
    name, c10d._group_count = c10d._group_count, c10d._group_count + 1
    c10d._new_process_group_helper(name)
    c10d.made = True

def destroy_process_group():
    c10d._group_count, c10d.made = 0, False

c10d.rendezvous, c10d._new_process_group_helper = iter, meet
c10d.is_initialized, c10d.destroy_process_group = lambda: c10d.made, destroy_process_group
"""
FORMING = JOB.replace("import crun\n", "import crun\n" + GROUPS, 1).replace("    start = state", """    init_process_group()
    pause("restore")
    start = state""").replace("    variables = ", """    pause("wrapper")
    crun.barrier("of a wrapper's constructor")
    variables = """)


@pytest.mark.parametrize("place", ["init_process_group", "restore", "wrapper"])
def test_a_second_death_while_the_next_round_forms_loses_no_state(crun, script, place):
    job = Job(crun, "--max-restarts", 3, script(FORMING), 300, place, ranks=3)
    before = job.in_round(1)
    wait("a step", lambda: steps_of(before[1]) > 0)
    os.kill(before[1], signal.SIGKILL)
    pid = wait("the second victim", lambda: re.search(r"^pause (\d+)$", (crun.tmp / "out").read_text(), re.M))
    os.kill(int(pid[1]), signal.SIGKILL)
    after = job.in_round(3)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300, 3), out + err
    assert (after[0], after[2]) == (before[0], before[2]) and "is lost" not in err, err
    assert all(int(step) > 0 for _, _, round_, step in BEGINS.findall(out) if round_ == "3"), out


def test_a_death_after_all_functions_have_returned_does_not_begin_the_job_anew(crun, script):
    text = JOB.replace("if __name__", "import atexit\natexit.register(lambda: time.sleep(600))\nif __name__")
    job = Job(crun, "--max-restarts", 3, script(text), 20, ranks=2)
    pids = job.in_round(1)
    (crun.tmp / "last").touch()
    wait("the sums", lambda: sums((crun.tmp / "out").read_text(), 20, 2))
    os.kill(pids[1], signal.SIGKILL)
    rc, out, err = job.end()
    assert rc == 137 and sums(out, 20, 2) and "round 2" not in out, out + err
    assert "crun: rank 1 ended after the functions of all ranks had returned: no restart\n" in err and "culprit   rank 1" in err, err


def test_a_state_that_is_lost_is_told(crun, script):
    job = Job(crun, "--max-restarts", 3, script(JOB), 300, ranks=2)
    before = job.in_round(1)
    wait("a step", lambda: all(steps_of(pid) > 0 for pid in before.values()))
    with crun.stopped(crun.agent_of(job.p.pid)):  # both are dead before it begins another round
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
    job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300, 2), out + err
    assert re.search(r"^crun: the state of step [1-9]\d* is lost: no worker that kept it in memory is left$", err, re.M), err


def test_a_warm_spare_comes_to_the_call_and_waits_there(crun, script):
    text = JOB.replace("    total = main(", '    print("spare" if crun.info().rank < 0 else "rank", os.getpid(), flush=True)\n    total = main(')
    job = Job(crun, "--max-restarts", 3, "--warm-spares", 1, script(text), 400)
    before = job.in_round(1)
    spare = int(wait("a spare", lambda: re.search(r"^spare (\d+)$", (crun.tmp / "out").read_text(), re.M))[1])
    wait("that it waits", lambda: spare in waiting_spares(crun))
    os.kill(before[1], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 400), out + err
    assert after == {**before, 1: spare}, "no process was started for it"


def test_what_the_first_optimizer_would_import_is_there_before_the_call(crun, script):
    """A torch of our own writes down who imports that part of it."""
    (crun.tmp / "torch").mkdir()
    (crun.tmp / "torch" / "__init__.py").touch()
    (crun.tmp / "torch" / "_dynamo.py").write_text("import os\nopen(os.environ['LAST'] + '-dynamo', 'a').write(f'{os.getpid()} ')\n")
    program = script(RECORDS.replace("import json,", "import torch, json,"))
    job = Job(crun, "--max-restarts", 1, "--warm-spares", 1, program, 1, "nothing", ranks=2)
    pids = job.in_round(1)
    spare, = wait("a spare", lambda: waiting_spares(crun))
    assert sorted((crun.tmp / "last-dynamo").read_text().split()) == sorted(map(str, [*pids.values(), spare]))
    os.kill(pids[1], signal.SIGKILL)
    assert job.end()[0] == 3


def test_reasons_and_phases_are_printed_by_name():
    assert f"{StopReason.DRAIN} {StopReason.NONE!s:>5} {Phase.CHECKPOINT}" == "drain  none checkpoint" and StopReason.DRAIN == 3


def test_with_recovery_restart_all_are_started_again(crun, script):
    job = Job(crun, "--max-restarts", 3, "--recovery", "restart", script(JOB), 200)
    before = job.in_round(1)
    os.kill(before[1], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 200), out + err
    assert not set(before.values()) & set(after.values()) and "kept" not in err


def test_an_exception_of_its_own_counts_and_the_others_go_on(crun, script):
    text = JOB.replace("        time.sleep(0.005)", "        if step == 20 and me.rank == 1 and me.restart_count == 0: raise ValueError('no such batch')")
    job = Job(crun, "--max-restarts", 1, script(text), 40)
    before, after = job.in_round(1), job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 40), out + err
    assert {r for r in range(4) if before[r] != after[r]} == {1}
    assert "ValueError: no such batch" in err and "restart 1/1 (rank 1 exited with code 1), kept 3 workers" in err
    rc, out, err = crun.run("--nproc-per-node", 2, script(text.replace("me.rank == 1", "me.rank >= 0")), 40)
    assert rc == 1 and re.search(r"^  message   ValueError: no such batch \(job\.py:\d+ in main\), after step 20 ", err, re.M), err


RECORDS = """
import json, os, sys, time
import crun

crun.catch_crashes()

def leave(text):  # as torch.distributed.elastic's @record does
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": text, "timestamp": "1"}, f)

@crun.inprocess
def main():
    me = crun.info()
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step 0", flush=True)
    crun.report(1)
    while crun.stop_reason() is not crun.StopReason.HOLD and me.round == 1: time.sleep(0.01)
    if me.round == 1: leave("of the round before")
    elif me.rank != int(sys.argv[1]): time.sleep(1000)
    elif sys.argv[2] == "record": leave("of this round")
    elif sys.argv[2] == "crash": os.abort()
    if me.round == 2: os._exit(3)

main()
"""


def waiting_spares(crun):
    found = []
    for pid in programs(crun.mark, "CRUN_SPARE=1"):
        with contextlib.suppress(OSError):
            found += [pid] if waits(pid) else []
    return found


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("how, message", [("record", "of this round"), ("crash", "crashed: SIGABRT"), ("nothing", None)])
@pytest.mark.parametrize("rank", [0, 1])
def test_error_records_are_those_of_the_process_in_its_last_round(crun, script, rank, how, message, logs):
    """Rank 0 is held, rank 1 a spare in its place: both have the file from before."""
    words = ["--log-dir", crun.tmp / "logs", "--log-layout", ["crun", "torchrun"][rank], "--rdzv-id", "r"] if logs else []
    job = Job(crun, "--max-restarts", 1, "--warm-spares", 1, *words, script(RECORDS), rank, how, ranks=2)
    first = job.in_round(1)
    spare = wait("a spare", lambda: waiting_spares(crun))
    wait("its agent to rest", lambda: state(crun.agent_of(job.p.pid)) == "S")
    os.kill(first[1], signal.SIGKILL)
    rc, _, err = job.end()
    assert rc == (134 if how == "crash" else 3) and "restart 1/1 (rank 1 killed by SIGKILL), kept 1 worker:" in err, err
    culprit = re.search(r"culprit   rank (\d) \(local rank \d\), pid (\d+)", err)
    assert culprit and (int(culprit[1]), int(culprit[2])) == (rank, [first[0], *spare][rank]), err
    said = re.search(r"^  message   (.*) \((.*)\)$", err, re.M)
    assert (said and said[1]) == message, err
    assert said is None or (os.path.isabs(said[2]) and os.path.exists(said[2]) if logs else said[2] == "error.json"), err


LATE = """
import json, os, time
import crun

@crun.inprocess
def main():
    me = crun.info()
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step 0", flush=True)
    crun.report(1)
    while me.round == 1 and crun.stop_reason() is not crun.StopReason.HOLD: time.sleep(0.01)
    if me.round == 1: return
    if me.rank == 0: time.sleep(1000)
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": "of this round", "timestamp": "1"}, f)
    while not os.path.exists(os.environ["LAST"]): time.sleep(0.01)
    os._exit(3)

main()
"""


def test_a_late_answer_about_an_earlier_death_is_not_taken_for_one_about_a_later_one(crun, script):
    """The output process, which reads error records, stands still from before the first death until the second; the agent hears of both at once."""
    job = Job(crun, "--max-restarts", 1, "--warm-spares", 1, script(LATE), ranks=2)
    pids, agent, output = job.in_round(1), crun.agent_of(job.p.pid), crun.output_of(job.p.pid)
    spare, = wait("a spare", lambda: waiting_spares(crun))
    os.kill(output, signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    wait("that it takes the place", lambda: not waits(spare) and steps_of(spare) == 1)
    os.kill(agent, signal.SIGSTOP)
    (crun.tmp / "last").touch()
    wait("the second death", lambda: state(spare) == "Z")
    os.kill(output, signal.SIGCONT)
    wait("the answer", lambda: state(output) == "S")
    os.kill(agent, signal.SIGCONT)
    _, err = job.p.communicate(timeout=120)
    job.out.close()
    assert job.p.returncode == 3 and re.search(r"^  message   of this round \(error.json\)$", err.decode(), re.M), err.decode()


DRAINED = """
import os, time
import crun

def stop(reason):
    print("callback", reason.name, crun.info().round, flush=True)
    os._exit(75)

@crun.inprocess
def main():
    assert crun.on_preemption(stop)
    print(f"rank {crun.info().rank} (pid {os.getpid()}): round {crun.info().round} begins after step 0", flush=True)
    while crun.stop_reason() is not crun.StopReason.HOLD: time.sleep(0.01)

main()
"""


def test_a_hold_is_no_preemption_and_a_drain_after_it_is(crun, script):
    job = Job(crun, "--max-restarts", 1, "--drain-timeout", 300, script(DRAINED), ranks=2)
    os.kill(job.in_round(1)[0], signal.SIGKILL)
    job.in_round(2)
    job.p.send_signal(signal.SIGTERM)
    rc, out, err = job.end()
    assert rc == 75 and re.findall("callback.*", out) == ["callback DRAIN 2"] * 2, out + err


def test_callbacks_of_an_earlier_round_are_gone(crun, script):
    """They are of its model, which would stay in memory as well. One from before the first call stays."""
    text = DRAINED.replace("@crun.inprocess", """class Model: pass

crun.on_preemption(lambda reason: print("callback of the program", flush=True))
models = weakref.WeakSet()

@crun.inprocess""").replace("    assert crun.on_preemption(stop)", """    model = Model()
    models.add(model)
    crun.on_preemption(lambda reason, model=model, n=crun.info().round: print("callback of round", n, len(models), flush=True) or n == 2 and os._exit(75))""").replace("import os,", "import os, weakref,")
    job = Job(crun, "--max-restarts", 1, "--drain-timeout", 300, script(text), ranks=2)
    os.kill(job.in_round(1)[0], signal.SIGKILL)
    job.in_round(2)
    job.p.send_signal(signal.SIGTERM)
    rc, out, err = job.end()
    assert rc == 75 and sorted(re.findall("callback.*", out)) == ["callback of round 2 1"] * 2 + ["callback of the program"] * 2, out + err


def test_a_function_that_returns_while_the_round_ends_is_called_again(crun, script):
    """Else its rank would be gone as well, and what it has with it."""
    text = DRAINED.replace("    while crun", "    while crun.info().round == 1 and crun")
    job = Job(crun, "--max-restarts", 1, script(text), ranks=2)
    before = job.in_round(1)
    os.kill(before[1], signal.SIGKILL)
    after = job.in_round(2)
    rc, _, err = job.end()
    assert rc == 0 and after[0] == before[0] and after[1] != before[1], err


WRONG = """
import crun

class Part:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

def said(call):
    try:
        call()
    except (RuntimeError, TypeError) as e:
        return print(e)
    raise AssertionError("no error")

@crun.inprocess
def main():
    said(lambda: crun.State(3))
    said(lambda: crun.State(Part()).commit(1))
    return 7

assert main() == 7
said(main)
"""


def test_wrong_use_is_said(crun, script):
    rc, out, err = crun.run("--no-log-prefix", "--max-restarts", 1, script(WRONG))
    assert rc == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == ["crun.State", "crun.State.commit", "crun.inprocess"], out
    assert "int has no state_dict() and load_state_dict()" in out and "expected a call of restore()" in out and "calls it once" in out


@pytest.mark.parametrize("library", ["/nowhere/libcrun.so.0", str(LIBCRUN)])
def test_without_crun_the_function_is_called_as_it_is(alone, library):
    text = WRONG.replace("    said(lambda: crun.State(Part()).commit(1))\n", "    s = crun.State(Part())\n    assert s.restore() == 0 and s.restore(lambda: 5) == 5\n    s.commit(6)\n")
    p = run(sys.executable, "-c", text, env={**alone, "LIBCRUN": library})
    assert p.returncode == 0 and p.stderr == "" and len(p.stdout.splitlines()) == 2, p.stdout + p.stderr


# --- what torch has open, with a module that looks like its


@pytest.fixture
def c10d(monkeypatch):
    module = types.ModuleType("torch.distributed.distributed_c10d")
    module.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def pair():
    """-> listening, and two that are connected"""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    return listener, client, listener.accept()[0]


def test_sockets_of_process_groups_are_shut_down_and_no_others(c10d):
    groups, theirs = _groups.Groups(), pair()
    c10d.rendezvous = lambda: iter(pair())
    c10d._new_process_group_helper = pair
    _groups.hook(groups)
    stores = list(c10d.rendezvous())
    listener, client, peer = c10d._new_process_group_helper()
    waits = threading.Thread(target=lambda: client.recv(1))
    waits.start()
    assert groups.are_there()
    groups.interrupt()
    waits.join(60)
    assert not waits.is_alive()
    for s in stores[1], stores[2], client, peer:
        assert s.recv(1) == b"", "shut down"
    for s in listener, stores[0]:
        with socket.create_connection(s.getsockname()):
            s.accept()[0].close()
    theirs[1].sendall(b"x")
    assert theirs[2].recv(1) == b"x"
    groups.leave()
    assert not groups.are_there()


def test_a_group_that_is_being_made_is_ended_too(c10d):
    groups, made = _groups.Groups(), threading.Event()
    c10d.rendezvous = iter

    def make():
        sockets = pair()
        made.set()
        return sockets[1].recv(1)
    c10d._new_process_group_helper = make
    _groups.hook(groups)
    said = []
    waits = threading.Thread(target=lambda: said.append(c10d._new_process_group_helper()))
    waits.start()
    assert made.wait(60) and groups.are_there()
    groups.interrupt()
    waits.join(60)
    assert said == [b""]


def test_sockets_settle_when_all_that_came_is_read():
    listener, client, peer = pair()
    ours = {client.fileno(): "client", listener.fileno(): "listener", -1: "closed"}
    client.sendall(b"x")
    peer.sendall(b"x")
    began = time.monotonic()
    _sockets.settle(lambda: ours, 0.003, 0.2)  # nobody reads it
    assert time.monotonic() - began >= 0.2
    settled = threading.Thread(target=_sockets.settle, args=(lambda: ours, 0.003, 3600), daemon=True)
    settled.start()
    assert client.recv(1) == b"x"
    settled.join(60)
    assert not settled.is_alive()
    listener.close()


def test_a_descriptor_that_is_another_socket_now_is_left_alone():
    listener, client, peer = pair()
    _sockets.shut(client.fileno(), "socket:[1]")
    client.sendall(b"x")
    assert peer.recv(1) == b"x"
    listener.close()


@pytest.mark.parametrize("backend, aborts", [("cpu:gloo,cuda:nccl", 1), ("nccl", 1), ("gloo", 0)])
def test_nccl_is_aborted_once(c10d, backend, aborts):
    calls = []
    c10d.rendezvous = c10d._new_process_group_helper = iter
    c10d.is_initialized = lambda: True
    c10d.get_backend_config = lambda: backend
    c10d._abort_process_group = lambda: calls.append("abort")
    c10d.destroy_process_group = lambda: calls.append("destroy")
    groups = _groups.Groups()
    groups.interrupt()
    groups.interrupt()
    assert calls == ["abort"] * aborts
    groups.leave()
    assert calls == ["abort"] * aborts + ["destroy"]


def nccl(c10d, monkeypatch, all_reduce):
    """What connect() needs of a torch with a GPU."""
    c10d.rendezvous = c10d._new_process_group_helper = iter
    c10d.is_initialized, c10d.get_backend_config, c10d._abort_process_group = lambda: True, lambda: "cuda:nccl", lambda: None
    c10d.all_reduce = all_reduce
    cuda = types.SimpleNamespace(synchronize=lambda device: None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(zeros=lambda n, device: (n, device), cuda=cuda))
    monkeypatch.setattr(_rounds, "is_held", lambda: False)
    groups = _groups.Groups()
    _groups.hook(groups)
    return groups


def test_nccl_that_waits_for_a_rank_while_it_connects_is_ended(c10d, monkeypatch):
    """It accepts connections of all ranks, one of which is gone; the abort of its group would wait for it."""
    accepts, said, left = threading.Event(), [], []

    def abort():
        waits.join(60)
        left.append(waits.is_alive())

    def all_reduce(_):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepts.set()
            listener.accept()

    def connect():
        try:
            _groups.connect("cuda:1")
        except OSError as e:
            said.append(type(e))
    groups = nccl(c10d, monkeypatch, all_reduce)
    c10d._abort_process_group = abort
    waits = threading.Thread(target=connect)
    waits.start()
    assert accepts.wait(60)
    while not said:
        groups.interrupt()
    waits.join(60)
    assert said == [OSError] and not any(left)
    _groups.current = None


def test_nccls_first_call_is_on_the_devices_of_the_state(c10d, monkeypatch):
    calls = []
    nccl(c10d, monkeypatch, calls.append)
    _groups.connect("cuda:1")
    assert calls == [(1, "cuda:1")]
    monkeypatch.setattr(_rounds, "is_held", lambda: bool(len(calls) > 1))
    with pytest.raises(_groups.RoundOver):
        _groups.connect("cuda:1")
    c10d.get_backend_config = lambda: "cpu:gloo"
    _groups.connect("cuda:1")
    assert len(calls) == 2, "there is no NCCL"
    _groups.current = None


def test_a_round_is_told_as_a_worker_is_started(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("ROLE_WORLD_SIZE", "4")
    told = _rounds.environment(CInfo(rank=1), CInfo(2, 8, 0, 4, 1, 2, 5, 3, b"j", b"resp://[fe80::1]:29500"))
    assert told == {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
                    "TORCHELASTIC_RESTART_COUNT": "3", "CRUN_GLOBAL_RESTARTS": "3", "CRUN_ROUND": "5", "CRUN_PREV_RANK": "1", "CRUN_RESTART_REASON": "failure",
                    "CRUN_STORE": "resp://[fe80::1]:29500", "MASTER_ADDR": "fe80::1", "MASTER_PORT": "29500", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "8"}


class Optimizer:
    def step(self, closure=None):
        self.seen = [_state._last.spoilt]
        if closure:
            closure()
        self.seen.append(_state._last.spoilt)


@pytest.mark.parametrize("closure, seen", [(None, [True, True]), (lambda: 0, [False, True])])
def test_a_step_spoils_what_a_commit_has_borrowed_once_gradients_are_there(monkeypatch, closure, seen):
    """A closure asks the other ranks: where it fails, nothing has changed yet."""
    monkeypatch.setattr(_state, "_last", _state._Commit(1, b"", [], {0}))
    optimizer = Optimizer()
    _state.watch_steps(optimizer)
    _state.watch_steps(optimizer)
    optimizer.step(closure) if closure else optimizer.step()
    assert optimizer.seen == seen
    monkeypatch.setattr(_state, "_last", _state._Commit(1, b"", [], set()))
    optimizer.step()
    assert not any(optimizer.seen), "all is copied"


class Tensor:
    """What a commit asks of one."""

    shape, dtype, device = (1,), "f", types.SimpleNamespace(type="cpu")

    def __init__(self, value, room=True):
        self.value, self.room = value, room

    def detach(self):
        return self

    def data_ptr(self):
        return id(self)

    def clone(self):
        return Tensor(self.value)

    def copy_(self, other):
        if not other.room:
            raise MemoryError
        self.value = other.value
        return self


class Part:
    def state_dict(self):
        return self.tensors

    def load_state_dict(self, tensors):
        self.tensors = tensors


def test_a_commit_that_fails_halfway_leaves_no_mixture(monkeypatch):
    """The memory of the one before is used again."""
    none = types.SimpleNamespace(Module=(), Optimizer=())
    monkeypatch.setattr(_state._tensors, "torch", lambda: types.SimpleNamespace(Tensor=Tensor, nn=none, optim=none))
    monkeypatch.setattr(_state, "_last", None)
    part = Part()
    state = _state.State(part)
    part.tensors = [Tensor(1), Tensor(1)]
    state._take(1)
    assert not _state._last.spoilt
    part.tensors = [Tensor(2), Tensor(2, room=False)]
    with pytest.raises(MemoryError):
        state._take(2)
    _state._spoil()
    assert _state._last.spoilt and [t.value for t in _state._last.tensors] == [2, 1]
    part.tensors = [Tensor(3), Tensor(3)]
    state._take(3)
    assert not _state._last.spoilt and _state._last.step == 3


# --- the data of ranks that come and go


@pytest.fixture
def as_rank(monkeypatch):
    """as_rank(rank, world): what info() says from then on"""
    from crun import _lib
    return lambda rank, world: monkeypatch.setattr(_lib, "_attached", types.SimpleNamespace(info=CInfo(rank, world, rank, world, 0, 1, 1, 0, b"", b"")))


def test_each_sample_comes_once_in_an_epoch_whatever_the_ranks(as_rank):
    """Of 50 samples, 16 a step: by 4 ranks, then 3, then 5, and a loader that fetches ahead of the commits."""
    from crun import Sampler
    taken, state = [], None
    for world, steps in (4, 5), (3, 7), (5, 13):
        samplers = [Sampler(range(50), batch_size=16, seed=3) for _ in range(world)]
        for rank, sampler in enumerate(samplers):
            as_rank(rank, world)
            if state:
                sampler.load_state_dict(state)
        for _ in range(steps):
            batch = []
            for rank, sampler in enumerate(samplers):
                as_rank(rank, world)
                ahead = iter(sampler)
                batch.append(next(ahead))
                next(ahead, None)
                sampler.crun_committed()
            assert {len(part) for part in batch} <= {16 // world, 16 // world + 1}
            taken += sum(batch, [])
        state = samplers[0].state_dict()
    assert state["done"] == 25 and samplers[0].epoch == 8 and len(samplers[0]) == 4  # batches 25 to 28 begin before sample 450
    epochs = [taken[50 * e:50 * e + 50] for e in range(8)]
    assert all(sorted(e) == list(range(50)) for e in epochs) and epochs[0] != epochs[1]
    as_rank(0, 1)
    plain = Sampler(50, batch_size=20, shuffle=False)
    assert [list(b) for b in plain] == [[*range(20)], [*range(20, 40)], [*range(40, 50), *range(10)]]


def test_a_sampler_says_what_it_cannot_do(as_rank):
    from crun import Sampler
    as_rank(0, 4)
    with pytest.raises(ValueError, match="batch_size 3: expected 4 or more, a sample for each rank"):
        next(iter(Sampler(50, batch_size=3)))
    with pytest.raises(ValueError, match="samples 0: expected 1 or more"):
        Sampler([], batch_size=3)
    with pytest.raises(ValueError, match="samples 50: the state that it is given has 60"):
        Sampler(50, batch_size=4).load_state_dict(Sampler(60, batch_size=4).state_dict())


def test_inprocess_takes_a_function_or_growing():
    from crun import inprocess
    assert inprocess(growing=True)(len).__name__ == inprocess(len).__name__ == "len"
    with pytest.raises(TypeError, match="crun.inprocess: int: expected a function"):
        inprocess(3)
