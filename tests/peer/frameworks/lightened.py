import logging
import sys
import warnings

import lightning as L
import torch

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, i):
        x, y = batch
        self.last = torch.nn.functional.mse_loss(self.net(x), y)
        return self.last

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


L.seed_everything(0)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False, logger=False, enable_model_summary=False,
                    default_root_dir=sys.argv[1])
model = Model()
trainer.fit(model, data)
if trainer.is_global_zero:
    print(trainer.world_size, trainer.global_step, [round(v, 5) for v in model.net.weight.flatten().tolist()])
