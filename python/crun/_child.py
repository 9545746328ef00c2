# SPDX-License-Identifier: Apache-2.0
"""A worker of crun.launch(): calls the function that the folder sys.argv[1] holds, and leaves there what came of it."""
import multiprocessing.spawn
import os
import pathlib
import pickle
import sys
import traceback
from typing import Any


def leave(folder: pathlib.Path, kind: str, value: Any) -> None:
    """Whole or not at all."""
    data = pickle.dumps(value)
    path = folder / f"{kind}-{os.environ.get('CRUN_ROUND', '0')}-{os.environ.get('RANK', '0')}"
    temporary = path.with_name(path.name.replace("-", ".", 1))
    temporary.write_bytes(data)
    temporary.rename(path)


def main(folder: pathlib.Path) -> None:
    with open(folder / "call", "rb") as f:
        preparation = pickle.load(f)
        sys.path[:] = preparation["sys_path"]  # not the folder of this file
        import crun
        leave(folder, "began", None)
        try:
            multiprocessing.spawn.prepare(preparation)
            function, args, kwargs = pickle.load(f)
            leave(folder, "result", function(*args, **kwargs))
        except Exception as e:
            crun.record_error(e)
            text = "".join(traceback.format_exception_only(type(e), e)).strip()
            leave(folder, "error", (text, traceback.format_exc()))
            raise


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
