"""What a test inherits, whoever starts the run: a shell, nohup, cron, setsid, a CI job with an empty environment."""
import os
import pwd
import re
import resource
import signal

# All other variables are dropped: what jobs, launchers, Python or OpenMP read from the caller's environment would change the tests.
KEPT = re.compile(r"""PATH|HOME|TMPDIR|LD_LIBRARY_PATH
    |(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|PIP_\w+                    # the slow tests' downloads
    |CRUN_(BUILD|TORCH_PYTHON|PICTURES|FAULT_SEED|GPU_ARCHS|TEST_\w+|CHAOS_\w+)                 # switches of tests
    |(FUZZ|SIM|LOG|STORE|COMM)_(SEEDS?|RUNS|STEPS)""", re.X)
FILES = 65536  # at most: some programs close every descriptor up to the limit


def environment(given):
    """-> what is kept of it, and what every test finds set"""
    env = {name: value for name, value in given.items() if KEPT.fullmatch(name)}
    env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    try:
        user = pwd.getpwuid(os.getuid())
        env.setdefault("HOME", user.pw_dir)
        env["USER"] = env["LOGNAME"] = user.pw_name
    except KeyError:  # a uid without an account
        env.setdefault("HOME", "/")
    return {**env, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb"}


def signals():
    """No signal is blocked, and each does what it does by default."""
    for signo in range(1, signal.NSIG):
        try:
            signal.signal(signo, signal.SIG_DFL)
        except (OSError, ValueError):  # SIGKILL, SIGSTOP, and the C library's own
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def limits():
    """Soft limits: none below the hard one, but for descriptors, core dumps (none) and stacks (8 MiB)."""
    wanted = {resource.RLIMIT_NOFILE: FILES, resource.RLIMIT_CORE: 0, resource.RLIMIT_STACK: 8 << 20}
    for name in filter(re.compile("RLIMIT_").match, dir(resource)):
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        soft = wanted.get(which, hard)
        resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def settle():
    """The calling process and what it starts: a session of its own without a terminal, nothing to read, default signals, limits and umask.
    All lanes are in this one session: the kernel shares the processor between sessions before it looks at niceness (autogroup)."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.umask(0o022)
    signals()
    limits()
