"""Pictures as the trainer prepares them are torchvision's."""
import io
import subprocess

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import functional as F
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from support import BUILD

DUMP = BUILD / "tests" / "worker" / "data" / "dump_input"


def dump(path, kind, size, training, sample=0, how="bilinear"):
    out = subprocess.run([str(a) for a in (DUMP, path, kind, size, int(training), sample, how)], stdout=subprocess.PIPE,
                         check=True, timeout=60).stdout
    head, pixels = out.split(b"\n", 1)
    return [int(n) for n in head.split(b":")[1].split()], np.frombuffer(pixels, np.uint8).reshape(size, size, 3)


@pytest.fixture(params=[(500, 375, 2), (200, 333, 0), (97, 64, 1), (64, 64, 2)], ids=lambda p: f"{p[0]}x{p[1]}-{p[2]}")
def picture(request, tmp_path):
    w, h, subsampling = request.param
    y, x = np.mgrid[0:h, 0:w]
    rng = np.random.default_rng(w)
    px = np.stack([128 + 100 * np.sin(x / 9 + c) * np.cos(y / 13) + 40 * ((x // 16 + y // 16) % 2) for c in range(3)], -1)
    px = np.clip(px + rng.normal(0, 12, px.shape), 0, 255).astype(np.uint8)
    Image.fromarray(px).save(tmp_path / "a.jpg", quality=90, subsampling=subsampling)
    return tmp_path / "a.jpg"


def difference(ours, theirs):
    d = np.abs(ours.astype(int) - np.asarray(theirs).astype(int))
    print(f"mean difference {d.mean():.4f}, largest {d.max()} of 255")
    return d.mean()


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [32, 224])
def test_evaluation_is_resize_and_center_crop(picture, size, how):
    theirs = transforms.Compose([transforms.Resize(round(size * 256 / 224), InterpolationMode(how)), transforms.CenterCrop(size)])
    _, ours = dump(picture, "torch", size, training=False, how=how)
    assert difference(ours, theirs(Image.open(picture).convert("RGB"))) <= 1


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("sample", range(6))
def test_training_is_resized_crop_and_flip(picture, sample, how):
    (x, y, w, h, flip), ours = dump(picture, "torch", 96, True, sample, how)
    theirs = F.resized_crop(Image.open(picture).convert("RGB"), y, x, h, w, [96, 96], InterpolationMode(how))
    assert difference(ours, F.hflip(theirs) if flip else theirs) <= 1


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_resizing_has_pillows_bits(tmp_path, how):
    """Rows first, then columns: two calls of Pillow, of which newer versions choose the order in one call. Crops grow and shrink."""
    px = np.random.default_rng(3).integers(0, 256, (61, 83, 3), dtype=np.uint8) // 128 * 255  # all black or white: sums go beyond 0 and 255
    Image.fromarray(px).save(tmp_path / "a.png")
    for sample in range(12):
        (x, y, w, h, flip), ours = dump(tmp_path / "a.png", "torch", 40, True, sample, how)
        way = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[how]
        theirs = F.crop(Image.fromarray(px), y, x, h, w).resize((40, h), way).resize((40, 40), way)
        assert (ours == np.asarray(F.hflip(theirs) if flip else theirs)).all(), f"{w} x {h}"


def test_random_is_one_of_the_two_in_training_and_bicubic_in_evaluations(picture):
    ways = [[dump(picture, "torch", 32, True, i, how)[1].tobytes() for i in range(24)] for how in ("random", "bilinear", "bicubic")]
    assert all(r in (a, b) and a != b for r, a, b in zip(*ways)) and 4 < sum(r == a for r, a, _ in zip(*ways)) < 20
    assert dump(picture, "torch", 32, False, 0, "random")[1].tobytes() == dump(picture, "torch", 32, False, 0, "bicubic")[1].tobytes()


def test_plain_pixels_are_those_of_to_tensor(tmp_path):
    px = np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(px).save(tmp_path / "a.png")
    _, ours = dump(tmp_path / "a.png", "plain", 28, training=True)
    theirs = transforms.ToTensor()(Image.open(tmp_path / "a.png")).permute(1, 2, 0).numpy()
    assert np.abs(ours / 255 - theirs).max() < 1e-6


def test_random_crops_are_spread_as_torchvisions(tmp_path):
    """Areas, aspects and flips of many crops: the same means as RandomResizedCrop draws, within five deviations of a mean."""
    buf = io.BytesIO()
    Image.new("RGB", (50, 40)).save(buf, "ppm")
    (tmp_path / "a.ppm").write_bytes(buf.getvalue())
    ours = np.array([dump(tmp_path / "a.ppm", "torch", 8, True, i)[0] for i in range(400)], float)
    im = Image.open(tmp_path / "a.ppm")
    theirs = np.array([transforms.RandomResizedCrop.get_params(im, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(4000)], float)
    for name, a, b in (("area", ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]),
                       ("aspect", np.log(ours[:, 2] / ours[:, 3]), np.log(theirs[:, 3] / theirs[:, 2]))):
        slack = 5 * np.hypot(a.std() / len(a) ** .5, b.std() / len(b) ** .5)
        print(f"{name}: {a.mean():.3f} here, {b.mean():.3f} there, slack {slack:.3f}")
        assert abs(a.mean() - b.mean()) <= slack
    assert abs(ours[:, 4].mean() - 0.5) <= 5 * 0.5 / 20
