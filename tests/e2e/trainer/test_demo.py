"""trainer demo: a data set, two ranks under crun, one of them killed, a picture."""
import os
import re
import shutil
import signal
import subprocess

import pytest

from support import CRUN, TRAINER, run


def test_a_launcher_that_is_another_program_is_named(tmp_path):
    other = tmp_path / "crun"
    other.write_text("#!/bin/sh\necho crun version 1.8.1\n")
    other.chmod(0o755)
    p = run(TRAINER, "demo", "--out", tmp_path / "out", "--crun", other)
    assert p.returncode == 69 and f"--crun {other} cannot be run as crun; {other} is another program ('crun version 1.8.1')" in p.stderr, p.stderr
    alone = tmp_path / "bin" / "trainer"
    alone.parent.mkdir()
    shutil.copy(TRAINER, alone)  # has no crun beside it
    p = run(alone, "demo", "--out", tmp_path / "out", env={**os.environ, "PATH": str(tmp_path)})
    if not os.path.exists("/usr/lib/crun-launcher/bin/crun"):
        assert p.returncode == 69 and f"; {other} is another program ('crun version 1.8.1'): install it" in p.stderr, p.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("restart, goes_on, code", [
    (True, "goes on from step 105 (epoch 2, step 42 of 63)", 0),
    (True, "resumed from step 100 (epoch 2, step 37 of 63)", 0),  # steps so slow that the other rank was not held in time
    (False, "", 1)])
def test_what_came_of_the_kill_is_read_from_crun(restart, goes_on, code, out):
    crun = out / "crun"
    crun.write_text(f"""#!/bin/sh
[ "$1" != --version ] || exec {CRUN} --version
{"echo 'crun: restart 1/3 (rank 1 killed by SIGKILL): detect 0.2 ms'" if restart else ""}
echo '[default0]: {goes_on}'
echo '[default0]:  * Acc@1 99.700 Acc@5 100.000'
""")
    crun.chmod(0o755)
    p = run(TRAINER, "demo", "--out", out, "--crun", crun, "--seed", "2")
    assert p.returncode == code, p.stdout[-2000:] + p.stderr
    if code == 0:
        assert f"\n== {goes_on}\n== accuracy on 1000 held-out images: 99.70 %\n" in p.stdout
    else:
        assert p.stderr == "trainer demo: no worker was killed and restarted\n"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.mark.slow
def test_it_is_killed_resumes_learns_and_is_drawn(out):
    if not shutil.which("gnuplot"):
        pytest.skip("no gnuplot")
    p = run(TRAINER, "demo", "--out", out, timeout=900)
    assert p.returncode == 0, p.stdout[-2000:] + p.stderr
    step = int(re.search(r"^== kill -9 \d+ \(rank 1\) after step (\d+) of 315$", p.stdout, re.M)[1])
    goes_on = int(re.search(r"^== goes on from step (\d+)", p.stdout, re.M)[1])
    assert 105 <= step < 130 and step - 1 <= goes_on <= step + 20
    assert re.search(r"^== restart 1/3 \(rank 1 killed by SIGKILL\)", p.stdout, re.M)
    assert float(re.search(r"^== accuracy on 1000 held-out images: ([\d.]+) %$", p.stdout, re.M)[1]) >= 95
    folder, = out.glob("run-*-seed0")
    assert (folder / "plot.png").read_bytes()[:4] == b"\x89PNG" and (folder / "logs").is_dir()


@pytest.mark.slow
def test_a_signal_ends_it_in_good_order(out):
    p = subprocess.Popen([TRAINER, "demo", "--out", out, "--seed", "1", "--crun", CRUN], stdout=subprocess.PIPE, text=True)
    line = next(line for line in p.stdout if "epoch 1:" in line)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=120)
    assert p.returncode == 75, line
