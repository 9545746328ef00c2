"""Every command answers as a real Redis does, byte for byte: scripts, and sequences drawn by a seed."""
import os
import random
import shlex
import time

import pytest

import scripts
from servers import Wire, elements


def words(text):
    """As in a shell; escapes in what was in double quotes."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    return [w.encode().decode("unicode_escape").encode("latin-1") if "\\" in w else w.encode() for w in lexer]


class Player:
    """Plays a script to one server; gives what was heard, a line each."""

    def __init__(self, port):
        self.port, self.conns = port, {}

    def conn(self, name):
        if name not in self.conns:
            self.conns[name] = Wire(self.port)
        return self.conns[name]

    def step(self, line):
        if line[1:2] == ":":
            return self.conn(line[0]).ask(*words(line[2:].strip()))
        return self.conn("A").ask(*words(line))

    def play(self, script):
        self.conn("A").ask("FLUSHDB")
        heard = []
        for line in script.strip().splitlines():
            line = line.strip()
            if line and not line.startswith("#"):
                heard.append((line, self.step(line)))
        for c in self.conns.values():
            c.close()
        return heard


def ttl_alike(a, b):
    """Seconds left of a time that began at two moments; the codes below zero are exact."""
    return a[:1] == b[:1] == b":" and min(int(a[1:]), int(b[1:])) > 0 and abs(int(a[1:]) - int(b[1:])) <= 5


def line_alike(line, a, b):
    return a == b or (line.startswith("TTL") and ttl_alike(a, b))


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_script(daemon, redis_server, name):
    script = scripts.SCRIPTS[name]
    ours, theirs = Player(daemon.port).play(script), Player(redis_server.port).play(script)
    wrong = [f"{line}\n  rendezvousd {a!r}\n  redis       {b!r}" for (line, a), (_, b) in zip(ours, theirs)
             if not line_alike(line, a, b)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("ask", scripts.CUT)
def test_a_command_that_is_not_there_answers_as_one_that_never_was(daemon, redis_server, ask):
    ours, theirs = Wire(daemon.port), Wire(redis_server.port)
    name, *rest = ask.split()
    got, as_if = ours.ask(*ask.split()), theirs.ask("NO" + name, *rest)
    assert got == as_if.replace(b"'NO" + name.encode(), b"'" + name.encode())
    ours.close(), theirs.close()


KEYS = ["a", "b", "c", "other", "n", ""]
VALUES = ["", "1", "-5", "text", "9223372036854775807", "x" * 100, b"\x00\xff\r\n", "3.5"]
NUMBERS = ["0", "1", "-1", "2", "-3", "100", "9223372036854775807", "-9223372036854775808", "x", "1.5", ""]

# K key, V value, N number, T seconds that do not pass
GRAMMAR = """
GET K|SET K V|SET K V EX T|SET K V NX|SET K V XX GET|SET K V PX T XX|SETNX K V|GETDEL K|MGET K K K|MSET K V K V|APPEND K V|STRLEN K|INCR K
DECR K|INCRBY K N|DECRBY K N|DEL K K|EXISTS K K|TYPE K|DBSIZE|EXPIRE K T|EXPIRE K N|PERSIST K|TTL K|FLUSHDB|NOSUCH K V|GET|SET K|ECHO V|PING V
""".replace("\n", "|").strip("|").split("|")


def draw(rng):
    pools = {"K": KEYS, "V": VALUES, "N": NUMBERS, "T": [str(rng.randrange(10**6, 10**8)), str(rng.randrange(10**6, 10**8)), "0", "-1", "x"]}
    rule = rng.choice(GRAMMAR)
    if rule == "FLUSHDB" and rng.random() < 0.9:
        rule = "DBSIZE"
    return [rng.choice(pools[w]) if w in pools else w for w in rule.split()]


@pytest.mark.parametrize("seed", range(int(os.environ.get("STORE_SEEDS", "6"))))
def test_random_sequence(daemon, redis_server, seed):
    rng = random.Random(seed)
    ours, theirs = Wire(daemon.port), Wire(redis_server.port)
    ours.ask("FLUSHDB"), theirs.ask("FLUSHDB")
    said = []
    for _ in range(int(os.environ.get("STORE_STEPS", "3000"))):
        ask = draw(rng)
        said.append(ask)
        a, b = ours.ask(*ask), theirs.ask(*ask)
        same = a == b or (ask[0] == "TTL" and ttl_alike(a, b))
        assert same, f"seed {seed}, the last of {said[-25:]}\n  rendezvousd {a!r}\n  redis       {b!r}"
    ours.close(), theirs.close()


def test_expired_keys_are_gone_without_being_asked_for(daemon):
    w = Wire(daemon.port)
    w.ask("FLUSHDB")
    for i in range(2000):
        w.send("SET", f"k{i}", "v", "PX", 1 + i % 50)
    assert all(w.read() == b"+OK\r\n" for _ in range(2000))
    w.ask("SET", "stays", "v")
    end = time.monotonic() + 20
    while b"db0:keys=1," not in w.ask("INFO", "keyspace"):
        assert time.monotonic() < end, "keys do not expire by themselves"
        time.sleep(0.01)
    w.close()


def test_a_wait_knows_keys_that_expire(daemon):
    a, b = Wire(daemon.port), Wire(daemon.port)
    a.ask("FLUSHDB")
    a.ask("SET", "x", 1, "PX", 30)
    b.send("STORE.WAIT", "x", "y", 20000)
    assert b.silent(0.1)
    assert a.ask("SET", "y", 1) == b"+OK\r\n"
    assert b.silent(0.1), "x has expired: both never existed together"
    a.ask("SET", "x", 1)
    assert b.read() == b":1\r\n"
    a.close(), b.close()


def test_a_scan_misses_nothing_that_stays(daemon):
    w = Wire(daemon.port)
    for seed in range(20):
        rng = random.Random(seed)
        w.ask("FLUSHDB")
        stay = {b"stay%d" % i for i in range(500)}
        w.ask("MSET", *(x for k in sorted(stay) for x in (k, "v")))
        seen, cursor, extra = set(), b"0", 0
        while True:
            reply = w.ask("SCAN", cursor, "MATCH", "stay*", "COUNT", rng.choice([1, 10, 100]))
            head, rest = reply.split(b"\r\n*", 1)
            cursor = head.split(b"\r\n")[2]
            seen.update(elements(b"*" + rest))
            if cursor == b"0":
                break
            grow = rng.randrange(200)
            if grow:
                w.ask("MSET", *(x for i in range(grow) for x in (f"more{extra + i}", "v")))
            extra += grow
            w.ask("DEL", *(f"more{rng.randrange(extra + 1)}" for _ in range(50)))
        assert seen == stay, f"seed {seed}: {len(stay - seen)} keys were missed"
    w.close()
