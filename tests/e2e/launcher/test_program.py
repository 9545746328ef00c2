"""Which program is started: scripts, folders, zip files, and which Python runs them."""

import fcntl
import os
import shutil
import subprocess
import zipfile

import pytest

from crun_run import CRUN

SAYS = "import sys; print('ran', sys.executable, int(sys.stdout.write_through), sys.argv[1:])\n"
PYTHON = shutil.which("python3")


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_python(folder, name="python3"):
    """An interpreter that tells which one it is."""
    folder.mkdir(parents=True, exist_ok=True)
    return executable(folder / name, f'#!/bin/sh\necho "by {folder / name}"\nexec {PYTHON} "$@"\n')


def run(crun, *args, cwd=None, **env):
    rc, out, err = crun.run("--no-log-prefix", *args, cwd=cwd or crun.tmp, extra_env=env)
    return rc, out + err


def folder_app(crun, name):
    (crun.tmp / name).mkdir()
    (crun.tmp / name / "__main__.py").write_text(SAYS)


def zip_app(crun, name):
    with zipfile.ZipFile(crun.tmp / name, "w") as z:
        z.writestr("__main__.py", SAYS)


@pytest.mark.parametrize("make, name", [
    (folder_app, "dpkg"), (folder_app, "./app"), (folder_app, "app/"), (zip_app, "app.pyz"), (zip_app, "./app.zip"),
    (lambda c, n: (c.tmp / n).write_text(SAYS), "noext"), (lambda c, n: (c.tmp / n).write_text(SAYS), "./noext"),
    (lambda c, n: (c.tmp / n).write_text("#!/usr/bin/env python3\n" + SAYS), "unset-bit"),
])
def test_what_torchrun_gives_to_python_is_given_to_it_unbuffered(crun, make, name):
    make(crun, name.strip("/"))
    rc, out = run(crun, name, "a", "b")
    assert rc == 0 and "ran" in out and out.endswith(" 1 ['a', 'b']\n"), out


@pytest.mark.parametrize("line", ["#!/usr/bin/env python3", "#!/usr/bin/env -S python3 -B", f"#!{PYTHON}", f"#!{PYTHON} -B"])
def test_scripts_that_name_a_python_are_unbuffered_too(crun, line):
    executable(crun.tmp / "tool", f"{line}\nimport sys\nprint(int(sys.stdout.write_through), sys.argv[1:], sys.flags.dont_write_bytecode)\n")
    rc, out = run(crun, "./tool", "x", PYTHONDONTWRITEBYTECODE="")
    assert rc == 0 and out == f"1 ['x'] {int('-B' in line)}\n", out


def test_other_programs_are_executed_as_they_are(crun):
    executable(crun.tmp / "tool", "#!/bin/sh\necho shell \"$@\"\n")
    assert run(crun, "./tool", "x") == (0, "shell x\n")
    (crun.tmp / "tool").chmod(0o644)
    rc, out = run(crun, "./tool")
    assert rc == 126 and out.endswith("program './tool' cannot be executed: it is not marked as executable: chmod +x ./tool\n"), out
    (crun.tmp / "sleep").write_text(SAYS)  # a program of that name is on PATH
    assert run(crun, "sleep", "0") == (0, "")
    executable(crun.tmp / "own.sh", "#!/bin/sh\ntrue\n")
    rc, out = run(crun, "own.sh")
    assert rc == 127 and "write ./ in front" in out
    (crun.tmp / "empty-folder").mkdir()
    rc, out = run(crun, "./empty-folder")
    assert rc == 126 and out.endswith("program './empty-folder' cannot be executed: it is a folder\n"), out


def test_a_python_that_is_not_there_is_named_by_its_variable(crun):
    (crun.tmp / "x.py").write_text(SAYS)
    rc, out = run(crun, "x.py", PYTHON_EXEC="/no/such/python")
    assert rc == 127 and "PYTHON_EXEC names no Python: program '/no/such/python' is not found" in out, out


def environment(crun, sign):
    """An environment with a crun and a Python."""
    env = crun.tmp / "env"
    fake_python(env / "bin")
    shutil.copy(CRUN, env / "bin" / "crun")
    (env / sign).mkdir() if sign == "conda-meta" else (env / sign).touch()
    return env


