"""Networks of positions give the same numbers here and in PyTorch: ConvNeXt-T, ViT-S/16 and timm's of DeiT III, of the same weights and pictures.

Torchvision's initial values would hide much: a layer scale of 1e-6 and a head of zeros. So all weights are moved by a hundredth of a normal
value, layer scales are between 0.5 and 1.5. Without stochastic depth: what is dropped is each program's own. Pictures are of random bytes, the
optimizer is plain SGD at rate 0.01. Bounds are shares of the largest value of a tensor.

ref computes in double precision: logits, losses of three steps, every gradient of the first and all weights after the last within 1e-10 of PyTorch
in float64. cpu in fp32: logits within 1e-5 of PyTorch in fp32 with the same weights, and again with those that three steps made here.
"""
import subprocess

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torchvision

from support import BUILD, ROOT
from test_equal_pytorch import MEAN, STD

STEPS, CLASSES = 3, 10
EPS = torch.tensor(np.float32(1e-6), dtype=torch.float64).item()


def convnext(size):
    return torchvision.models.convnext_tiny(num_classes=CLASSES, stochastic_depth_prob=0)


def vit(size):
    return torchvision.models.VisionTransformer(size, 16, 12, 6, 384, 1536, num_classes=CLASSES)


def deit3(size):
    return timm.create_model("deit3_small_patch16_224", img_size=size, num_classes=CLASSES)


# pictures' size, batch, text, values that are set, PyTorch's network, how many parameters it has
CASES = {"convnext_tiny": (64, 4, "convnext", "stochastic_depth=0", convnext, 182),
         "vit_s_16": (96, 4, "vit", "width=384 heads=6 mlp=1536", vit, 152),
         "deit3_s_16": (96, 4, "deit3", "stochastic_depth=0", deit3, 176)}


class Case:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.size, self.batch, text, values, self.make, self.n = CASES[name]
        torch.manual_seed(11)
        model = self.make(self.size)
        with torch.no_grad():
            for k, p in model.named_parameters():
                if k.endswith(("layer_scale", "gamma")):
                    p.uniform_(0.5, 1.5)
                else:
                    p.add_(torch.randn_like(p), alpha=0.01)
        self.state = model.state_dict()
        self.images = torch.randint(0, 256, (STEPS, self.batch, self.size, self.size, 3), dtype=torch.uint8)
        self.labels = torch.randint(0, CLASSES, (STEPS, self.batch))
        self.net = folder / f"{name}.net"
        self.net.write_text((ROOT / "worker/model/nets" / f"{text}.net").read_text() + f"set {values}\n")
        assert len(self.state) == self.n and all(v.is_floating_point() for v in self.state.values())

    def here(self, device, state, name):
        """What tests/peer/steps makes of these weights."""
        folder = self.folder / name
        folder.mkdir()
        safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, folder / "weights.safetensors")
        self.images.numpy().tofile(folder / "images")
        self.labels.to(torch.int32).numpy().tofile(folder / "labels")
        subprocess.run([BUILD / "tests/peer/steps", device, self.net, str(self.size), str(CLASSES), str(self.batch), str(STEPS), "2", "0", folder],
                       check=True, timeout=1200)
        return safetensors.torch.load_file(folder / f"{device}.safetensors")

    def model(self, dtype, state):
        model = self.make(self.size)
        model.load_state_dict(state)
        for m in model.modules():
            if isinstance(m, torch.nn.LayerNorm):
                m.eps = EPS
        return model.to(dtype).train()

    def pictures(self, step, dtype):
        return ((self.images[step].to(torch.float64) / 255 - MEAN) / STD).to(dtype).permute(0, 3, 1, 2)

    def logits(self, dtype, state):
        with torch.no_grad():
            return self.model(dtype, state)(self.pictures(0, dtype)).double().ravel()

    def exact(self):
        model, out, losses = self.model(torch.float64, self.state), {}, []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for k in range(STEPS):
            logits = model(self.pictures(k, torch.float64))
            loss = torch.nn.functional.cross_entropy(logits, self.labels[k])
            optimizer.zero_grad()
            loss.backward()
            if k == 0:
                out["logits"] = logits.detach().ravel()
                out.update(("grad." + n, p.grad * self.batch) for n, p in model.named_parameters())  # here they are sums over the batch
            losses.append(loss.item())
            optimizer.step()
        out["losses"] = torch.tensor(losses, dtype=torch.float64)
        return {**out, **{k: v.detach() for k, v in model.state_dict().items()}}


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory):
    torch.set_num_threads(2)
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def largest(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


def test_ref_equals_float64(case):
    want, got = case.exact(), case.here("ref", {k: v.double() for k, v in case.state.items()}, "ref")
    assert set(want) == set(got) and len(want) == 2 * case.n + 2
    assert all(want[k].any() and want[k].shape == got[k].shape for k in want)
    off = {k: largest(got[k], want[k]) for k in want}
    gradient = max((v, k) for k, v in off.items() if k.startswith("grad."))
    after = max((off[k], k) for k in case.state)
    print(f"{case.name}, {case.size} pixels, ref against float64: logits {off['logits']:.1e}, gradients {gradient[0]:.1e} ({gradient[1]}), losses "
          f"{off['losses']:.1e}, weights after {STEPS} steps {after[0]:.1e} ({after[1]})")
    assert max(off.values()) <= 1e-10, max((v, k) for k, v in off.items())


def test_cpu_logits_equal_pytorch_both_ways(case):
    one = case.here("cpu", case.state, "cpu")
    ours = {k: one[k].float() for k in case.state}  # fp32, as they are
    two = case.here("cpu", ours, "again")
    off = [largest(one["logits"], case.logits(torch.float32, case.state)), largest(two["logits"], case.logits(torch.float32, ours))]
    print(f"{case.name}, {case.size} pixels, cpu against PyTorch in fp32: logits {off[0]:.1e}, of weights from here {off[1]:.1e}")
    assert any((ours[k] != case.state[k]).any() for k in ours) and max(off) <= 1e-5, off
