"""Where output goes: one test for each option's effect, through the real crun."""

import os
import pathlib
import pty
import re
import socket
import subprocess

import pytest

from crun_run import CRUN

SAY = "echo out-$RANK; echo err-$RANK >&2"


def crun_says(err):
    """stderr without what crun says about itself."""
    return [l for l in err.splitlines() if not l.startswith("crun: ")]


def tree(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


@pytest.fixture
def logs(crun):
    """run(options, script, workers) -> (exit code, stdout lines, stderr lines of workers, {file: text}); files of round 1 only."""
    def run(*options, script=SAY, n=2, rc=0):
        where = crun.tmp / "logs"
        got, out, err = crun.run("--nproc-per-node", n, "--log-dir", where, "--run-id", "j", *options, "sh", "-c", script)
        assert got == rc, err
        folder = where / "j" / "round-1"
        files = {p.name: p.read_text() for p in folder.iterdir()} if folder.exists() else {}
        return sorted(out.splitlines()), sorted(crun_says(err)), files
    return run


OUT = ["[default0]: out-0", "[default1]: out-1"]
ERR = ["[default0]: err-0", "[default1]: err-1"]


def files_of(*names):
    return {f"rank-{n}": (f"out-{n[0]}\n" if n.endswith("out") else f"err-{n[0]}\n") for n in names}


ALL_FILES = ("0.out", "0.err", "1.out", "1.err")


@pytest.mark.parametrize("options, out, err, files", [
    ((), OUT, ERR, ALL_FILES),
    (("-r", "0"), OUT, ERR, ALL_FILES),
    (("-r", "1"), [], ERR, ("0.out", "1.out")),
    (("-r", "2"), OUT, [], ("0.err", "1.err")),
    (("--redirects=3",), [], [], ALL_FILES),
    (("-t", "1"), OUT, ERR, ("0.out", "1.out")),
    (("--tee", "3"), OUT, ERR, ALL_FILES),
    (("-r", "3", "-t", "3"), OUT, ERR, ALL_FILES),
    (("-r", "3", "-t", "1"), OUT, [], ALL_FILES),
    (("-r", "0:1,1:2"), OUT[1:], ERR[:1], ("0.out", "1.err")),
    (("-r", "*:3,1:0"), OUT[1:], ERR[1:], ("0.out", "0.err")),
    (("-t", "g1-9:3"), OUT, ERR, ("1.out", "1.err")),
    (("--local-ranks-filter", "1"), OUT[1:], ERR[1:], ALL_FILES),
    (("--local_ranks_filter=0", "-r", "0:1"), [], ERR[:1], ("0.out",)),
    (("--ranks-filter", "0"), OUT[:1], ERR[:1], ALL_FILES),
    (("--ranks-filter", "2-99"), [], [], ALL_FILES),
])
def test_each_stream_goes_where_it_is_sent(logs, options, out, err, files):
    assert logs(*options) == (out, err, files_of(*files))


def test_ranks_of_two_digits_have_redirects_and_filters(logs):
    out, _, files = logs("-r", "0-9:3,11:3", "--local-ranks-filter", "0-1,10-11", n=12)
    assert out == ["[default10]: out-10"] and "rank-11.out" in files and "rank-10.out" not in files


def test_the_environment_of_torchrun_says_it_too(crun):
    rc, out, err = crun.run("--nproc-per-node", 2, "sh", "-c", SAY, cwd=crun.tmp, extra_env={
        "PET_REDIRECTS": "0:3", "PET_LOG_DIR": str(crun.tmp / "l"), "PET_LOCAL_RANKS_FILTER": "1", "PET_RDZV_ID": "e",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"})
    assert rc == 0 and out == "<1>out-1\n" and tree(crun.tmp / "l" / "e") == ["round-1/rank-0.err", "round-1/rank-0.out"]


def test_files_without_a_place_go_to_a_folder_that_is_named(crun):
    rc, out, err = crun.run("-r", "3", "--run-id", "j", "sh", "-c", SAY, cwd=crun.tmp)
    assert (rc, out) == (0, "") and f"crun: the workers' output goes to {crun.tmp}/logs/j" in err
    assert tree(crun.tmp / "logs") == ["j/round-1/rank-0.err", "j/round-1/rank-0.out"]



@pytest.mark.parametrize("option", ["--tee", "--redirects"])
def test_a_current_folder_that_cannot_be_written_is_no_reason_to_run_nothing(crun, option):
    """--tee 3 is typed for the prefix: containers and other users' folders."""
    p = subprocess.run([CRUN, option, "3", "--rdzv-id", "j", "echo", "hi"], cwd="/proc", env=crun.env | {"TMPDIR": str(crun.tmp)}, capture_output=True, text=True, timeout=90)
    said = re.search(r"^crun: the workers' output goes to (\S+), since the current folder cannot be written \(--log-dir names another\)$", p.stderr, re.M)
    assert p.returncode == 0 and said, p.stderr
    folder = pathlib.Path(said[1])
    assert folder.match(f"{crun.tmp}/crun-logs-*/j") and (folder / "round-1" / "rank-0.out").read_text() == "hi\n"
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_dev_null_as_folder_is_no_files(crun):
    rc, out, err = crun.run("--log-dir", "/dev/null", "-r", "1", "sh", "-c", SAY, cwd=crun.tmp)
    assert (rc, out, err) == (0, "", "err-0\n")
    assert list(crun.tmp.iterdir()) == []


def test_the_layout_of_torchrun_keeps_every_attempt(crun):
    script = ("echo attempt $TORCHELASTIC_RESTART_COUNT; echo $TORCHELASTIC_ERROR_FILE; touch $0.$TORCHELASTIC_RESTART_COUNT.$RANK; "
              "until [ -e $0.$TORCHELASTIC_RESTART_COUNT.0 -a -e $0.$TORCHELASTIC_RESTART_COUNT.1 ]; do sleep 0.01; done; "
              "[ $TORCHELASTIC_RESTART_COUNT = 1 ]")  # nobody fails before both have spoken
    rc, out, err = crun.run("--nproc-per-node", 2, "--max-restarts", 1, "--log-layout", "torchrun", "--log-dir", crun.tmp / "l",
                            "--run-id", "j", "--duplicate-stdout-filters", "attempt", "sh", "-c", script, crun.tmp / "said")
    assert rc == 0, err
    (root,) = (crun.tmp / "l").iterdir()
    assert re.fullmatch(r"j_\w{6}", root.name) and f"crun: the workers' output goes to {root}\n" in err
    assert tree(root) == [f"attempt_{a}/{n}" for a in (0, 1) for n in
                          ("0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log", "filtered_stdout.log")]
    for a in (0, 1):
        assert (root / f"attempt_{a}" / "1" / "stdout.log").read_text() == f"attempt {a}\n{root}/attempt_{a}/1/error.json\n"


@pytest.mark.parametrize("layout", ["crun", "torchrun"])
def test_a_folder_that_cannot_be_made_is_one_sentence(crun, layout):
    (crun.tmp / "file").touch()
    rc, _, err = crun.run("--log-dir", crun.tmp / "file", "--log-layout", layout, "true")
    assert rc == 73 and len(err.splitlines()) == 1 and str(crun.tmp / "file") in err


def test_two_jobs_of_one_id_do_not_meet_in_the_layout_of_torchrun(crun):
    for _ in range(2):
        crun.run("--log-layout", "torchrun", "--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c", SAY)
    assert len(list((crun.tmp / "l").iterdir())) == 2


def test_the_macros_of_a_prefix(crun):
    template = "${role_name}|${local_rank}|$rank|${rank_in_role}|${hostname}|${host}|${stream}|${round}|${run_id}|${group_rank}|${time}> "
    rc, out, err = crun.run("--role", "r", "--run-id", "j", "--log-line-prefix-template", template, "sh", "-c", SAY)
    host = socket.gethostname()
    assert rc == 0
    for text, stream, line in ((out, "stdout", "out-0"), (err, "stderr", "err-0")):
        assert re.fullmatch(rf"r\|0\|0\|0\|{host}\|{host}\|{stream}\|1\|j\|0\|\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ> {line}\n", text)


def test_no_log_prefix_leaves_the_lines_bare(crun):
    assert crun.run("--no-log-prefix", "sh", "-c", SAY)[1:] == ("out-0\n", "err-0\n")


@pytest.mark.parametrize("options, env, terminal, colored", [
    ((), {}, False, False),
    ((), {}, True, True),
    ((), {"NO_COLOR": "1"}, True, False),
    ((), {"TERM": "dumb"}, True, False),
    (("--color", "never"), {}, True, False),
    (("--color", "always"), {"NO_COLOR": "1"}, False, True),
])
def test_colours(crun, options, env, terminal, colored):
    ours, theirs = pty.openpty() if terminal else os.pipe()
    p = crun.start("--log-prefix", *options, "sh", "-c", "echo hello", stdout=theirs, stderr=theirs,
                   extra_env={"TERM": "xterm", "NO_COLOR": "", **env})
    os.close(theirs)
    assert p.wait(timeout=60) == 0
    text = b""
    while not text.endswith(b"\n") and (chunk := os.read(ours, 1000)):
        text += chunk
    os.close(ours)
    assert text.replace(b"\r\n", b"\n") == (b"\x1b[36m[default0]: \x1b[0mhello\n" if colored else b"[default0]: hello\n")


def test_the_console_is_limited_by_rate_and_counts_the_rest(logs):
    out, _, files = logs("--log-rate", 10, script="seq 100 200; echo x >&2", n=1)
    left = [l for l in out if "lines left out" in l]
    counted = sum(int(re.search(r"\((\d+) lines left out: --log-rate 10\)", l)[1]) for l in left)
    assert counted + len(out) - len(left) == 101 and counted >= 81
    assert files["rank-0.out"] == "".join(f"{i}\n" for i in range(100, 201))


def test_lines_left_out_are_counted_while_the_worker_is_silent(crun):
    p = crun.start("--log-prefix", "--log-rate", 1, "sh", "-c", f"seq 50; while [ ! -e {crun.tmp}/go ]; do sleep 0.01; done")
    assert p.stdout.readline() == b"[default0]: 1\n"
    assert b"lines left out" in p.stdout.readline()
    (crun.tmp / "go").touch()
    assert p.wait(timeout=60) == 0


def test_lines_with_a_word_are_written_to_one_more_file(logs):
    out, _, files = logs("--duplicate-stdout-filters", "loss,a,,b", "--duplicate-stderr-filters", "Error",
                         script="echo the loss is $RANK; echo a,b; echo a; echo ab; echo Error >&2; echo fine >&2")
    assert sorted(files["filtered-0.out"].splitlines()) == sorted(
        f"[default{r}]: {t}" for r in (0, 1) for t in (f"the loss is {r}", "a,b"))
    assert sorted(files["filtered-0.err"].splitlines()) == ["[default0]: Error", "[default1]: Error"]
    assert len(out) == 8


def test_only_the_first_failure_is_shown(crun):
    script = f"echo noise-$RANK; echo last-$RANK >&2; [ $RANK = 1 ] && {{ touch {crun.tmp}/up; exit 7; }}; exec sleep 100"
    rc, out, err = crun.run("--nproc-per-node", 3, "--show", "first-failure", "--log-dir", crun.tmp / "l", "--run-id", "j", "sh", "-c", script)
    assert rc == 7 and out == ""
    assert "    | last-1\n" in err and "last-0" not in err and "noise" not in err
    folder = crun.tmp / "l" / "j" / "round-1"
    assert (folder / "rank-1.out").read_text() == "noise-1\n" and (folder / "rank-1.err").read_text() == "last-1\n"


def test_files_are_rotated_and_old_ones_kept_as_told(crun):
    for options, numbers in (((), range(1, 5)), (("--log-rotate-keep", 2), (3, 4))):
        where = crun.tmp / f"l{len(options)}"
        rc, _, err = crun.run("--log-dir", where, "--run-id", "j", "--log-rotate-size", "1K", *options, "sh", "-c", "seq 1000 2000")
        assert rc == 0, err
        folder = where / "j" / "round-1"
        names = [f"rank-0.out.{i}" for i in numbers] + ["rank-0.out"]
        assert tree(folder) == sorted(names + ["rank-0.err"])
        text = "".join((folder / n).read_text() for n in names)
        assert all((folder / n).stat().st_size <= 1024 for n in names)
        whole = "".join(f"{i}\n" for i in range(1000, 2001))
        assert whole.endswith(text) and (options or text == whole)


def test_a_file_has_a_cap_that_counts_what_is_left_out(logs):
    out, _, files = logs("--log-max-size", "100", script="seq 1000 1100", n=1)
    lines = files["rank-0.out"].splitlines()
    assert lines[:20] == [str(i) for i in range(1000, 1020)]
    assert lines[20:] == ["crun: 100 bytes are the most a file may hold (--log-max-size); what follows is left out",
                          "crun: 405 bytes were left out"]
    assert len(out) == 101


@pytest.mark.parametrize("options, name, why", [
    (("--no-log-prefix", "--log-line-prefix-template", "$rank "), "log-line-prefix-template", "no prefix"),
    (("--show", "first-failure", "--log-rate", "5"), "log-rate", "no line of the workers is shown"),
    (("-r", "3", "--local-ranks-filter", "0"), "local-ranks-filter", "no line of the workers is shown"),
    (("-r", "3", "--ranks-filter", "0"), "ranks-filter", "no line of the workers is shown"),
    (("-r", "3", "--color", "always"), "color", "no line of the workers is shown"),
    (("--no-log-prefix", "--color", "always"), "color", "no prefix"),
    (("-r", "3", "--log-line-prefix-template", "x"), "log-line-prefix-template", "no line of the workers is shown"),
    (("--log-layout", "torchrun"), "log-layout", "no log files are written (--log-dir)"),
    (("--log-max-size", "5"), "log-max-size", "no log files are written (--log-dir)"),
    (("--log-rotate-size", "5"), "log-rotate-size", "no log files are written (--log-dir)"),
    (("--log-rotate-keep", "5", "--log-dir", "d"), "log-rotate-keep", "nothing is rotated without --log-rotate-size"),
    (("--duplicate-stdout-filters", "x", "--log-dir", "/dev/null"), "duplicate-stdout-filters", "no log files are written"),
    (("--duplicate-stderr-filters", "x", "--log-dir", "/dev/null"), "duplicate-stderr-filters", "no log files are written"),
])
def test_what_has_no_effect_is_said(crun, options, name, why):
    rc, _, err = crun.run(*options, "true", cwd=crun.tmp)
    assert rc == 0 and [l for l in err.splitlines() if l.startswith(f"crun: --{name} has no effect: ") and why in l], err


def test_files_that_a_redirect_asks_for_may_be_capped(crun):
    rc, _, err = crun.run("-r", "1", "--run-id", "j", "--log-max-size", "5", "sh", "-c", "echo abc; echo def", cwd=crun.tmp)
    assert rc == 0 and "no effect" not in err, err
    assert (crun.tmp / "logs" / "j" / "round-1" / "rank-0.out").read_text().splitlines()[0] == "abc"


def test_a_dry_run_tells_where_output_goes_and_makes_nothing(crun):
    rc, out, _ = crun.run("--dry-run", "--nproc-per-node", 2, "-r", "1:1", "-t", "0:3", "--log-dir", "l", "--run-id", "j", "true", cwd=crun.tmp)
    l = f"{crun.tmp}/l/j/round-1"
    assert rc == 0 and [s for s in out.splitlines() if s.startswith("  std")] == [
        f"  stdout: console, {l}/rank-0.out", f"  stderr: console, {l}/rank-0.err", f"  stdout: {l}/rank-1.out", "  stderr: console"]
    rc, out, _ = crun.run("--dry-run", "--log-layout", "torchrun", "--log-dir", "l", "--run-id", "j", "true", cwd=crun.tmp)
    assert f"  stdout: console, {crun.tmp}/l/j_XXXXXX/attempt_0/0/stdout.log\n" in out
    assert list(crun.tmp.iterdir()) == []


@pytest.mark.parametrize("options, words", [
    (("-r", "4"), ["--redirects", "'4'", "expected"]),
    (("-t", "0:1,"), ["--tee", "'0:1,'", "expected"]),
    (("--local-ranks-filter", "a"), ["--local-ranks-filter", "'a'", "expected"]),
    (("--ranks-filter", "3-1"), ["--ranks-filter", "'3-1'", "expected"]),
    (("--log-line-prefix-template", "${nope}"), ["--log-line-prefix-template", "${nope}", "expected one of role_name"]),
    (("--color", "red"), ["--color", "'red'", "auto"]),
    (("--show", "none"), ["--show", "'none'", "first-failure"]),
    (("--log-layout", "x", "--log-dir", "d"), ["--log-layout", "'x'", "torchrun"]),
    (("--log-rate", "-1"), ["--log-rate", "-1"]),
    (("--log-max-size", "5X", "--log-dir", "d"), ["--log-max-size", "'5X'", "expected bytes"]),
    (("--show", "first-failure", "-t", "3"), ["--show first-failure", "--tee"]),
])
def test_what_cannot_be_is_one_sentence(crun, options, words):
    rc, out, err = crun.run(*options, "true", cwd=crun.tmp)
    assert rc == 2 and out == "" and all(w in err for w in words), err
    assert list(crun.tmp.iterdir()) == []


@pytest.mark.parametrize("layout, file", [("crun", "j/round-{}/rank-0.out"), ("torchrun", "*/attempt_{}/0/stdout.log")])
def test_a_node_that_comes_destroys_no_logs(crun, layout, file):
    """A new node ends the round of the first without counting as a restart."""
    port = crun.port()
    script = f"echo round $CRUN_ROUND; touch {crun.tmp}/in-$CRUN_ROUND; [ $GROUP_WORLD_SIZE = 2 ] || exec sleep 100"
    nodes = []
    for i in (1, 2):
        nodes.append(crun.start("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--insecure", "--run-id", "j", "--rdzv-conf",
                                "last_call_timeout=0.1", "--log-dir", crun.tmp / f"l{i}", "--log-layout", layout, "sh", "-c", script))
        crun.wait_file("in-1")
    for p in nodes:
        out, err = p.communicate(timeout=90)
        assert p.returncode == 0, err
    base = 1 if layout == "crun" else 0
    texts = [p.read_text() for i in (0, 1) for p in (crun.tmp / "l1").glob(file.format(base + i))]
    assert texts == ["round 1\n", "round 2\n"]


def test_a_rotated_file_of_an_absurd_number_is_not_counted_on(crun):
    script = "i=0; while [ $i -lt 40 ]; do echo a line of some length $i; i=$((i+1)); done"
    crun.run("--log-dir", crun.tmp / "l", "-r", "1", "--run-id", "j", "sh", "-c", script)
    (first,) = [p for p in (crun.tmp / "l").rglob("*0.out")]
    first.with_name(first.name + ".99999999999").write_text("")
    rc, _, err = crun.run("--log-dir", crun.tmp / "l", "-r", "1", "--run-id", "j", "--log-rotate-size", "100", "sh", "-c", script)
    numbers = [p.name.rsplit(".", 1)[1] for p in first.parent.glob(first.name + ".*")]
    assert rc == 0 and "1" in numbers and not [n for n in numbers if n.startswith("-")], (numbers, err)
