"""crun.launch(): functions in several processes, their values and their exceptions."""
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from processes import wait
from support import CRUN, ROOT

HEAD = """
import gc, glob, os, sys, time
import crun

def ranks(factor, plus=0):
    return crun.info().rank * factor + plus, os.environ["WORLD_SIZE"]

def fails(rank):
    if crun.info().rank == rank:
        raise ValueError("no such thing")
    time.sleep(600)

def fails_once():
    if crun.info().restart_count == 0:
        raise ValueError("at first")
    return crun.info().round

def fails_then_dies():
    if crun.info().restart_count == 0:
        raise ValueError("at first")
    os.kill(os.getpid(), 9)

def needs_a_place():
    if crun.info().rank < 0:
        raise ValueError("no place")
    while not glob.glob(os.environ["TMPDIR"] + "/crun-launch-*/error-*"):
        time.sleep(0.01)
    sys.exit(3)

def leaves(code):
    sys.exit(code)

def unpicklable():
    return lambda: 0

def sleeps():
    time.sleep(600)

def prints():
    print("rank", crun.info().rank, flush=True)
    sleeps()

PROGRAM = os.environ["PROGRAM"]
"""


@pytest.fixture
def launch(crun, script):
    """launch(text) -> (exit code, stdout, stderr) of a script that calls crun.launch"""
    crun.env["PROGRAM"] = str(CRUN)

    def start(text):
        path = script(HEAD + "if __name__ == '__main__':\n" + "\n".join("    " + line for line in text.strip().splitlines()))
        p = subprocess.Popen([sys.executable, path], env=crun.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        crun.started.append(p)
        return p

    def run(text):
        p = start(text)
        out, err = p.communicate(timeout=120)
        assert crun.processes() == [] and crun.leftovers() == []
        return p.returncode, out, err

    run.start = start
    return run


def test_values_come_back_by_rank(launch):
    rc, out, err = launch("print(crun.launch(ranks, (10,), {'plus': 1}, nproc=3, program=PROGRAM))")
    assert (rc, out) == (0, "{0: (1, '3'), 1: (11, '3'), 2: (21, '3')}\n"), err


def test_an_exception_comes_back_with_rank_and_traceback(launch):
    rc, out, err = launch("""
try:
    crun.launch(fails, (1,), nproc=2, program=PROGRAM)
except crun.LaunchError as e:
    print(e, e.exit_code, [f.rank for f in e.failures], "in fails" in e.failures[0].traceback)
""")
    assert (rc, out) == (0, "the job failed (exit code 1): rank 1: ValueError: no such thing 1 [1] True\n"), err
    assert "message   ValueError: no such thing" in err


def test_a_process_that_ends_itself_with_success_has_returned_nothing(launch):
    rc, out, err = launch("print(crun.launch(leaves, (0,), nproc=2, program=PROGRAM))")
    assert (rc, out) == (0, "{0: None, 1: None}\n"), err


def test_values_are_those_of_the_last_round(launch):
    rc, out, err = launch("print(crun.launch(fails_once, nproc=2, max_restarts=1, program=PROGRAM))")
    assert (rc, out) == (0, "{0: 2, 1: 2}\n"), err


def test_exceptions_are_those_of_the_last_round(launch):
    rc, out, err = launch("try: crun.launch(fails_then_dies, max_restarts=1, program=PROGRAM)\nexcept crun.LaunchError as e: print(e, e.failures)")
    assert (rc, out) == (0, "the job failed (exit code 137) ()\n"), err


def test_a_warm_spare_that_raises_is_no_riddle(launch):
    rc, out, err = launch("try: crun.launch(needs_a_place, warm_spares=1, max_restarts=1, program=PROGRAM)\nexcept crun.LaunchError as e: print(e)")
    assert rc == 0 and out == "the job failed (exit code 3)\n", err


def test_a_launcher_that_is_not_there_is_named(launch):
    rc, out, err = launch("try: crun.launch(ranks, (1,), program='/no/such')\nexcept FileNotFoundError as e: print(e)")
    assert (rc, out) == (0, "crun.launch: program '/no/such': expected an executable file\n"), err


@pytest.mark.parametrize("call, said", [
    ("leaves, (75,)", "the job was stopped before its end (exit code 75)"), ("leaves, (7,)", "the job failed (exit code 7)"),
    ("unpicklable", "the job failed (exit code 1): rank 0: ")])
def test_other_ends_are_told(launch, call, said):
    rc, out, err = launch(f"try: crun.launch({call}, program=PROGRAM)\nexcept crun.LaunchError as e: print(e)")
    assert rc == 0 and out.startswith(said), err


def test_what_cannot_be_pickled_is_refused_before_anything_starts(launch):
    rc, out, err = launch("try: crun.launch(lambda: 0, program=PROGRAM)\nexcept ValueError as e: print(e)")
    assert rc == 0 and "cannot be pickled" in out and "expected a function at the top level of a module" in out, err


@pytest.mark.parametrize("how", ["-", "-c", "folder", "-m"])
def test_a_program_that_cannot_be_run_again_may_launch_what_is_in_a_module(crun, how):
    text = f"""
import functools, os, crun
def own(*values): pass
class Own: pass
def refused(name, *call):
    try: crun.launch(*call, program={str(CRUN)!r})
    except ValueError as e: assert f"{{name}} is in a main module that cannot be run again: " in str(e), e
    else: print("not refused")
print(crun.launch(os.getcwd, nproc=2, program={str(CRUN)!r}))
print(crun.launch(str.upper, ["__main__"], program={str(CRUN)!r}))
refused("own", own)
refused("own", functools.partial(own, 1))
refused("Own", print, [Own()])
refused("Own", isinstance, [1, Own])
refused("own", map, [own, []])
"""
    (crun.tmp / "folder").mkdir()
    (crun.tmp / "folder" / "__main__.py").write_text("if __name__ == '__main__':\n" + textwrap.indent(text, "    "))
    words = {"-c": ["-c", text], "-m": ["-m", "folder"]}.get(how, [how])
    p = subprocess.run([sys.executable, *words], input=text if how == "-" else "", env=crun.env, capture_output=True, text=True, timeout=120, cwd=crun.tmp)
    assert p.stdout.splitlines() == [str({r: str(crun.tmp) for r in (0, 1)}), "{0: '__MAIN__'}"], p.stderr
    assert p.returncode == 0 and crun.leftovers() == []


@pytest.mark.parametrize("call", ["own", "functools.partial(own)", "print, [Own()]"])
def test_cloudpickle_takes_all_that_is_in_a_main_that_cannot_be_run_again(crun, call):
    """One that is made up, and tells what it was given by being asked at all."""
    (crun.tmp / "cloudpickle.py").write_text("import math, pickle\ndumps = lambda call: pickle.dumps((math.sqrt, (49,), {}))\n")
    text = f"import functools, crun\ndef own(): pass\nclass Own: pass\nprint(crun.launch({call}, program={str(CRUN)!r}))"
    p = subprocess.run([sys.executable, "-c", text], env=crun.env, capture_output=True, text=True, timeout=120, cwd=crun.tmp)
    assert (p.returncode, p.stdout) == (0, "{0: 7.0}\n"), p.stderr


@pytest.mark.parametrize("home", ["rdzv_backend='c10d', rdzv_endpoint='localhost:%d'", "rdzv_backend='static', rdzv_endpoint='127.0.0.1:%d', rdzv_conf='rank=0'"])
def test_the_settings_of_launch_config(crun, launch, home):
    """Those of PyTorch's tests of elastic_launch (api_test.py), whose home is etcd where c10d stands here."""
    rc, out, err = launch("print(crun.launch(ranks, (1, 10), nproc=4, nnodes='1:1', monitor_interval=0.1, start_method='spawn', max_restarts=0, program=PROGRAM, "
                          f"{home % crun.port()}))")
    assert (rc, out) == (0, str({r: (10 + r, "4") for r in range(4)}) + "\n"), err


def test_options_are_cruns(launch):
    rc, out, err = launch("print(crun.launch(ranks, (1,), nproc=1, run_id='j', log_dir=os.environ['TMPDIR'] + '/logs', log_prefix=False, program=PROGRAM))")
    assert rc == 0, err
    rc, _, err = launch("crun.launch(ranks, (1,), no_such_option=3, program=PROGRAM)")
    assert rc == 1 and "--no-such-option" in err


def test_a_foreign_crun_is_named(alone, tmp_path):
    other = tmp_path / "crun"
    other.write_text("#!/bin/sh\necho crun version 1.8.1\n")
    other.chmod(0o755)
    text = "import crun\ntry: print(crun.find_program())\nexcept FileNotFoundError as e: print(e)"
    p = subprocess.run([sys.executable, "-c", text], env={**alone, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=True)
    assert f"{other} is another program ('crun version 1.8.1')" in p.stdout or p.stdout.startswith("/usr/lib/crun-launcher")
    p = subprocess.run([sys.executable, "-c", text], env={**alone, "PATH": f"{CRUN.parent}:{tmp_path}"}, capture_output=True, text=True, timeout=60, check=True)
    assert p.stdout == f"{CRUN}\n"


@pytest.mark.parametrize("signo, code", [(signal.SIGINT, (1, -2, 130)), (signal.SIGKILL, (-9,))])
def test_whoever_called_it_ends_and_so_does_the_job(crun, launch, signo, code):
    p = launch.start("crun.launch(sleeps, nproc=2, program=PROGRAM)")
    wait("two workers", lambda: len([pid for pid in crun.processes() if b"_child.py" in read(pid)]) >= 3)  # and crun's own line
    p.send_signal(signo)
    _, err = p.communicate(timeout=60)
    crun.wait_processes_gone(60)
    assert p.returncode in code, err


def read(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read()
    except OSError:
        return b""


def test_the_child_is_not_a_module_of_its_own(launch):
    """What a script imports is what it would import without crun: the folder of _child.py is not on the path."""
    rc, out, err = launch("print([p for p in sys.path if p.endswith('python/crun')])")
    assert (rc, out) == (0, "[]\n"), err
    assert os.path.exists(ROOT / "python" / "crun" / "_child.py")


@pytest.mark.parametrize("options, said", [("nproc=0", "--nproc-per-node: '0': expected a number from 1 to 4096"), ("bogus=1", "unknown option '--bogus'")])
def test_what_crun_does_not_understand_is_a_value_error_with_its_sentence(launch, options, said):
    rc, out, err = launch(f"try: crun.launch(leaves, (2,), program=PROGRAM, {options})\nexcept ValueError as e: print(e)")
    assert rc == 0 and out.startswith("crun.launch: crun: " + said) and said in err, out + err
    rc, out, err = launch("try: crun.launch(leaves, (2,), program=PROGRAM)\nexcept crun.LaunchError as e: print(e)")
    assert (rc, out) == (0, "the job failed (exit code 2)\n"), "a worker's own 2 is none"


JOBS = """
job = crun.launch(ranks, (10, 3), nproc=2, program=PROGRAM, wait=False)
print(job.wait(60), job.poll(), job.future.result() == job.wait())
job = crun.launch(prints, nproc=2, program=PROGRAM, wait=False)
while not job.logs(1).get("out") or not job.logs(1)["out"].read_text():
    time.sleep(0.01)
print(job.logs(1)["out"].read_text().strip(), job.poll())
try: job.wait(0.01)
except TimeoutError as e: print(e)
job.stop()
try: job.wait(60)
except crun.LaunchError as e: print(e.exit_code == job.poll() != 0)
folder = job.log_dir.parent
del job
while folder.exists():  # an exception that was raised from it holds it, in a circle
    gc.collect()
    time.sleep(0.01)
"""


def test_a_job_beside_its_caller_is_asked_stopped_and_read(launch):
    rc, out, err = launch(JOBS)
    assert rc == 0, err
    assert [line for line in out.splitlines() if not line.startswith("[")] == [
        "{0: (3, '2'), 1: (13, '2')} 0 True", "rank 1 None", "crun.launch: the job still runs after 0.01 s", "True"], out + err


ELASTIC = """
from crun.integrations.torch_launcher import LaunchConfig, elastic_launch
crun.find_program = crun._launch.find_program = lambda: PROGRAM
print(elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_endpoint="127.0.0.1:0", monitor_interval=5, run_id="j"), ranks)(10, 3))
print(elastic_launch(LaunchConfig(1, 1, 2, max_restarts=1), fails_once)())
print(elastic_launch(LaunchConfig(1, 1, 2), "true")())
try: elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), "false")()
except crun.LaunchError as e: print(e)
"""


def test_pytorchs_elastic_launch_has_a_stand_in(launch):
    rc, out, err = launch(ELASTIC)
    assert rc == 0 and out.splitlines() == ["{0: (3, '2'), 1: (13, '2')}", "{0: 2, 1: 2}", "{}", "the job failed (exit code 1)"], out + err
    assert "elastic_launch: without effect under crun: monitor_interval" in err
