"""PyTorch's side of bench_gpu.py: a process that obeys a JSON object a line on standard input and answers with one on standard output.

{"make": [arch, batch, type, mode]}   build it; mode eager or compile (torch.compile, CUDA graphs). Answers {"ready": seconds it took, "mode": what it became}
{"steps": N}                          N steps between two synchronisations, and by CUDA events. Answers {"seconds": s, "events": s}
{"drop": 1}                           free it
Where something fails: {"error": a sentence}. A model that does not compile is measured eager, and says so in its mode.

Synthetic images on the GPU, channels_last, autocast for halves (a GradScaler with fp16, as torchvision's reference script), fused SGD.

usage: pytorch_gpu.py [--device cpu] [--image 224]      (cpu: to see that it works, not for figures)"""
import argparse
import gc
import json
import os
import sys
import time

import torch
import torchvision

arguments = argparse.ArgumentParser()
arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
arguments.add_argument("--image", type=int, default=224)
arguments = arguments.parse_args()
DEVICE = arguments.device
torch.backends.cudnn.benchmark = True
SHAPE = (3, arguments.image, arguments.image)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Training:
    def __init__(self, arch, batch, kind, mode):
        tf32 = kind == "tf32"
        # The older names: torch.compile of 2.9 to 2.11 reads them itself, and fails where fp32_precision was set.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind)
        self.model = getattr(torchvision.models, arch)().to(DEVICE).to(memory_format=torch.channels_last)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=kind == "fp16")
        self.batches = [(torch.randn(batch, *SHAPE, device=DEVICE).to(memory_format=torch.channels_last),
                         torch.randint(0, 1000, (batch,), device=DEVICE)) for _ in range(3)]
        self.forward, self.mode, self.at = self.model_loss, "eager", 0
        if mode == "compile":
            self.compile(os.environ.get("BENCH_COMPILE_MODE", "reduce-overhead"))
        self.warm_up()

    def compile(self, how):
        self.forward, self.mode = torch.compile(self.model_loss, mode=how), how
        try:
            self.warm_up()
        except torch.OutOfMemoryError:
            raise
        except Exception as why:  # its compilers fail in many ways  # pylint: disable=broad-except
            print(f"torch.compile: {why}", file=sys.stderr)
            torch.compiler.reset()
            self.forward, self.mode = self.model_loss, f"eager (not compiled: {sentence(why)})"

    def warm_up(self):
        """Picks algorithms, compiles, captures."""
        for _ in range(8):
            self.step()
        synchronize()

    def model_loss(self, x, y):
        with torch.autocast(DEVICE, self.half or torch.bfloat16, enabled=self.half is not None):
            return self.loss(self.model(x), y)

    def step(self):
        x, y = self.batches[self.at % len(self.batches)]
        self.at += 1
        self.optimizer.zero_grad(set_to_none=True)  # before the graph whose memory the gradients lie in is launched again
        torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def steps(self, n):
        synchronize()
        start = time.perf_counter()
        if DEVICE == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
        for _ in range(n):
            self.step()
        if DEVICE == "cuda":
            end.record()
        synchronize()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "events": begin.elapsed_time(end) * 1e-3 if DEVICE == "cuda" else seconds}


def sentence(why):
    return f"{type(why).__name__}: {(str(why).splitlines() or ['nothing more'])[0]}"


def obey(now, order):
    if "make" in order:
        now.clear()
        start = time.perf_counter()
        now["it"] = Training(*order["make"])
        return {"ready": time.perf_counter() - start, "mode": now["it"].mode}
    if "steps" in order:
        return now["it"].steps(order["steps"])
    now.clear()
    torch.compiler.reset()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return {}


def main():
    now, answers = {}, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = obey(now, json.loads(line))
        except Exception as why:  # the next order may do better  # pylint: disable=broad-except
            said = {"error": sentence(why)}
        print(json.dumps(said), file=answers, flush=True)


main()
