"""Charts and tables that others have published, and what `trainer plan --hardware` makes of them. No figure here is known to the planner: worker/planner/hardware.def has
data sheets, and what one GPU alone does."""
import json
import subprocess

# Caffe2's page on distributed training, April 2017: ResNet-50 on Tesla P100, Facebook's machines of 8; both axes read off by eye, 2 %. 128: of its later chart.
CAFFE2 = {1: 1, 2: 2.0, 4: 3.9, 8: 7.8, 16: 14.8, 32: 29, 64: 57}
CAFFE2_LATER = {128: 105}
CAFFE2_BATCH = 32  # of a GPU: the trainer's default

# TorchShard's tutorial on ImageNet: seconds of an iteration, ResNet-50, 224 x 224, TITAN Xp: (classes, GPUs, how the last layer is split). The first one is where the
# sweep begins, the others are what more classes come to.
TORCHSHARD_FIRST = 0.508
TORCHSHARD = {(1_000_000, 8, 1): 0.578, (1_000_000, 8, 0): 0.710, (2_000_000, 16, 1): 0.780}

IMAGES, EPOCHS = 1_281_167, 90
# Who, year, machine, as many as there were (Goyal's number is the paper's), batch, minutes, what the paper computed in; None: a machine without figures here.
RECORDS = [
    ("He et al.", 2016, "p100", 8, 256, 29 * 60, "off"),
    ("Goyal et al.", 2017, "p100", 256, 8192, 60, "off"),
    ("Smith et al.", 2017, "full TPU pod", 1, 8192, 30, None),
    ("Akiba et al.", 2017, "p100", 1024, 32768, 15, "off"),
    ("Jia et al.", 2018, "p40", 2048, 65536, 6.6, "fp16"),
    ("Ying et al.", 2018, "TPU v3", 1024, 65536, 1.8, None),
    ("Mikami et al.", 2018, "v100", 3456, 55296, 2.0, "fp16"),
    ("Yamazaki et al.", 2019, "v100", 2048, 81920, 1.2, "fp16"),
]


def plan(trainer, hardware, gpus, batch, *more):
    """The plan as JSON, of ResNet-50 with pictures of 224 x 224."""
    args = [trainer, "plan", "--hardware", hardware, "--world-size", gpus, "--arch", "resnet50", "--image-size", 224, "--train-data", "null", "--null-images", IMAGES,
            "--batch-size", batch, "--json", *more]
    labels = [] if "--num-labels" in more else ["--num-labels", 1000]
    p = subprocess.run([str(a) for a in [*args, *labels]], capture_output=True, text=True, timeout=900, check=False)
    if p.returncode:
        raise RuntimeError(p.stderr)
    return json.loads(p.stdout)


def seconds(*args):
    return plan(*args)["step"]["seconds"]


def speed_ups(trainer, gpus):
    """{GPUs: how many times faster than one}"""
    one = seconds(trainer, "p100", 1, CAFFE2_BATCH)
    return {n: n * one / seconds(trainer, "p100", n, CAFFE2_BATCH * n) for n in gpus}


def torchshard_step(trainer, classes, gpus, dim):
    split = ["--model-parallel-size", gpus, "--model-parallel-dim", dim] if dim is not None else []
    return seconds(trainer, "titan-xp", gpus, 256, "--num-labels", classes, *split)


def torchshard(trainer):
    """{row: seconds predicted}: the published first row, and what the planner says that the others take beyond it"""
    first = torchshard_step(trainer, 1000, 8, None)
    return {row: TORCHSHARD_FIRST + torchshard_step(trainer, *row) - first for row in TORCHSHARD}


def record_minutes(trainer, row):
    _, _, hardware, gpus, batch, _, amp = row
    if amp is None:
        return None
    p = plan(trainer, hardware, gpus, batch, "--amp", amp, *(["--allreduce-dtype", "fp16"] if amp == "fp16" else []))
    return EPOCHS * p["steps_per_epoch"] * p["step"]["seconds"] / 60
