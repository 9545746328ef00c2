"""Files of weights as people have them, each made by the library that makes such files: what trainer makes of a picture
with them is what the library's model makes of it. Where a library is not there, a comment says so: its layout is made
by hand then."""
import argparse
import collections
import json
import math
import pathlib

import lightning
import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import timm
import timm.utils
import torch
import torch.nn.utils.prune
import torchvision
import transformers
from torchvision import transforms

from support import TRAINER, run

SIZE, CLASSES = 64, 10
NEAR = 1e-5  # of a logit


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "a.png"
    PIL.Image.fromarray(np.random.default_rng(1).integers(0, 256, (70, 90, 3), np.uint8)).save(path)
    return path


def resnet(arch="resnet18", seed=3):
    torch.manual_seed(seed)
    m = torchvision.models.__dict__[arch](num_classes=CLASSES)
    stir(m)
    return m.eval()


def stir(model):
    """Statistics of a model that has seen something."""
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(m.running_mean, std=0.1)
            torch.nn.init.uniform_(m.running_var, 0.5, 2)
            torch.nn.init.uniform_(m.weight, 0.2, 0.8)  # so that logits are of the size of 1
            torch.nn.init.normal_(m.bias, std=0.1)
    return model


def logits_of(model, picture):
    pipeline = transforms.Compose([transforms.Resize(round(SIZE * 256 / 224)), transforms.CenterCrop(SIZE), transforms.ToTensor(),
                                   transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    with torch.no_grad():
        out = model.eval()(pipeline(PIL.Image.open(picture))[None])
    return torch.log_softmax(getattr(out, "logits", out)[0].double(), 0)


def ours(path, picture, arch="resnet18"):
    p = run(TRAINER, "predict", "--checkpoint", path, "--arch", arch, "--image-size", SIZE, "--device", "cpu", "--json",
            "--topk", CLASSES, picture)
    assert p.returncode == 0, p.stderr
    of = {c["index"]: c["probability"] for c in json.loads(p.stdout)["top"]}
    return torch.tensor([math.log(of[i]) for i in range(CLASSES)], dtype=torch.double), p.stderr


def same(path, model, picture, arch="resnet18"):
    got, said = ours(path, picture, arch)
    off = (got - logits_of(model, picture)).abs().max().item()
    print(f"{path.name}: {off:.1e}")
    assert off <= NEAR, off
    return said


def sd():
    return resnet().state_dict()


def beside(**more):
    return {"state_dict": sd(), **more}


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return optimizer


def imagenet_example():
    model = resnet()
    optimizer = trained(model)
    return {"epoch": 3, "arch": "resnet18", "best_acc1": torch.tensor(3.5), "optimizer": optimizer.state_dict(),
            "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5]).state_dict(),
            "state_dict": torch.nn.DataParallel(resnet()).state_dict()}


def references():  # torchvision/references/classification/train.py, whose --model-ema-decay makes model_ema
    model = resnet()
    return {"model": sd(), "optimizer": trained(model).state_dict(), "lr_scheduler": {"milestones": collections.Counter([30])}, "epoch": 1,
            "args": argparse.Namespace(lr=0.1, output_dir=pathlib.Path("."), device=torch.device("cpu")),
            "model_ema": torch.optim.swa_utils.AveragedModel(resnet(seed=4)).state_dict()}


def lightning_file(path):
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"lr": 0.1, "where": pathlib.Path("x")})
            self.model = resnet()

        def configure_optimizers(self):
            return trained(self.model)

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(Net())
    trainer.save_checkpoint(path)


def timm_file(path):
    """last.pth.tar of timm's train.py."""
    model = resnet()
    ema = timm.utils.ModelEmaV2(resnet(seed=4))
    saver = timm.utils.CheckpointSaver(model, trained(resnet()), args=argparse.Namespace(model="resnet18", crop=np.float64(0.9)), model_ema=ema,
                                       checkpoint_dir=str(path.parent), recovery_dir=str(path.parent))
    saver.save_checkpoint(0, metric=np.float64(71.5))
    (path.parent / "last.pth.tar").rename(path)


