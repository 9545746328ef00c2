"""A worker with a stand-in for NCCL's RAS: the protocol of its clients, and its JSON, made from a short form.

    ras_stand_in.py FOLDER FORM [RANK=HOW ...]

FORM says what all ranks have launched, as in tests/launcher/witness/test_witness.c: "a: 0=r10 1=r9 2!; b: ...". HOW a
rank behaves, words with commas between them:
    poll       as ranks that wait for NCCL do: uses the processor (else it sleeps)
    stop       stops itself by a signal
    silent     takes the question, and never answers it
    dies       closes the connection within the answer
    garbage    answers with what is no JSON
    stranger   answers for another job
    absent     listens nowhere
    http       is another program's server
    drip       answers byte by byte
    moves      one more launch in each answer
    2.28.9     this version of NCCL; before 2.28.7 it knows no JSON
Nothing is read or written once all have begun: that would be a sign of life."""
import json
import os
import pathlib
import re
import signal
import socket
import sys
import threading
import time

FUNCTIONS = {"r": "AllReduce", "g": "AllGather"}
STRANGER = 1  # a process id: that of init


def rank_of(word, pids, more):
    rank, how = re.fullmatch(r"(\d+)(.*)", word).groups()
    here = {"rank": int(rank), "host": "127.0.0.1", "pid": pids[int(rank)], "cuda_dev": 0, "nvml_dev": 0}
    if how[0] != "=":
        return None, here | {"status": {"unresponsive": how == "!", "considered_dead": how == "X"}}
    counts = dict.fromkeys(["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"], 0)
    counts |= {FUNCTIONS[kind]: int(n) + more for kind, n in re.findall(r"([rg])(\d+)", how)}
    status = {"init_state": 7 if how[-1] == "i" else 0, "async_error": 0, "finalize_called": how[-1] == "f", "destroy_flag": False, "abort_flag": False}
    return here | {"status": status, "collective_counts": counts}, None


def answer(form, version, pids, more=0):
    comms = []
    for comm in filter(str.strip, form.split(";")):
        name, words = comm.split(":")
        ranks, missing = zip(*(rank_of(word, pids, more) for word in words.split()))
        ranks, missing = list(filter(None, ranks)), list(filter(None, missing))
        comms.append({"hash": "0x" + name.strip(), "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e", "size": len(words.split()),
                      "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing})
    whole = {"nccl_version": version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-01-01 00:00:00",
             "communicators_count": len(comms), "communicators": comms, "ras": {"collection_time_sec": 0.001, "timeouts_count": 0}}
    return json.dumps(whole, indent=2).encode() + b"\n"


class Server:
    def __init__(self, form, how, pids):
        self.form, self.how, self.pids, self.asked = form, how, pids, 0
        self.version = next((word for word in how if word[:1].isdigit()), "2.29.7")
        host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
        self.s = socket.create_server((host, int(port)))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            c, _ = self.s.accept()
            try:
                self.talk(c)
            except OSError:
                pass
            c.close()

    def talk(self, c):
        if "http" in self.how:
            c.recv(4096)
            c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        text = b""
        while data := c.recv(4096):
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                if self.obey(c, line.decode().lower()):
                    return

    def obey(self, c, line):
        """-> it is over"""
        knows_json = [int(n) for n in self.version.split(".")] >= [2, 28, 7]
        if line.startswith("client protocol "):
            c.sendall(b"SERVER PROTOCOL 2\n")
        elif line == "set format json" and knows_json:
            c.sendall(b"OK\n")
        elif line == "status":
            self.tell(c)
            return True
        else:
            c.sendall(b"ERROR: Unknown command " + line.encode() + b"\n")
        return False

    def tell(self, c):
        pids = dict.fromkeys(self.pids, STRANGER) if "stranger" in self.how else self.pids
        text = answer(self.form, self.version, pids, self.asked if "moves" in self.how else 0)
        self.asked += 1
        if "silent" in self.how:
            c.recv(1)  # until whoever asks gives up
        elif "dies" in self.how:
            c.sendall(text[:len(text) // 2])
        elif "garbage" in self.how:
            c.sendall(b"Job summary\n===========\n\x00\xff{")
        elif "drip" in self.how:
            for i in range(0, len(text), 97):
                c.sendall(text[i:i + 97])
                time.sleep(0.001)
        else:
            c.sendall(text)


def ask(address, seconds=30):
    """What `ncclras -f json` asks. -> the answer"""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), seconds) as s:
        s.settimeout(seconds)
        lines = s.makefile("rb")
        for line, answer in (b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL"), (b"SET FORMAT json\n", b"OK"):
            s.sendall(line)
            assert (said := lines.readline()).startswith(answer), said
        s.sendall(b"STATUS\n")
        return json.loads(lines.read())


def meet(folder, rank, world):
    """-> process ids by rank, once all are there"""
    (folder / f"pid-{rank}.new").write_text(str(os.getpid()))
    (folder / f"pid-{rank}.new").rename(folder / f"pid-{rank}")
    while not all((folder / f"pid-{r}").exists() for r in range(world)):
        time.sleep(0.01)
    return {r: int((folder / f"pid-{r}").read_text()) for r in range(world)}


def main(folder, form, *behaviours):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    how = dict(b.split("=", 1) for b in behaviours).get(str(rank), "").split(",")
    pids = meet(pathlib.Path(folder), rank, world)
    if "absent" not in how:
        Server(form, how, pids)
    if "stop" in how:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        begun = time.thread_time()
        while "poll" in how and time.thread_time() - begun < 0.01:
            pass
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
