"""Lightning: `Trainer(callbacks=[CrunCallback("resume.ckpt")])`.

    from crun.integrations.lightning import CrunCallback

    crun_callback = CrunCallback("resume.ckpt")
    trainer = Trainer(callbacks=[crun_callback], …)
    trainer.fit(model, data, ckpt_path=crun_callback.resume_from())
"""
from __future__ import annotations

import math
import os
from typing import Any, Optional

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # its older name
    from pytorch_lightning.callbacks import Callback

import crun

from ._rate import Rate


def samples_in(batch: Any) -> int:
    """Length of the first tensor in it; 0 if there is none."""
    if hasattr(batch, "shape") and len(batch.shape) > 0:
        return int(batch.shape[0])
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((n for n in map(samples_in, batch) if n), 0)
    return 0


class CrunCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Heartbeat with step, phases, loss and samples a second; the failure's exception for crun's report; and a stop in
    good order: when crun asks for one, all ranks agree on a step, save `checkpoint` and end with exit code 75.

    Loss and rate are told every Trainer(log_every_n_steps=…) batches, for reading a loss waits for the GPU. agree_every:
    batches between two questions to all ranks whether to stop. Without crun it does nothing."""

    def __init__(self, checkpoint: str = "crun-resume.ckpt", agree_every: int = 1):
        self.checkpoint, self.agree_every = checkpoint, agree_every
        self.rate = Rate()
        self.under_crun = False
        self.total_steps: Optional[int] = None

    def resume_from(self) -> Optional[str]:
        """For fit(ckpt_path=…): the checkpoint of a job that was stopped, if there is one."""
        return self.checkpoint if os.path.exists(self.checkpoint) else None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.under_crun = crun.on_preemption()
        crun.phase("starting")
        last = getattr(trainer, "estimated_stepping_batches", None)  # infinite where only time ends it
        self.total_steps = int(last) if last is not None and math.isfinite(last) and last > 0 else None

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        crun.on_preemption()  # since on_fit_start Lightning has put a handler of its own in that one's place

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        crun.on_preemption()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > 0:
            crun.phase("step")  # a checkpoint may just have been written

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rate.add(samples_in(batch) * trainer.world_size)
        loss = rate = None
        if (batch_idx + 1) % max(1, trainer.log_every_n_steps) == 0:
            value = outputs.get("loss") if isinstance(outputs, dict) else outputs
            loss = None if value is None else float(value)
            rate = self.rate.take()
        crun.report(trainer.global_step, loss=loss, images_per_s=rate, total_steps=self.total_steps)
        if self.under_crun and (batch_idx + 1) % self.agree_every == 0 and trainer.strategy.reduce_boolean_decision(crun.stopping(), all=False):
            with crun.phase("checkpoint"):
                trainer.save_checkpoint(self.checkpoint)
            crun.requeue()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        crun.phase("checkpoint")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        crun.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        crun.phase("starting" if trainer.sanity_checking else "step")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        crun.phase("closing")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            crun.record_error(exception)