SAVED = {  # what torch.save() is given
    "a state_dict": sd,
    "of DataParallel": lambda: torch.nn.DataParallel(resnet()).state_dict(),
    "of torch.compile": lambda: torch.compile(resnet()).state_dict(),
    "of DataParallel of torch.compile": lambda: torch.nn.DataParallel(torch.compile(resnet())).state_dict(),
    "of torch.compile of DataParallel": lambda: torch.compile(torch.nn.DataParallel(resnet())).state_dict(),
    "of AveragedModel": lambda: torch.optim.swa_utils.AveragedModel(resnet()).state_dict(),
    "a member model": lambda: {"model": sd(), "epoch": 3},
    "a member net": lambda: {"net": sd(), "acc": 93.1, "epoch": 3},
    "a member model_state_dict": lambda: {"epoch": 3, "model_state_dict": sd(), "optimizer_state_dict": trained(resnet()).state_dict(), "loss": torch.tensor(0.4)},
    "a member module": lambda: {"module": sd(), "buffer_names": [], "ds_version": "0.14"},  # DeepSpeed's mp_rank_00_model_states.pt
    "the example of PyTorch": imagenet_example,
    "torchvision's references": references,
    "half precision": lambda: {k: v.half() if v.is_floating_point() else v for k, v in sd().items()},
    "bfloat16": lambda: {k: v.bfloat16() if v.is_floating_point() else v for k, v in sd().items()},
    "channels last": lambda: resnet().to(memory_format=torch.channels_last).state_dict(),
    "parameters": lambda: {**sd(), **dict(resnet().named_parameters())},
    "without num_batches_tracked": lambda: {k: v for k, v in sd().items() if "num_batches" not in k},
    "a numpy number beside": lambda: beside(best=np.float64(71.5)),
    "a numpy array beside": lambda: beside(curve=np.arange(1000.)),
    "a set beside": lambda: beside(seen={1, 2, 3}),
    "a defaultdict beside": lambda: beside(log=collections.defaultdict(list, {"loss": [1.0, 2.0]})),
    "a path beside": lambda: beside(where=pathlib.Path("/tmp/x")),
    "a device beside": lambda: beside(device=torch.device("cpu")),
    "a size beside": lambda: beside(shape=torch.Size([1, 3, 224, 224])),
    "a large number beside": lambda: beside(seed=2**70),
    "a generator's state beside": lambda: beside(rng=torch.get_rng_state(), numpy=np.random.get_state()),
    "a backbone's names": lambda: {"state_dict": {("backbone." if "fc." not in k else "backbone.") + k: v for k, v in sd().items()}, "meta": {"mmcv": "2.0"}},
    "nested twice": lambda: {"model": {"state_dict": sd(), "epoch": 3}, "optimizer": trained(resnet()).state_dict()},
    "an encoder's names": lambda: {"state_dict": {"module.encoder_q." + k: v for k, v in sd().items()} | {"module.queue": torch.zeros(128, 64)}},  # MoCo's names, one encoder
    "other things beside the model": lambda: {**{"model." + k: v for k, v in sd().items()}, "criterion.weight": torch.ones(CLASSES), "mask": torch.ones(3, dtype=torch.bool)},
}


OLD = ["a state_dict", "the example of PyTorch", "torchvision's references", "channels last", "bfloat16", "other things beside the model"]


@pytest.mark.parametrize("kind, old", [(k, False) for k in SAVED] + [(k, True) for k in OLD])
def test_what_torch_saves_gives_torchvisions_logits(kind, old, picture, tmp_path):
    made = SAVED[kind]()
    torch.save(made, tmp_path / "w.pth", _use_new_zipfile_serialization=not old)
    model = resnet()
    if kind in ("half precision", "bfloat16"):
        model.load_state_dict(made)
    said = same(tmp_path / "w.pth", model, picture)
    assert ("left out" in said) == (kind in ("of AveragedModel", "an encoder's names", "other things beside the model")), said


