"""How crun can end: the table of docs/reference/exit-codes.md. test_endings.py plays each row."""

# Row of the document -> (crun's code, arguments of crun with the program). Workers are sh scripts; SIGNALS: sent once rank 0 is up.
UP = "touch $HERE/up-$RANK; "
BOTH = ["--nproc_per_node", "2"]
WAITS = ["sh", "-c", UP + "exec sleep 100"]

ENDINGS = {
    "all workers exit 0": (0, [*BOTH, "true"]),
    "a worker exits 3, no restart left": (3, [*BOTH, "sh", "-c", "[ $RANK = 0 ] || exec sleep 100; exit 3"]),
    "a worker is killed by SIGKILL": (137, [*BOTH, "sh", "-c", "[ $RANK = 0 ] || exec sleep 100; kill -9 $$"]),
    "a worker dies of SIGSEGV": (139, ["sh", "-c", "kill -SEGV $$"]),
    "a worker fails, is restarted, all exit 0": (0, ["--max-restarts", "1", "sh", "-c", "[ $CRUN_ROUND = 2 ] || exit 3"]),
    "a worker fails in every round": (12, ["--max-restarts", "1", "--restart-backoff", "0", "sh", "-c", "exit $((10 + CRUN_ROUND))"]),
    "a worker fails with one of --fatal-codes": (3, ["--max-restarts", "5", "--fatal-codes", "3", "sh", "-c", "[ $CRUN_ROUND = 1 ] && exit 3"]),
    "a worker exits 75": (75, ["--max-restarts", "5", "sh", "-c", "exit 75"]),
    "a worker exits 75, another one 3 when it is stopped": (3, [*BOTH, "sh", "-c", "if [ $RANK = 0 ]; then while [ ! -e $HERE/up-1 ]; do sleep 0.01; done; "
                                                          "exit 75; fi; trap 'exit 3' TERM; " + UP + "while :; do sleep 0.01; done"]),
    "SIGTERM, all workers obey (0 or 75)": (75, ["sh", "-c", "trap 'exit 75' TERM; " + UP + "while :; do sleep 0.01; done"]),
    "SIGTERM, a worker dies of it": (143, WAITS),
    "SIGINT, a worker dies of it, or exits 130": (130, WAITS),
    "a preemption notice": (75, ["--preemption-signal", "SIGUSR1", *WAITS]),
    "a preemption notice, a worker crashes": (5, ["--preemption-signal", "SIGUSR1", "sh", "-c", "trap 'exit 5' TERM; " + UP + "while :; do sleep 0.01; done"]),
    "a wrong command line": (2, ["--nproc_per_node", "none", "true"]),
    "the rendezvous cannot be reached": (69, ["--nnodes", "2", "--insecure", "--rdzv-endpoint", "127.0.0.1:9", "--rdzv-tls", "--rdzv-conf", "join_timeout=500ms", "true"]),
    "the log folder cannot be written": (73, ["--log-dir", "/proc/nowhere", "true"]),
    "the program cannot be executed": (126, ["/etc"]),
    "the program is not found": (127, ["no-such-program"]),
    "the agent is killed": (137, WAITS),
    "a process is left after SIGKILL": (71, None),  # test_stops.py
    "a spare is not needed to the end": (72, None),  # elastic/test_elastic.py
    "the job has all its nodes": (69, None),  # elastic/test_elastic.py
    "a node has other settings": (78, None),  # elastic/test_elastic.py
    "another node is stopped, too few are left": (75, None),  # elastic/test_typed.py
    "a worker hangs": (124, None),  # test_kill_matrix.py
}

SIGNALS = {
    "SIGTERM, all workers obey (0 or 75)": "SIGTERM",
    "SIGTERM, a worker dies of it": "SIGTERM",
    "SIGINT, a worker dies of it, or exits 130": "SIGINT",
    "a preemption notice": "SIGUSR1",
    "a preemption notice, a worker crashes": "SIGUSR1",
    "the agent is killed": "SIGKILL",
}
