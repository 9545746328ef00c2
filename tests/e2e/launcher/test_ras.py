"""NCCL's RAS as a witness: a stand-in answers, and a real crun names whom the others wait for."""
import pathlib
import re

import pytest

from ras_stand_in import ask
from support import free_port
from test_hang import Console

STAND_IN = pathlib.Path(__file__).parents[2] / "support" / "ras_stand_in.py"
POLL = [f"{r}=poll" for r in (0, 2, 3)]
LATE = "27a079b828ff1a75: 0=r6650 1=r6649 2=r6650 3=r6650"
LATE_TEXT = r"rank 1 has not launched all-reduce 6,650 of communicator 27a079b828ff1a75; 3 ranks wait in it; no sign of life for \d+ s"


def environment(pid):
    return dict(v.split("=", 1) for v in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if v)


@pytest.fixture
def start(crun):
    def begin(form, *how, ranks=4, options=(), env={}):
        return Console(crun.start("--nproc_per_node", ranks, "--hang-witness", "ras:1", *options, STAND_IN, crun.tmp, form, *how, extra_env=env))
    return begin


def test_a_late_rank_is_named_and_then_its_signs_alone_decide(crun, start):
    logs = crun.tmp / "logs"
    c = start(LATE, *POLL, options=["--hang-timeout", 3, "--log-dir", logs, "--run-id", "h"])
    c.wait(LATE_TEXT)
    c.wait(r"what all threads of 4 workers were doing: .*hang-rank-1.txt")  # before anything is ended
    c.wait(r"rank 1 has not launched .* and no sign of life has come for [\d.]+ s: rank 1 waits in \S+")
    assert c.end() == 124, c.text()
    assert re.search(r"rank 1 hung in \S+", c.text()), c.text()
    assert len(list((logs / "h" / "round-1").glob("hang-rank-*.txt"))) == 4


def test_without_a_time_it_is_named_and_goes_on(crun, start):
    """And whoever asks as ncclras does is answered by each worker at its own address."""
    c = start(LATE, *POLL)
    c.wait(LATE_TEXT)
    c.wait(r"what all threads of 4 workers were doing|not known")
    assert c.p.poll() is None
    asked = [ask(environment(int((crun.tmp / f"pid-{r}").read_text()))["NCCL_RAS_ADDR"]) for r in range(4)]
    assert all(a["communicators"][0]["ranks"][1]["collective_counts"]["AllReduce"] == 6649 for a in asked)
    c.p.terminate()
    c.end()


@pytest.mark.parametrize("form, text", [
    ("a: 0=r10 1!", "NCCL's RAS does not reach the process of rank 1; no sign"),
    ("a: 0=r10 1X", "NCCL's RAS does not reach the process of rank 1; no sign"),
    ("a: 0=r10 1=r9; b: 0=r5 1=r4", "rank 1 has not launched all-reduce 10 of communicator a; 1 rank waits in it; no sign"),
    ("a: 1=r3 0=r3; b: 0=r5 1=r5; c: 1=g7 0=g8", "rank 1 has not launched all-gather 8 of communicator c; 1 rank waits in it; no sign"),
    ("a: 0=r10,g4 1=r9,g5", "rank 1 launched all-gather 5 of communicator a where 1 rank launched all-reduce 10; no sign"),
])
def test_each_kind_of_culprit_is_named(start, form, text):
    c = start(form, "0=poll", "1=2.30.7", ranks=2)
    c.wait(re.escape(text))
    c.p.terminate()
    c.end()


def test_a_stopped_rank_is_asked_first_and_the_next_one_answers(start):
    c = start("a: 0! 1=r10", "0=stop", "1=poll", ranks=2, options=["--hang-timeout", 4])
    c.wait(r"NCCL's RAS does not reach the process of rank 0; no sign of life")
    c.wait(r"rank 0 stopped by a signal")
    assert c.end() == 124, c.text()