@pytest.mark.parametrize("make", [lightning_file, timm_file], ids=["Lightning", "timm"])
def test_what_a_trainer_of_others_saves_gives_its_logits(make, picture, tmp_path):
    make(tmp_path / "w.ckpt")
    same(tmp_path / "w.ckpt", resnet(), picture)


def test_safetensors_of_others_give_their_logits(picture, tmp_path):
    safetensors.torch.save_file(sd(), tmp_path / "meta.safetensors", {"format": "pt"})
    same(tmp_path / "meta.safetensors", resnet(), picture)
    safetensors.torch.save_file({"module." + k: v for k, v in sd().items()}, tmp_path / "module.safetensors")
    same(tmp_path / "module.safetensors", resnet(), picture)
    torch.manual_seed(5)
    model = stir(timm.create_model("resnet18", num_classes=CLASSES))
    safetensors.torch.save_file(model.state_dict(), tmp_path / "timm.safetensors")
    same(tmp_path / "timm.safetensors", model, picture)


def hugging_face(**more):
    torch.manual_seed(6)
    return stir(transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=CLASSES, **more)))


BASIC = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}


@pytest.mark.parametrize("arch, config", [("resnet18", BASIC), ("resnet50", {})], ids=["basic", "bottleneck"])
def test_resnets_of_hugging_face_give_its_logits(arch, config, picture, tmp_path):
    model = hugging_face(**config)
    model.save_pretrained(tmp_path / "whole")
    assert "left out" not in same(tmp_path / "whole", model, picture, arch)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20MB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    same(tmp_path / "shards", model, picture, arch)
    same(tmp_path / "shards" / "model.safetensors.index.json", model, picture, arch)
    torch.save(torch.nn.DataParallel(model).state_dict(), tmp_path / "w.pth")
    same(tmp_path / "w.pth", model, picture, arch)
    bins = tmp_path / "bins"  # as transformers saved before safetensors
    bins.mkdir()
    state = model.state_dict()
    names = {k: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, k in enumerate(state)}
    for file in set(names.values()):
        torch.save({k: v for k, v in state.items() if names[k] == file}, bins / file)
    (bins / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (bins / "config.json").write_text("{}")
    same(bins, model, picture, arch)


def test_a_member_and_a_beginning_can_be_asked_for(picture, tmp_path):
    timm_file(tmp_path / "last.pth")
    moco = {f"module.encoder_{which}.{k}": v for which, seed in (("q", 3), ("k", 4)) for k, v in resnet(seed=seed).state_dict().items()}
    torch.save({"state_dict": moco, "epoch": 1}, tmp_path / "moco.pth")
    dino = {who: {"module.backbone." + k: v for k, v in resnet(seed=seed).state_dict().items()} for who, seed in (("student", 3), ("teacher", 4))}
    torch.save(dino, tmp_path / "dino.pth")
    for file, part, seed in (("last.pth", "state_dict_ema", 4), ("last.pth", "state_dict", 3), ("moco.pth", "encoder_q", 3), ("moco.pth", "module.encoder_k.", 4), ("dino.pth", "teacher", 4)):
        p = run(TRAINER, "convert", "--part", part, tmp_path / file, tmp_path / "o.safetensors")
        if part == "encoder_q":  # the name as it is in the file
            assert p.returncode == 2 and "no member of its dict is called 'encoder_q', and no name of a tensor begins so; the first is 'module.encoder_q.conv1.weight'" in p.stderr, p.stderr
            continue
        assert p.returncode == 0, p.stderr
        same(tmp_path / "o.safetensors", resnet(seed=seed), picture)
    for file, names in (("moco.pth", ("'module.encoder_k.'", "'module.encoder_q.'")), ("dino.pth", ("'student'", "'teacher'"))):
        p = run(TRAINER, "predict", "--checkpoint", tmp_path / file, "--arch", "resnet18", "--image-size", SIZE, picture)
        assert p.returncode in (65, 78) and all(n in p.stderr for n in names) and "--pretrained-part" in p.stderr and p.stderr.count("\n") == 1, p.stderr


def test_a_model_without_its_last_layer_keeps_the_initial_one(shapes, tmp_path):
    data = shapes(32, 64, 60)
    backbone = {k: v for k, v in sd().items() if not k.startswith("fc.")}
    for name, made in (("dino", backbone), ("swav", {"module." + k: v for k, v in backbone.items()} | {"module.projection_head.0.weight": torch.zeros(3, 512)})):
        torch.save(made, tmp_path / "w.pth")
        p = run(TRAINER, "--train-data", data / "train", "--arch", "resnet18", "--image-size", 32, "--batch-size", 8, "--max-steps", 1, "--lr", 0,
                "--device", "cpu", "--amp", "off", "--pretrained", tmp_path / "w.pth", "--checkpoint-dir", tmp_path / name)
        assert p.returncode == 0 and all(f"'fc.{k}' is not there and stays at its initial value" in p.stderr for k in ("weight", "bias")), p.stderr
        got = safetensors.torch.load_file(max((tmp_path / name).glob("step-*")) / "model.safetensors")
        assert all(torch.equal(got[k], v) for k, v in backbone.items() if "running" not in k and "num_batches" not in k)


def pruned():
    model = resnet()
    torch.nn.utils.prune.l1_unstructured(model.conv1, "weight", 0.3)
    return model.state_dict()


def weight_normed():
    model = resnet()
    torch.nn.utils.parametrizations.weight_norm(model.layer1[0].conv1)
    return model.state_dict()


@pytest.mark.parametrize("make, says", [(pruned, "of pruning or spectral_norm: torch.nn.utils.prune.remove()"), (weight_normed, "of a parametrization (weight_norm, spectral_norm): torch.nn.utils.parametrize.remove_parametrizations()")])
def test_tensors_that_stand_for_others_are_called_what_they_are(make, says, picture, tmp_path):
    torch.save(make(), tmp_path / "w.pth")
    p = run(TRAINER, "predict", "--checkpoint", tmp_path / "w.pth", "--arch", "resnet18", "--image-size", SIZE, picture)
    assert p.returncode == 78 and says in p.stderr and "--arch?" not in p.stderr, p.stderr


class Other:
    def __init__(self):
        self.weights = resnet()


def test_what_is_no_model_of_this_kind_is_rightly_refused(picture, tmp_path):
    torch.save(resnet(), tmp_path / "whole.pth")
    torch.save({"model": resnet(), "epoch": 1}, tmp_path / "member.pth")
    torch.jit.trace(resnet(), torch.zeros(1, 3, SIZE, SIZE)).save(tmp_path / "script.pt")
    torch.save({"epoch": 3, "loss": [1.0]}, tmp_path / "none.pth")
    torch.save({**sd(), "other": Other()}, tmp_path / "object.pth")
    torch.save(torchvision.models.vgg11(num_classes=CLASSES).state_dict(), tmp_path / "vgg.pth")
    (tmp_path / "folder").mkdir()
    eight = {k: v.to(torch.float8_e4m3fn) if v.is_floating_point() else v for k, v in sd().items()}
    safetensors.torch.save_file(eight, tmp_path / "float8.safetensors")
    torch.save(eight, tmp_path / "float8.pth")
    for name, code, says in (("whole.pth", 65, "it holds what torchvision.models.resnet.ResNet makes instead of a dict of tensors"),
                             ("member.pth", 65, "'model' in it is what torchvision.models.resnet.ResNet makes"),
                             ("script.pt", 65, "instead of a dict of tensors"), ("none.pth", 65, "it holds no tensors"),
                             ("float8.safetensors", 65, "is of type 'F8_E4M3', which is not read: save it as F32, F16 or BF16"), ("float8.pth", 65, ""),
                             ("object.pth", 65, "'other' is what test_kinds_of_weights.Other makes, not a tensor"),
                             ("vgg.pth", 78, "no tensor 'fc.bias'"), ("folder", 2, "")):
        p = run(TRAINER, "predict", "--checkpoint", tmp_path / name, "--arch", "resnet18", "--image-size", SIZE, picture)
        assert p.returncode == code and says in p.stderr and p.stderr.count("\n") == 1, (name, p.returncode, p.stderr)
