"""The recipe of fashion.py in PyTorch. usage: fashion_torch.py DATA OUT --epochs N --seed N --amp off|bf16|fp16

ResNet-18 with a 3x3 stem, crops of pictures padded by 4, flips, SGD with Nesterov's momentum, cosine after warm-up in the first 5 % of all steps. A checkpoint an
epoch: typed again, it goes on. OUT/result.json: accuracy of the last weights."""
import argparse
import gzip
import json
import math
import pathlib
import time

import numpy as np
import torch
import torchvision

BATCH, LR, DECAY, SMOOTHING, MEAN, STD = 128, 0.1, 5e-4, 0.1, 0.2860, 0.3530


def load(folder, part):
    pictures = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    return torch.from_numpy(pictures.copy()), torch.from_numpy(labels.astype(np.int64))


def augment(x):
    """A crop of the padded picture and a flip, of each by itself."""
    n = len(x)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    rows, columns = (torch.randint(0, 9, (n, 1)) + torch.arange(28) for _ in range(2))
    x = padded[torch.arange(n)[:, None, None], 0, rows[:, :, None], columns[:, None, :]][:, None]
    return torch.where(torch.rand(n, 1, 1, 1) < 0.5, x.flip(3), x)


def network():
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1, net.maxpool = torch.nn.Conv2d(1, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    torch.nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net.to(memory_format=torch.channels_last)


def normal(x, device):
    return ((x.to(device).float() / 255 - MEAN) / STD).contiguous(memory_format=torch.channels_last)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--amp", default="off")
    parser.add_argument("--max-steps", type=int, default=0, help="of this call")
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(o.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(o.amp)
    (x, y), (test_x, test_y) = load(o.data, "train"), load(o.data, "t10k")
    net = network().to(device)
    steps = -(-len(x) // BATCH)
    sgd = torch.optim.SGD(net.parameters(), LR, momentum=0.9, nesterov=True, weight_decay=DECAY)
    total, warm = o.epochs * steps, o.epochs * steps // 20
    plan = torch.optim.lr_scheduler.LambdaLR(sgd, lambda k: (k + 1) / warm if k < warm else (1 + math.cos(math.pi * (k - warm) / (total - warm))) / 2)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)
    kept, first, done = o.out / "last.pt", 0, 0
    if kept.exists():
        state = torch.load(kept)
        first = state["epoch"]
        for thing, name in ((net, "net"), (sgd, "sgd"), (plan, "plan"), (scaler, "scaler")):
            thing.load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
    for epoch in range(first, o.epochs):
        began, order = time.monotonic(), torch.randperm(len(x))
        net.train()
        for k in range(steps):
            rows = order[k * BATCH:(k + 1) * BATCH]
            with torch.autocast(device, half, enabled=half is not None):
                loss = criterion(net(normal(augment(x[rows]), device)).float(), y[rows].to(device))
            sgd.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(sgd)
            scaler.update()
            plan.step()
            done += 1
            if k % 20 == 19:
                print(f"epoch {epoch} step {k + 1} of {steps} loss {loss.item():.4f} {(k + 1) * BATCH / (time.monotonic() - began):.0f} images/s", flush=True)
            if done == o.max_steps:
                return
        torch.save({"epoch": epoch + 1, "net": net.state_dict(), "sgd": sgd.state_dict(), "plan": plan.state_dict(), "scaler": scaler.state_dict(),
                    "rng": torch.get_rng_state()}, kept)
    net.eval()
    with torch.no_grad(), torch.autocast(device, half, enabled=half is not None):
        right = sum((net(normal(test_x[i:i + 500], device)).argmax(1).cpu() == test_y[i:i + 500]).sum().item() for i in range(0, len(test_x), 500))
    (o.out / "result.json").write_text(json.dumps({"top1": 100 * right / len(test_x)}))


main()
