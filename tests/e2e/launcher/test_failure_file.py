"""--failure-file: what is there already is written to as its kind asks for, and never taken away."""
import contextlib
import itertools
import json
import os
import shutil
import socket
import stat
import subprocess

import pytest

from support import CRUN, tmpfs

FAILS = ["sh", "-c", "exit 3"]


def report(text):
    return json.loads(text)["failures"][0]


def test_a_link_stays_one(crun):
    (crun.tmp / "real").write_text("old\n")
    (crun.tmp / "link").symlink_to("real")
    (crun.tmp / "new").symlink_to("not-there-yet")
    for name, target in (("link", "real"), ("new", "not-there-yet")):
        rc, _, err = crun.run("--failure-file", crun.tmp / name, *FAILS)
        assert rc == 3 and "cannot write" not in err, err
        assert (crun.tmp / name).is_symlink() and report((crun.tmp / target).read_text())["rank"] == 0


def test_the_report_stays_where_a_launcher_around_names_the_same_file(crun):
    file = crun.tmp / "why.json"
    assert crun.run("--failure-file", file, *FAILS, extra_env={"TORCHELASTIC_ERROR_FILE": str(file)})[0] == 3
    assert report(file.read_text())["rank"] == 0


def test_a_file_keeps_its_mode(crun):
    file = crun.tmp / "why.json"
    file.write_text("x" * 100000)
    file.chmod(0o600)
    assert crun.run("--failure-file", file, *FAILS)[0] == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and report(file.read_text())["rank"] == 0
    assert os.listdir(crun.tmp).count("why.json") == 1 and not [n for n in os.listdir(crun.tmp) if n.endswith(".tmp")]


def test_a_fifo_gets_the_report_and_holds_nobody_up(crun):
    fifo = crun.tmp / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.closing(os.fdopen(reader)) as f:
        assert crun.run("--failure-file", fifo, *FAILS)[0] == 3
        assert report(f.read())["rank"] == 0
    rc, _, err = crun.run("--failure-file", fifo, *FAILS, timeout=30)
    assert rc == 3 and f"cannot write '{fifo}': it is a FIFO that nobody reads" in err and stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_to(crun):
    ours, theirs = os.openpty()
    try:
        name = os.ttyname(theirs)
        assert crun.run("--failure-file", name, *FAILS)[0] == 3
        os.set_blocking(ours, False)
        text = b""
        with contextlib.suppress(BlockingIOError):  # it has ended: all that it wrote is there
            while True:
                text += os.read(ours, 65536)
        assert report(text)["rank"] == 0 and stat.S_ISCHR(os.stat(name).st_mode)
    finally:
        os.close(ours)
        os.close(theirs)


def first_report(text):
    return json.JSONDecoder().raw_decode(text[text.index("{\n"):])[0]["failures"][0]


def as_nobody(tmp):
    """prefix of a crun that is another user's, who may write to tmp."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("another uid needs root and setpriv(1)")
    here = tmp / "nobody-s-crun"
    shutil.copy(CRUN, here)
    for folder in (tmp, *itertools.takewhile(lambda f: f.stat().st_mode & 0o077 == 0, tmp.parents)):
        folder.chmod(0o711)
    tmp.chmod(0o777)
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env", f"HOME={tmp}"], here


@pytest.mark.parametrize("name", ["/dev/stderr", "/dev/stdout"])
@pytest.mark.parametrize("whose", [0, 65534])
def test_a_pipe_that_crun_prints_to_gets_the_report(crun, name, whose):
    """As with 2>&1 | tee log; the pipe may be another user's, as under su."""
    prefix, crun.program = as_nobody(crun.tmp)
    ours, theirs = os.pipe()
    os.fchown(theirs, whose, whose)
    with open(ours) as out, open(theirs, "w") as both:
        p = crun.start("--failure-file", name, *FAILS, prefix=prefix, stdout=both, stderr=both)
        both.close()
        text = out.read()
    assert p.wait(timeout=60) == 3 and "cannot write" not in text and first_report(text)["rank"] == 0, text


