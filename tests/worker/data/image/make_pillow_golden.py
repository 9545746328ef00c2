#!/usr/bin/env python3
"""Writes pillow_golden.h: what Pillow's resize(BILINEAR) makes of the test pattern. Needs python3-pil; run by hand, the result is kept."""
from PIL import Image

CASES = [  # name, source w, h, channels, box, output w, h, window (x, y, w, h) of it
    ("shrink", 40, 30, 3, (0, 0, 40, 30), 7, 5, None),
    ("enlarge", 10, 8, 3, (0, 0, 10, 8), 13, 11, None),
    ("fractional_box", 40, 30, 3, (3.25, 2.5, 35.75, 27.125), 9, 8, None),
    ("grey", 33, 21, 1, (0, 0, 33, 21), 11, 30, None),
    ("one_pixel", 1, 1, 3, (0, 0, 1, 1), 2, 2, None),
    ("rows_only", 12, 50, 1, (0, 0, 12, 50), 12, 9, None),
    ("eval_wide", 47, 31, 3, (0, 0, 47, 31), 12 * 47 // 31, 12, (5, 2, 8, 8)),
    ("eval_tall", 31, 48, 1, (0, 0, 31, 48), 20, 20 * 48 // 31, (2, 8, 15, 15)),
]


def pattern(w, h, c):
    data = bytes((x * 7 + y * 13 + k * 50 + ((x * y * 31) ^ (x * 17)) % 97) & 255
                 for y in range(h) for x in range(w) for k in range(c))
    return Image.frombytes("RGB" if c == 3 else "L", (w, h), data)


def main():
    print("/* Made by make_pillow_golden.py: what Pillow makes of the test pattern. */\n/* clang-format off */")
    for name, w, h, c, box, ow, oh, window in CASES:
        im = pattern(w, h, c).resize((ow, oh), Image.BILINEAR, box)
        if window:
            x, y, ww, wh = window
            im = im.crop((x, y, x + ww, y + wh))
        data = im.tobytes()
        print("static const uint8_t golden_%s[] = {" % name)
        for i in range(0, len(data), 24):
            print("    " + " ".join("%d," % b for b in data[i:i + 24]))
        print("};")


main()
