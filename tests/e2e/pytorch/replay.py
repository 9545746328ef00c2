"""The same random requests to two servers: every answer must be the same."""
import random

from wire import Client


class Names:
    """Keys of one comparison: a server may hold those of an earlier one."""

    def __init__(self, seed):
        def named(*names):
            return [b"/%d/%s" % (seed, n) for n in names]

        self.keys, self.counters, self.queues = named(b"a", b"b", b"c", b""), named(b"n", b"m"), named(b"q", b"r")
        self.barrier, self.never = b"/%d/barrier" % seed, b"/%d/never" % seed
        self.all = [*self.keys, *self.counters, *self.queues, self.barrier]


def value(rng):
    return rng.choice([b"", b"x", b"vv", b"w" * 300, bytes(rng.randrange(256) for _ in range(5))])


def older_step(rng, names):
    k = rng.choice(names.keys)
    return rng.choice([
        ("set", k, value(rng)),
        ("set", k, value(rng)),
        ("compare_set", k, value(rng), value(rng)),
        ("get_if_there", k),
        ("add", rng.choice(names.counters), rng.randrange(-5, 6)),
        ("check", *rng.sample(names.keys, 2)),
        ("wait_if_there", *rng.sample(names.keys, 2)),
        ("num_keys",),
        ("delete", rng.choice(names.keys + names.counters)),
    ])


def newer_step(rng, names):
    k = rng.choice(names.keys)
    return rng.choice([
        older_step(rng, names),
        older_step(rng, names),
        ("get", k),
        ("append", k, value(rng)),
        ("multi_set", [(rng.choice(names.keys), value(rng)) for _ in range(rng.randrange(4))]),
        ("multi_get", *rng.choices(names.keys, k=rng.randrange(4))),
        ("cancelled_wait", names.never, k),
        ("queue_push", rng.choice(names.queues), value(rng)),
        ("queue_pop", rng.choice(names.queues)),
        ("queue_len", rng.choice(names.queues)),
        ("list_keys",),
        ("barrier", names.barrier, 1),
    ])


class Server:
    """Three connections to one server; what was there before we came is not counted."""

    def __init__(self, port, generation, names):
        self.names = names
        self.clients = [Client(port, generation) for _ in range(3)]
        self.before = self.clients[0].num_keys()

    def do(self, i, step):
        name, *args = step
        c = self.clients[i]
        if name == "get_if_there":
            return c.get(*args) if c.check(*args) == b"\0" else None
        if name == "wait_if_there":
            return c.wait(*args) if c.check(*args) == b"\0" else None
        answer = getattr(c, name)(*args)
        if name == "num_keys":
            return answer - self.before
        if name == "list_keys":
            return [k for k in answer if k in self.names.all]
        if answer is None:
            c.check(b"/anything")  # what has no answer is done before the next client speaks
        return answer

    def close(self):
        for c in self.clients:
            c.close()


def compare(ours, theirs, generation, seed, steps):
    """Number of answers that were compared; an AssertionError names the first that differs."""
    rng = random.Random(seed)
    names = Names(seed)
    a, b = Server(ours, generation, names), Server(theirs, generation, names)
    answers = 0
    for i in range(steps):
        step = newer_step(rng, names) if generation == 2 else older_step(rng, names)
        client = rng.randrange(3)
        x, y = a.do(client, step), b.do(client, step)
        assert x == y, f"seed {seed}, step {i}: {step}: ours {x!r}, theirs {y!r}"
        answers += x is not None
    a.close()
    b.close()
    return answers
