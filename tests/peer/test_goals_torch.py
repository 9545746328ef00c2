"""Losses, class weights, rates by layers and averages here and in PyTorch in float64, from the same weights on the same pictures."""
import json

import numpy as np
import pytest
import safetensors.torch
import timm.optim
import torch

from support import TRAINER, run

TEXT = """input size=8
conv stem out=6 kernel=3 stride=2 pad=1
relu
repeat i times=2
conv blocks.{i} out=6 kernel=3 pad=1
relu
end
classifier head
"""
COUNTS = (4, 9, 20, 7)
BATCH, STEPS = 10, 8


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Pictures of classes of different sizes, without a trace of a decoder in them, in the order of --shuffle off."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(3)
    images, labels = [], []
    for c, n in enumerate(COUNTS):
        (root / f"c{c}").mkdir()
        for i in range(n):
            px = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            (root / f"c{c}" / f"{i:03d}.ppm").write_bytes(b"P6\n8 8\n255\n" + px.tobytes())
            images.append(px)
            labels.append(c)
    (root.parent / "tiny.net").write_text(TEXT)
    return root, torch.tensor(np.stack(images)).permute(0, 3, 1, 2).double() / 255, torch.tensor(labels)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 6, 3, 2, 1)
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(6, 6, 3, 1, 1) for _ in range(2)])
        self.head = torch.nn.Linear(6 * 16, len(COUNTS))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for b in self.blocks:
            x = torch.relu(b(x))
        return self.head(x.flatten(1))


@pytest.fixture
def net(tmp_path):
    torch.manual_seed(1)
    model = Net()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "w.safetensors")
    return model.double()


def here(sets, tmp_path, *args):
    root = sets[0]
    p = run(TRAINER, "--train-data", root, "--arch", root.parent / "tiny.net", "--input", "plain", "--shuffle", "off", "--device", "ref",
            "--batch-size", BATCH, "--max-steps", STEPS, "--num-epochs", 9, "--pretrained", tmp_path / "w.safetensors", "--lr", 0.2, "--lr-policy", "fixed",
            "--warmup-epochs", 0, "--weight-decay", 0, "--momentum", 0.5, "--checkpoint-dir", tmp_path / "ck", *args)
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in (tmp_path / "ck" / "metrics.jsonl").read_text().splitlines()]
    return np.array([line["loss"] for line in lines if "lr" in line])


def there(sets, model, loss, groups=None, each=lambda i: None, optimizer=None):
    _, x, y = sets
    optimizer = optimizer or torch.optim.SGD(groups or model.parameters(), 0.2, momentum=0.5)
    losses = []
    for i in range(STEPS):
        at = slice(i % 4 * BATCH, i % 4 * BATCH + BATCH)
        value = loss(model(x[at]), y[at])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        each(i)
        losses.append(value.item())
    return np.array(losses)


def one_hot(y, smoothing):
    return (1 - smoothing) * torch.nn.functional.one_hot(y, len(COUNTS)).double() + smoothing / len(COUNTS)


@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_binary_cross_entropy(sets, net, tmp_path, smoothing):
    bce = torch.nn.BCEWithLogitsLoss()
    got = here(sets, tmp_path, "--loss", "bce", "--label-smoothing", smoothing)
    assert np.abs(got / there(sets, net, lambda z, y: bce(z, one_hot(y, smoothing))) - 1).max() <= 1e-9