def test_a_socket_that_crun_prints_to_gets_the_report(crun):
    """As of a service whose words go to the journal."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        p = crun.start("--failure-file", "/dev/stderr", *FAILS, stdout=subprocess.DEVNULL, stderr=theirs)
        theirs.close()
        with ours.makefile() as f:
            text = f.read()
    assert p.wait(timeout=60) == 3 and "cannot write" not in text and first_report(text)["rank"] == 0, text


def test_a_socket_is_no_fifo(crun):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(crun.tmp / "socket"))
        rc, _, err = crun.run("--failure-file", crun.tmp / "socket", *FAILS)
    assert rc == 3 and f"cannot write '{crun.tmp / 'socket'}': No such device or address" in err and "FIFO" not in err, err


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_what_is_another_user_s_in_a_shared_folder_is_written_to(crun, kind):
    """Where fs.protected_fifos and fs.protected_regular are set, the kernel refuses to open it as something that may be new."""
    prefix, crun.program = as_nobody(crun.tmp)
    folder = crun.tmp / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    path = folder / kind
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.touch()
    path.chmod(0o666)
    os.chown(path, 1, 1)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as f:
        assert crun.run("--failure-file", path, *FAILS, prefix=prefix)[0] == 3
        assert report(f.read())["rank"] == 0


def test_a_link_is_judged_by_the_folder_that_it_leads_to(crun):
    prefix, crun.program = as_nobody(crun.tmp)
    for name, folder in (("to-ours", "theirs"), ("to-theirs", "ours")):
        (crun.tmp / folder).mkdir()
        (crun.tmp / folder / name).symlink_to(crun.tmp / name.removeprefix("to-") / "hop")
    (crun.tmp / "ours/hop").symlink_to("why.json")
    (crun.tmp / "theirs/hop").symlink_to("why.json")
    (crun.tmp / "ours").chmod(0o777)
    (crun.tmp / "theirs").chmod(0o755)
    assert crun.run("--failure-file", crun.tmp / "theirs/to-ours", *FAILS, prefix=prefix)[0] == 3
    assert report((crun.tmp / "ours/why.json").read_text())["rank"] == 0
    rc, out, err = crun.run("--failure-file", crun.tmp / "ours/to-theirs", "echo", "ran", prefix=prefix)
    assert (rc, out) == (73, "") and "Permission denied" in err, err


def test_crun_s_own_output_is_added_to(crun):
    with open(crun.tmp / "said", "w") as said:
        p = crun.start("--failure-file", "/dev/stderr", *FAILS, stdout=subprocess.DEVNULL, stderr=said)
        assert p.wait(timeout=60) == 3
    text = (crun.tmp / "said").read_text()
    assert "failed: rank 0 exited with code 3" in text and first_report(text)["rank"] == 0


def test_a_file_that_is_mounted_is_written_in_place(crun):
    """As /dev/termination-log of Kubernetes."""
    with tmpfs(crun.tmp / "mount", 1):
        file, log = crun.tmp / "mount/log", crun.tmp / "termination-log"
        file.write_text("old" * 9999)
        log.write_text("")
        subprocess.run(["mount", "--bind", file, log], check=True)
        try:
            rc, _, err = crun.run("--failure-file", log, *FAILS)
            assert rc == 3 and "cannot write" not in err and report(log.read_text())["rank"] == 0, err
        finally:
            subprocess.run(["umount", log], check=True)


def test_a_folder_is_refused_at_once_and_nothing_is_none(crun):
    rc, out, err = crun.run("--failure-file", crun.tmp, "echo", "ran")
    assert (rc, out) == (73, "")
    assert err == f"crun: cannot write the failure report {crun.tmp} (--failure-file): it is a folder, expected the name of a file\n"
    rc, _, err = crun.run("--failure-file=", *FAILS)
    assert rc == 3 and "cannot write" not in err, err


@pytest.mark.parametrize("renamed", [False, True])
def test_a_link_of_another_user_in_the_log_folder_is_not_followed(crun, renamed):
    """He owns the folder of the run, and may put another in its place while the job runs."""
    if os.geteuid() != 0:
        pytest.skip("another uid needs root")
    victim, root, moved = crun.tmp / "victim", crun.tmp / "logs/fid", crun.tmp / "logs/moved"
    victim.write_text("secret\n")
    for folder in (root.parent, root):
        folder.mkdir(0o777)
        os.chown(folder, 65534, 65534)
    link = "mkdir logs/fid; " if renamed else ""
    link += "ln -s ../../victim logs/fid/failure.json; chown -h 65534:65534 logs/fid logs/fid/*"
    script = f"mv logs/fid logs/moved; {link}; exit 3" if renamed else f"{link}; exit 3"
    rc, _, err = crun.run("--rdzv-id", "fid", "-r", "3", "--log-dir", root.parent, "sh", "-c", script, cwd=crun.tmp)
    assert rc == 3 and "cannot write" not in err, err
    assert victim.read_text() == "secret\n"
    assert report((moved if renamed else root).joinpath("failure.json").read_text())["rank"] == 0


@pytest.mark.parametrize("renamed", [False, True])
def test_a_link_of_another_user_is_no_error_record(crun, renamed):
    """He has it point at a file that only crun's user may read, whose text would be in the report."""
    if os.geteuid() != 0:
        pytest.skip("another uid needs root")
    victim, root, moved = crun.tmp / "victim", crun.tmp / "logs/fid", crun.tmp / "logs/moved"
    victim.write_text('{"message": "the secret", "timestamp": "17"}')
    victim.chmod(0o600)
    for folder in (root.parent, root):
        folder.mkdir(0o777)
        os.chown(folder, 65534, 65534)
    script = 'mv logs/fid logs/moved; mkdir -p "${TORCHELASTIC_ERROR_FILE%/*}"; chown -R 65534:65534 logs/fid; ' if renamed else ""
    script += f'ln -s {victim} "$TORCHELASTIC_ERROR_FILE"; chown -h 65534:65534 "$TORCHELASTIC_ERROR_FILE"; exit 3'
    rc, _, err = crun.run("--rdzv-id", "fid", "-r", "3", "--log-dir", root.parent, "sh", "-c", script, cwd=crun.tmp)
    text = (moved if renamed else root).joinpath("failure.json").read_text()
    assert rc == 3 and report(text)["rank"] == 0 and "the secret" not in text + err, text + err
    assert ("its error record is a symbolic link, which is not read" in text) == (not renamed), text


def test_a_typed_path_is_no_link_of_another_user_in_a_shared_folder(crun):
    if os.geteuid() != 0:
        pytest.skip("another uid needs root")
    shared, victim = crun.tmp / "shared", crun.tmp / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("secret\n")
    (shared / "why.json").symlink_to(victim)
    os.lchown(shared / "why.json", 65534, 65534)
    rc, _, err = crun.run("--failure-file", shared / "why.json", *FAILS)
    assert rc != 0 and "Permission denied" in err and victim.read_text() == "secret\n", err
