"""A worker that writes: `log_worker.py WHAT [args]`. Unbuffered, numbered lines, so that a test can tell what is missing."""

import os
import sys
import time

rank = int(os.environ["RANK"])


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def steady(bytes_per_second, seconds, width=1000):
    """Numbered lines of `width` bytes, newline included, at a steady rate, in bursts of 50 ms; at the end the number of lines."""
    width = int(width)
    per_burst = max(1, int(bytes_per_second) // 20 // width)
    pad = bytes([ord("a") + rank % 26]) * (width - 14)
    start, n = time.monotonic(), 0
    for burst in range(int(float(seconds) * 20)):
        write_all(1, b"".join(b"%03d %08d " % (rank, i) + pad + b"\n" for i in range(n, n + per_burst)))
        n += per_burst
        time.sleep(max(0, start + (burst + 1) / 20 - time.monotonic()))
    write_all(2, b"wrote %d\n" % n)


def raw(hex_text, count=1):
    write_all(1, bytes.fromhex(hex_text) * int(count))


def long_lines(size, count):
    for i in range(int(count)):
        write_all(1, b"%03d %08d " % (rank, i) + b"y" * int(size) + b"\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
