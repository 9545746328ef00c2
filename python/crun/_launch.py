# SPDX-License-Identifier: Apache-2.0
"""launch(): a function in several processes, under crun.

The call is pickled into a folder of its own; crun runs _child.py in each worker, which leaves what the function returned, or
raised, beside it, by round and rank, and that it has begun. Those of the last round count."""
from __future__ import annotations

import concurrent.futures
import contextlib
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
import threading
import types
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union, overload

USAGE, REQUEUE = 2, 75
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


class _Launcher:
    """crun as a child of ours. What it writes to stderr is passed on, and kept: of a usage error that is all there is."""

    KEPT = 1 << 14

    def __init__(self, command: List[str], env: Mapping[str, str]):
        follow = [sys.executable, "-I", "-S", "-c", FOLLOW, str(os.getpid())]
        self.p = subprocess.Popen(follow + command, env=dict(env), stderr=subprocess.PIPE)
        self.said = b""
        self.reader = threading.Thread(target=self._pass_on, name="crun-launch", daemon=True)
        self.reader.start()

    def _pass_on(self) -> None:
        assert self.p.stderr is not None
        with self.p.stderr as said:
            while True:
                piece = os.read(said.fileno(), 1 << 16)
                if not piece:
                    return
                self.said = (self.said + piece)[-self.KEPT:]
                with contextlib.suppress(OSError):  # nobody reads ours
                    left = memoryview(piece)
                    while left:
                        left = left[os.write(2, left):]

    def ended(self) -> int:
        """-> exit code, when what it said is read."""
        code = self.p.wait()
        self.reader.join(1.0)  # a process that was left behind may hold it open
        return code if code >= 0 else 128 - code

    def run(self) -> int:
        """-> exit code. What crun makes of Ctrl-C is awaited. It gets SIGINT from here, and from a terminal too: two at once count as one."""
        interrupted = False
        while True:
            try:
                code = self.ended()
                break
            except KeyboardInterrupt:
                self.p.send_signal(signal.SIGINT)
                interrupted = True
            except BaseException:
                self.p.terminate()
                self.p.wait()
                raise
        if interrupted:
            raise KeyboardInterrupt
        return code


def _results(folder: pathlib.Path, code: int, said: bytes) -> Dict[int, Any]:
    """What launch() returns, or raises."""
    began = _of_last_round(folder, "began")
    if code == USAGE and not began:
        raise ValueError(f"crun.launch: {said.decode(errors='replace').strip()}")
    if code != 0:
        raise LaunchError(code, [Failure(rank, *texts) for rank, texts in _of_last_round(folder, "error").items()])
    return {**{rank: None for rank in began if rank >= 0}, **_of_last_round(folder, "result")}


class Job:
    """What launch(wait=False) has begun; any thread. The job ends with the thread that began it."""

    def __init__(self, launcher: _Launcher, folder: pathlib.Path, log_dir: pathlib.Path):
        self.future: "concurrent.futures.Future[Dict[int, Any]]" = concurrent.futures.Future()  #: of what launch() returns, or raises
        self.future.set_running_or_notify_cancel()
        self.log_dir = log_dir
        self._launcher = launcher
        self._gone = weakref.finalize(self, shutil.rmtree, folder, True)
        threading.Thread(target=self._await, args=(folder,), name="crun-job", daemon=True).start()

    def _await(self, folder: pathlib.Path) -> None:
        """While this runs the job has its folder, whoever has let go of us."""
        try:
            code = self._launcher.ended()
            self.future.set_result(_results(folder, code, self._launcher.said))
        except BaseException as e:
            self.future.set_exception(e)

    @property
    def pid(self) -> int:
        """Of crun: for `crun chaos`, `crun stacks`."""
        return self._launcher.p.pid

    def poll(self) -> Optional[int]:
        """Exit code of crun; None while the job runs."""
        code = self._launcher.p.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def stop(self) -> None:
        """As SIGTERM does: in good order, the workers may save. Returns at once. Nothing if it has ended."""
        self._launcher.p.terminate()

    def wait(self, timeout: Optional[float] = None) -> Dict[int, Any]:
        """What launch() returns, or raises. TimeoutError: the job runs on."""
        try:
            return self.future.result(timeout)
        except concurrent.futures.TimeoutError:
            if self.future.done():
                raise
            raise TimeoutError(f"crun.launch: the job still runs after {timeout} s") from None

    def logs(self, rank: int) -> Dict[str, pathlib.Path]:
        """{"out": file, "err": file} of the rank of this node in its newest round; those that are there."""
        rounds = [path for path in self.log_dir.glob(f"*/round-*/rank-{rank}.*") if path.suffix in (".out", ".err")]
        newest = max((int(path.parent.name.split("-")[1]) for path in rounds), default=0)
        return {path.suffix[1:]: path for path in rounds if path.parent.name == f"round-{newest}"}


@overload
def launch(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, *, nproc: Union[int, str] = 1,
           env: Optional[Mapping[str, str]] = None, program: Optional[str] = None, wait: Literal[True] = True,
           **options: Any) -> Dict[int, Any]: ...


@overload
def launch(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, *, nproc: Union[int, str] = 1,
           env: Optional[Mapping[str, str]] = None, program: Optional[str] = None, wait: Literal[False], **options: Any) -> Job: ...


def launch(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, *, nproc: Union[int, str] = 1,
           env: Optional[Mapping[str, str]] = None, program: Optional[str] = None, wait: bool = True,
           **options: Any) -> Union[Dict[int, Any], Job]:
    """Call function(*args, **kwargs) in `nproc` processes, each with RANK, WORLD_SIZE, MASTER_ADDR and the like, and wait
    for all of them. -> {rank: what it returned} of this node's ranks; None for one that called sys.exit(0). LaunchError if
    the job fails. ValueError, with crun's own sentence, if it cannot be started as asked.

        if __name__ == "__main__":
            losses = crun.launch(train, args=(config,), nproc=4, max_restarts=3)

    As with multiprocessing's spawn: function and values travel by pickle, and a script guards its own main as above. What is
    defined in a notebook, a shell or a __main__.py needs cloudpickle: ValueError without.
    options: crun's, with underscores: nnodes="2:4", rdzv_endpoint="node1:29500", run_id="j", log_dir="logs",
    log_prefix=False. With several nodes each of them calls launch(). env: variables for the workers, on top of ours.
    program: the launcher, else find_program(). wait=False: -> a Job at once; its logs go as it does, but for a log_dir of yours."""
    preparation = _preparation()
    call = _pickled((function, tuple(args), dict(kwargs or {})), preparation)
    found = shutil.which(program) if program else find_program()
    if found is None:
        raise FileNotFoundError(f"crun.launch: program '{program}': expected an executable file")
    child = str(pathlib.Path(__file__).resolve().parent / "_child.py")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crun-launch-"))
    try:
        (folder / "call").write_bytes(pickle.dumps(preparation) + call)
        if not wait:
            options = {"log_dir": folder / "logs", **options}
        launcher = _Launcher([found, f"--nproc-per-node={nproc}", *_words(options), sys.executable, "-u", child, str(folder)],
                             {**os.environ, **(env or {})})
        if not wait:
            return Job(launcher, folder, pathlib.Path(options["log_dir"]))
        return _results(folder, launcher.run(), launcher.said)
    finally:
        if wait:
            shutil.rmtree(folder, ignore_errors=True)
