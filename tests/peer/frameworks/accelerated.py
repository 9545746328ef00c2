import torch
from accelerate import Accelerator

acc = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
model, optim, loader = acc.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=4))
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    acc.backward(loss)
    optim.step()
    optim.zero_grad()
loss = acc.gather(loss).mean().item()
if acc.is_main_process:
    print(acc.num_processes, round(loss, 5))
acc.end_training()
