"""Reading TensorBoard's event files: TFRecord framing with its checksums, and as much of protobuf as they use."""
import struct

POLYNOMIAL = 0x82F63B78  # CRC32C, reflected


def _table():
    out = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (POLYNOMIAL if i & 1 else 0)
        out.append(i)
    return out


TABLE = _table()


def masked(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ TABLE[(crc ^ b) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a file; a torn last one is passed over, as TensorBoard does."""
    at = 0
    while at + 12 <= len(data):
        (n, crc) = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at:at + 8])
        if at + 16 + n > len(data):
            return
        body = data[at + 12:at + 12 + n]
        assert struct.unpack_from("<I", data, at + 12 + n)[0] == masked(body)
        yield body
        at += 16 + n


def varint(data, at):
    value = shift = 0
    while True:
        b = data[at]
        value |= (b & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if b < 0x80:
            return value, at


def fields(data):
    """[(field number, value)]: integers, floats and bytes."""
    at, out = 0, []
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert kind == 2, kind
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        out.append((key >> 3, value))
    return out


def events(path):
    """[(step, {tag: value}, is a session's start)] of a file; its first record says the version."""
    first, *rest = records(path.read_bytes())
    assert dict(fields(first))[3] == b"brain.Event:2"
    out = []
    for r in rest:
        e = fields(r)
        known = dict(e)
        assert 1e9 < known[1] < 1e10  # wall time
        scalars = {}
        for value in (v for k, v in fields(known.get(5, b"")) if k == 1):
            one = dict(fields(value))
            scalars[one[1].decode()] = one[2]
        out.append((known.get(2, 0), scalars, 7 in known))
    return out


def curves(folder):
    """{tag: {step: value}} of a folder as TensorBoard shows it: a session's start takes back what came before of its step and later."""
    out = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for step, scalars, start in events(path):
            if start:
                out = {t: {s: v for s, v in c.items() if s < step} for t, c in out.items()}
            for tag, value in scalars.items():
                out.setdefault(tag, {})[step] = value
    return out
