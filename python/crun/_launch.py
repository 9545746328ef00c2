# SPDX-License-Identifier: Apache-2.0
"""launch(): a function in several processes, under crun.

The call is pickled into a folder of its own; crun runs _child.py in each worker, which leaves what the function returned, or
raised, beside it, by round and rank, and that it has begun. Those of the last round count."""
from __future__ import annotations

import io
import multiprocessing.spawn
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

REQUEUE = 75
DEBIAN = "/usr/lib/crun-launcher/bin/crun"

# crun ends with the process that called launch(), however that one ends.
FOLLOW = ("import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
          "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])")


@dataclass(frozen=True)
class Failure:
    """What one worker of this node raised."""

    rank: int
    message: str  #: "ValueError: text"
    traceback: str


class LaunchError(RuntimeError):
    """The job did not succeed.

    exit_code: crun's: that of the first worker that failed (128 + signal), 75 if the job was stopped before its end.
    failures: exceptions of this node's workers, by rank; none where a worker died otherwise, or on another node."""

    def __init__(self, exit_code: int, failures: Sequence[Failure]):
        self.exit_code, self.failures = exit_code, tuple(failures)
        messages = "; ".join(f"rank {f.rank}: {f.message}" for f in self.failures)
        what = "the job was stopped before its end" if exit_code == REQUEUE else "the job failed"
        super().__init__(f"{what} (exit code {exit_code})" + (f": {messages}" if messages else ""))


def _version(path: str) -> str:
    try:
        p = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return (p.stdout + p.stderr).strip().split("\n")[0]


def find_program() -> str:
    """The launcher: beside this Python, then crun-launcher and crun on PATH, then where Debian's package has it.
    FileNotFoundError names a `crun` that is another program (containers have a runtime of that name)."""
    beside = os.path.join(os.path.dirname(sys.executable), "crun")
    paths = [beside, shutil.which("crun-launcher"), shutil.which("crun"), DEBIAN]
    foreign = []
    for path in paths:
        if path is None or not os.path.exists(path):
            continue
        version = _version(path)
        if re.match(r"crun \d", version):
            return path
        foreign.append(f"{path} is another program ('{version}')")
    raise FileNotFoundError("crun was not found beside this Python, on PATH, or at " + DEBIAN
                            + (": " + "; ".join(foreign) if foreign else "") + ". It comes with `pip install crun-launcher`")


def _words(options: Mapping[str, Any]) -> List[str]:
    """max_restarts=3 -> --max-restarts=3, log_prefix=False -> --no-log-prefix, export=["A", "B"] -> twice."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, bool):
                words.append(f"--{flag}" if one else f"--no-{flag}")
            elif one is not None:
                words.append(f"--{flag}={one}")
    return words


def _preparation() -> Dict[str, Any]:
    """For multiprocessing.spawn.prepare() in the workers. Without a main where that runs none again: its text is in no file
    (a shell, a notebook, `python -c`, `python - <<EOF`), or in a __main__.py."""
    preparation = multiprocessing.spawn.get_preparation_data("crun")
    for name in ("authkey", "start_method", "log_to_stderr", "log_level"):
        preparation.pop(name, None)
    if not os.path.exists(preparation.get("init_main_from_path", "")):
        preparation.pop("init_main_from_path", None)
    if preparation.get("init_main_from_name", "__main__").rpartition(".")[2] == "__main__":
        preparation.pop("init_main_from_name", None)
    preparation["sys_path"] = [p or os.getcwd() for p in sys.path]
    return preparation


class _OfModules(pickle.Pickler):
    """Refuses what it would name as a part of the main module."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is in a main module that cannot be run again: an interactive session, "
                                       "python -c, standard input, a __main__.py")
        return NotImplemented


