"""The Python module crun: with crun, without, without the library."""
import inspect
import os
import re
import signal
import sys
import typing

import pytest

from support import LIBCRUN, ROOT, run

sys.path.insert(0, str(ROOT / "python"))
import crun as module  # noqa: E402
from crun import _lib  # noqa: E402

HEADER = (ROOT / "common" / "include" / "crun.h").read_text()

EVERYTHING = """
import crun, sys, warnings
warnings.simplefilter("error")
me = crun.info()
crun.catch_crashes()
assert crun.on_preemption(print) is False and crun.stop_reason() is crun.StopReason.NONE and not crun.stopping()
crun.phase("starting")
with crun.phase(crun.Phase.CHECKPOINT):
    crun.report(1)
crun.report(2, loss=0.5, images_per_s=float("nan"))
crun.record_error("text")
if me.world_size == 1:
    crun.barrier("b")
for use in (lambda: crun.store.set("k", "v"), lambda: crun.store.get("k"), lambda: crun.store.add("k"), lambda: crun.store.delete("k")):
    try:
        use()
    except OSError as e:
        said = str(e)
    else:
        raise AssertionError("a store where there is none")
print(me.rank, me.world_size, me.local_rank, me.restart_count, repr(me.run_id), said)
"""


@pytest.mark.parametrize("library", ["/nowhere/libcrun.so.0", str(LIBCRUN)])
@pytest.mark.parametrize("variables, said", [({}, "0 1 0 0 ''"), (
    {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2",
     "TORCHELASTIC_RUN_ID": "j"}, "3 4 1 2 'j'")])
def test_without_crun_every_call_is_harmless(alone, library, variables, said):
    p = run(sys.executable, "-c", EVERYTHING, env={**alone, "LIBCRUN": library, **variables})
    assert (p.returncode, p.stderr) == (0, "")
    assert p.stdout.startswith(said)
    if library.startswith("/nowhere"):
        assert "no store here: libcrun was not found: /nowhere/libcrun.so.0 does not exist" in p.stdout


def test_under_crun_a_missing_library_is_said_once_and_training_goes_on(crun, script):
    crun.env["LIBCRUN"] = "/nowhere/libcrun.so.0"
    job = script("import crun\nprint('rank', crun.info().rank, crun.info().world_size)\ncrun.report(1)\ncrun.report(2)\n")
    rc, out, err = crun.run("--nproc-per-node", 2, "--no-log-prefix", job)
    assert rc == 0, err
    assert sorted(out.splitlines()) == ["rank 0 2", "rank 1 2"]
    assert err.count("/nowhere/libcrun.so.0 does not exist. This worker runs without heartbeat, stop reasons and store") == 2


def test_another_library_of_this_name_is_told_from_ours(alone):
    p = run(sys.executable, "-c", "import crun\ntry: crun.store.add('k')\nexcept OSError as e: print(e)", env={**alone, "LIBCRUN": "libc.so.6"})
    assert p.returncode == 0 and "libc.so.6 is another library of this name" in p.stdout, p.stderr


def test_enums_and_structs_are_those_of_the_header():
    for prefix, enum in (("CRUN_STOP_", module.StopReason), ("CRUN_PHASE_", module.Phase)):
        assert {name: int(n) for name, n in re.findall(rf"X\({prefix}(\w+), (\d+),", HEADER)} == {m.name: m.value for m in enum}
    fields = re.search(r"struct crun_info \{(.*?)\};", HEADER, re.S)[1]
    names = [n.strip(" *") for types in re.findall(r"(?:int|const char \*)([^;]+);", fields) for n in types.split(",")]
    assert names == [name for name, _ in _lib.CInfo._fields_]
    assert set(_lib.SIGNATURES) <= set(re.findall(r"\b(crun_\w+)\(", HEADER))


def test_the_version_is_the_trees():
    assert re.search(r"version: '([\d.]+)'", (ROOT / "meson.build").read_text())[1] == module.__version__


def test_all_that_is_public_is_typed_and_documented():
    assert (ROOT / "python" / "crun" / "py.typed").exists()
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            hints = typing.get_type_hints(thing)
            assert set(inspect.signature(thing).parameters) | {"return"} <= set(hints), name
        assert name == "REQUEUE" or inspect.getdoc(thing), name


