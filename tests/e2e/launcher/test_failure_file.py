"""--failure-file: what is there already is written to as its kind asks for, and never taken away."""
import contextlib
import json
import os
import stat
import subprocess

import pytest

from support import tmpfs

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
        text = b""
        while not text.endswith(b"}\r\n"):
            text += os.read(ours, 65536)
        assert report(text)["rank"] == 0 and stat.S_ISCHR(os.stat(name).st_mode)
    finally:
        os.close(ours)
        os.close(theirs)


def test_crun_s_own_output_is_added_to(crun):
    with open(crun.tmp / "said", "w") as said:
        p = crun.start("--failure-file", "/dev/stderr", *FAILS, stdout=subprocess.DEVNULL, stderr=said)
        assert p.wait(timeout=60) == 3
    text = (crun.tmp / "said").read_text()
    assert "failed: rank 0 exited with code 3" in text
    begin = text.index("{\n")
    assert json.JSONDecoder().raw_decode(text[begin:])[0]["failures"][0]["rank"] == 0


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
