"""Workers that outlive their rounds: those that are left go on in the same process when another one dies."""
import collections
import os
import re
import signal
import struct

import pytest

from processes import state, wait
from test_libcrun import LIBCRUN, build

pytestmark = pytest.mark.skipif(not os.path.exists(LIBCRUN), reason="libcrun.so is not built")
BEGINS = re.compile(r"rank (\d) \(pid (\d+)\): round (\d+) begins after step (\d+)")


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    return build("rounds.c", tmp_path_factory.mktemp("example") / "rounds")


class Job:
    """A crun that runs the example; who said what is read from a file as it comes."""

    def __init__(self, crun, *args, **kw):
        self.crun, self.out = crun, open(crun.tmp / "out", "wb")
        self.p = crun.start("--nproc_per_node", 4, "--log-prefix=off", "--hold-timeout", 60, *args, stdout=self.out, **kw)

    def said(self):
        """-> {round: {rank: (pid, step)}}"""
        found = collections.defaultdict(dict)
        for rank, pid, n, step in BEGINS.findall((self.crun.tmp / "out").read_text()):
            found[int(n)][int(rank)] = (int(pid), int(step))
        return found

    def in_round(self, n, ranks=4):
        wait(f"round {n}", lambda: len(self.said()[n]) == ranks)
        return {rank: pid for rank, (pid, _) in self.said()[n].items()}

    def end(self):
        _, err = self.p.communicate(timeout=90)
        self.out.close()
        return self.p.returncode, (self.crun.tmp / "out").read_text(), err.decode()


def steps_of(pid):
    """What its shared page says (common/crun/crun_page.h)."""
    for fd in os.scandir(f"/proc/{pid}/fd"):
        if "crun-page" in os.readlink(fd.path):
            return struct.unpack_from("Q", open(fd.path, "rb").read(32), 24)[0]


def sums(out, steps, ranks=4):
    return sorted(re.findall(r"^rank \d of .*", out, re.M)) == [f"rank {r} of {ranks}: {steps} steps, sum {steps * ranks * (ranks + 1) // 2}" for r in range(ranks)]


@pytest.mark.parametrize("victim", [0, 2])
def test_the_others_keep_their_processes_and_lose_no_step(crun, rounds, victim):
    job = Job(crun, "--max-restarts", 3, *rounds, 300)
    before = job.in_round(1)
    os.kill(before[victim], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0, err
    assert sums(out, 300), out
    assert {r for r in range(4) if before[r] != after[r]} == {victim}
    assert len({step for _, step in job.said()[2].values()}) == 1, "they settle on the furthest"
    assert f"restart 1/3 (rank {victim} killed by SIGKILL), kept 3 workers: detect" in err


def test_many_deaths_one_after_another(crun, rounds):
    job = Job(crun, "--max-restarts", 50, "--restart-backoff", 0, *rounds, 1000)
    pids = job.in_round(1)
    for n in range(12):
        os.kill(pids[n % 4], signal.SIGKILL)
        after = job.in_round(n + 2)
        assert {r for r in range(4) if pids[r] != after[r]} == {n % 4}
        pids = after
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 1000), err


def test_two_at_once(crun, rounds):
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 0, *rounds, 300)
    before = job.in_round(1)
    with crun.stopped(crun.agent_of(job.p.pid)):
        for r in 1, 3:
            os.kill(before[r], signal.SIGKILL)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300), err
    last = job.said()[max(job.said())]
    assert [last[r][0] == before[r] for r in range(4)] == [True, False, True, False]


def test_all_at_once_is_an_ordinary_restart(crun, rounds):
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 0, *rounds, 200)
    before = job.in_round(1)
    with crun.stopped(crun.agent_of(job.p.pid)):
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 200), err
    assert "kept" not in err


def sockets(pid):
    return sum(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in os.listdir(f"/proc/{pid}/fd"))


def test_a_warm_spare_takes_the_place_and_writes_where_its_rank_writes(crun, tmp_path, rounds):
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 0, "--warm-spares", 1, "--log-dir", tmp_path / "logs", *rounds, 400)
    known = set()
    pids = job.in_round(1)
    for n in range(3):
        spare = wait_for_spare(crun)
        os.kill(pids[n + 1], signal.SIGKILL)
        after = job.in_round(n + 2)
        assert {r for r in range(4) if pids[r] != after[r]} == {n + 1}
        assert after[n + 1] == spare, "no process was started for it"
        wait("as many sockets as others have", lambda: sockets(spare) == sockets(after[0]))
        known |= set(after.values())
        pids = after
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 400), err
    assert err.count("kept 3 workers") == 3
    texts = {p.read_text() for p in (tmp_path / "logs").rglob("*") if p.is_file()}
    for r in 1, 2, 3:
        assert any(f"rank {r} of 4: 400 steps" in t and f"rank {r} (pid {pids[r]}): round" in t and f"rank {r % 3 + 1} of" not in t for t in texts), texts


def of_proc(pid, name):
    """b"": it is gone"""
    try:
        return open(f"/proc/{pid}/{name}", "rb").read()
    except OSError:
        return b""


