"""The rates, decay and averages of recipes, epoch by epoch, beside PyTorch's own objects, as the source of each recipe sets them up."""
import fnmatch
import re

import pytest
import safetensors.torch
import timm
import timm.optim
import timm.scheduler
import torch
import torchvision

from support import TRAINER, run
from tensors import newest

IMAGES = 1281167


def schedule(recipe, arch="mlp"):
    p = run(TRAINER, "summary", "--recipe", recipe, "--train-data", "null", "--null-images", IMAGES, "--num-labels", 1000, "--device", "ref",
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


@pytest.mark.parametrize("recipe, arch, first, least, late", [("rsb-a3", "resnet50", 1e-4, 1e-6, False), ("deit3-s", "deit3_s_16", 1e-6, 1e-5, True)])
def test_timms_cosine_and_lamb(recipe, arch, first, least, late):
    """train.py of timm steps its scheduler behind each epoch with the number of the next one, main.py of DeiT with that of the epoch."""
    s = {k: v for k, (v, _) in settings(recipe).items()}
    epochs = int(s["num-epochs"])
    o = timm.optim.Lamb([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=float(s["base-learning-rate"]))
    assert ([float(s["momentum"]), float(s["beta2"])], float(s["clip-grad-norm"])) == ([*o.defaults["betas"]], o.defaults["max_grad_norm"])
    scheduler = timm.scheduler.CosineLRScheduler(o, epochs, lr_min=least, warmup_t=5, warmup_lr_init=first)
    want = []
    for epoch in range(epochs):
        want.append(o.param_groups[0]["lr"])
        scheduler.step(epoch if late else epoch + 1)
    got = schedule(recipe, arch)
    assert len(got) == epochs and max(abs(g - w) for (g, _), w in zip(got, want)) <= 1e-12


@pytest.mark.parametrize("recipe", ["rsb-a3", "deit3-s"])
def test_of_timms_models_what_has_one_dimension_does_not_decay(recipe, tmp_path):
    """One step at a decay of 1, without gradients: what decays is gone by the rate, all else stays."""
    s = settings(recipe)
    model = timm.create_model({"rsb-a3": "resnet50", "deit3-s": "deit3_small_patch16_224"}[recipe], num_classes=10)
    alone = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    want = {k for k, p in model.named_parameters() if p.ndim > 1 and k not in alone}
    moved = {}
    for rate in (0, 0.5):
        p = run(TRAINER, "--recipe", recipe, "--train-data", "null", "--null-images", 8, "--num-labels", 10, "--batch-size", 8, "--image-size", 32,
                "--scale", 32, "--mix-group", 8, "--max-steps", 1, "--lr", rate, "--lr-min", 0, "--lr-policy", "fixed", "--warmup-epochs", 0, "--optimizer",
                "adamw", "--weight-decay", 1, "--adam-eps", 1, "--clip-grad-norm", 1e-30, "--device", "ref", "--checkpoint-dir", tmp_path / str(rate))
        assert p.returncode == 0, p.stderr
        moved[rate] = safetensors.torch.load_file(newest(tmp_path / str(rate)) / "model.safetensors")
    have = dict(model.named_parameters())
    assert s["bn-decay"][0] == "off" and have.keys() <= moved[0].keys()
    for k in have:
        torch.testing.assert_close(moved[0.5][k], moved[0][k] * (0.5 if k in want else 1), rtol=1e-6, atol=1e-12, msg=k)


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