STORE = """
import crun, threading
me = crun.info()
try:
    crun.store.get("never", timeout=0.1)
    raise AssertionError("never came")
except TimeoutError as e:
    assert "crun.store.get('never')" in str(e)
big = bytes(range(256)) * 8192
if me.rank == 0:
    waits = []
    t = threading.Thread(target=lambda: waits.append(crun.store.get("big")))
    t.start()
    crun.store.set("big", big)
    t.join()
    assert waits == [big]
assert crun.store.get("big") == big
crun.store.set(f"mine-{me.rank}", "täxt")
assert crun.store.get(f"mine-{me.rank}").decode() == "täxt"
assert crun.store.delete(f"mine-{me.rank}") and not crun.store.delete(f"mine-{me.rank}")
for i in range(20):
    crun.store.add("sum", me.rank)
    crun.barrier()
assert crun.store.add("sum", 0) == 20 * sum(range(me.world_size))
try:
    crun.store.add("big")
    raise AssertionError("a sum of bytes")
except OSError:
    pass
crun.barrier("end")
"""


def test_the_store_waits_counts_and_meets(crun, script):
    rc, _, err = crun.run("--nproc-per-node", 3, script(STORE))
    assert rc == 0, err


def test_an_exception_that_leaves_a_phase_is_reported_in_it(crun, script):
    """Also one that was raised from it, after the phase has ended."""
    job = script("import crun\n@crun.record\ndef main():\n  crun.report(7)\n  try:\n    with crun.phase('checkpoint'): open('/no/such')\n"
                 "  except OSError as e:\n    raise ValueError('not saved') from e\nmain()\n")
    rc, _, err = crun.run(job)
    assert rc == 1 and "  message   ValueError: not saved (job.py:8 in main), after step 7, in phase checkpoint (error.json)\n" in err, err
    assert "  progress  step 7, phase checkpoint\n" in err, err


def test_an_exception_that_is_its_own_cause_is_reported(crun, script):
    job = script("import crun\n@crun.record\ndef main():\n  try: open('/no/such')\n  except OSError as e: raise e from e\nmain()\n")
    rc, _, err = crun.run(job)
    assert rc == 1 and "  message   FileNotFoundError: " in err, err


@pytest.mark.parametrize("phase, said", [("step", ""), ("checkpoint", ", in phase checkpoint")])
def test_an_exception_is_in_the_report_with_its_place_step_and_phase(crun, script, phase, said):
    job = script("import crun\n@crun.record\ndef main():\n  for i in range(1, 8): crun.report(i)\n"
                 f"  crun.phase('{phase}')\n  if crun.info().rank == 1: raise ValueError('no such ä')\n  import signal\n  signal.pause()\nmain()\n")
    rc, _, err = crun.run("--nproc-per-node", 2, job)
    assert rc == 1 and f"  message   ValueError: no such ä (job.py:6 in main), after step 7{said} (error.json)\n" in err, err
    assert f"  progress  step 7, phase {phase}\n" in err, err


