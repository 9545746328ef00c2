"""Command lines against torch's own parser: what torchrun starts for a line, crun starts, word for word, with the same numbers in the
environment. Lines of public repositories, and 2,000 drawn by a seed. The main rules are tested without torch, too: e2e/launcher/test_torchrun_words.py."""
import argparse
import contextlib
import io
import os
import pathlib
import random
import re
import shlex
import subprocess

import pytest
from support import CRUN

run = pytest.importorskip("torch.distributed.run", reason="no torch here")

LINES = [line for line in (pathlib.Path(__file__).parent / "launch_lines.txt").read_text().splitlines() if not line.startswith("#")]
SEED, DRAWN, PART = 20261128, 2000, 250


class Refused(Exception):
    pass


def of_torchrun(words, launch=False):
    """What torchrun would start, as its parser and its configuration have it: (words behind the interpreter, {variable: value})."""
    parser = run.get_args_parser()
    if launch:
        parser.add_argument("--use-env", "--use_env", default=False, action="store_true")
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            args = parser.parse_args(words)
            omp = os.environ.get("OMP_NUM_THREADS")
            try:
                config, command, rest = run.config_from_args(args)
            finally:
                if omp is None:
                    os.environ.pop("OMP_NUM_THREADS", None)
    except SystemExit:
        raise Refused(said.getvalue().strip().splitlines()[-1]) from None
    except (ValueError, AssertionError, RuntimeError, OSError, argparse.ArgumentError) as e:
        raise Refused(str(e)) from None
    if callable(command):  # --run-path
        rest = list(rest)
    elif args.no_python:
        rest = [command, *rest]
    env = {"LOCAL_WORLD_SIZE": str(config.nproc_per_node), "ROLE_NAME": config.role, "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts)}
    # One node without a port: torchrun behaves as with --standalone, whose id is random.
    alone = args.standalone or (config.max_nodes == 1 and args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None)
    if not alone and config.run_id != "none":  # crun has another name for a job without one
        env["TORCHELASTIC_RUN_ID"] = config.run_id
    if args.rdzv_backend == "static" and not alone and not args.rdzv_endpoint:  # crun takes an endpoint for c10d's
        host, _, port = config.rdzv_endpoint.rpartition(":")
        env |= {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port if port != "None" else "29500", "GROUP_RANK": str(args.node_rank)}
    if config.min_nodes == config.max_nodes:
        env |= {"GROUP_WORLD_SIZE": str(config.max_nodes), "WORLD_SIZE": str(config.max_nodes * config.nproc_per_node)}
    return rest, env, args


def of_crun(words, folder, launch=False):
    """The same from a dry run, of local rank 0."""
    name = folder / "crun-launch" if launch else CRUN
    p = subprocess.run([name, "--dry-run", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60,
                       env={k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"})
    if p.returncode:
        raise Refused(p.stderr.strip().splitlines()[0])
    first = p.stdout.split("\nrank ", 2)[1]
    command = shlex.split(re.search(r"^  command: ((?:.|\n)*?)\n  binding:", first, re.M)[1])
    env = dict(re.findall(r"^    (\w+)=(.*)$", first, re.M))
    return command, {k: v for k, v in env.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("lines")
    (at / "crun-launch").symlink_to(CRUN)
    for script in {word for line in LINES for word in shlex.split(line) if re.fullmatch(r"[\w-]+\.py", word)} | {"t.py"}:
        (at / script).write_text("")
    (at / "prog").write_text("#!/bin/sh\n")
    (at / "prog").chmod(0o755)
    return at


def differs(words, folder, launch=False):
    """None: the same. Else what is not."""
    try:
        rest, env, args = of_torchrun(words, launch)
    except Refused:
        return None  # crun may take more
    if is_documented(args):
        return None
    try:
        command, have = of_crun(words, folder, launch)
    except Refused as e:
        return f"crun refuses what torchrun takes: {e}"
    if args.run_path:
        start = next(i for i, w in enumerate(command) if w.startswith("import runpy")) + 1
    elif args.no_python:
        start = 0
        command[0] = rest[0] if pathlib.Path(command[0]).name == pathlib.Path(rest[0]).name else command[0]
    else:
        start = 1
    rest = [w.replace("${local_rank}", "0") for w in rest]
    # What others decide stands in brackets.
    wrong = {k: (v, have.get(k)) for k, v in env.items() if have.get(k) != v and not have.get(k, "").startswith("<")}
    if command[start:] != rest:
        return f"torchrun starts {rest}, crun {command[start:]}"
    return f"torchrun's and crun's: {wrong}" if wrong else None


def is_documented(args):
    """Lines that torchrun's parser takes and torchrun then fails on, or waits with for ever (docs/reference/torchrun.md)."""
    nodes = [int(n) for n in args.nnodes.split(":")]
    static = args.rdzv_backend == "static"
    nowhere = max(nodes) > 1 and not args.rdzv_endpoint and (not static or args.master_addr == "127.0.0.1")
    return (nowhere or (args.standalone and max(nodes) > 1) or (args.module and args.no_python and not args.run_path)
            or (args.node_rank >= max(nodes) and static) or ((static or max(nodes) > 1) and args.rdzv_endpoint.endswith(":0")))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(":")[0].split("/")[1])
def test_lines_of_repositories(line, folder):
    launcher, *words = shlex.split(line.split(": ", 1)[1])
    of_torchrun(words, launcher == "launch")  # torchrun takes each of them
    assert differs(words, folder, launcher == "launch") is None


def test_there_are_twenty_repositories():
    assert len({line.split(":")[0] for line in LINES}) >= 20


# --- drawn lines


def spelled(draw, name):
    """With dashes, underscores, or cut so that argparse still knows it."""
    name = draw.choice([name, name.replace("-", "_")])
    if draw.random() < 0.15:
        name = name[:draw.randint(max(3, len(name) - 4), len(name))]
    return "--" + name


OPTIONS = {
    "nproc-per-node": ["1", "2", "3", " 2", "2 ", "2\n", "+2"], "nnodes": ["1", "1:1", "2", "1:4", "2:2", "1 : 2", " 2"], "node-rank": ["0", "1", " 1"],
    "rdzv-endpoint": ["h:29400", "localhost:0", "10.0.0.5:1234", "h"], "rdzv-backend": ["c10d", "static"], "rdzv-id": ["none", "j1", "a.b-c", "7"],
    "rdzv-conf": ["", "join_timeout=5", "timeout=3,is_host=0", "foo=1", "read_timeout=9,last_call_timeout=1", "a=b,c=d"], "max-restarts": ["0", "3", "2 "],
    "monitor-interval": ["0.5", "5", "1"], "start-method": ["spawn", "fork"], "role": ["trainer", "default", "a b"], "log-dir": ["logs"], "redirects": ["0", "3", "0:1,1:2"],
    "tee": ["0", "1", "3", "0:3"], "local-ranks-filter": ["0", "0,1"], "master-addr": ["h", "127.0.0.1"], "master-port": ["29500", "1234", "29500 "],
    "local-addr": ["10.0.0.7"], "shutdown-timeout": ["5", "30"], "event-log-handler": ["null"], "signals-to-handle": ["SIGTERM,SIGINT"],
}
ARGUMENTS = ["--", "-x", "a", "--nnodes=7", "--depth=24", "b c", "", "-", "--tee", "${local_rank}", "-m", "'q'", "lr=1e-4", "--no-python", "[1,2]", "é"]


def drawn_line(draw):
    words = []
    for _ in range(draw.randint(0, 6)):
        name = draw.choice(list(OPTIONS))
        value = draw.choice(OPTIONS[name])
        short = {"redirects": "-r", "tee": "-t"}.get(name)
        if short and draw.random() < 0.5:
            words += draw.choice([[short, value], [short + value], [f"{short}={value}"]])
        elif draw.random() < 0.5 and value:
            words.append(f"{spelled(draw, name)}={value}")
        else:
            words += [spelled(draw, name), value]
    words += ["--standalone"] if draw.random() < 0.2 else []
    program = "t.py"
    kind = draw.random()
    if kind < 0.2:
        words.append(draw.choice(["-m", "--module"]))
        program = "pkg.mod"
    elif kind < 0.3:
        words.append(spelled(draw, "no-python"))
        program = "./prog"
    elif kind < 0.35:
        words.append("--run-path")
    words += ["--"] if draw.random() < 0.25 else []
    return [*words, program, *(["--"] if draw.random() < 0.4 else []), *(draw.choice(ARGUMENTS) for _ in range(draw.randint(0, 5)))]


@pytest.mark.parametrize("part", range(DRAWN // PART))
def test_drawn_lines(part, folder):
    draw = random.Random(SEED + part)
    taken, wrong = 0, []
    for _ in range(PART):
        words = drawn_line(draw)
        what = differs(words, folder)
        with contextlib.suppress(Refused):
            of_torchrun(words)
            taken += 1
        if what:
            wrong.append(f"{shlex.join(words)}\n    {what}")
    assert not wrong, f"{len(wrong)} of {PART} lines:\n" + "\n".join(wrong)
    assert taken > PART // 3, "most lines are refused by torchrun itself: they test nothing"
