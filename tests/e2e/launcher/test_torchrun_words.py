"""What people type for torchrun, and what they read from it."""

import json
import os
import stat
import subprocess

import pytest

from crun_run import CRUN

ENV = "import os, sys; print(os.environ['RANK'], os.environ.get('OMP_NUM_THREADS'), sys.argv[1:])\n"


def torchrun(crun, *args, **env):
    """crun, called by that name."""
    link = crun.tmp / "torchrun"
    if not link.is_symlink():
        link.symlink_to(CRUN)
    p = subprocess.run([link, *map(str, args)], cwd=crun.tmp, env=dict(crun.env, **env), capture_output=True, text=True, timeout=90)
    return p.returncode, p.stdout, p.stderr


def test_one_worker_writes_what_a_pipe_can_read(crun):
    rc, out, _ = crun.run("sh", "-c", """echo '{"a": 1}'""")
    assert rc == 0 and json.loads(out) == {"a": 1}
    rc, out, _ = crun.run("--log-prefix", "echo", "x")
    assert (rc, out) == (0, "[default0]: x\n")
    rc, out, _ = crun.run("--nproc_per_node", 2, "sh", "-c", "echo $RANK")
    assert rc == 0 and sorted(out.splitlines()) == ["[default0]: 0", "[default1]: 1"]
    rc, out, _ = crun.run("--print-config", "true")
    assert "log-prefix = off  # default" in out


@pytest.mark.parametrize("words, args", [
    (["t.py", "--", "--depth=24", "x"], ["--depth=24", "x"]),
    (["t.py", "--", "--", "b"], ["--", "b"]),
    (["--", "t.py", "--", "b"], ["--", "b"]),
    (["--", "t.py", "b"], ["b"]),
    (["t.py", "a", "--", "b"], ["a", "--", "b"]),
    (["t.py", "--"], []),
    (["--role", "r", "-t=0", "t.py", "--", "-t", "3"], ["-t", "3"]),
    (["-m", "t", "--", "--run=x"], ["--run=x"]),
    (["--no-python", "./prog", "--", "-x"], ["-x"]),
    (["--nproc_per_node", " 1", "--nnodes", "1 : 1", "--max_restarts", "2\n", "--rdzv-co", "colour=3", "t.py"], []),
], ids=" ".join)
def test_words_reach_the_program_as_by_argparse(crun, words, args):
    """What Python's argparse does with torchrun's line; peer/test_torchrun_lines.py asks that itself."""
    (crun.tmp / "t.py").write_text("import sys; print(sys.argv[1:])\n")
    (crun.tmp / "prog").write_text("#!/usr/bin/env python3\nimport sys; print(sys.argv[1:])\n")
    (crun.tmp / "prog").chmod(0o755)
    p = subprocess.run([CRUN, *words], cwd=crun.tmp, env=crun.env, capture_output=True, text=True, timeout=90)
    assert (p.returncode, p.stdout) == (0, f"{args}\n"), p.stderr


def test_called_as_torchrun_it_has_torchruns_defaults(crun):
    (crun.tmp / "script.txt").write_text(ENV)
    rc, out, err = torchrun(crun, "--nproc_per_node", 2, "script.txt", "$$", "$local_rank", "${local_rank}", "${rank}", "$$local_rank")
    assert rc == 0, err
    assert sorted(out.splitlines()) == [f"{r} 1 ['$', '{r}', '{r}', '${{rank}}', '$local_rank']" for r in (0, 1)]
    (crun.tmp / "echo").write_text(ENV)  # a program is not looked for
    rc, out, _ = torchrun(crun, "echo")
    assert (rc, out) == (0, "0 None []\n")
    rc, out, _ = torchrun(crun, "--no-python", "echo", "a program")
    assert (rc, out) == (0, "a program\n")
    rc, out, err = torchrun(crun, "missing")
    assert rc == 127 and "script 'missing' is not found" in err
    rc, out, _ = torchrun(crun, "--print-config", "script.txt")
    assert "shutdown-timeout = 30  # default" in out and "torchrun-compat = on  # default" in out
    rc, out, _ = torchrun(crun, "--no-torchrun-compat", "printf", "x\\n")
    assert (rc, out) == (0, "x\n")


def test_the_option_means_the_same(crun):
    (crun.tmp / "script.txt").write_text(ENV)
    rc, out, err = crun.run("--torchrun-compat", "--nproc_per_node", 2, crun.tmp / "script.txt", "$local_rank")
    assert rc == 0 and sorted(out.splitlines()) == ["0 1 ['0']", "1 1 ['1']"], err