def spares_of(crun):
    """And workers that were."""
    return [pid for pid in crun.programs() if b"CRUN_SPARE=1" in of_proc(pid, "environ")]


def wait_for_spare(crun):
    """-> pid of one that waits for a round"""
    def waits():
        return next((pid for pid in spares_of(crun) if b"futex" in of_proc(pid, "wchan") and pid not in taken), None)

    wait("a warm spare", lambda: waits() is not None)
    pid = waits()
    taken.add(pid)
    parent = int(of_proc(pid, "stat").rsplit(b")", 1)[1].split()[1])
    wait("its agent to know it", lambda: rests(parent))
    return pid


def rests(pid):
    """All of its threads wait, the first one behind the others: what they have told it is done."""
    return all(state(tid) == "S" for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task")), reverse=True))


taken = set()


def test_a_spare_that_somebody_stopped_is_passed_over(crun, rounds):
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 0, "--warm-spares", 1, *rounds, 400)
    pids = job.in_round(1)
    spare = wait_for_spare(crun)
    os.kill(spare, signal.SIGSTOP)
    wait("its stop", lambda: of_proc(spare, "stat").rpartition(b") ")[2].startswith(b"T"))
    os.kill(pids[1], signal.SIGKILL)
    after = job.in_round(2)
    assert after[1] not in (spare, pids[1]) and all(after[r] == pids[r] for r in (0, 2, 3))
    os.kill(spare, signal.SIGCONT)
    os.kill(after[2], signal.SIGKILL)
    assert job.in_round(3)[2] == spare, "it waits as before"
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 400), err


def test_a_spare_of_a_program_that_knows_of_none_harms_nobody(crun):
    rc, out, err = crun.run("--nproc_per_node", 2, "--max-restarts", 3, "--warm-spares", 2, "--log-prefix=off", "sh", "-c",
                            'test "$RANK" -ge 0 || exit 3; echo rank $RANK; sleep 0.5')
    assert rc == 0 and sorted(out.split()) == ["0", "1", "rank", "rank"], err


def test_a_spare_that_ended_is_started_again_with_the_next_round(crun, tmp_path, rounds):
    script = tmp_path / "ends_once.sh"
    script.write_text(f'#!/bin/sh\n[ "$CRUN_SPARE" = 1 ] && mkdir {tmp_path}/ended 2>/dev/null && exit 3\nexec "$@"\n')
    script.chmod(0o755)
    job = Job(crun, "--max-restarts", 9, "--warm-spares", 1, script, *rounds, 100000)
    before = job.in_round(1)
    wait("the end of the spare", (tmp_path / "ended").exists)
    wait("its burial", lambda: not spares_of(crun))
    os.kill(before[1], signal.SIGKILL)
    job.in_round(2)
    wait_for_spare(crun)
    job.p.send_signal(signal.SIGTERM)
    rc, out, err = job.end()
    assert "exited with code 3 before it was needed; this round has one spare less" in err, err


def test_spares_end_with_the_last_worker_that_was_held(crun, rounds):
    """Nobody is left whose places and pipes they could take: the round that follows has spares of its own."""
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 4, "--warm-spares", 1, *rounds, 100000)
    first = job.in_round(1)
    os.kill(first[1], signal.SIGKILL)  # the first restart does not wait
    second = job.in_round(2)
    spare = wait_for_spare(crun)
    os.kill(second[0], signal.SIGKILL)
    wait("the others to be held", lambda: len(crun.programs()) == len(crun.own(job.p.pid)) + 3 + 1)
    for pid in (second[r] for r in (1, 2, 3)):
        os.kill(pid, signal.SIGKILL)
    wait("the end of the spare", lambda: spare not in crun.processes())
    job.in_round(3)
    assert wait_for_spare(crun) != spare and len(spares_of(crun)) == 1
    job.p.send_signal(signal.SIGTERM)
    job.end()
    assert crun.processes() == []


@pytest.mark.parametrize("words, why", [
    (["--virtual-local-rank", "true"], "--virtual-local-rank and --warm-spares contradict each other"),
    (["echo", "${rank}"], "a spare has no rank when it starts"),
    (["echo", "x${local_rank}"], "a spare has no rank when it starts"),
    (["--no-use-env", "--run-path", "x.py"], "(--use-env leaves out --local-rank)")])
def test_spares_and_what_differs_between_ranks_from_their_start_are_refused(crun, words, why):
    """Two ranks would get one GPU, or a spare goes on as rank -1."""
    (crun.tmp / "x.py").touch()
    rc, out, err = crun.run("--max-restarts", 1, "--warm-spares", 1, *words, cwd=crun.tmp)
    assert rc == 2 and out == "" and why in err, err


def test_where_no_spare_starts_all_of_that_is_taken(crun):
    rc, out, err = crun.run("--warm-spares", 1, "--virtual-local-rank", "--log-prefix=off", "echo", "${rank}")
    assert (rc, out) == (0, "0\n") and "--warm-spares" in err, err
    rc, out, err = crun.run("--warm-spares", 1, "--max-restarts", 1, "--log-prefix=off", "echo", "$${rank}")
    assert (rc, out) == (0, "${rank}\n"), err


