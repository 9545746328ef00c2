"""200 steps of the recipe torchvision-v2 at 32 pixels here and in PyTorch, from the same weights and batches: TrivialAugmentWide, erasing, mixup and
CutMix, four repetitions, label smoothing, decay of all but norms, rates by the epoch, an average. A small residual network in batches of 32 at the
recipe's rate for so many, 20 epochs of 10 steps. (Where a batch norm sees 16 values, as ResNet-18's last ones do here, a rounding grows from 1e-16
to 4e-4 within 100 steps, in any program.)

tests/peer/batches writes the pictures of each batch; that they are trainer's says its log, hashes included. PyTorch erases, mixes and trains.
ref computes in double precision, as PyTorch in float64. A rounding of fp32 grows a hundred thousand times in these steps, so how far a program
ends from float64 is chance: five runs of cpu and ten of PyTorch in fp32, which differ in rounding alone (memory format, the last bit of weights), show
how far: the median of cpu is within PyTorch's."""
import copy
import json
import math
import statistics
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch

from support import BUILD, TRAINER, run
from tensors import newest
from test_equal_pytorch import EPS, MEAN, STD

EPOCHS, STEPS, BATCH, GROUP, REPETITIONS, SIZE, CLASSES = 20, 10, 32, 16, 4, 32, 10
TEXT = """block unit width
conv conv1 out={width} kernel=3 pad=1 bias=no
bn bn1
relu
conv conv2 out={width} kernel=3 pad=1 bias=no
bn bn2
add sum with=in
relu out
end
input
conv conv1 out=16 kernel=3 stride=2 pad=1 bias=no
bn bn1
relu
unit layer1 width=16
conv layer2.downsample.0 out=32 kernel=3 stride=2 pad=1 bias=no
bn layer2.downsample.1
relu
unit layer2 width=32
avgpool
classifier fc
"""
RATE, WARM, DECAY, SMOOTHING, KEPT, EVERY = 0.5 * BATCH / 1024, 5, 2e-5, 0.1, 1 - (1 - 0.99998) * 1024 * 32 / 600, 32
pytestmark = pytest.mark.slow


class Unit(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (torch.nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = (torch.nn.BatchNorm2d(width, EPS.item()) for _ in range(2))

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Net(torch.nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(channels, 16, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(16, EPS.item())
        self.layer1, self.layer2, self.fc = Unit(16), Unit(32), torch.nn.Linear(32, CLASSES)
        self.layer2.downsample = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(32, EPS.item()))

    def forward(self, x):
        x = self.layer1(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layer2(torch.relu(self.layer2.downsample(x))).mean((2, 3)))


def optimizer_of(model, rate, decay):
    """SGD without decay of norms, and both schedulers of torchvision's references, which step once an epoch."""
    norms = {id(p) for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d) for p in m.parameters()}
    parts = [[p for p in model.parameters() if (id(p) in norms) == which] for which in (False, True)]
    return torch.optim.SGD([{"params": parts[0]}, {"params": parts[1], "weight_decay": 0}], rate, momentum=0.9, weight_decay=decay)


def scheduler_of(optimizer, epochs, warm):
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=warm),
                                                             torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs - warm)], [warm])


