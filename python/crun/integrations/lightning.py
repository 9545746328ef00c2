# SPDX-License-Identifier: Apache-2.0
"""Lightning: `Trainer(callbacks=[CrunCallback("resume.ckpt")])`.

    from crun.integrations.lightning import CrunCallback

    crun_callback = CrunCallback("resume.ckpt")
    trainer = Trainer(callbacks=[crun_callback], …)
    trainer.fit(model, data, ckpt_path=crun_callback.resume_from())

Recovery in process: InProcess, in a function under @crun.inprocess.
"""
from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Optional

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # its older name
    from pytorch_lightning.callbacks import Callback

import crun

from .._state import agreed_step, watch_steps
from ._rate import Rate

FROM_MEMORY = "crun-commit"  # stands for the path of a checkpoint


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

    Loss and rate are reported every Trainer(log_every_n_steps=…) batches, for reading a loss waits for the GPU. agree_every:
    batches between two questions to all ranks whether to stop. Without crun it does nothing."""

    def __init__(self, checkpoint: str = "crun-resume.ckpt", agree_every: int = 1):
        self.checkpoint, self.agree_every = checkpoint, agree_every
        self.rate = Rate()
        self.under_crun = False
        self.between = "step"  # two validations, or after one
        self.total_steps: Optional[int] = None

    def resume_from(self) -> Optional[str]:
        """For fit(ckpt_path=…): the checkpoint of a job that was stopped, if there is one."""
        return self.checkpoint if os.path.exists(self.checkpoint) else None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.under_crun = crun.on_preemption()
        self.between = "step"
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
        crun.phase("starting" if trainer.sanity_checking else self.between)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.between = "closing"
        crun.phase("closing")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            crun.record_error(exception)


class _Checkpoint:
    """What the ranks have in common: a checkpoint of Lightning's, which is never written."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.loaded: Optional[Dict[str, Any]] = None  # until the trainer has it

    def state_dict(self) -> Dict[str, Any]:
        if self.loaded is not None:
            return self.loaded
        with crun.phase("step"):  # whatever callbacks say that are asked for their part
            return dict(self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.loaded = state

    def crun_lends(self) -> List[Any]:
        return [] if self.loaded is not None else [self.trainer.lightning_module, *self.trainer.optimizers]


class InProcess(Callback):  # type: ignore[misc, unused-ignore]
    """The state is committed after each step, and fit() goes on where the other ranks are, from their memory:

        @crun.inprocess
        def main():
            recovery = InProcess()
            trainer = Trainer(strategy="ddp", callbacks=[recovery, …], …)
            trainer.fit(Model(), data(recovery.step), ckpt_path=recovery.resume_from())

    First among the callbacks: nothing may ask the other ranks between a step and its commit. The data begins anew with each
    call: let it begin at batch `step`. Not for FSDP and DeepSpeed, which cut the state."""

    def __init__(self) -> None:
        self.agreed = agreed_step()
        self.step = self.agreed or 0  #: steps that are done

    def resume_from(self, checkpoint: Optional[str] = None) -> Optional[str]:
        """For fit(ckpt_path=…). checkpoint: where nobody has anything."""
        return checkpoint if self.agreed is None else FROM_MEMORY

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.checkpoint = _Checkpoint(trainer)
        self.common = crun.State(self.checkpoint)
        files = trainer.strategy.checkpoint_io
        read = files.load_checkpoint

        def load_checkpoint(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path) != FROM_MEMORY:
                return read(path, *args, **kwargs)
            self.common.restore()
            return self.checkpoint.loaded
        files.load_checkpoint = load_checkpoint

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in trainer.optimizers:
            watch_steps(optimizer)
        if self.agreed is None:
            self.common.restore(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.checkpoint.loaded = None
        self.common.commit(trainer.global_step)
