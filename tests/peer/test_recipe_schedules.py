"""The rates, decay and averages of recipes, epoch by epoch, beside PyTorch's own objects, as the source of each recipe sets them up."""
import fnmatch
import re

import pytest
import torch
import torchvision

from support import TRAINER, run

IMAGES = {"torchvision-v1": 1281167, "torchvision-v2": 1281167, "torchshard": 1281167, "goyal": 1281167, "caffe2": 1281167}


def schedule(recipe, arch="mlp"):
    p = run(TRAINER, "summary", "--recipe", recipe, "--train-data", "null", "--null-images", IMAGES[recipe], "--num-labels", 1000, "--device", "ref",
            "--arch", arch, "--all-epochs")
    assert p.returncode == 0, p.stderr
    return [tuple(map(float, m)) for m in re.findall(r"epoch \d+: rate (\S+), kept (\S+)$", p.stdout, re.M)]


def settings(recipe):
    p = run(TRAINER, "--recipe", recipe, "--train-data", "null", "--print-config")
    assert p.returncode == 0, p.stderr
    return {m[0]: (m[1], m[2]) for m in re.findall(r"^(\S+) = (.*)  # (.*)$", p.stdout, re.M)}


def optimizer(recipe):
    """SGD as the recipe's values say."""
    s = {k: v for k, (v, _) in settings(recipe).items()}
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    return torch.optim.SGD([p], float(s["base-learning-rate"]), momentum=float(s["momentum"]), weight_decay=float(s["weight-decay"]),
                           nesterov=s.get("nesterov") == "on")


def rates(o, scheduler, epochs):
    out = []
    for _ in range(epochs):
        out.append(o.param_groups[0]["lr"])
        o.step()
        scheduler.step()
    return out


@pytest.mark.parametrize("recipe", ["torchvision-v1", "torchshard", "caffe2"])
def test_steps_of_ten(recipe):
    o = optimizer(recipe)
    assert (o.defaults["momentum"], o.defaults["weight_decay"]) == (0.9, 1e-4)
    want = rates(o, torch.optim.lr_scheduler.StepLR(o, 30, 0.1), 90)
    got = schedule(recipe)
    assert len(got) == 90 and max(abs(g - w) for (g, _), w in zip(got, want)) <= 1e-12


def test_goyal():
    """At the beginning of each epoch: from 0.1 to 3.2 over five of them, then a tenth at 30, 60 and 80."""
    o = optimizer("goyal")
    warm = torch.optim.lr_scheduler.LinearLR(o, 0.1 / 3.2, total_iters=5)
    drops = torch.optim.lr_scheduler.MultiStepLR(o, [30, 60, 80], 0.1)
    both = torch.optim.lr_scheduler.ChainedScheduler([warm, drops])
    got = schedule("goyal")
    assert len(got) == 90 and max(abs(g - w) for (g, _), w in zip(got, rates(o, both, 90))) <= 1e-12
    s = settings("goyal")
    assert s["bn-decay"][0] == "off" and s["zero-init-residual"][0] == "on" and o.defaults["nesterov"]


def test_what_is_typed_goes_before_a_recipe():
    p = run(TRAINER, "--recipe", "torchvision-v1", "--lr", 0.4, "--train-data", "null", "--print-config")
    assert "base-learning-rate = 0.4  # command line" in p.stdout and "batch-size = 256  # recipe torchvision-v1" in p.stdout
    assert "recipe = torchvision-v1  # command line" in p.stdout


def test_what_is_of_a_norm_does_not_decay():
    """All else does, the last layer's bias, too: train.py's --norm-weight-decay 0."""
    model = torchvision.models.resnet50(num_classes=2)
    norms = {f"{m}.{k}" for m, module in model.named_modules() if isinstance(module, torch.nn.BatchNorm2d) for k in ("weight", "bias")}
    patterns = settings("torchvision-v2")["no-decay"][0].split(",")
    assert {name for name, _ in model.named_parameters() if any(fnmatch.fnmatchcase(name, p) for p in patterns)} == norms


def test_cosine_by_the_epoch_with_warm_up_and_averages_as_torchvisions_references():
    """SequentialLR of LinearLR and CosineAnnealingLR, stepped once an epoch, and ExponentialMovingAverage with the decay that train.py makes of
    its own: what its second recipe has."""
    epochs, warm, batch, every, decay = 600, 5, 1024, 32, 0.99998
    alpha = min(1.0, (1 - decay) * batch * every / epochs)
    got = schedule("torchvision-v2", "resnet50")
    o = optimizer("torchvision-v2")
    assert (o.defaults["lr"], o.defaults["momentum"], o.defaults["weight_decay"], o.defaults["nesterov"]) == (0.5, 0.9, 2e-5, False)
    both = torch.optim.lr_scheduler.SequentialLR(o, [torch.optim.lr_scheduler.LinearLR(o, 0.01, total_iters=warm),
                                                     torch.optim.lr_scheduler.CosineAnnealingLR(o, epochs - warm, 0.0)], [warm])
    want = rates(o, both, epochs)
    assert len(got) == epochs and max(abs(g - w) for (g, _), w in zip(got, want)) <= 1e-12

    kept = []  # of the first step of each epoch: what AveragedModel does to a weight of 0 that becomes 1
    model = torch.nn.Linear(1, 1, bias=False).double()
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, p, n: (1 - alpha) * a + alpha * p)
    for epoch in range(epochs):
        average.module.weight.data.fill_(1.0)
        model.weight.data.fill_(0.0)
        average.update_parameters(model)
        kept.append(average.module.weight.item())
        if epoch < warm:
            average.n_averaged.fill_(0)
    assert max(abs(g - w) for (_, g), w in zip(got, kept)) <= 1e-12
