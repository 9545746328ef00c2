"""PyTorch's side of bench_gpu.py: a process that obeys a JSON object a line on standard input and answers with one on standard output.

{"make": [arch, batch, type, mode]}   build it; mode eager or compile (torch.compile, CUDA graphs). Answers {"ready": seconds it took, "mode": what it became}
{"steps": N}                          N steps between two synchronisations, and by CUDA events. Answers {"seconds": s, "events": s}
{"drop": 1}                           free it

Synthetic images on the GPU, channels_last, autocast for halves (a GradScaler with fp16, as torchvision's reference script), fused SGD."""
import json
import os
import sys
import time

import torch
import torchvision

torch.backends.cudnn.benchmark = True
SHAPE = (3, 224, 224)


class Training:
    def __init__(self, arch, batch, kind, mode):
        tf32 = kind == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind)
        self.model = getattr(torchvision.models, arch)().cuda().to(memory_format=torch.channels_last)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", enabled=kind == "fp16")
        self.batches = [(torch.randn(batch, *SHAPE, device="cuda").to(memory_format=torch.channels_last),
                         torch.randint(0, 1000, (batch,), device="cuda")) for _ in range(3)]
        self.forward, self.mode, self.at = self.model_loss, "eager", 0
        if mode == "compile":
            how = os.environ.get("BENCH_COMPILE_MODE", "max-autotune")
            self.forward, self.mode = torch.compile(self.model_loss, mode=how), how
        for _ in range(8):
            self.step()
        torch.cuda.synchronize()

    def model_loss(self, x, y):
        with torch.autocast("cuda", self.half or torch.float16, enabled=self.half is not None):
            return self.loss(self.model(x), y)

    def step(self):
        x, y = self.batches[self.at % len(self.batches)]
        self.at += 1
        torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def steps(self, n):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(n):
            self.step()
        end.record()
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "events": begin.elapsed_time(end) * 1e-3}


def obey(now, order):
    if "make" in order:
        start = time.perf_counter()
        now["it"] = Training(*order["make"])
        return {"ready": time.perf_counter() - start, "mode": now["it"].mode}
    if "steps" in order:
        return now["it"].steps(order["steps"])
    now.clear()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return {}


def main():
    now, answers = {}, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = obey(now, json.loads(line))
        except (RuntimeError, ValueError) as why:
            said = {"error": str(why).splitlines()[0]}
        print(json.dumps(said), file=answers, flush=True)


main()
