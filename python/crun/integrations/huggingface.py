# SPDX-License-Identifier: Apache-2.0
"""Hugging Face: `Trainer(callbacks=[CrunCallback()])`.

    from crun.integrations.huggingface import CrunCallback

    trainer = Trainer(…, callbacks=[CrunCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir))

Recovery in process: `class MyTrainer(InProcess, Trainer)`, made and run in a function under @crun.inprocess.
"""
from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, Optional

import torch
from transformers import TrainerCallback, TrainerState

import crun

from .._state import agreed_step
from ._rate import Rate


def any_rank(flag: bool, device: Any) -> bool:
    """Whether one of the ranks says so; all of them ask."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return flag
    votes = torch.tensor([1 if flag else 0], device=device)
    torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MAX)
    return bool(votes.item())


class CrunCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Heartbeat with step, phases, loss and samples a second; and a stop in good order: when crun asks for one, all ranks
    agree on a step, the Trainer saves there, and train() ends with exit code 75.

    agree_every: steps between two questions to all ranks whether to stop; each waits for the GPU. Exceptions: wrap your
    main function in crun.record. Without crun it does nothing."""

    def __init__(self, agree_every: int = 10):
        self.agree_every = agree_every
        self.rate = Rate()
        self.loss: Optional[float] = None
        self.under_crun = self.stops = False
        self.between = "step"  # two evaluations, or after one

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.under_crun = crun.on_preemption()
        self.between = "step"
        crun.phase("starting")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rate.add(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
        crun.report(state.global_step, total_steps=state.max_steps if state.max_steps > 0 else None)
        if self.under_crun and state.global_step % self.agree_every == 0 and any_rank(crun.stopping(), args.device):
            self.stops = control.should_save = control.should_training_stop = True
        if control.should_save:
            crun.phase("checkpoint")

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, float]] = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            crun.report(state.global_step, loss=float(logs["loss"]), images_per_s=self.rate.take())

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        crun.phase("step")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        crun.phase("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Optional[Dict[str, float]] = None, **kwargs: Any) -> None:
        crun.phase(self.between)
        if metrics and state.global_step > 0:
            crun.report(state.global_step, eval_accuracy=metrics.get("eval_accuracy"))

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Optional[Dict[str, float]] = None, **kwargs: Any) -> None:
        crun.phase(self.between)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.between = "closing"
        crun.phase("closing")
        if self.stops:
            crun.requeue()


class _Commits(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """After each step, before anything that asks the other ranks."""

    def __init__(self, scaler: Any):
        self.scaler = [scaler] if scaler is not None else []
        self.common: Optional[crun.State] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.common = crun.State(kwargs["model"], kwargs["optimizer"], kwargs["lr_scheduler"], *self.scaler)
        self.common.restore(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.common is not None
        self.common.commit(state.global_step)


class InProcess:
    """Mix-in for Trainer (`class MyTrainer(InProcess, Trainer)`): under crun.inprocess, train() goes on where the other ranks
    are, from their memory; the checkpoint that it is given counts where nobody has anything. Model, TrainingArguments and
    Trainer are made in the function that is called again. Not for FSDP and DeepSpeed, which cut the state."""

    crun_folder: Optional[str] = None  # stands for a checkpoint, and has a step only

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        trainer: Any = super()
        me: Any = self
        step = agreed_step()
        me.callback_handler.callbacks.insert(0, _Commits(getattr(me.accelerator, "scaler", None)))
        if step is None:
            return trainer.train(resume_from_checkpoint, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="crun-hf-") as folder:
            TrainerState(global_step=step, train_batch_size=me._train_batch_size).save_to_json(os.path.join(folder, "trainer_state.json"))
            self.crun_folder = folder
            return trainer.train(folder, *args, **kwargs)


def _unless_ours(name: str) -> Any:
    """The Trainer's method that reads something from a checkpoint; not from the folder that has nothing but a step."""
    def load(self: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
        if checkpoint is not None and checkpoint == self.crun_folder:
            return None
        return getattr(super(InProcess, self), name)(checkpoint, *args, **kwargs)
    load.__name__ = name
    return load


for _name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"):
    setattr(InProcess, _name, _unless_ours(_name))
