"""Charts and tables that others have published, beside what the planner makes of machines that are not here. usage: bench_charts.py TRAINER [--check]

--check: Caffe2's speed-ups within 10 %, TorchShard's sweep within 20 %."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import charts  # noqa: E402


def caffe2(trainer):
    published = {**charts.CAFFE2, **charts.CAFFE2_LATER}
    ours = charts.speed_ups(trainer, published)
    print("Caffe2's chart: ResNet-50, Tesla P100, 8 a node, 50 Gbit/s, 32 pictures a GPU; times one GPU")
    print(f"{'GPUs':>6} {'published':>10} {'predicted':>10} {'ratio':>7}")
    for n, s in published.items():
        print(f"{n:>6} {s:>10} {ours[n]:>10.1f} {ours[n] / s:>7.3f}")
    return max(abs(ours[n] / s - 1) for n, s in charts.CAFFE2.items())


def torchshard(trainer):
    ours = charts.torchshard(trainer)
    print("\nTorchShard's sweep: ResNet-50, TITAN Xp, batch 256; seconds a step; predicted: 0.508, and what the planner says that the others take beyond it")
    print(f"{'classes':>10} {'GPUs':>5} {'split over':>10} {'published':>10} {'predicted':>10} {'ratio':>7}")
    print(f"{1000:>10,} {8:>5} {'':>10} {charts.TORCHSHARD_FIRST:>10} {charts.torchshard_step(trainer, 1000, 8, None):>10.3f} as the planner has it, without input")
    for (classes, gpus, dim), s in charts.TORCHSHARD.items():
        t = ours[classes, gpus, dim]
        print(f"{classes:>10,} {gpus:>5} {'classes' if dim else 'features':>10} {s:>10} {t:>10.3f} {t / s:>7.3f}")
    return max(abs(ours[row] / s - 1) for row, s in charts.TORCHSHARD.items())


def records(trainer):
    print(f"\nRecords: ResNet-50, {charts.EPOCHS} epochs of {charts.IMAGES:,} pictures; minutes; predicted without evaluation, input and start")
    print(f"{'who':>16} {'year':>5} {'GPUs':>12} {'batch':>7} {'published':>10} {'predicted':>10} {'ratio':>7}")
    for row in charts.RECORDS:
        who, year, hardware, gpus, batch, said, _ = row
        ours = charts.record_minutes(trainer, row)
        print(f"{who:>16} {year:>5} {f'{gpus} {hardware}':>12} {batch:>7,} {said:>10} " + (f"{ours:>10.1f} {ours / said:>7.2f}" if ours else f"{'-':>10} {'-':>7}"), flush=True)


def main():
    trainer, off = sys.argv[1], {}
    off["Caffe2"], off["TorchShard"] = caffe2(trainer), torchshard(trainer)
    records(trainer)
    print(f"\nfarthest off: Caffe2's {off['Caffe2']:.1%} (aim 10 %), TorchShard's {off['TorchShard']:.1%} (aim 20 %)")
    if "--check" in sys.argv and (off["Caffe2"] > 0.1 or off["TorchShard"] > 0.2):
        raise SystemExit(1)


main()
