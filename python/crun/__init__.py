# SPDX-License-Identifier: Apache-2.0
"""What a worker started by crun can ask and tell.

    import crun

    me = crun.info()                                   # rank, world size, round, …; rank 0 of 1 without crun
    crun.on_preemption()                               # SIGTERM no longer ends the process before the loop has looked
    for step in range(start, steps):
        loss = train(step)
        crun.report(step + 1, loss=loss, images_per_s=rate)
        if crun.stopping():                            # the launcher asks for a stop: save and leave
            with crun.phase("checkpoint"):
                save(step + 1)
            crun.requeue()                             # exit code 75: not done, start me again

Every call works without crun, and without libcrun too: rank and world size are then torchrun's, or default to 0 and 1;
there is no store, and never a stop. Nothing here needs PyTorch. Calls are thread-safe unless noted otherwise; a process that
fork()s (a DataLoader's workers) is without crun in the child.

Functions that cannot do what was asked raise OSError; one that waited in vain raises TimeoutError.

crun.inprocess is for a function that goes on in its process when another rank dies, crun.State for what it has in common
with the others, and crun.Sampler for their data. crun.integrations.lightning and crun.integrations.huggingface have callbacks
for those trainers; crun.launch() runs a function in several processes.
"""
from ._groups import RoundOver
from ._inprocess import inprocess
from ._launch import Failure, Job, LaunchError, find_program, launch
from ._lib import Part, Phase, StopReason
from ._sampler import Sampler
from ._state import State
from ._stops import on_preemption
from ._store import Store, barrier, store
from ._worker import (REQUEUE, Info, catch_crashes, info, links, part, phase, record, record_error, report, requeue, spent,
                      stop_reason, stopping)

__version__ = "0.1.0"
__all__ = [
    "REQUEUE", "Failure", "Info", "Job", "LaunchError", "Part", "Phase", "RoundOver", "Sampler", "State", "StopReason", "Store", "barrier",
    "catch_crashes", "find_program", "info", "inprocess", "launch", "links", "on_preemption", "part", "phase", "record", "record_error", "report",
    "requeue", "spent", "stop_reason", "stopping", "store",
]
