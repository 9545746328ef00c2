"""A checkpoint's save and load, whose Nth allocation or system call fails: what was acknowledged is there, what was there before stays, nothing half-made is left."""
import os
import subprocess

import pytest

import nth_call
from support import BUILD, run

PROGRAM = BUILD / "tests" / "worker" / "ckpt" / "save_and_load"
NAME = "save_and_load"
FEW = 50


@pytest.fixture
def folder(tmp_path):
    """With a checkpoint of step 1 from before."""
    assert run(PROGRAM, tmp_path / "ckpt", 1).returncode == 0
    return tmp_path / "ckpt"


def check(folder, p, undisturbed):
    """undisturbed: the bytes that a run without a fault holds at its end."""
    nth_call.check_end(p.returncode, p.stderr)
    assert p.returncode == 0 or "save_and_load: " in p.stderr
    if "the output" not in p.stderr:
        assert int(p.stdout.rsplit("left ", 1)[1]) <= undisturbed
    newest = run(PROGRAM, folder)
    assert newest.returncode == 0, newest.stderr
    assert "saved" not in p.stdout or newest.stdout.startswith("newest 2\n")
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    for name in ("model.safetensors", "train.safetensors", "manifest.json", ""):
        path = folder / "step-00000002" / name
        (path.rmdir if not name else path.unlink)() if path.exists() else None
    (folder / "latest").unlink(missing_ok=True)


def saved(folder, env):
    return run(PROGRAM, folder, 2, env={**os.environ, **env}, timeout=nth_call.PATIENCE_S)


def check_allocations(folder, few, on):
    log = folder.parent / "log"
    p = saved(folder, nth_call.environment(NAME, log))
    assert p.returncode == 0, p.stderr
    n, left = len(nth_call.sites(log)), int(p.stdout.rsplit("left ", 1)[1])
    check(folder, p, left)
    assert n > FEW
    for at in nth_call.numbers(n, few):
        log.unlink()
        p = saved(folder, nth_call.environment(NAME, log, at=at, on=on))
        assert nth_call.has_failed(log)
        check(folder, p, left)


@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
def test_an_allocation_of_a_checkpoint_fails(folder, on):
    check_allocations(folder, FEW, on)


@pytest.mark.slow
@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
def test_any_allocation_of_a_checkpoint_fails(folder, on):
    check_allocations(folder, nth_call.ALL, on)


def test_short_writes_to_a_checkpoint_lose_nothing(folder):
    p = saved(folder, nth_call.environment(NAME, folder.parent / "log", short=1))
    assert p.returncode == 0, p.stderr
    assert run(PROGRAM, folder).stdout.startswith("newest 2\n")


def check_call(folder, call, error, n):
    """False: it makes fewer of these calls."""
    (folder.parent / "held").unlink(missing_ok=True)
    injected = nth_call.Injected(folder.parent, NAME, call, error, n)
    p = subprocess.Popen([PROGRAM, folder, "2"], env={**os.environ, **injected.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    injected.attach()
    out, said = p.communicate(timeout=nth_call.PATIENCE_S)
    check(folder, subprocess.CompletedProcess(p.args, p.returncode, out, said), 1 << 20)
    return injected.detach()


CALLS = [(call, error) for call in ("write", "openat", "fsync", "mmap") for error in nth_call.ERRORS[call]]


def test_a_system_call_of_a_checkpoint_fails(folder):
    call, error = CALLS[nth_call.today() % len(CALLS)]
    for n in nth_call.numbers(12, 3):
        check_call(folder, call, error, n)


@pytest.mark.slow
@pytest.mark.parametrize("call, error", CALLS)
def test_any_system_call_of_a_checkpoint_fails(folder, call, error):
    n = 1
    while check_call(folder, call, error, n):
        n += 1
    assert n > 1 or call == "mmap"
