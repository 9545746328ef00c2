# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer that goes on in its processes when a rank dies, with no step lost.

    crun --nproc_per_node 4 --max-restarts 100 --warm-spares 1 hf_inprocess.py out 500
"""
import os
import sys

import torch
from transformers import Trainer, TrainingArguments

import crun
from crun.integrations.huggingface import CrunCallback, InProcess


class MyTrainer(InProcess, Trainer):
    """Goes on from the memory of the other ranks."""


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, x=None, labels=None):
        out = self.net(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


@crun.inprocess  # called again with the environment of the next round
def main(folder, steps):
    me = crun.info()
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    data = [{"x": one, "labels": one.sum()} for one in x]
    args = TrainingArguments(output_dir=folder, max_steps=steps, per_device_train_batch_size=16, learning_rate=0.01, use_cpu=True, report_to=[], disable_tqdm=True,
                             save_strategy="no", logging_steps=50, seed=3, ddp_find_unused_parameters=True)
    trainer = MyTrainer(model=Model(), args=args, train_dataset=data, callbacks=[CrunCallback()])
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins", flush=True)
    result = trainer.train()
    total = float(sum(p.detach().double().sum() for p in trainer.model.parameters()))
    print(f"rank {me.rank} of {me.world_size}: {result.global_step} steps, weights {total.hex()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
