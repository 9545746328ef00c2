# SPDX-License-Identifier: Apache-2.0
"""A worker that uses libcrun through the Python module: the same as worker.c.

    crun --nproc_per_node 4 --max-restarts 3 worker.py 100
"""
import sys
import time

import crun


@crun.record  # an exception is in the launcher's report
def main(steps):
    me = crun.info()
    crun.catch_crashes()
    crun.on_preemption()  # SIGTERM with a reason to save no longer ends us before the loop has looked
    crun.phase("starting")  # from here on this worker is watched for hangs
    if me.rank == 0 and me.world_size > 1:
        crun.store.set("greeting", "hello")
    for step in range(1, steps + 1):
        time.sleep(0.01)  # the work
        if me.world_size > 1:
            crun.store.add("sum", me.rank)
        crun.barrier("step")
        crun.report(step, loss=1 / step)
        if crun.stopping():
            with crun.phase("checkpoint"):
                print(f"rank {me.rank} stops after step {step}")
            crun.requeue()  # a real worker agrees with the others on the step, and saves
    crun.phase("closing")
    if me.world_size > 1:
        print(f"rank {me.rank} of {me.world_size}: {crun.store.get('greeting').decode()}, round {me.round}, sum {crun.store.add('sum', 0)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
