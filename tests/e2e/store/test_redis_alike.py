"""Every command answers as a real Redis does, byte for byte: scripts, and sequences drawn by a seed."""
import os
import random
import shlex
import time

import pytest

import scripts
from servers import Wire, elements

SILENCE_S = 0.03


def words(text):
    """As in a shell; escapes in what was in double quotes."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    return [w.encode().decode("unicode_escape").encode("latin-1") if "\\" in w else w.encode() for w in lexer]


def unordered(reply):
    return sorted(elements(reply)) if reply.startswith(b"*") else reply


class Player:
    """Plays a script to one server; gives what was heard, a line each."""

    def __init__(self, port):
        self.port, self.conns = port, {}

    def conn(self, name):
        if name not in self.conns:
            self.conns[name] = Wire(self.port)
        return self.conns[name]

    def step(self, line):
        if line[1:2] in (":", ">", "<", "~") and line[0] in "BCD":
            who, how, rest = self.conn(line[0]), line[1], line[2:].strip()
            if how == ":":
                return who.ask(*words(rest))
            if how == ">":
                return who.send(*words(rest))
            if how == "~":
                return who.silent(SILENCE_S)
            return [who.read() for _ in range(int(rest or 1))]
        if line.startswith("&"):  # a message comes before PUBLISH's own reply; since Redis 8 behind all replies
            c = self.conn("A")
            return sorted((c.ask(*words(line[1:])) + c.read()).split(b"\r\n"))
        if line.startswith("?"):
            return unordered(self.conn("A").ask(*words(line[1:])))
        return self.conn("A").ask(*words(line))

    def play(self, script):
        self.conn("A").ask("FLUSHALL")
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


LIST_ENCODINGS = {b"$9\r\nquicklist\r\n", b"$8\r\nlistpack\r\n"}  # the second for short ones, since Redis 7.2


def line_alike(line, a, b):
    return a == b or (line.startswith("TTL") and ttl_alike(a, b)) or (line.startswith("OBJECT ENCODING") and {a, b} == LIST_ENCODINGS)


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_script(daemon, redis_server, name):
    script = scripts.SCRIPTS[name]
    ours, theirs = Player(daemon.port).play(script), Player(redis_server.port).play(script)
    wrong = [f"{line}\n  rendezvousd {a!r}\n  redis       {b!r}" for (line, a), (_, b) in zip(ours, theirs)
             if not line_alike(line, a, b)]
    assert not wrong, "\n".join(wrong)


KEYS = ["a", "b", "c", "list", "other", "n", ""]
VALUES = ["", "1", "-5", "text", "9223372036854775807", "x" * 100, b"\x00\xff\r\n", "3.5"]
NUMBERS = ["0", "1", "-1", "2", "-3", "100", "9223372036854775807", "-9223372036854775808", "x", "1.5", ""]

# K key, V value, N number, I small index, T seconds that do not pass, E end of a list, P pattern
GRAMMAR = """
GET K|SET K V|SET K V EX T|SET K V NX|SET K V XX GET|SET K V GET KEEPTTL|SET K V PX T XX|SETNX K V|SETEX K T V|GETSET K V|GETDEL K|GETEX K
GETEX K PERSIST|GETEX K EX T|MGET K K K|MSET K V K V|MSETNX K V K V|APPEND K V|STRLEN K|GETRANGE K I I|SETRANGE K I V|INCR K
DECR K|INCRBY K N|DECRBY K N|DEL K K|UNLINK K|EXISTS K K|TYPE K|RENAME K K|RENAMENX K K|DBSIZE|TOUCH K|EXPIRE K T|EXPIRE K T GT|EXPIRE K T LT
EXPIRE K T NX|EXPIRE K N XX|PEXPIRE K T|PERSIST K|TTL K|LPUSH K V V|RPUSH K V V V|LPUSHX K V|RPUSHX K V|LPOP K|RPOP K|LPOP K N|RPOP K I|LLEN K
LRANGE K I I|LINDEX K I|LSET K I V|LINSERT K BEFORE V V|LINSERT K AFTER V V|LREM K I V|LTRIM K I I|LMOVE K K E E|RPOPLPUSH K K|BLPOP K K 0.001
BRPOP K 0.001|BLMOVE K K E E 0.001|MULTI|EXEC|DISCARD|WATCH K|UNWATCH|PUBLISH K V|OBJECT ENCODING nokey|KEYS P|FLUSHALL|NOSUCH K V|GET|SET K|LPUSH K
""".replace("\n", "|").strip("|").split("|")


def draw(rng):
    pools = {"K": KEYS, "V": VALUES, "N": NUMBERS, "I": ["0", "1", "2", "-1", "-2", "5", "x"],
             "T": [str(rng.randrange(10**6, 10**8)), str(rng.randrange(10**6, 10**8)), "0", "-1", "x"], "E": ["LEFT", "RIGHT", "UP"], "P": ["*", "?", "[a-c]", "l*t"]}
    rule = rng.choice(GRAMMAR)
    if rule == "FLUSHALL" and rng.random() < 0.9:
        rule = "DBSIZE"
    return [rng.choice(pools[w]) if w in pools else w for w in rule.split()]


def alike(ask, a, b):
    if ask[0] == "TTL" and ttl_alike(a, b):
        return True
    if ask[0] == "KEYS":
        return unordered(a) == unordered(b)
    return a == b


def exec_alike(asked, a, b):
    """The replies of a transaction, whose KEYS and TTL are compared with leave."""
    def split(reply):
        if not reply.startswith(b"*") or reply.startswith(b"*-1"):
            return None
        w = Wire.__new__(Wire)
        w.buf = reply.split(b"\r\n", 1)[1]
        return [w.read() for _ in range(int(reply.split(b"\r\n", 1)[0][1:]))]
    x, y = split(a), split(b)
    if x is None or y is None or len(x) != len(y) or len(x) != len(asked):
        return a == b
    return all(alike(q, p, r) for q, p, r in zip(asked, x, y))


@pytest.mark.parametrize("seed", range(int(os.environ.get("STORE_SEEDS", "6"))))
def test_random_sequence(daemon, redis_server, seed):
    rng = random.Random(seed)
    ours, theirs = Wire(daemon.port), Wire(redis_server.port)
    ours.ask("FLUSHALL"), theirs.ask("FLUSHALL")
    said, queued = [], []
    for _ in range(int(os.environ.get("STORE_STEPS", "3000"))):
        ask = draw(rng)
        said.append(ask)
        a, b = ours.ask(*ask), theirs.ask(*ask)
        same = exec_alike(queued, a, b) if ask[0] == "EXEC" else alike(ask, a, b)
        assert same, f"seed {seed}, the last of {said[-25:]}\n  rendezvousd {a!r}\n  redis       {b!r}"
        if a == b"+QUEUED\r\n":
            queued.append(ask)
        elif ask[0] in ("EXEC", "DISCARD"):
            queued = []
    ours.close(), theirs.close()


def test_expired_keys_are_gone_without_being_asked_for(daemon):
    w = Wire(daemon.port)
    w.ask("FLUSHALL")
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
    a.ask("FLUSHALL")
    a.ask("SET", "x", 1, "PX", 30)
    b.send("STORE.WAIT", "x", "y", 20000)
    assert b.silent(0.1)
    assert a.ask("SET", "y", 1) == b"+OK\r\n"
    assert b.silent(0.1), "x has expired: both never existed together"
    a.ask("SET", "x", 1)
    assert b.read() == b":1\r\n"
    assert a.ask("MULTI") + a.ask("STORE.WAIT", "none", 1000) + a.ask("EXEC") == b"+OK\r\n+QUEUED\r\n*1\r\n:0\r\n"
    a.close(), b.close()


def test_a_scan_misses_nothing_that_stays(daemon):
    w = Wire(daemon.port)
    for seed in range(20):
        rng = random.Random(seed)
        w.ask("FLUSHALL")
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
