# SPDX-License-Identifier: Apache-2.0
"""Lightning that goes on in its processes when a rank dies, with no step lost.

    crun --nproc_per_node 4 --max-restarts 100 --warm-spares 1 lightning_inprocess.py 500
"""
import os
import sys

import lightning
import torch

import crun
from crun.integrations.lightning import CrunCallback, InProcess


class Batches(torch.utils.data.IterableDataset):
    """Random, but by step and rank; from step `start` on."""

    def __init__(self, start):
        self.start = start

    def __iter__(self):
        step = self.start
        while True:
            generator = torch.Generator().manual_seed(step * 1000 + crun.info().rank)
            x = torch.randn(16, 8, generator=generator)
            yield x, x.sum(1, keepdim=True)
            step += 1


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, i):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


@crun.inprocess  # called again with the environment of the next round
def main(steps):
    me = crun.info()
    lightning.seed_everything(0, verbose=False)
    recovery = InProcess()
    print(f"rank {me.rank} (pid {os.getpid()}): round {me.round} begins after step {recovery.step}", flush=True)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=me.local_world_size, num_nodes=me.group_world_size, strategy="ddp_find_unused_parameters_true",
        callbacks=[recovery, CrunCallback(agree_every=10)], logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(Batches(recovery.step), batch_size=None), ckpt_path=recovery.resume_from())
    total = float(sum(p.detach().double().sum() for p in model.parameters()))
    print(f"rank {me.rank} of {me.world_size}: {trainer.global_step} steps, weights {total.hex()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