def erased_and_mixed(pictures, line):
    """Of a line of the log: (pictures, a row of shares of classes for each). The partner is four positions before, round and round in the group."""
    own, out, targets = pictures.clone(), [], torch.zeros(len(pictures), CLASSES, dtype=pictures.dtype)
    for i, (_, _, _, _, _, (x0, y0, x1, y1)) in enumerate(line["mix"]):
        own[i, :, y0:y1, x0:x1] = 0
    for i, (keep, share, label, second, (x0, y0, x1, y1), _) in enumerate(line["mix"]):
        other = own[i // GROUP * GROUP + (i % GROUP - REPETITIONS) % GROUP]
        keep = np.float32(keep).item()
        mixed = keep * own[i] + (1 - keep) * other
        mixed[:, y0:y1, x0:x1] = other[:, y0:y1, x0:x1]
        out.append(mixed)
        targets[i, label] += 1 - np.float32(share).item()
        targets[i, second] += np.float32(share).item()
    return torch.stack(out), targets


class Case:
    def __init__(self, folder, data):
        torch.manual_seed(5)
        self.folder, self.data = folder, data
        self.state = Net().state_dict()
        (folder / "small.net").write_text(TEXT)
        subprocess.run([BUILD / "tests/peer/batches", data, str(SIZE), str(BATCH), str(GROUP), str(EPOCHS * STEPS), folder], check=True, timeout=60)
        self.log = (folder / "log").read_text()
        self.images = torch.from_numpy(np.fromfile(folder / "images", np.uint8).reshape(-1, BATCH, SIZE, SIZE, 3))

    def start(self, nudge):
        """The weights; nudge: a seed by which each moves to a number next to it, or stays."""
        if nudge is None:
            return self.state
        generator = torch.Generator().manual_seed(nudge)
        towards = {k: (torch.randint(3, v.shape, generator=generator) - 1) * math.inf for k, v in self.state.items() if v.is_floating_point()}
        return {k: torch.nextafter(v, torch.where(towards[k].isnan(), v, towards[k])) if k in towards else v for k, v in self.state.items()}

    def here(self, device, nudge=None):
        """Losses; weights, statistics and their averages."""
        out, start = self.folder / f"{device}-{nudge}", self.folder / f"{nudge}.safetensors"
        safetensors.torch.save_file(self.start(nudge), start)
        p = run(TRAINER, "--recipe", "torchvision-v2", "--train-data", self.data, "--arch", self.folder / "small.net", "--image-size", SIZE, "--batch-size", BATCH,
                "--mix-group", GROUP, "--num-epochs", EPOCHS, "--lr", repr(RATE), "--pretrained", start, "--device", device,
                "--amp", "off", "--threads", 2, "--checkpoint-dir", out, "--debug-batch-sha", out.with_suffix(".log"), timeout=900)
        assert p.returncode == 0, p.stderr
        assert out.with_suffix(".log").read_text() == self.log
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        all_of = safetensors.torch.load_file(newest(out) / "train.safetensors")
        return (np.array([s["loss"] for s in steps if "lr" in s]), safetensors.torch.load_file(newest(out) / "model.safetensors"),
                {k[4:]: v for k, v in all_of.items() if k.startswith("ema.")})

    def there(self, dtype, memory_format=torch.contiguous_format, nudge=None):
        model = Net()
        model.load_state_dict(self.start(nudge))
        model = model.to(dtype).to(memory_format=memory_format).train()
        average, losses = copy.deepcopy(model), []
        optimizer = optimizer_of(model, RATE, DECAY)
        scheduler = scheduler_of(optimizer, EPOCHS, WARM)
        for i, line in enumerate(map(json.loads, self.log.splitlines())):
            x = ((self.images[i].to(dtype) / 255 - MEAN.to(dtype)) / STD.to(dtype)).permute(0, 3, 1, 2)  # as torchvision's references
            x, targets = erased_and_mixed(x, line)
            logits = model(x.contiguous(memory_format=memory_format))
            loss = torch.nn.functional.cross_entropy(logits, targets.to(dtype), label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if i % STEPS % EVERY == 0:
                kept = 0 if i // STEPS <= WARM else KEPT  # the first one behind warm-up is a copy, too
                for a, b in zip(average.state_dict().values(), model.state_dict().values()):
                    a.copy_(kept * a + (1 - kept) * b)
            if (i + 1) % STEPS == 0:
                scheduler.step()
        return np.array(losses), model.state_dict(), average.state_dict()


@pytest.fixture(scope="module")
def case(shapes, tmp_path_factory):
    torch.set_num_threads(2)
    return Case(tmp_path_factory.mktemp("v2"), shapes(48, STEPS * BATCH, 20) / "train")


@pytest.fixture(scope="module")
def exact(case):
    return case.there(torch.float64)


def apart(got, want):
    """Root of the mean square of differences of losses."""
    return math.sqrt(np.mean((got - want) ** 2))


def furthest(got, want):
    """Of weights and statistics: the largest difference, as a share of the largest value of its tensor."""
    names = [k for k in want if want[k].is_floating_point()]
    return max(((got[k].double() - want[k].double()).abs().max() / want[k].double().abs().max()).item() for k in names)


def test_ref_is_pytorch_in_double_precision(case, exact):
    losses, weights, averages = case.here("ref")
    assert len(losses) == EPOCHS * STEPS == len(exact[0])
    off = np.abs(losses / exact[0] - 1)
    print(f"losses apart by {off[0]:.1e} at first, {off[99]:.1e} after 100 steps, {off.max():.1e} at most; weights by {furthest(weights, exact[1]):.1e}, "
          f"averages by {furthest(averages, exact[2]):.1e} of the largest of a tensor")
    assert off.max() <= 1e-10
    assert max(furthest(weights, exact[1]), furthest(averages, exact[2])) <= 1e-9
    assert furthest(averages, exact[1]) > 1e-3


def test_cpu_is_as_near_as_runs_of_pytorch_are(case, exact):
    starts = (None, 1, 2, 3, 4)
    theirs = sorted(apart(case.there(torch.float32, f, nudge)[0], exact[0]) for f in (torch.contiguous_format, torch.channels_last) for nudge in starts)
    ours = sorted(apart(case.here("cpu", nudge)[0], exact[0]) for nudge in starts)
    print("losses apart from float64: cpu", *(f"{v:.2e}" for v in ours), "; PyTorch in fp32", *(f"{v:.2e}" for v in theirs))
    assert statistics.median(ours) <= theirs[-1] < 0.05
