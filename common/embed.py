#!/usr/bin/env python3
"""embed.py FILE NAME HEADER OUT: write a C file that holds FILE's bytes as NAME, declared in HEADER."""
import sys

path, name, header, out = sys.argv[1:]
with open(path, "rb") as f:
    data = f.read()
with open(out, "w", encoding="ascii") as f:
    f.write(f'#include "{header}"\n\nconst char {name}[] = {{\n')
    for i in range(0, len(data), 20):
        f.write(",".join(str(b if b < 128 else b - 256) for b in data[i:i + 20]) + ",\n")
    f.write(f"0}};\nconst size_t {name}_len = {len(data)};\n")
