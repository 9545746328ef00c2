#!/usr/bin/env python3
"""Write image.corpus, net.corpus, record.corpus and safetensors.corpus beside this file: sound inputs, and some that
claim sizes which they do not hold. Usage: make_corpora.py TRAINER"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).parent


def chunk(kind, data, claims=None):
    length = len(data) if claims is None else claims
    return struct.pack(">I", length) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, depth, colour, rows, before=b"", interlaced=0):
    head = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def pictures(trainer):
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([trainer, "make-data", "shapes", "--out", f"{d}/s", "--image-size", "16", "--train-images", "10",
                        "--test-images", "10"], check=True, capture_output=True)
        jpeg = sorted(pathlib.Path(d).glob("s/train/*/*"))[0].read_bytes()
    assert jpeg[:3] == b"\xff\xd8\xff"
    sof = jpeg.index(b"\xff\xc0")
    huge = bytearray(jpeg)
    huge[sof + 5:sof + 9] = struct.pack(">HH", 13000, 13000)
    progressive = bytearray(huge)
    progressive[sof + 1] = 0xC2
    rows = bytes(range(7)) * 4
    yield from (jpeg, jpeg[:len(jpeg) // 2], bytes(huge), bytes(progressive))
    yield png(2, 4, 8, 2, rows)
    yield png(2, 4, 8, 2, rows, chunk(b"tEXt", b"Comment\0hello") + chunk(b"tIME", bytes(7)))
    yield png(8, 4, 1, 3, b"\0\xa5" * 4, chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\1"))
    yield png(4, 2, 16, 6, bytes(2 * 33), interlaced=1)
    yield png(13000, 13000, 8, 2, rows)  # 507 MB of pixels claimed
    for kind in (b"iTXt", b"zTXt", b"tEXt", b"sPLT", b"pCAL", b"sCAL", b"iCCP", b"eXIf", b"PLTE", b"IDAT"):
        head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
        yield b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(kind, b"abcdefgh", 1 << 30)
    packed = b"Comment\0\0" + zlib.compress(bytes(6 << 20), 9)  # text that is packed a thousandfold
    yield png(2, 4, 8, 2, rows, chunk(b"zTXt", packed))
    yield png(2, 4, 8, 2, rows, chunk(b"iCCP", packed))
    yield b"P6\n2 2\n255\n" + bytes(12)
    yield b"P5 3 1 255\n" + bytes(3)
    yield b"P6\n13000 13000\n255\n"


def varint(v):
    out = b""
    while v > 127:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def records():
    size = field(1, 3) + field(2, 2) + field(3, 2)
    yield size + field(4, bytes(12)) + field(5, 7)
    yield field(4, b"\xff\xd8\xff") + field(5, 7) + field(7, 1)
    yield size + field(6, bytes(48)) + field(5, 7)
    yield field(1, 3) + field(2, 13000) + field(3, 13000) + field(4, b"x") + field(5, 1)
    label = field(1, 1) + field(2, 2) + field(4, varint(5))
    yield field(1, field(1, 1) + field(2, 4) + field(6, b"\xff\xd8\xff")) + field(1, label)
    yield field(1, field(1, b"\2\2\3") + field(2, 3) + field(5, bytes(12))) + field(1, label)
    yield field(1, b"") * 2000  # a tree of messages without anything
    yield field(1, varint(6 << 3 | 2) + varint(1 << 40)) + field(1, label)
    yield field(4, b"") * 2000


def safetensors(header, data, claims=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if claims is None else claims) + text + bytes(data)


def files():
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    yield safetensors({"a": entry}, 24)
    yield safetensors({"__metadata__": {"format": "pt"}, "a": entry,
                       "b": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]}}, 32)
    yield safetensors({}, 0)
    yield safetensors({"a": entry}, 24, claims=90 << 20)
    yield safetensors({"a": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 42]}}, 24)
    yield safetensors(b'{"a":[' + b"[]," * 2000 + b"[]]}", 0)
    yield safetensors(b'{"a":' + b'{"a":' * 1000 + b"}" * 1001, 0)
    yield safetensors(b'{"__metadata__":{"a":"' + b"\\u0041" * 500 + b'"}}', 0)


def nets():
    for path in sorted((HERE / "../../worker/model/nets").glob("*.net")):
        yield path.read_bytes()
    yield (b"let a=3 w=8\nblock b out stride=1\n    conv out={out} kernel=3 stride={stride} pad=1 names=w init=zeros\n"
           b"    bn names=g init=normal:1/sqrt(fan_in)\n    relu\n    add with=in from=relu1\nend\ninput\n"
           b"conv x out={w} # eight\nrepeat i times={a - 1}\n    b l{i} out={w}\nend\nclassifier c decay=no\nset a=2\n")
    yield (b"input\nconv a out=12 kernel=2 stride=2 groups=3\nscale s map=yes init=constant:-1e-6\nprepend t\nposition u\n"
           b"norm rms=yes bias=no\nlinear q out=16 each=yes bias=no\nattention heads=2 kv_heads=1 causal=yes\ngelu\n"
           b"drop rate=0.5\ndrop rate=0.25 samples=yes\nsilu\npick at=1\ngelu_tanh\nclassifier c\n")
    yield b"input\nrelu a\nrelu b from=input\nadd c with=a\nclassifier d\n"
    yield b"input\nrepeat i times=10000\nrepeat j times=10000\nend\nend\nclassifier c\n"
    yield b"input\nconv a out=16777216 kernel=1024 pad=1023\nconv b out=16777216 kernel=1024 pad=1023\nclassifier c\n"


for name, inputs in ("image", pictures(sys.argv[1])), ("net", nets()), ("record", records()), ("safetensors", files()):
    (HERE / f"{name}.corpus").write_text("".join(i.hex() + "\n" for i in inputs))