def test_a_worker_that_answers_is_found_behind_those_that_do_not(start):
    """One for each way not to."""
    c = start("a: 0=r10 1=r10 2=r10 3=r10 4=r10 5=r9", "0=garbage,poll", "1=dies,poll", "2=stranger,poll", "3=http,poll", "4=absent,poll",
              "5=drip", ranks=6)
    c.wait(r"rank 5 has not launched all-reduce 10 of communicator a; 5 ranks wait in it")
    assert "no witness" not in c.text()
    c.p.terminate()
    c.end()


def test_one_that_never_answers_is_given_up(start):
    """After 15 s, which nothing here uses."""
    c = start("a: 0=r10 1=r9", "0=silent", ranks=2)
    c.wait(r"rank 1 has not launched all-reduce 10")
    c.p.terminate()
    c.end()


@pytest.mark.parametrize("how, text", [
    ("2.28.3", r"NCCL's RAS is no witness here: 127\.\d+\.\d+\.1:28028: it answers no JSON, so NCCL is older than 2\.28\.7"),
    ("2.28.9", r"NCCL's RAS is no witness here: NCCL 2\.28\.9; from 2\.29\.2 on it is asked"),
    ("garbage", r"NCCL's RAS is no witness here: 127\S+: that is not NCCL's RAS: .*zero byte"),
    ("stranger", r"NCCL's RAS is no witness here: 127\S+: the RAS there knows no process of this job"),
    ("absent", r"NCCL's RAS is no witness here: 127\S+: nobody listens there"),
])
def test_why_it_is_no_witness_is_said_once_and_signs_decide(start, how, text):
    c = start("a: 0=r10 1=r9", f"0={how}", f"1={how}", ranks=2, options=["--hang-timeout", 3])
    c.wait(text)
    c.wait(r"no worker has given a sign of life for")
    assert c.end() == 124 and c.text().count("no witness") == 1 and "has not launched" not in c.text(), c.text()


def test_where_it_is_switched_off_that_is_said(start):
    c = start("a: 0=r10 1=r9", "0=absent", "1=absent", ranks=2, options=["--hang-timeout", 2], env={"NCCL_RAS_ENABLE": "0"})
    c.wait(r"NCCL's RAS is no witness here: NCCL_RAS_ENABLE is 0")
    assert c.end() == 124, c.text()


def test_all_alike_it_cannot_tell_and_ends_nothing(start):
    """Neither while they poll, nor when their counts move; signs of life do."""
    c = start("a: 0=r10 1=r10", ranks=2, options=["--hang-timeout", 3])
    c.wait(r"no worker has given a sign of life for .*\. NCCL's RAS cannot tell: all ranks have launched the same collectives")
    c.wait(r"rank 0, main thread|what all threads|not known")
    assert c.end() == 124, c.text()


@pytest.mark.parametrize("form", ["a: 0=r10 1=r9i", "a: 0=r10f 1=r9", "a: 0=r10 1?"])
def test_a_communicator_that_is_made_or_ends_names_nobody(start, form):
    c = start(form, ranks=2, options=["--hang-timeout", 2])
    c.wait(r"no worker has given a sign of life for .*\. NCCL's RAS knows of no communicator that is whole")
    assert c.end() == 124 and "has not launched" not in c.text(), c.text()


def test_counts_that_move_name_nobody(crun, start):
    c = start("a: 0=r10 1=r9", "0=moves", "1=moves", ranks=2, options=["--hang-timeout", 4])
    c.wait(r"no worker has given a sign of life for")
    assert c.end() == 124 and "has not launched" not in c.text(), c.text()


def test_the_ranks_of_another_node_are_named(crun):
    """Group rank 0's node asks; the process ids of the other one have come with its reports."""
    port = free_port()
    both = [Console(crun.start("--nnodes", 2, "--node-rank", i, "--nproc_per_node", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two",
                               "--hang-witness", "ras:1", "--hang-timeout", 4, STAND_IN, crun.tmp,
                               "a: 0=r10 1=r10 2=r10 3=r9", "0=poll", "1=poll", "2=poll")) for i in range(2)]
    both[0].wait(r"rank 3 has not launched all-reduce 10 of communicator a; 3 ranks wait in it; no sign of life")
    both[1].wait(r"no worker of the job has given a sign of life for [\d.]+ s; rank 3 hung in")
    assert [c.end() for c in both] == [124, 124], both[0].text() + both[1].text()