def _dumps_without_main(call: Any) -> bytes:
    """What is in the main module by value, if cloudpickle is there."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
        return bytes(cloudpickle.dumps(call))
    except ImportError:
        data = io.BytesIO()
        _OfModules(data).dump(call)
        return data.getvalue()


def _pickled(call: Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]], preparation: Mapping[str, Any]) -> bytes:
    """For workers that run the caller's main, or not, as _preparation() has it."""
    has_main = preparation.keys() & {"init_main_from_path", "init_main_from_name"}
    try:
        return pickle.dumps(call) if has_main else _dumps_without_main(call)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        name = getattr(call[0], "__qualname__", call[0])
        raise ValueError(f"crun.launch: {name}: the function or an argument of it cannot be pickled ({e}): expected a function at the top "
                         "level of a module, with arguments that can be pickled; or install cloudpickle for a notebook") from None


def _of_last_round(folder: pathlib.Path, kind: str) -> Dict[int, Any]:
    """What was left by each rank; -1: by a warm spare."""
    names = [re.fullmatch(r"(began|result|error)-(\d+)-(-?\d+)", path.name) for path in folder.iterdir()]
    left = [(int(m[2]), m[1], int(m[3]), m[0]) for m in names if m]
    last = max((round_ for round_, *_ in left), default=0)
    return {rank: pickle.loads((folder / name).read_bytes()) for round_, what, rank, name in sorted(left) if (round_, what) == (last, kind)}


def _run(command: List[str], env: Mapping[str, str]) -> int:
    """-> exit code. What crun makes of Ctrl-C is awaited. It gets SIGINT from here, and from a terminal too: two at once count as one."""
    follow = [sys.executable, "-I", "-S", "-c", FOLLOW, str(os.getpid())]
    p = subprocess.Popen(follow + command, env=dict(env))
    interrupted = False
    while True:
        try:
            code = p.wait()
            break
        except KeyboardInterrupt:
            p.send_signal(signal.SIGINT)
            interrupted = True
        except BaseException:
            p.terminate()
            p.wait()
            raise
    if interrupted:
        raise KeyboardInterrupt
    return code if code >= 0 else 128 - code


def launch(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, *, nproc: int = 1,
           env: Optional[Mapping[str, str]] = None, program: Optional[str] = None, **options: Any) -> Dict[int, Any]:
    """Call function(*args, **kwargs) in `nproc` processes, each with RANK, WORLD_SIZE, MASTER_ADDR and the like, and wait
    for all of them. -> {rank: what it returned} of this node's ranks; None for one that called sys.exit(0). LaunchError if
    the job fails.

        if __name__ == "__main__":
            losses = crun.launch(train, args=(config,), nproc=4, max_restarts=3)

    As with multiprocessing's spawn: function and values travel by pickle, and a script guards its own main as above. What is
    defined in a notebook, a shell or a __main__.py needs cloudpickle: ValueError without.
    options: crun's, with underscores: nnodes="2:4", rdzv_endpoint="node1:29500", run_id="j", log_dir="logs",
    log_prefix=False. With several nodes each of them calls launch(). env: variables for the workers, on top of ours.
    program: the launcher, else find_program()."""
    preparation = _preparation()
    call = _pickled((function, tuple(args), dict(kwargs or {})), preparation)
    found = shutil.which(program) if program else find_program()
    if found is None:
        raise FileNotFoundError(f"crun.launch: program '{program}': expected an executable file")
    child = str(pathlib.Path(__file__).resolve().parent / "_child.py")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crun-launch-"))
    try:
        (folder / "call").write_bytes(pickle.dumps(preparation) + call)
        code = _run([found, f"--nproc-per-node={nproc}", *_words(options), sys.executable, "-u", child, str(folder)],
                    {**os.environ, **(env or {})})
        if code != 0:
            failures = _of_last_round(folder, "error")
            raise LaunchError(code, [Failure(rank, *texts) for rank, texts in failures.items()])
        ended = {rank: None for rank in _of_last_round(folder, "began") if rank >= 0}
        return {**ended, **_of_last_round(folder, "result")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