def test_a_worker_that_is_killed_leaves_its_step_and_phase(crun, script):
    job = script("import crun, os, signal\ncrun.phase('starting')\nif crun.info().restart_count: crun.report(41)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    rc, _, err = crun.run("--max-restarts", 1, job)
    assert rc == 137 and "  progress  step 41, phase step\n" in err, err
    rc, _, err = crun.run(job)
    assert rc == 137 and "  progress  no step yet, phase starting\n" in err, err


@pytest.mark.long
def test_phases_reach_crun(crun, script):
    job = script("import crun, sys\ncrun.report(1)\nwith crun.phase('paused'):\n  print('in', flush=True)\n  sys.stdin.readline()\n"
                 "  import time; time.sleep(7)\ncrun.report(2)\nprint('out')\n")
    rc, out, err = crun.run("--hang-timeout", "5", "--no-log-prefix", job)
    assert (rc, out) == (0, "in\nout\n"), err


BLOCKED = """
import crun, ctypes, os
def leave(reason):
    print("callback", reason.name, flush=True)
    os._exit(75)
assert crun.on_preemption(leave)
print("up", flush=True)
lock = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(lock)
libc.pthread_mutex_lock(lock)  # never returns, as a collective whose peer is gone
"""


def test_a_drain_reaches_the_callback_though_the_main_thread_is_in_c(crun, script):
    p = crun.start("--no-log-prefix", "--drain-timeout", 300, script(BLOCKED))
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (75, b"callback DRAIN\n"), err


CALLBACKS = """
import crun, os, time
def fails(reason):
    raise SystemExit(f"nothing to save for {reason.name}")
def late(reason):
    print("late", reason.name, flush=True)
    os._exit(75)
crun.on_preemption(fails)
print("up", flush=True)
while not crun.stopping():
    time.sleep(0.01)
crun.on_preemption(late)
time.sleep(600)
"""


def test_a_callback_that_raises_holds_up_no_other_nor_is_one_too_late(crun, script):
    p = crun.start("--no-log-prefix", "--drain-timeout", 300, script(CALLBACKS))
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (75, b"late DRAIN\n") and b"SystemExit: nothing to save for DRAIN" in err, err


TWICE = """
import crun, os, time
def save(reason):
    print("save", reason.name, flush=True)
def last(reason):
    print("last", reason.name, flush=True)
    os._exit(75)
for callback in save, save, last, save:
    crun.on_preemption(callback)
print("up", flush=True)
time.sleep(600)
"""


def test_a_callback_that_is_given_again_is_called_once(crun, script):
    p = crun.start("--no-log-prefix", "--drain-timeout", 300, script(TWICE))
    assert p.stdout.readline() == b"up\n"
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (75, b"save DRAIN\nlast DRAIN\n"), err


def test_the_store_takes_nothing_for_something_else(crun, script):
    job = script("""
import crun
for use, error in (lambda: crun.store.set("k", 7), TypeError), (lambda: crun.store.add("k", 1 << 64), OverflowError), (
        lambda: crun.store.set("k\\0l", "v"), ValueError), (lambda: crun.store.get("k\\0l"), ValueError), (lambda: crun.store.delete("k\\0l"), ValueError):
    try:
        use()
    except error as e:
        print(e)
    else:
        raise AssertionError(error)
assert not crun.store.delete("k") and crun.store.add("n", -(1 << 63)) == -(1 << 63)
crun.store.set("k", bytearray(b"\\0v"))
assert crun.store.get("k") == b"\\0v"
""")
    rc, out, err = crun.run("--no-log-prefix", job)
    assert rc == 0, err
    assert "crun.store.add('k'): 18446744073709551616: expected -2**63 to 2**63 - 1" in out and r"'k\x00l': expected a name without NUL" in out


def test_wrong_words_and_numbers_are_said(alone):
    job = """
import crun
class Whole:
    def __index__(self):
        return 7
crun.report(Whole())
for use, error in (lambda: crun.phase("chekpoint"), ValueError), (lambda: crun.part("wait a bit").__enter__(), ValueError), (lambda: crun.report(-1), ValueError), (
        lambda: crun.report(1.5), TypeError):
    try:
        use()
    except error as e:
        print(e)
"""
    p = run(sys.executable, "-c", job, env={**alone, "LIBCRUN": str(LIBCRUN)})
    assert (p.returncode, p.stdout.splitlines()[:3]) == (0, [
        "crun.phase: 'chekpoint': expected one of step, checkpoint, evaluation, closing, paused, starting",
        "crun.part: 'wait a bit': expected one of data, forward, backward, wait, update", "crun.report: step -1: expected 0 or more, in 64 bits"]), p.stderr


def test_figures_of_ones_own_have_a_name_and_a_unit_and_are_few(crun, script):
    rc, out, err = crun.run("--no-log-prefix", script("""
import crun
crun.report(1, metrics={"tokens": (3.1e5, "tokens/s"), "lr": 0.1, "grad_norm": float("inf")})
for bad in {"a b": 1}, {"": 1}, {"a\\0b": 1}, {"a": (1, "x" * 16)}, {str(i): i for i in range(9)}:
    try:
        crun.report(2, metrics=bad)
    except ValueError as e:
        print(e)
"""))
    assert rc == 0, err
    said = "': expected a name of 1 to 31 letters, digits and _./-, and a unit of at most 15 of these and %^*()"
    assert out.splitlines() == [
        "crun.report: metric 'a b' in '" + said, "crun.report: metric '' in '" + said, "crun.report: metric 'a\0b' in '" + said,
        "crun.report: metric 'a' in 'xxxxxxxxxxxxxxxx" + said,
        "crun.report: metric '6': eight others are reported already: expected no more names than that in a process"]


def test_sigterm_from_somebody_else_ends_the_worker_as_ever(crun, script):
    job = script("import crun, os, signal, time\ncrun.on_preemption()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(600)\n")
    rc, _, err = crun.run(job)
    assert rc == 128 + signal.SIGTERM and "SIGTERM" in err


@pytest.mark.parametrize("before", ["crun.report(5)", "pass"])
def test_a_forked_child_is_without_crun(crun, script, before):
    """Also where nobody has called crun yet. It warns of that once, if it trains."""
    job = script(f"""
import crun, os
{before}
pid = os.fork()
if pid == 0:
    crun.report(99)
    crun.report(99)
    crun.record_error("of the child")
    assert (crun.info().rank, crun.info().run_id, crun.on_preemption()) == (0, "j", False), crun.info()
    try:
        crun.store.set("k", "v")
    except OSError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
crun.report(5)
crun.store.set("k", "v")
crun.record_error("of the parent")
raise SystemExit(3)
""")
    rc, _, err = crun.run("--rdzv-id", "j", job)
    assert rc == 3 and "of the parent, after step 5 (" in err and "of the child" not in err, err
    assert re.findall(r"\w+\.py:\d+: RuntimeWarning: .*? fork\(\)", err.split(" failed: ")[0]) == [
        "job.py:6: RuntimeWarning: crun.report() does nothing in a child of fork()"], err


BELOW = """
import crun, os, subprocess, sys
if len(sys.argv) > 1:
    subprocess.run([sys.executable, __file__], close_fds=sys.argv[1] == "closed", check=True)
else:
    crun.report(3)
    crun.report(4)
    crun.store.set("k", b"v")
    print(crun.on_preemption(), crun.info().rank, crun.store.get("k"))
"""


def test_a_process_that_crun_cannot_see_is_told_so(crun, script):
    """Started by one that closes crun's descriptors."""
    rc, out, err = crun.run(script(BELOW), "closed")
    assert (rc, out) == (0, "False 0 b'v'\n") and err.count("RuntimeWarning") == 1, err
    assert "RuntimeWarning: crun.report() does nothing in this process: crun's descriptors were closed when it was started" in err
    assert crun.run(script(BELOW), "kept") == (0, "True 0 b'v'\n", "")


def test_a_callback_is_a_function(crun, script):
    rc, out, _ = crun.run(script("import crun\ntry: crun.on_preemption('save')\nexcept TypeError as e: print(e)"))
    assert (rc, out) == (0, "crun.on_preemption: str: expected a function\n")


FORKED = """
import crun, os, warnings
warnings.simplefilter("error")
pid = os.fork()
if pid == 0:
    crun.info(), crun.stopping(), crun.phase("closing")
    if {asks}:
        try:
            crun.on_preemption()
        except RuntimeWarning as e:
            print(e, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("asks, under, warned", [(True, True, True), (True, False, False), (False, True, False)])
def test_a_forked_child_is_warned_if_it_trains_under_crun(crun, alone, script, asks, under, warned):
    job = script(FORKED.format(asks=asks))
    if under:
        rc, out, err = crun.run("--no-log-prefix", job)
    else:
        p = run(sys.executable, job, env={**alone, "LIBCRUN": str(LIBCRUN)})
        rc, out, err = p.returncode, p.stdout, p.stderr
    assert (rc, err) == (0, ""), err
    assert out.startswith("crun.on_preemption() does nothing in a child of fork()") if warned else out == ""


def test_a_signal_handler_that_was_there_keeps_its_turn(crun, script):
    job = script("import crun, os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(9))\ncrun.on_preemption()\n"
                 "os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()\n")
    rc, _, err = crun.run(job)
    assert rc == 9, err


def test_a_handler_that_took_its_place_gets_what_has_no_reason(crun, script):
    """As Lightning's, which calls the one that was there before it, too."""
    job = script("import crun, os, signal\ncrun.on_preemption()\nours = signal.getsignal(signal.SIGTERM)\n"
                 "signal.signal(signal.SIGTERM, lambda *a: (print('theirs', flush=True), ours(*a)))\ncrun.on_preemption()\ncrun.on_preemption()\n"
                 "os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()\n")
    rc, out, err = crun.run("--no-log-prefix", job)
    assert (rc, out) == (128 + signal.SIGTERM, "theirs\n"), err


def test_contradictions_in_the_environment_are_said(alone):
    p = run(sys.executable, "-c", "import crun; crun.info()", env={**alone, "LIBCRUN": str(LIBCRUN), "RANK": "3", "WORLD_SIZE": "2"})
    assert p.returncode == 1 and "the environment contradicts itself" in p.stderr
    assert os.path.exists(LIBCRUN)