RECORDER = """
import http.server, json, os, socketserver, sys, threading, time
rank, path, sizes = os.environ["RANK"], os.environ.get("TORCH_WORKER_SERVER_SOCKET"), sys.argv[1].split(",")
calls = [{"collective_seq_id": i, "input_dtypes": ["Float"], "input_sizes": [[4 if i < 3 else int(sizes[int(rank)])]], "is_p2p": False,
          "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce", "state": "scheduled"} for i in range(1, 5)]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = b'{"version":"2.10"}' if "nccl" not in self.path else json.dumps({"entries": calls, "version": "2.10"}, separators=(",", ":")).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def address_string(self):
        return "unix"

    def log_message(self, *args):
        pass

if path:
    threading.Thread(target=socketserver.ThreadingUnixStreamServer(path, Handler).serve_forever, daemon=True).start()
if stem := os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
    os.mkfifo(f"{stem}{rank}.pipe")
    pipe = os.open(f"{stem}{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    def serve():
        while True:
            time.sleep(0.05)
            try:
                if os.read(pipe, 10):
                    open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "w").write("a pickle")
            except BlockingIOError:
                pass
    threading.Thread(target=serve, daemon=True).start()
elif not path:
    open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "w").write("a pickle")
time.sleep(600)
"""


@pytest.fixture
def recorded(crun):
    (crun.tmp / "recorder.py").write_text(RECORDER)

    def begin(sizes, setting):
        c = Console(crun.start("--nproc_per_node", 4, "--hang-timeout", 2, "--log-dir", crun.tmp / "logs", "--run-id", "f", "--no-python", "sh", "-c",
                               f"{setting} exec python3 {crun.tmp / 'recorder.py'} {sizes}"))
        c.wait("no worker has given a sign of life")
        assert c.end() == 124, c.text()
        return c.text(), crun.tmp / "logs" / "f" / "round-1"
    return begin


def test_the_call_that_differs_is_named_from_the_flight_recorder(crun, recorded):
    said, folder = recorded("4,4,8,4", f"TORCH_WORKER_SERVER_SOCKET={crun.tmp}/$RANK.sock")
    assert 'rank 2 calls nccl:all_reduce 3 of group default_pg with ["Float"] [[8]]; 3 ranks call nccl:all_reduce with ["Float"] [[4]]' in said
    assert f"Flight Recorder, by the debug sockets of 4 workers: {folder}/flight-rank-0.json and beside it" in said
    assert all('"nccl:all_reduce"' in (folder / f"flight-rank-{r}.json").read_text() for r in range(4))


def test_calls_that_are_alike_are_not_named(crun, recorded):
    said, _ = recorded("4,4,4,4", f"TORCH_WORKER_SERVER_SOCKET={crun.tmp}/$RANK.sock")
    assert "by the debug sockets of 4 workers" in said and " calls " not in said


def test_a_dump_is_asked_for_by_the_pipe(crun, recorded):
    said, folder = recorded("4,4,4,4", f"TORCH_NCCL_DEBUG_INFO_PIPE_FILE={crun.tmp}/pipe-")
    assert f"Flight Recorder, a dump that was asked for by the pipes of 4 workers: {folder}/nccl-trace-rank-0 and beside it" in said
    assert any((folder / f"nccl-trace-rank-{r}").exists() for r in range(4))


def test_a_dump_that_is_there_is_named(recorded):
    said, folder = recorded("4,4,4,4", "")
    assert f"Flight Recorder, a dump that PyTorch wrote for 4 workers: {folder}/nccl-trace-rank-0 and beside it" in said
