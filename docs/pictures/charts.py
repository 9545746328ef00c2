"""The picture of docs/guide/machines.md: charts that others have published beside what the planner predicts. usage: charts.py TRAINER OUT.svg

Its colours follow the reader's: dark on light, light on dark, on whatever is behind it."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

import charts  # noqa: E402

STYLE = """.ink { fill: #1f2328 } .title { fill: #1f2328; font-weight: 600 } .axis { stroke: #8c959f } .ideal { stroke: #8c959f; stroke-dasharray: 2 4 } .said { fill: #0969da }
.ours { fill: #bc4c00 } .line { stroke: #bc4c00; stroke-width: 2 } @media (prefers-color-scheme: dark) { .ink { fill: #e6edf3 } .title { fill: #e6edf3 } .axis { stroke: #7d8590 }
.ideal { stroke: #7d8590 } .said { fill: #58a6ff } .ours { fill: #f0883e } .line { stroke: #f0883e } }"""
WIDE, HIGH, BOTTOM, TOP = 900, 380, 320, 60


def text(x, y, what, anchor="middle", kind="ink"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{what}</text>'


def line(x1, y1, x2, y2, kind="axis"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def legend(x, y):
    return [f'<circle cx="{x}" cy="{y - 4}" r="4" class="said"/>', text(x + 10, y, "published", "start"),
            f'<rect x="{x + 86}" y="{y - 8}" width="10" height="8" class="ours"/>', text(x + 100, y, "predicted", "start")]


def speed_up(trainer):
    left, right, gpus = 60, 410, list(charts.CAFFE2)
    ours = charts.speed_ups(trainer, gpus)

    def x(n):
        return left + (right - left) * n / 64

    def y(s):
        return BOTTOM - (BOTTOM - TOP) * s / 64

    yield text(left, 24, "Caffe2: ResNet-50, Tesla P100, times one GPU", "start", "title")
    yield from legend(left + 20, 50)
    yield line(left, BOTTOM, right, BOTTOM)
    yield line(left, BOTTOM, left, TOP)
    yield line(x(0), y(0), x(64), y(64), "ideal")
    for n in (8, 16, 32, 64):
        yield text(x(n), BOTTOM + 18, n)
        yield text(left - 8, y(n) + 4, n, "end")
    yield text((left + right) / 2, BOTTOM + 40, "GPUs, 8 a node, 32 pictures each")
    for n, after in zip(gpus, gpus[1:]):
        yield line(x(n), y(ours[n]), x(after), y(ours[after]), "line")
    for n, s in charts.CAFFE2.items():
        yield f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="4" class="said"/>'
    yield text(right, y(12), f"64 GPUs: published 57, predicted {ours[64]:.1f}", "end")


def sweep(trainer):
    left, right, bar, most = 500, 880, 30, 0.9
    rows = {"1,000\n8 GPUs": (charts.TORCHSHARD_FIRST, None)}
    names = {(1_000_000, 8, 1): "1,000,000\nby classes", (1_000_000, 8, 0): "1,000,000\nby features", (2_000_000, 16, 1): "2,000,000\n16 GPUs"}
    for row, ours in charts.torchshard(trainer).items():
        rows[names[row]] = (charts.TORCHSHARD[row], ours)

    def y(s):
        return BOTTOM - (BOTTOM - TOP) * s / most

    yield text(left - 30, 24, "TorchShard: ResNet-50, TITAN Xp, batch 256, seconds a step", "start", "title")
    yield from legend(left, 50)
    yield line(left, BOTTOM, right, BOTTOM)
    yield line(left, BOTTOM, left, TOP)
    for s in (0, 0.2, 0.4, 0.6, 0.8):
        yield text(left - 8, y(s) + 4, s, "end")
    for k, (name, values) in enumerate(rows.items()):
        at = left + 15 + k * (right - left) / len(rows)
        for i, (value, kind) in enumerate(zip(values, ("said", "ours"))):
            if value is not None:
                yield f'<rect x="{at + i * bar:.1f}" y="{y(value):.1f}" width="{bar - 4}" height="{BOTTOM - y(value):.1f}" class="{kind}"/>'
                yield text(at + i * bar + bar / 2 - 2, y(value) - 5, f"{value:.2f}")
        for i, part in enumerate(name.split("\n")):
            yield text(at + bar, BOTTOM + 18 + 16 * i, part)
    yield text((left + right) / 2, BOTTOM + 54, "classes of the last layer")


def main():
    trainer, out = sys.argv[1:]
    parts = [*speed_up(trainer), *sweep(trainer)]
    pathlib.Path(out).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" font-family="system-ui, sans-serif" font-size="13"><style>{STYLE}</style>\n'
                                 + "\n".join(parts) + "\n</svg>\n")


main()
