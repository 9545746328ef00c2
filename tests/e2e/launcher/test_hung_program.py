"""A program on a disk that hangs costs its own start, and nothing else."""

import os
import pathlib
import signal
import subprocess

import pytest

from processes import children, wait

SCRIPT = b"""#!/bin/sh
touch $TMPDIR/up-$CRUN_ROUND-$RANK
[ $CRUN_ROUND = 1 ] || exit 0
exec sleep 100
"""


@pytest.fixture
def disk(disk):
    disk.write("program", SCRIPT)
    return disk


def hang(crun, disk, agent):
    """The disk hangs, and the worker of the first round dies: the next one cannot be started."""
    worker, = children(agent)
    wait("the shell to leave its script", lambda: pathlib.Path(f"/proc/{worker}/comm").read_text() == "sleep\n")  # else its end waits for the disk
    disk.pause()
    os.kill(worker, signal.SIGKILL)
    assert disk.asked.wait(30)


@pytest.mark.long
def test_the_other_nodes_notice_nothing(crun, disk):
    port = crun.port()
    start = lambda program: crun.start("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--insecure", "--run-id", "j", "--max-restarts", 1,
                                       "--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=3", program, stdout=subprocess.DEVNULL)
    local = crun.tmp / "program"
    local.write_bytes(SCRIPT)
    local.chmod(0o755)
    nodes = [start(local)]
    wait("a host", lambda: children(nodes[0].pid))
    nodes.append(start(crun.tmp / "disk" / "program"))
    for rank in (0, 1):
        crun.wait_file(f"up-1-{rank}")
    hang(crun, disk, crun.agent_of(nodes[1].pid))
    wait("the other worker", lambda: list(crun.tmp.glob("up-2-*")))
    assert not disk.going.wait(4), "longer than a node may be silent"
    disk.resume()
    for p in nodes:
        _, err = p.communicate(timeout=60)
        assert p.returncode == 0 and b"nothing was heard" not in err and b"restart 2" not in err, err
    for rank in (0, 1):
        crun.wait_file(f"up-2-{rank}")


@pytest.mark.long
def test_a_signal_ends_crun_and_names_what_is_left(crun, disk):
    p = crun.start("--max-restarts", 1, "--kill-timeout", 1, "--shutdown-timeout", 1, crun.tmp / "disk" / "program")
    crun.wait_file("up-1-0")
    hang(crun, disk, crun.agent_of(p.pid))
    p.terminate()
    p.wait(timeout=60)
    err = os.read(p.stderr.fileno(), 65536).decode()
    assert p.returncode == 71 and "still there 1 s after SIGKILL" in err and "state D" in err, err
    disk.resume()
    p.communicate(timeout=60)
