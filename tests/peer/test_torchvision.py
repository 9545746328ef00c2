"""Checkpoints are torchvision's: the same weights, loaded there, give the same loss and accuracy on the same files."""
import json

import pytest
import safetensors.torch
import torch
import torchvision
from torchvision import transforms

from support import TRAINER, run


def evaluate(model, folder, size):
    pipeline = transforms.Compose([
        transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    files = torchvision.datasets.ImageFolder(folder, pipeline)
    model.eval()
    hits = loss = 0.0
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(files, batch_size=64):
            out = model(x)
            hits += (out.argmax(1) == y).sum().item()
            loss += torch.nn.functional.cross_entropy(out, y, reduction="sum").item()
    return loss / len(files), 100 * hits / len(files)


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "resnext50_32x4d", "convnext_tiny", "vit_b_16"])
def test_a_checkpoint_evaluates_in_torchvision_as_here(shapes, tmp_path, arch):
    data = shapes(64, 320, 100)
    sized = {"image_size": 64} if arch.startswith("vit") else {}
    p = run(TRAINER, "--train-data", data / "train", "--test-data", data / "val", "--arch", arch, "--image-size",
                64, "--batch-size", 32, "--num-epochs", 1, "--device", "cpu", "--amp", "off", "--checkpoint-dir", tmp_path,
                timeout=600)
    assert p.returncode == 0, p.stderr
    ours = [json.loads(m) for m in (tmp_path / "metrics.jsonl").read_text().splitlines() if "test_images" in m][-1]
    newest = max(tmp_path.glob("step-*"))
    model = torchvision.models.__dict__[arch](num_classes=10, **sized)
    model.load_state_dict(safetensors.torch.load_file(newest / "model.safetensors"))
    loss, acc1 = evaluate(model, data / "val", 64)
    print(f"{arch}: loss {ours['test_loss']:.6f} here, {loss:.6f} in torch; Acc@1 {ours['test_acc1']:.2f} and {acc1:.2f}")
    assert abs(loss - ours["test_loss"]) <= 1e-3 * max(1, abs(loss))
    assert abs(acc1 - ours["test_acc1"]) <= 1.0
