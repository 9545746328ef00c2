"""Each key behaves as if all requests on it had happened one after the other, each at some moment between its sending and its answer."""
import collections
import pathlib
import random
import signal
import sys
import threading
import time

import pytest

from daemon import Client, Daemon

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "fault"))

from proxy import Proxy  # noqa: E402

CLIENTS, KEYS, TURNS = 16, 16, 250
NEVER = float("inf")


def apply(state, op):
    """(what op answers, the state after it). state: the value, None if there is none."""
    what, *args = op
    if what == "GET":
        return state, state
    if what == "SET":
        return "OK", args[0]
    if what == "DEL":
        return int(state is not None), None
    if what == "APPEND":
        new = (state or "") + args[0]
        return len(new), new
    if what == "STORE.CAS":
        held = args[2] if state == args[1] else state
        return [int(state == args[1]), held], held
    if what == "INCRBY":
        return int(state or 0) + args[0], str(int(state or 0) + args[0])
    if what == "STORE.WAIT":  # 1: it was there at some moment; 0: it was not when the time was over
        return int(state is not None), state
    assert what == "SETNX"
    return int(state is None), args[0] if state is None else state


def linearizable(history):
    """history: (began, ended, op, answer) of one key; ended NEVER: no answer came, it may have happened or not. Depth-first search over what may
    have been next, remembering what was tried."""
    history = sorted(history)
    done_mask = sum(1 << i for i, h in enumerate(history) if h[1] != NEVER)
    tried = set()

    def search(mask, state):
        if mask & done_mask == done_mask:
            return True
        if (mask, state) in tried:
            return False
        tried.add((mask, state))
        soonest = min(h[1] for i, h in enumerate(history) if not mask >> i & 1)
        for i, (began, ended, op, answer) in enumerate(history):
            if began > soonest:
                break
            if mask >> i & 1:
                continue
            got, after = apply(state, op)
            if (ended == NEVER or got == answer) and search(mask | 1 << i, after):
                return True
        return False
    return search(0, None)


def test_the_checker_finds_what_is_wrong():
    assert linearizable([(0, 1, ("SET", "a"), "OK"), (2, 3, ("GET",), "a")])
    assert linearizable([(0, 5, ("SET", "a"), "OK"), (1, 2, ("GET",), "a"), (3, 4, ("GET",), "a")])
    assert not linearizable([(0, 1, ("SET", "a"), "OK"), (2, 3, ("GET",), None)])  # stale
    assert not linearizable([(0, 9, ("SET", "a"), "OK"), (1, 2, ("GET",), "a"), (3, 4, ("GET",), None)])  # and back again
    assert not linearizable([(0, 3, ("SETNX", "a"), 1), (1, 2, ("SETNX", "b"), 1)])  # both won
    assert not linearizable([(0, 1, ("SET", "a"), "OK"), (2, 5, ("STORE.CAS", "1", "a", "b"), [1, "b"]), (3, 4, ("STORE.CAS", "1", "a", "c"), [1, "c"])])
    assert linearizable([(0, NEVER, ("SET", "a"), None), (1, 2, ("GET",), None), (3, 4, ("GET",), "a")])  # happened late
    assert not linearizable([(0, NEVER, ("SET", "a"), None), (1, 2, ("GET",), "a"), (3, 4, ("GET",), None)])


