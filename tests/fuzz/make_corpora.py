#!/usr/bin/env python3
"""Write image.corpus, net.corpus, record.corpus, safetensors.corpus, tar.corpus and weights.corpus beside this file, and
objects of all protocols behind the first lines of pickle.corpus: sound inputs, and some that claim sizes which they do not hold.
Usage: make_corpora.py TRAINER"""
import argparse
import collections
import io
import json
import pathlib
import pickle
import struct
import subprocess
import sys
import tarfile
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


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def a_tensor(shape, strides, old=False):
    def ints(v):
        return b"(" + b"".join(b"K" + bytes([i]) for i in v) + b"t"

    return (b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\6" + (b"N" if old else b"")
            + b"tQK\0" + ints(shape) + ints(strides) + b"\x89ccollections\nOrderedDict\n)RtR")


def a_dict(members):
    return b"}(" + b"".join(text(k) + v for k, v in members.items()) + b"u"


def objects():
    """Beside a tensor, what other trainers save."""
    many = {"args": argparse.Namespace(lr=0.1, path=pathlib.PurePosixPath("x")), "seen": {1, 2}, "few": frozenset("ab"), "log": collections.defaultdict(list, {"a": [1.0]}),
            "seed": 2**70, "raw": b"bytes", "array": bytearray(b"b"), "complex": 1j, "count": collections.Counter([3]), "text": "a\nb", "less": -1, "truth": [True, None]}
    for protocol in range(6):
        yield b"\x80\2" + a_dict({"beside": pickle.dumps(many, protocol)[2 if protocol > 1 else 0:-1], "net": a_dict({"w": a_tensor((2, 3), (3, 1))})}) + b"."


def old_file(members, count=6, keys=("0",)):
    return (b"".join(pickle.dumps(x, 2) for x in (0x1950a86a20f9469cfc6c, 1001, {"little_endian": True})) + b"\x80\2" + a_dict(members) + b"."
            + pickle.dumps(list(keys), 2) + struct.pack("<q", count) + struct.pack("<6f", *range(6)))


def weights():
    w = a_tensor((2, 3), (3, 1), old=True)
    yield old_file({"model.w": w, "model.v": a_tensor((4,), (1,), old=True), "other": w})
    yield old_file({"model": a_dict({"module.w": w}), "args": pickle.dumps(argparse.Namespace(a=1), 2)[2:-1], "epoch": b"K\3"})
    yield old_file({"module.encoder_q.w": w, "module.encoder_k.w": w})
    yield old_file({"w": w}, 1 << 60)
    yield old_file({"w": w}, keys=["0"] * 40)
    yield b'{"metadata":{"total_size":32,"x":[1,{"y":"]}"}]},"weight_map":{"w":"a.safetensors","model.v":"b.safetensors"}}'
    yield b'{"weight_map":{"w":"a.safetensors","w":"a.safetensors"}}'
    yield b'{"weight_map":{"w":"../a.safetensors"}}'
    yield b'{"weight_map":{' + b",".join(b'"%d":"a.safetensors"' % i for i in range(200)) + b"}}"


kept = (HERE / "pickle.corpus").read_text().splitlines()[:6]
(HERE / "pickle.corpus").write_text("".join(line + "\n" for line in kept + [o.hex() for o in objects()]))
def tar(members, form=tarfile.USTAR_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as t:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()[:out.getvalue().rstrip(b"\0").__len__() // 512 * 512 + 1536]


def tars():
    long = "a" * 90 + "/" + "b" * 90 + ".jpg"
    shard = {"0.jpg": b"JPEG", "0.cls": b"1", "1.jpg": b"JPEG", "1.cls": b"0\n", "1.json": b"{}"}
    yield from (tar(shard), tar({"cat/": b"", "cat/0.jpg": b"x" * 600, "./dog/1.png": b"", ".hidden.jpg": b"x"}), tar({"0.jpg": b"x", "0.png": b"y", "0.cls": b"9"}))
    yield from (tar({long: b"JPEG", "1.cls": b"0"}, form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    yield tar({"\u00e4" * 60 + "/0.jpg": b"JPEG"}, tarfile.PAX_FORMAT)
    yield tar(shard)[:1500]
    yield tar({"a.tar": tar(shard)[:600]})


for name, inputs in ("weights", weights()), ("tar", tars()), ("image", pictures(sys.argv[1])), ("net", nets()), ("record", records()), ("safetensors", files()):
    (HERE / f"{name}.corpus").write_text("".join(i.hex() + "\n" for i in inputs))
