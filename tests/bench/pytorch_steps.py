"""PyTorch's side of bench_train.py: arguments batch, NCHW or channels_last, eager or compiled (torch.compile), f32 or bf16 (autocast), threads,
image size, architecture. Runs two steps at the start and two on each line of standard input; prints the seconds of the fastest."""
import sys
import time

import torch

batch, layout, mode, kind, threads, image = int(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5]), int(sys.argv[6])
torch.set_num_threads(threads)
if sys.argv[7] == "gpt2":  # of so many tokens, through its fastest attention
    import transformers
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    x, y = torch.randint(0, 50257, (batch, image)), torch.randint(0, 50257, (batch * image,))
else:
    import torchvision
    model = torchvision.models.get_model(sys.argv[7])
    x, y = torch.randn(batch, 3, image, image), torch.randint(0, 1000, (batch,))
if layout == "channels_last":
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
if mode == "compiled":
    model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
loss_of = torch.nn.CrossEntropyLoss()


def step():
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"):
        out = model(x)
        loss = loss_of(out.logits.flatten(0, 1) if sys.argv[7] == "gpt2" else out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.perf_counter() - start


step()
print(min(step(), step()), flush=True)
for _ in sys.stdin:
    print(min(step(), step()), flush=True)