def test_every_key_is_linearizable_beside_pauses_and_clients_that_die():
    seed = random.randrange(1 << 30)
    sys.setrecursionlimit(10000)
    history = {f"k{i}": [] for i in range(KEYS)}
    lock, seen, swaps = threading.Lock(), {}, [0]

    def work(me, port):
        r = random.Random(seed * 100 + me)
        c = Client(port)
        for turn in range(TURNS):
            key, value = f"k{r.randrange(KEYS)}", f"{me}.{turn}"
            op = r.choice([("GET",), ("GET",), ("SET", value), ("APPEND", "x"), ("SETNX", value), ("DEL",), ("STORE.CAS", "1", seen.get(key, "-"), value)])
            dies = r.random() < 0.01
            began = time.monotonic()
            c.send(op[0], key, *op[1:])
            answer = None if dies else c.receive()
            ended = NEVER if dies else time.monotonic()
            with lock:
                history[key].append((began, ended, op, answer))
                if op[0] in ("GET", "STORE.CAS") and answer:
                    seen[key] = answer if op[0] == "GET" else answer[1] or "-"
                swaps[0] += op[0] == "STORE.CAS" and answer is not None and answer[0]
            if dies:
                c.close()
                c = Client(port)
        c.close()

    with Daemon() as d:
        threads = [threading.Thread(target=work, args=(i, d.port)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        r = random.Random(seed)
        while any(t.is_alive() for t in threads):
            d.p.send_signal(signal.SIGSTOP)
            time.sleep(r.uniform(0.01, 0.05))
            d.p.send_signal(signal.SIGCONT)
            time.sleep(r.uniform(0.001, 0.02))
        for t in threads:
            t.join(60)
    print(f"seed {seed}: {sum(map(len, history.values()))} requests, {sum(h[1] == NEVER for v in history.values() for h in v)} without an answer, {swaps[0]} swaps")
    assert swaps[0] > 0
    assert sum(map(len, history.values())) == CLIENTS * TURNS
    for key, h in history.items():
        assert linearizable(h), f"seed {seed}, {key}: {sorted(h)}"


SECONDS = 60


def draw(r, turn, me, seen, second):
    """(key, request): texts and numbers have keys of their own, and each second has others, so that a history can be searched."""
    value, i = f"{me}.{turn}", r.randrange(8)
    wait = ("STORE.WAIT", r.randrange(30))
    if r.random() < 0.5:
        key = f"n{second}.{i}"
        return key, r.choice([("INCRBY", r.randrange(1, 9)), ("INCRBY", 1), ("GET",), ("DEL",), ("SET", str(r.randrange(99))), ("STORE.CAS", "1", seen.get(key, "-"), "7"), wait])
    key = f"k{second}.{i}"
    return key, r.choice([("GET",), ("SET", value), ("APPEND", "x"), ("SETNX", value), ("DEL",), ("STORE.CAS", "1", seen.get(key, "-"), value), wait])


@pytest.mark.slow
def test_a_minute_of_pauses_delays_and_clients_that_die_is_linearizable():
    seed = random.randrange(1 << 30)
    sys.setrecursionlimit(20000)
    history, figures, seen, lock = collections.defaultdict(list), collections.Counter(), {}, threading.Lock()
    began_all = time.monotonic()

    def work(me, port):
        r, turn = random.Random(seed * 100 + me), 0
        c = Client(port)
        while time.monotonic() < began_all + SECONDS:
            turn += 1
            key, op = draw(r, turn, me, seen, int(time.monotonic() - began_all))
            dies = r.random() < 0.01
            began = time.monotonic()
            c.send(op[0], key, *op[1:])
            answer = None if dies else c.receive()
            ended = NEVER if dies else time.monotonic()
            with lock:
                history[key].append((began, ended, op, answer))
                figures["died" if dies else op[0]] += 1
                if op[0] in ("GET", "STORE.CAS") and answer:
                    seen[key] = answer if op[0] == "GET" else answer[1] or "-"
                figures["swapped"] += op[0] == "STORE.CAS" and not dies and answer[0]
            if dies:
                c.close()
                c = Client(port)
            time.sleep(r.uniform(0, 0.01))
        c.close()
        with lock:
            figures["clients that came to their end"] += 1

    with Daemon() as d:
        proxy = Proxy("127.0.0.1", d.port, seed)
        threads = [threading.Thread(target=work, args=(i, proxy.port if i % 4 == 0 else d.port)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        r = random.Random(seed)
        while any(t.is_alive() for t in threads):
            proxy.set(r.choice(["pass", "delay"]))
            pause = r.uniform(0.1, 2)
            d.p.send_signal(signal.SIGSTOP)
            time.sleep(pause)
            d.p.send_signal(signal.SIGCONT)
            figures["pauses"] += 1
            time.sleep(r.uniform(0.1, 1))
        proxy.close()
    requests = sum(map(len, history.values()))
    print(f"seed {seed}: {requests} requests on {len(history)} keys, at most {max(map(len, history.values()))} on one: {dict(figures)}")
    assert figures["clients that came to their end"] == CLIENTS and figures["swapped"] > 0 and figures["died"] > 0 and figures["pauses"] > 10
    for key, h in history.items():
        assert linearizable(h), f"seed {seed}, {key}: {sorted(h, key=lambda one: one[0])}"
