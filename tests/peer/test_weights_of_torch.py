"""trainer convert and torch read each other's files; what is no tensor is refused by name."""
import collections
import zipfile

import pytest
import safetensors.torch
import torch
import torchvision

from support import TRAINER, run


def convert(src, dst):
    p = run(TRAINER, "convert", src, dst)
    assert p.returncode == 0, p.stderr


def same(a, b):
    return set(a) == set(b) and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return torchvision.models.resnet18(num_classes=10)


def test_a_state_dict_comes_through_unchanged_and_goes_back(model, tmp_path):
    want = model.state_dict()
    torch.save(want, tmp_path / "a.pth")
    convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "a.safetensors"), want)
    for other in ("a.safetensors", "a.pth"):
        convert(tmp_path / other, tmp_path / "b.pth")
        for how in ({"weights_only": True}, {"weights_only": True, "mmap": True}):
            back = torch.load(tmp_path / "b.pth", **how)
            assert isinstance(back, collections.OrderedDict) and same(back, want)


def test_a_training_scripts_checkpoint_gives_its_state_dict_without_the_prefix(model, tmp_path):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    torch.save({"epoch": 3, "arch": "resnet18", "best_acc1": torch.tensor(3.5), "optimizer": optimizer.state_dict(),
                "scheduler": schedule.state_dict(),
                "state_dict": collections.OrderedDict(("module." + k, v) for k, v in model.state_dict().items())},
               tmp_path / "a.pth")
    convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "a.safetensors"), model.state_dict())


def test_every_type_stride_and_shape_comes_through(tmp_path):
    base = torch.arange(24.).reshape(2, 3, 4)
    want = {"turned": base.transpose(0, 2), "slice": base[1, :, 1:3], "shared": base, "spread": torch.ones(1, 3).expand(4, 3),
            "f16": torch.randn(3).half(), "bf16": torch.randn(3, 2).bfloat16(), "f64": torch.randn(2).double(),
            "scalar": torch.tensor(7), "none": torch.zeros(0, 3), "i32": torch.arange(3, dtype=torch.int32),
            "u8": torch.arange(5, dtype=torch.uint8), "parameter": torch.nn.Parameter(torch.randn(2, 2))}
    torch.save(want, tmp_path / "a.pth")
    convert(tmp_path / "a.pth", tmp_path / "b.pth")
    assert same(torch.load(tmp_path / "b.pth", weights_only=True), want)
    convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "a.safetensors"), want)


def test_entries_begin_at_multiples_of_64_bytes_and_equal_weights_are_equal_files(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "a.pth")
    convert(tmp_path / "a.pth", tmp_path / "b.pth")
    convert(tmp_path / "a.pth", tmp_path / "c.pth")
    raw = (tmp_path / "b.pth").read_bytes()
    assert raw == (tmp_path / "c.pth").read_bytes()
    archive = zipfile.ZipFile(tmp_path / "b.pth")
    assert archive.testzip() is None
    for i in archive.infolist():
        at = i.header_offset
        data = at + 30 + int.from_bytes(raw[at + 26:at + 28], "little") + int.from_bytes(raw[at + 28:at + 30], "little")
        assert data % 64 == 0, i.filename


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("what, says", [
    (lambda: torchvision.models.resnet18(), "torchvision.models.resnet.ResNet"),
    (lambda: {"a": torch.zeros(1), "x": Evil()}, "print"),
    (lambda: [torch.zeros(1)], "a list instead of a dict of tensors"),
    (lambda: {"a": torch.zeros(1, dtype=torch.bool)}, "torch.BoolStorage"),
], ids=["a module", "a call", "a list", "a type"])
def test_what_is_no_tensor_is_refused_by_name(tmp_path, what, says):
    torch.save(what(), tmp_path / "a.pth")
    p = run(TRAINER, "convert", tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert p.returncode == 65 and says in p.stderr and "executed" not in p.stdout, p.stderr
    assert not list(tmp_path.glob("a.safetensors*"))


def test_a_file_of_old_torch_comes_through_unchanged(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "a.safetensors"), model.state_dict())


def test_a_damaged_file_is_refused(tmp_path):
    torch.save({"a": torch.arange(1000.)}, tmp_path / "a.pth")
    raw = bytearray((tmp_path / "a.pth").read_bytes())
    at = raw.find(torch.arange(1000.).numpy().tobytes())
    raw[at + 400] ^= 1
    (tmp_path / "a.pth").write_bytes(raw)
    p = run(TRAINER, "convert", tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert p.returncode == 65 and "CRC" in p.stderr, p.stderr