def test_with_recovery_restart_nobody_is_held(crun, rounds):
    job = Job(crun, "--max-restarts", 3, "--recovery", "restart", *rounds, 300)
    before = job.in_round(1)
    os.kill(before[1], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300), err
    assert not set(before.values()) & set(after.values()) and "kept" not in err


def test_who_does_not_let_go_is_killed_and_replaced(crun, rounds):
    job = Job(crun, "--max-restarts", 3, "--hold-timeout", 0.3, *rounds, 200)
    before = job.in_round(1)
    os.kill(before[3], signal.SIGSTOP)  # it will not hear that it is to let go
    os.kill(before[0], signal.SIGKILL)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 200), err
    assert before[0] != after[0] and before[3] != after[3]
    assert "some workers did not let go of the broken round within 0.3 s; killing them" in err


def test_a_worker_that_hangs_is_replaced(crun, rounds):
    job = Job(crun, "--max-restarts", 3, "--hang-timeout", 4, *rounds, 300)
    before = job.in_round(1)
    wait("some steps", lambda: steps_of(before[2]) >= 10)  # before the first one nobody knows how long it may take
    os.kill(before[2], signal.SIGSTOP)
    after = job.in_round(2)
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 300), err
    assert [before[r] == after[r] for r in range(4)] == [True, True, False, True]
    assert "restart 1/3 (rank 2 hung " in err and "kept 3 workers" in err


def test_without_restarts_left_the_job_fails_with_the_culprits_code(crun, rounds):
    job = Job(crun, "--max-restarts", 1, "--restart-backoff", 0, *rounds, 100000)
    os.kill(job.in_round(1)[1], signal.SIGKILL)
    os.kill(job.in_round(2)[2], signal.SIGKILL)
    rc, out, err = job.end()
    assert rc == 137, err
    assert re.search(r"rank 2.*SIGKILL", err), err
    assert crun.processes() == []


def test_a_stop_signal_while_they_are_held(crun, rounds):
    """A restart that waits: nobody else is there to go on, and the job ends in good order."""
    job = Job(crun, "--max-restarts", 9, "--restart-backoff", 30, *rounds, 100000)
    os.kill(job.in_round(1)[1], signal.SIGKILL)
    before = job.in_round(2)
    os.kill(before[2], signal.SIGKILL)
    wait("the others to be held", lambda: len(crun.programs()) == len(crun.own(job.p.pid)) + 3)
    job.p.send_signal(signal.SIGTERM)
    rc, out, err = job.end()
    assert rc in (75, 143), err  # the example has no handler: SIGTERM ends it
    assert crun.processes() == []


def test_what_a_dead_worker_left_is_gone_before_the_next_round(crun, tmp_path, rounds):
    script = tmp_path / "leaves.sh"
    script.write_text('#!/bin/sh\n(setsid sleep 1000 &)\nexec "$@"\n')
    script.chmod(0o755)
    job = Job(crun, "--max-restarts", 3, script, *rounds, 200)
    before = job.in_round(1)
    os.kill(before[1], signal.SIGKILL)
    after = job.in_round(2)
    left = [pid for pid in crun.processes() if (open(f"/proc/{pid}/comm").read().strip() == "sleep")]
    rc, out, err = job.end()
    assert rc == 0 and sums(out, 200), err
    assert [before[r] == after[r] for r in range(4)] == [True, False, True, True]
    assert len(left) <= 1, "daemons have no parent among the workers: only the newcomer's own is there"


def test_nodes_that_are_left_go_on_with_a_smaller_world(crun, rounds):
    """The node that hosts nothing dies whole: ranks and world of the other's workers change in the same processes."""
    port = crun.port()
    ends = ["--hold-timeout", 60, "--nnodes", "1:2", "--rdzv_endpoint", f"127.0.0.1:{port}", "--max-restarts", 3, "--rdzv-conf", "last_call_timeout=1"]
    first = crun.start("--nproc_per_node", 2, "--log-prefix=off", *ends, "--rdzv-id", "j", *rounds, 400, stdout=(out := open(crun.tmp / "out", "wb")),
                       stderr=open(crun.tmp / "err", "wb"))
    wait("the host", lambda: "this crun hosts the rendezvous" in (crun.tmp / "err").read_text())
    second = crun.start("--nproc_per_node", 2, "--log-prefix=off", *ends, "--rdzv-id", "j", *rounds, 400, stdout=out)
    job = Job.__new__(Job)
    job.crun, job.p, job.out = crun, first, out
    wait("both nodes", lambda: any(len(r) == 4 for r in job.said().values()))
    n = next(k for k, r in job.said().items() if len(r) == 4)
    before = job.in_round(n)
    os.kill(crun.agent_of(second.pid), signal.SIGKILL)
    after = job.in_round(n + 1, ranks=2)
    second.communicate()
    assert first.wait(timeout=90) == 0, (crun.tmp / "err").read_text()
    out.close()
    text = (crun.tmp / "out").read_text()
    kept = {pid for pid in before.values()} & set(after.values())
    assert len(kept) == 2 and "rank 1 of 2" in text