def run_at(crun, path, *args, **env):
    p = subprocess.run([path, "--no-log-prefix", *args], cwd=crun.tmp, env=dict(crun.env, **env), capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout + p.stderr


@pytest.mark.parametrize("sign", ["pyvenv.cfg", "conda-meta"])
def test_the_python_beside_crun_counts_before_path(crun, sign):
    (crun.tmp / "x.py").write_text(SAYS)
    env, other = environment(crun, sign), crun.tmp / "other"
    fake_python(other / "bin")
    rc, out = run_at(crun, env / "bin" / "crun", "x.py", VIRTUAL_ENV=str(other))
    assert rc == 0 and f"by {env}/bin/python3" in out, out
    link = crun.tmp / "linked" / "bin"
    fake_python(link)
    (crun.tmp / "linked" / "pyvenv.cfg").touch()
    (link / "crun").symlink_to(CRUN)  # called by a link within an environment: that environment
    rc, out = run_at(crun, link / "crun", "x.py")
    assert rc == 0 and f"by {link}/python3" in out, out


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_counts_before_path_and_python_exec_before_all(crun, variable):
    (crun.tmp / "x.py").write_text(SAYS)
    env = crun.tmp / "active"
    fake_python(env / "bin", "python")
    rc, out = run(crun, "x.py", **{variable: str(env)})
    assert rc == 0 and f"by {env}/bin/python" in out, out
    named = fake_python(crun.tmp / "named")
    rc, out = run(crun, "x.py", PYTHON_EXEC=str(named), **{variable: str(env)})
    assert rc == 0 and f"by {named}" in out, out


def test_of_two_environments_the_one_on_path_counts(crun):
    """sbatch hands on the VIRTUAL_ENV of the shell that submitted; then the script does `conda activate`."""
    (crun.tmp / "x.py").write_text(SAYS)
    stale, conda = crun.tmp / "stale", crun.tmp / "conda"
    for env in (stale, conda):
        fake_python(env / "bin")
    both = {"VIRTUAL_ENV": str(stale), "CONDA_PREFIX": str(conda)}
    for path, taken, told in ((f"{conda}/bin:{stale}/bin:", conda, False), (f"{stale}/bin:{conda}/bin:", stale, False), ("", stale, True)):
        rc, out = run(crun, "x.py", PATH=path + crun.env["PATH"], **both)
        assert rc == 0 and f"by {taken}/bin/python3" in out, out
        assert (f", but VIRTUAL_ENV names {stale}/bin/python3, which is taken (PYTHON_EXEC names another)" in out) == told, out


def test_a_dry_run_says_which_python_and_why(crun):
    (crun.tmp / "x.py").write_text(SAYS)
    env = crun.tmp / "active"
    fake_python(env / "bin")
    rc, out = run(crun, "--dry-run", "x.py", VIRTUAL_ENV=str(env))
    assert rc == 0 and f"python: {env}/bin/python3 (VIRTUAL_ENV)" in out, out
    rc, out = run(crun, "--dry-run", "true")
    assert rc == 0 and "python: " not in out


HAS = """
import os, sys
try:
    os.fstat(int(sys.argv[1]))
    print("open")
except OSError:
    print("closed")
"""


def test_descriptors_of_the_caller_are_not_the_workers(crun):
    (crun.tmp / "has.py").write_text(HAS)
    held = os.open(crun.tmp / "has.py", os.O_RDONLY)
    try:
        high = fcntl.fcntl(held, fcntl.F_DUPFD, 87)
        os.set_inheritable(high, True)
        for option, word in ([], "closed"), (["--inherit-fds"], "open"):
            rc, out, _ = crun.run("--no-log-prefix", *option, crun.tmp / "has.py", high, close_fds=False)
            assert (rc, out) == (0, word + "\n")
        os.close(high)
    finally:
        os.close(held)


def test_the_name_that_crun_was_called_by_is_the_one_it_prints(crun):
    launcher = crun.tmp / "crun-launcher"
    launcher.symlink_to(CRUN)

    def said(*args):
        p = subprocess.run([launcher, *args], env=crun.env, capture_output=True, text=True, timeout=60)
        return p.stdout + p.stderr

    assert said("--help").startswith("Usage: crun-launcher [options] PROGRAM")
    assert said("--completion", "bash").endswith(" -F _crun crun-launcher\n")
    assert said() == "crun-launcher: no program to run: expected crun-launcher [options] PROGRAM [args...]\nTry 'crun-launcher --help'.\n"
    assert said("status", "--help").startswith("Usage: crun-launcher status [options]")
    assert "did you mean 'crun-launcher status'?" in said("statuss")


@pytest.mark.parametrize("ours", [False, True])
def test_another_crun_on_path_is_named_to_who_types_a_path(crun, ours):
    """The container runtime has no crun-launch beside it; another build of ours has. crun-launcher needs no word."""
    bin_ = crun.tmp / "bin"
    bin_.mkdir()
    other = executable(bin_ / "crun", "#!/bin/sh\nexit 1\n")
    (bin_ / "crun-launcher").symlink_to(CRUN)
    if ours:
        (bin_ / "crun-launch").symlink_to(CRUN)
    path = f"{bin_}:{os.environ['PATH']}"
    words = f"crun: the word crun means another program here, {other}: crun-launcher is this one\n"
    assert (words in run(crun, "true", PATH=path)[1]) != ours
    crun.program = str(bin_ / "crun-launcher")
    assert "another program" not in run(crun, "true", PATH=path)[1]
