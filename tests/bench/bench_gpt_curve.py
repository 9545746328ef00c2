"""The loss of GPT-2 124M over time, here and in PyTorch: the same first weights, English text, windows of 1,024 tokens in the order of the text, AdamW.

usage: bench_gpt_curve.py TRAINER OUT [--side crun pytorch] [--seconds N] [--type bf16|f32] [--text FILE...]

Writes OUT/crun.csv and OUT/pytorch.csv (seconds of training, step, loss) and, of what is there, OUT/curve.svg. Run by the python of PyTorch's
environment (./dev peer makes one): its tokenizers make the tokens. The text: git's release notes, as Debian ships them."""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import time

T, RATE, AVERAGE = 1024, 3e-4, 10
COLOURS = {"crun": "#0969da", "pytorch": "#cf222e"}


def text_of(files):
    files = files or sorted(pathlib.Path("/usr/share/doc/git/RelNotes").glob("*.txt"))
    if not files:
        raise SystemExit("no text: /usr/share/doc/git/RelNotes is empty (expected git's release notes, or --text FILE...)")
    return " ".join(" ".join(f.read_text(errors="replace") for f in files).split())


def trainer(options, *more):
    p = subprocess.run([options.trainer, "--train-data", options.out / "tokens.bin", "--token-bytes", "2", "--arch", "gpt2", "--device", "cpu", "--batch-size", "1",
                        "--shuffle", "off", *map(str, more)], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if p.returncode not in (0, 75):  # 75: its time is over
        raise SystemExit(p.stderr)


def prepare(options):
    """Tokens, and the weights both begin with, as Hugging Face has them."""
    from tokenizers import ByteLevelBPETokenizer
    import numpy
    options.out.mkdir(exist_ok=True)
    (options.out / "text.txt").write_text(text_of(options.text))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(options.out / "text.txt")], vocab_size=50257, show_progress=False)
    numpy.array(tokenizer.encode((options.out / "text.txt").read_text()).ids, "<u2").tofile(options.out / "tokens.bin")
    trainer(options, "--lr", 0, "--max-steps", 1, "--checkpoint-dir", options.out / "first", "--eval-every", 0)
    first = sorted((options.out / "first").glob("*/*.safetensors"))[0].parent
    subprocess.run([options.trainer, "convert", "--huggingface", first, options.out / "weights"], check=True, stdout=subprocess.DEVNULL)


def crun(options):
    (options.out / "log/metrics.jsonl").unlink(missing_ok=True)
    trainer(options, "--pretrained", options.out / "weights", "--optimizer", "adamw", "--lr", RATE, "--lr-policy", "fixed", "--warmup-epochs", 0, "--weight-decay", 0, "--max-time",
            f"{options.seconds}s", "--eval-every", 0, "--log-dir", options.out / "log", *(["--amp", "bf16"] if options.type == "bf16" else []))
    rows = [json.loads(line) for line in open(options.out / "log/metrics.jsonl")]
    return [(r["seconds"], r["step"], r["loss"]) for r in rows if "loss" in r and "seconds" in r]


def pytorch(options):
    import numpy
    import torch
    import transformers
    tokens = torch.from_numpy(numpy.fromfile(options.out / "tokens.bin", "<u2").astype(numpy.int64))
    model = transformers.GPT2LMHeadModel.from_pretrained(options.out / "weights", attn_implementation="sdpa", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0).train()
    optimizer, rows = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0), []
    start = time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        at = len(rows) % ((len(tokens) - 1) // T) * T
        with torch.autocast("cpu", torch.bfloat16, enabled=options.type == "bf16"):
            loss = torch.nn.functional.cross_entropy(model(tokens[None, at:at + T]).logits[0], tokens[at + 1:at + T + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.append((time.perf_counter() - start, len(rows) + 1, loss.item()))
    return rows


def draw(curves, seconds, path):
    """Means of AVERAGE steps, so that windows of other text do not hide the way down."""
    parts = {k: [rows[i:i + AVERAGE] for i in range(0, len(rows), AVERAGE)] for k, rows in curves.items()}
    mean = {k: [(p[-1][0], sum(r[2] for r in p) / len(p)) for p in ps] for k, ps in parts.items()}
    low = min(10, int(min(v for m in mean.values() for _, v in m)))

    def at(t, v):
        return f"{50 + 560 * t / seconds:.1f},{20 + 300 * (11 - v) / (11 - low):.1f}"
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="640" height="370" font-family="sans-serif" font-size="12">', '<rect width="640" height="370" fill="white"/>']
    for v in range(low, 12):
        x, y = at(0, v).split(",")
        out.append(f'<path d="M{x} {y}H610" stroke="#ddd"/><text x="40" y="{y}" text-anchor="end" dominant-baseline="middle">{v}</text>')
    for k in range(6):
        out.append(f'<text x="{50 + 112 * k}" y="340" text-anchor="middle">{seconds * k / 5:g}</text>')
    out.append('<text x="330" y="360" text-anchor="middle">seconds</text><text x="50" y="14">loss, mean of 10 steps</text>')
    for i, (k, m) in enumerate(mean.items()):
        out.append(f'<polyline points="{" ".join(at(*p) for p in m)}" fill="none" stroke="{COLOURS[k]}" stroke-width="2"/>')
        out.append(f'<text x="600" y="{40 + 18 * i}" text-anchor="end" fill="{COLOURS[k]}">{k}: {len(curves[k])} steps</text>')
    path.write_text("\n".join([*out, "</svg>", ""]))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("trainer")
    a.add_argument("out", type=pathlib.Path)
    a.add_argument("--side", nargs="+", choices=COLOURS, default=list(COLOURS))
    a.add_argument("--seconds", type=int, default=600)
    a.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    a.add_argument("--text", nargs="+", type=pathlib.Path)
    options = a.parse_args()
    if not (options.out / "weights").exists():
        prepare(options)
    for side in options.side:
        rows = {"crun": crun, "pytorch": pytorch}[side](options)
        with open(options.out / f"{side}.csv", "w", newline="") as f:
            csv.writer(f).writerows([("seconds", "step", "loss"), *((f"{s:.2f}", n, f"{v:.4f}") for s, n, v in rows)])
    curves = {}
    for side in COLOURS:
        if (options.out / f"{side}.csv").exists():
            with open(options.out / f"{side}.csv") as f:
                curves[side] = [(float(s), int(n), float(v)) for s, n, v in list(csv.reader(f))[1:]]
            print(f"{side}: {len(curves[side])} steps, loss {curves[side][0][2]:.4f}, of the last ten {sum(r[2] for r in curves[side][-10:]) / len(curves[side][-10:]):.4f}")
    for n in range(50, min(map(len, curves.values()), default=0) + 1, 50):
        print(f"steps {n - 9} to {n}: " + ", ".join(f"{side} {sum(r[2] for r in rows[n - 10:n]) / 10:.4f} at {rows[n - 1][0]:.0f} s" for side, rows in curves.items()))
    draw(curves, options.seconds, options.out / "curve.svg")


if __name__ == "__main__":
    sys.exit(main())
