"""What must come of a worker's end: the expected outcomes, as data. test_kill_matrix.py plays each row through crun.

A row: what happens, to which ranks, in how many of the first rounds, with which --max-restarts; then crun's exit code, how many restarts were
made, and the culprit that the report names (None: no report). Rounds in which nothing happens end well."""

from typing import NamedTuple, Optional, Tuple

ALWAYS = 99
WORKERS = 3


class Row(NamedTuple):
    kind: str
    ranks: Tuple[int, ...]
    rounds: int
    max_restarts: int
    code: int
    restarts: int
    culprit: Optional[int]


# What a worker does, and the number a shell would see. "early 1": before the ranks have met, while others still start.
ENDS = {"SIGKILL": 137, "SIGSEGV": 139, "SIGABRT": 134, "exit 1": 1, "early 1": 1}

# One rank ends badly: with restarts enough the job goes on to its good end, else its number is crun's.
ONE = [
    Row(kind, (rank,), rounds, most, code if rounds > most else 0, min(rounds, most), rank if rounds > most else None)
    for kind, code in ENDS.items()
    for rank in range(WORKERS)
    for rounds, most in ((ALWAYS, 0), (ALWAYS, 2), (1, 1), (2, 3))
]

# Exit 0 means that this rank is complete: the others go on, whoever it is, and no restart is made.
COMPLETE = [Row("exit 0", (rank,), ALWAYS, most, 0, 0, None) for rank in range(WORKERS) for most in (0, 2)]

# 75 is a wish to be started again later: nobody failed, nothing is restarted, however many restarts are left.
REQUEUE = [Row("exit 75", (rank,), ALWAYS, most, 75, 0, None) for rank in range(WORKERS) for most in (0, 2)]

# A rank that stands still (--hang-timeout): as a failure, with a number of its own.
STOPPED = [
    Row("SIGSTOP", (rank,), rounds, most, 124 if rounds > most else 0, min(rounds, most), rank if rounds > most else None)
    for rank in range(WORKERS)
    for rounds, most in ((ALWAYS, 0), (1, 1))
]


class Pair(NamedTuple):
    """Two ranks die while the agent looks away, in this order: it sees both in one wake-up. One restart for both."""

    first: Tuple[str, int]
    second: Tuple[str, int]
    code: int
    culprit: int


PAIRS = [
    Pair(("SEGV", 2), ("KILL", 0), 139, 2),
    Pair(("KILL", 0), ("SEGV", 2), 137, 0),
    Pair(("ABRT", 1), ("TERM", 2), 134, 1),
    Pair(("TERM", 2), ("ABRT", 1), 143, 2),
]


class Nodes(NamedTuple):
    """Two nodes of one worker each. The same number on both: a scheduler looks at any of them."""

    kind: str
    rank: int
    max_restarts: int
    code: int  # of the node of that rank
    other: int  # of the other node
    restarts: int


NODES = [
    Nodes("SIGKILL", 0, 0, 137, 137, 0),
    Nodes("SIGKILL", 1, 1, 137, 137, 1),
    Nodes("SIGSEGV", 1, 0, 139, 139, 0),
    Nodes("SIGABRT", 0, 0, 134, 134, 0),
    Nodes("exit 1", 1, 1, 1, 1, 1),
    Nodes("early 1", 0, 0, 1, 1, 0),
    Nodes("exit 0", 1, 1, 0, 0, 0),
    Nodes("exit 75", 0, 1, 75, 75, 0),  # two nodes at least were asked for: with one on its way, the other drains
]
