"""Operations and magnitudes of --augment beside torchvision's, on Pillow's pictures: moves are equal to the bit, levels within one."""
import subprocess

import numpy as np
import PIL
import pytest
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F

from support import BUILD

DUMP = BUILD / "tests" / "worker" / "data" / "dump_ops"
SIZE = 64
OURS = {"ShearX": "shear-x", "ShearY": "shear-y", "TranslateX": "translate-x", "TranslateY": "translate-y", "Rotate": "rotate",
        "Brightness": "brightness", "Color": "color", "Contrast": "contrast", "Sharpness": "sharpness", "Posterize": "posterize",
        "Solarize": "solarize", "AutoContrast": "autocontrast", "Equalize": "equalize", "Identity": "identity"}
MOVES = "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"
FACTORS = "Brightness", "Color", "Contrast", "Sharpness"


def picture(mode, kind):
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    rng = np.random.default_rng(5)
    px = np.stack([90 + 60 * np.sin(x / 9 + c) * np.cos(y / 13) + 40 * ((x // 16 + y // 16) % 2) for c in range(3)], -1)
    px = np.clip(px + rng.normal(0, 12, px.shape), 0, 255).astype(np.uint8)
    if kind == "flat":  # few levels: nothing to spread or to make even
        px = np.where(px > 100, 101, 90).astype(np.uint8)
    if kind == "noise":
        px = rng.integers(0, 256, px.shape, dtype=np.uint8)
    return Image.fromarray(px).convert(mode)


def ours(tmp_path, image, lines):
    channels = len(image.getbands())
    (tmp_path / "px").write_bytes(np.asarray(image).tobytes())
    out = subprocess.run([str(DUMP), str(image.width), str(image.height), str(channels), str(tmp_path / "px")], check=True, timeout=120,
                         input="".join(f"{name} {float(value)!r} {how}\n" for name, value, how in lines).encode(), stdout=subprocess.PIPE)
    return np.frombuffer(out.stdout, np.uint8).reshape(len(lines), *np.asarray(image).shape)


def points(space):
    """Each operation at each magnitude and sign: (name, magnitude)."""
    for name, (magnitudes, signed) in space.items():
        for m in [float(v) for v in magnitudes] if magnitudes.ndim else [0.0]:
            for s in (1.0, -1.0) if signed else (1.0,):
                yield name, m * s


def our_value(name, magnitude):
    return 1 + magnitude if name in FACTORS else int(magnitude) if name.startswith("Translate") else magnitude


@pytest.mark.parametrize("kind", ["photo", "flat", "noise"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("how", ["nearest", "bilinear", "bicubic"])
def test_each_operation_and_magnitude_is_torchvisions(tmp_path, kind, mode, how):
    print(f"torchvision {torchvision.__version__}, Pillow {PIL.__version__}")
    image = picture(mode, kind)
    every = list(points(autoaugment.TrivialAugmentWide()._augmentation_space(31)))
    every += list(points(autoaugment.RandAugment()._augmentation_space(31, (SIZE, SIZE))))
    got = ours(tmp_path, image, [(OURS[name], our_value(name, m), how) for name, m in every])
    worst = {}
    for (name, m), mine in zip(every, got):
        theirs = np.asarray(autoaugment._apply_op(image, name, m, InterpolationMode(how), None))
        apart = np.abs(mine.astype(int) - theirs.astype(int)).max()
        worst[name] = max(worst.get(name, 0), apart)
        assert apart <= (0 if name in MOVES and how == "nearest" else 1), f"{name} at {m}: {apart} levels"
    print(worst)


def drawn(policy, size, n):
    out = subprocess.run([str(DUMP), "draw", policy, str(size), str(n)], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return [(name, float(value)) for name, value in (line.split() for line in out.splitlines())]


@pytest.mark.parametrize("policy, space", [
    ("trivial", lambda: autoaugment.TrivialAugmentWide()._augmentation_space(31)),
    ("rand:n=2,m=9", lambda: {k: (m[9:10] if m.ndim else m, s) for k, (m, s) in
                              autoaugment.RandAugment()._augmentation_space(31, (176, 176)).items()})])
def test_magnitudes_are_torchvisions_floats(policy, space):
    theirs = {(OURS[name], float(our_value(name, m)) + 0.0) for name, m in points(space())}
    seen = {(name, value + 0.0) for name, value in drawn(policy, 176, 20000)}
    assert seen == theirs


def test_grey_solarized_and_blurred_pictures_are_those_of_3_augment(tmp_path):
    from PIL import ImageFilter, ImageOps
    image = picture("RGB", "photo")
    radii = [0.1, 0.37, 0.8, 1.0, 1.3, 1.77, 2.0]
    got = ours(tmp_path, image, [("grey", 0, "nearest"), ("solarize", 128, "nearest")] + [("blur", r, "nearest") for r in radii])
    theirs = [F.to_grayscale(image, 3), ImageOps.solarize(image)] + [image.filter(ImageFilter.GaussianBlur(r)) for r in radii]
    for mine, other in zip(got, theirs):
        assert np.abs(mine.astype(int) - np.asarray(other).astype(int)).max() <= 1


def test_solarize_add_and_posterize_are_timms(tmp_path):
    from timm.data import auto_augment as timm
    image = picture("RGB", "photo")
    lines = [("solarize-add", v, "nearest") for v in (0, 55, 110)] + [("posterize", v, "nearest") for v in (1, 4, 8)] + [("invert", 0, "nearest")]
    got = ours(tmp_path, image, lines)
    theirs = [timm.solarize_add(image, v) for v in (0, 55, 110)] + [timm.posterize(image, v) for v in (1, 4, 8)] + [timm.invert(image)]
    for mine, other in zip(got, theirs):
        assert (mine == np.asarray(other)).all()
