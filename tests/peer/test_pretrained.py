"""--pretrained takes torchvision's weights in every floating-point type, and evaluates as torchvision does."""
import re

import pytest
import safetensors.torch
import torch
import torchvision

from support import TRAINER, run
from test_torchvision import evaluate


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_of_any_type_evaluate_as_in_torchvision(shapes, tmp_path, dtype):
    data = shapes(32, 64, 60)
    torch.manual_seed(3)
    model = torchvision.models.resnet18(num_classes=10)
    stored = {k: v.to(dtype) if v.is_floating_point() else v for k, v in model.state_dict().items()}
    safetensors.torch.save_file(stored, tmp_path / "w.safetensors")
    model.load_state_dict(stored)
    loss, _ = evaluate(model, data / "val", 32)
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "resnet18", "--image-size", 32,
            "--device", "cpu", "--amp", "off", "--evaluate", "--pretrained", tmp_path / "w.safetensors")
    assert p.returncode == 0, p.stderr
    ours = float(re.search(r"Test: loss (\d+\.\d+)", p.stderr).group(1))
    print(f"{dtype}: loss {ours} here, {loss:.6f} in torch")
    assert abs(ours - loss) <= 1e-3 * max(1, abs(loss))


def test_positions_are_resampled_as_in_torchvision(shapes, tmp_path):
    data = shapes(48, 64, 60)
    torch.manual_seed(3)
    small, large = (torchvision.models.vit_b_16(num_classes=10, image_size=s) for s in (32, 48))
    torch.nn.init.normal_(small.heads.head.weight, std=0.1)
    torch.nn.init.normal_(small.encoder.pos_embedding, std=1)
    torch.save(small.state_dict(), tmp_path / "w.pth")
    large.load_state_dict(torchvision.models.vision_transformer.interpolate_embeddings(48, 16, small.state_dict()))
    loss, _ = evaluate(large, data / "val", 48)
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", "vit_b_16", "--image-size", 48, "--device", "cpu",
            "--amp", "off", "--evaluate", "--pretrained", tmp_path / "w.pth", timeout=300)
    assert p.returncode == 0 and "from 2 x 2 to 3 x 3 positions" in p.stderr, p.stderr
    ours = float(re.search(r"Test: loss (\d+\.\d+)", p.stderr).group(1))
    print(f"positions resampled: loss {ours} here, {loss:.6f} in torch")
    assert abs(ours - loss) <= 1e-3 * max(1, abs(loss))


@pytest.mark.parametrize("arch", ["convnext_tiny", "vit_b_16", "resnext50_32x4d"])
def test_a_pth_of_other_networks_evaluates_as_in_torchvision(shapes, tmp_path, arch):
    data = shapes(32, 64, 60)
    torch.manual_seed(3)
    model = torchvision.models.__dict__[arch](num_classes=10, **({"image_size": 32} if arch == "vit_b_16" else {}))
    with torch.no_grad():
        for p in model.parameters():  # a vision transformer's head begins as zeros, a ConvNeXt's layer scales nearly so
            p.add_(torch.randn_like(p), alpha=0.02)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    loss, _ = evaluate(model, data / "val", 32)
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", arch, "--image-size", 32, "--device", "cpu",
            "--amp", "off", "--evaluate", "--pretrained", tmp_path / "w.pth", timeout=300)
    assert p.returncode == 0, p.stderr
    ours = float(re.search(r"Test: loss (\d+\.\d+)", p.stderr).group(1))
    print(f"{arch}: loss {ours} here, {loss:.6f} in torch")
    assert abs(ours - loss) <= 1e-3 * max(1, abs(loss))