@pytest.mark.parametrize("smoothing, least", [(0, 0), (0.1, 0), (0, 0.3)])
def test_binary_cross_entropy_of_mixed_pictures(sets, net, tmp_path, smoothing, least):
    """The targets of both labels are 1, if they have more than the least share. What is drawn is in the log; the partner of a position of a group is
    the one before it."""
    got = here(sets, tmp_path, "--loss", "bce", "--label-smoothing", smoothing, "--mixup", 0.4, "--cutmix", 1, "--mix-group", BATCH, "--no-hflip",
               "--bce-threshold", least, "--debug-batch-sha", tmp_path / "log")
    _, x, y = sets
    bce, optimizer, want, kinds = torch.nn.BCEWithLogitsLoss(), torch.optim.SGD(net.parameters(), 0.2, momentum=0.5), [], set()
    for line in map(json.loads, (tmp_path / "log").read_text().splitlines()):
        own = x[line["ids"]]
        pictures, targets = [], []
        for i, (keep, share, label, second, (x0, y0, x1, y1), _) in enumerate(line["mix"]):
            mixed = keep * own[i] + (1 - keep) * own[i - 1]
            mixed[:, y0:y1, x0:x1] = own[i - 1][:, y0:y1, x0:x1]
            mine, other = int(y[line["ids"][i]]), int(y[line["ids"][i - 1]])
            gone = 1 - keep if keep < 1 else (y1 - y0) * (x1 - x0) / x[0, 0].numel()
            hits = {mine, other} if mine == other else {k for k, part in ((mine, 1 - gone), (other, gone)) if part > least}
            assert hits == ({label, second} if share > 0 else {label})
            kinds.add(("mixup" if keep < 1 else "cutmix" if x0 < x1 else "whole", len(hits)))
            pictures.append(mixed)
            targets.append(torch.tensor([(1 - smoothing) * (k in hits) + smoothing / len(COUNTS) for k in range(len(COUNTS))], dtype=torch.float64))
        loss = bce(net(torch.stack(pictures)), torch.stack(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    assert len(want) == STEPS and kinds >= {("mixup", 1), ("mixup", 2), ("cutmix", 1), ("cutmix", 2)}, kinds
    assert np.abs(got / np.array(want) - 1).max() <= 1e-9, (got, want)


@pytest.mark.parametrize("weights", ["0.3,2,1,0", "balanced"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_class_weights(sets, net, tmp_path, weights, reduction, smoothing):
    """The sum is shown as a mean, as without weights, and moves the weights as a sum."""
    numbers = [sum(COUNTS) / len(COUNTS) / n for n in COUNTS] if weights == "balanced" else [float(v) for v in weights.split(",")]
    ce = torch.nn.CrossEntropyLoss(torch.tensor(np.float32(numbers)).double(), label_smoothing=smoothing, reduction=reduction)
    args = ["--class-weights", weights, "--label-smoothing", smoothing, "--loss-reduction", reduction]
    rate = 0.2 if reduction == "mean" else 0.02
    groups = [{"params": list(net.parameters()), "lr": rate}]
    want = there(sets, net, ce, groups)
    if reduction == "sum":
        sums = [sum(float(np.float32(numbers[c])) for c in sets[2][i % 4 * BATCH:i % 4 * BATCH + BATCH]) for i in range(STEPS)]
        want = want / np.array(sums, dtype=float)
    # a batch whose classes all weigh nothing has no mean
    got = here(sets, tmp_path, *args, "--lr", rate)
    assert np.abs(got / want - 1).max() <= 1e-9, (got, want)


def test_rates_by_layers(sets, net, tmp_path):
    layers = [([net.stem], 3), ([net.blocks[0]], 2), ([net.blocks[1]], 1), ([net.head], 0)]
    groups = [{"params": [p for m in modules for p in m.parameters()], "lr": 0.2 * 0.7 ** k} for modules, k in layers]
    got = here(sets, tmp_path, "--layer-decay", 0.7)
    assert np.abs(got / there(sets, net, torch.nn.CrossEntropyLoss(), groups) - 1).max() <= 1e-9


def test_lamb_is_timms(sets, net, tmp_path):
    """Its trust is for what decays: matrices and filters here, as vectors have no decay. Its own clipping adds nothing to the norm."""
    decays = [p for p in net.parameters() if p.ndim > 1]
    groups = [{"params": decays, "weight_decay": 0.05}, {"params": [p for p in net.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = timm.optim.Lamb(groups, lr=0.02, betas=(0.9, 0.99), eps=1e-6, max_grad_norm=None)
    want = there(sets, net, torch.nn.CrossEntropyLoss(), optimizer=optimizer)
    got = here(sets, tmp_path, "--optimizer", "lamb", "--lr", 0.02, "--weight-decay", 0.05, "--no-bn-decay", "--momentum", 0.9, "--beta2", 0.99)
    assert np.abs(got / want - 1).max() <= 1e-9


def test_averages_as_torchvisions_references(sets, net, tmp_path):
    """Its loop: after step i of an epoch, where i is a multiple of the number of steps, update_parameters(), whose count goes back to 0 in epochs
    of warm-up. Here warm-up keeps its rate, as a share of 1 to begin with."""
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, p, n: 0.9 * a + 0.1 * p)

    def update(i):
        if i % 4 % 3 == 0:
            average.update_parameters(net)
            if i < 4:
                average.n_averaged.fill_(0)

    there(sets, net, torch.nn.CrossEntropyLoss(), each=update)
    here(sets, tmp_path, "--ema", 0.9, "--ema-every", 3, "--warmup-epochs", 1, "--lr-warmup", "constant", "--warmup-start", 1)
    last = max((tmp_path / "ck").glob("step-*"))
    got = safetensors.torch.load_file(last / "train.safetensors")
    for name, p in average.module.named_parameters():
        np.testing.assert_allclose(got["ema." + name].double().numpy(), p.detach().numpy(), rtol=1e-6, atol=1e-8, err_msg=name)