def test_its_files_are_torchruns(crun):
    (crun.tmp / "script.py").write_text(ENV)
    rc, out, err = torchrun(crun, "--nproc_per_node", 2, "-t", 3, "--rdzv-id", "j", "script.py", TMPDIR=str(crun.tmp))
    assert rc == 0 and sorted(out.splitlines()) == ["[default0]:0 1 []", "[default1]:1 1 []"], err
    private, = crun.tmp.glob("torchelastic_*")
    root, = private.iterdir()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (private, root)] == [0o700] * 2
    assert root.name.startswith("j_")
    assert {str(p.relative_to(root)) for p in root.rglob("*.log")} == {f"attempt_0/{r}/{s}.log" for r in (0, 1) for s in ("stdout", "stderr")}
    rc, out, err = torchrun(crun, "--log-dir", crun.tmp / "logs", "script.py")
    assert rc == 0 and out == "0 None []\n" and not list((crun.tmp / "logs").rglob("*.log")), "no file without -r or -t"


@pytest.mark.parametrize("conf", ["'join_timeout=5,last_call_timeout=1,timeout=5'", '"join_timeout=5"', "join_timeout='5',last_call_timeout=1"])
def test_quotes_around_rdzv_conf_are_taken_off(crun, conf):
    rc, _, err = crun.run("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{crun.port()}", "--rdzv-id=q", f"--rdzv-conf={conf}",
                          "--dry-run", "true")
    assert rc == 0, err
    rc, _, err = crun.run("--nnodes=1:2", "--rdzv-endpoint=localhost", "--rdzv-conf='join_timeout=5", "true")
    assert rc == 2 and "--rdzv-conf" in err


def test_logs_specs_that_nobody_can_load_are_refused(crun):
    assert crun.run("--logs_specs", "default", "true")[0] == 0
    rc, _, err = crun.run("--logs_specs", "mine", "true")
    assert rc == 2 and "--logs-specs 'mine'" in err and "expected default" in err


LEAVES = "import os, sys; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(sys.argv[1]); sys.exit(3)\n"


@pytest.mark.parametrize("text, words", [("", "error record is empty"), ('{"message": "cut', "error record cannot be read")])
def test_an_error_record_that_says_nothing_is_said(crun, text, words):
    (crun.tmp / "leaves.py").write_text(LEAVES)
    rc, _, err = crun.run(crun.tmp / "leaves.py", text)
    assert rc == 3 and words in err, err


def test_a_place_for_error_records_that_cannot_be_made_is_said(crun):
    rc, out, err = crun.run("sh", "-c", "echo file=$TORCHELASTIC_ERROR_FILE", extra_env={"TMPDIR": str(crun.tmp / "missing")})
    assert rc == 0 and out == "file=\n" and f"error records can be made in {crun.tmp}/missing: No such file" in err, err


RECORDS = ("import json, os, sys, time\nif os.environ['RANK'] == '1':\n"
           "    json.dump({'message': {'message': 'it broke', 'extraInfo': {'timestamp': '1700000000'}}}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
           "    sys.exit(3)\ntime.sleep(600)\n")


def test_a_launcher_around_crun_is_left_a_record_of_the_culprit(crun):
    """torchrun copies the first failure's record to its own TORCHELASTIC_ERROR_FILE."""
    script, record = crun.tmp / "records.py", crun.tmp / "error.json"
    script.write_text(RECORDS)
    around = {"TORCHELASTIC_ERROR_FILE": str(record)}
    assert crun.run("true", extra_env=around)[0] == 0 and not record.exists()
    rc, _, err = crun.run("--nproc-per-node", 2, script, extra_env=around)
    got = json.loads(record.read_text())
    assert rc == 3 and got["message"]["message"] == "it broke" and (got["message"]["errorCode"], got["rank"]) == (3, 1), (got, err)
    rc, _, err = crun.run("sh", "-c", "kill -9 $$", extra_env=around)
    got = json.loads(record.read_text())
    assert rc == 137 and got["message"]["message"] == "rank 0 killed by SIGKILL" and got["message"]["errorCode"] == -9, (got, err)
    rc, _, err = crun.run(crun.program, "--nproc-per-node", 2, script)
    assert rc == 3 and "  message   it broke (error.json)\n" in err[err.rindex(" failed: "):], "a crun around a crun"
