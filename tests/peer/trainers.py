"""Jobs of Lightning and Hugging Face with crun's callbacks. Arguments: folder, steps, the step at which rank 1 fails."""
LIGHTNING = """
import logging, os, sys, warnings
import lightning as L
import torch
from crun.integrations.lightning import CrunCallback

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
folder, steps, fail_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, i):
        if self.global_step == fail_at and self.global_rank == 1:
            raise ValueError("no such batch")
        if self.global_step == 5 and self.global_rank == 0:
            print("up", flush=True)
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

L.seed_everything(0)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4)
stops = CrunCallback(os.path.join(folder, "resume.ckpt"))
trainer = L.Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False, logger=False, enable_checkpointing=False,
                    enable_model_summary=False, log_every_n_steps=2, callbacks=[stops], default_root_dir=folder)
first = "later" if stops.resume_from() else "0"
trainer.fit(Model(), data, ckpt_path=stops.resume_from())
if trainer.is_global_zero:
    print("from", first, "to", trainer.global_step)
"""

HUGGING_FACE = """
import os, sys
import torch
import crun
from crun.integrations.huggingface import CrunCallback
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

folder, steps, fail_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = torch.nn.Linear(8, 1), 0

    def forward(self, x=None, labels=None):
        if self.calls == fail_at and os.environ["RANK"] == "1":
            raise ValueError("no such batch")
        self.calls += 1
        if self.calls == 5 and os.environ["RANK"] == "0":
            print("up", flush=True)
        out = self.net(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

@crun.record
def main():
    torch.manual_seed(1)
    data = [{"x": torch.randn(8), "labels": torch.randn(())} for _ in range(64)]
    args = TrainingArguments(output_dir=folder, max_steps=steps, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
                             logging_steps=2, seed=3)
    last = get_last_checkpoint(folder)
    result = Trainer(model=Model(), args=args, train_dataset=data, callbacks=[CrunCallback(agree_every=2)]).train(resume_from_checkpoint=last)
    if args.process_index == 0:
        print("from", "later" if last else "0", "to", result.global_step)

main()
"""
