"""A file system in memory that can stop to answer, and go on later: Linux's FUSE device by hand, root only. What it holds is read from `files`, past
the mount, so that a test never waits for it. Requests that come while it is paused are answered when it is resumed.

`pausing_fs.py FOLDER` is one as a process of its own, which `crun chaos` may stop: it prints a line when it is there, and ends with its mount."""

import ctypes
import errno
import os
import struct
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, OPEN, READ, WRITE, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR, ACCESS, CREATE, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 4, 9, 10, 14, 15, 16, 18, 25, 26, 27, 29, 34, 35, 36, 42)
NOBODY_WAITS = FORGET, RELEASE, RELEASEDIR, INTERRUPT, BATCH_FORGET
FILE, FOLDER = 0o100755, 0o40755
DIRECT_IO = 1


class PausingFs:
    def __init__(self, folder):
        """OSError where it cannot be mounted."""
        self.folder = os.fsencode(str(folder))
        os.makedirs(folder, exist_ok=True)
        self.nodes = {1: ("", FOLDER)}  # number: path below the mount, mode
        self.numbers = {"": 1}
        self.files = {}  # path: bytearray
        self.going = threading.Event()
        self.going.set()
        self.asked = threading.Event()  # while it was paused
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d" % (self.fd, os.getuid(), os.getgid())
        if libc.mount(b"pausing", self.folder, b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, os.strerror(error))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def write(self, path, data):
        """A file at the top."""
        self.add(path, FILE)
        self.files[path] += data

    def pause(self):
        self.asked.clear()
        self.going.clear()

    def resume(self):
        self.going.set()

    def close(self):
        self.resume()
        libc.umount2(self.folder, MNT_DETACH)
        self.thread.join(10)

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 18)
            except OSError:  # unmounted
                os.close(self.fd)
                return
            _, opcode = struct.unpack_from("=II", request)
            if not self.going.is_set() and opcode not in NOBODY_WAITS:
                self.asked.set()
                self.going.wait()
            self.reply(request)

    def reply(self, request):
        _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
        answer = self.answer(opcode, node, request[40:])
        if answer is None:
            return
        error, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
        try:
            os.write(self.fd, struct.pack("=IiQ", 16 + len(data), error, unique) + data)
        except OSError:  # nobody waits for it any more
            pass

    # --- requests: bytes, an errno, or None for no answer

    def answer(self, opcode, node, body):
        path, _ = self.nodes.get(node, ("", FOLDER))
        below = lambda name: f"{path}/{name.split(bytes(1))[0].decode()}".lstrip("/")
        if opcode == INIT:
            return struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 1 << 16, 1, 0, 0, 0, *[0] * 7)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        if opcode == LOOKUP:
            number = self.numbers.get(below(body))
            return self.entry(number) if number else errno.ENOENT
        if opcode in (GETATTR, SETATTR):
            if opcode == SETATTR and struct.unpack_from("=I", body)[0] & 8:
                del self.files[path][struct.unpack_from("=Q", body, 16)[0]:]
            return struct.pack("=QII", 0, 0, 0) + self.attributes(node)
        if opcode == MKDIR:
            return self.entry(self.add(below(body[8:]), FOLDER))
        if opcode == CREATE:
            return self.entry(self.add(below(body[16:]), FILE)) + struct.pack("=QII", 0, DIRECT_IO, 0)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("=QII", 0, DIRECT_IO if opcode == OPEN else 0, 0)
        if opcode == WRITE:
            _, at, size = struct.unpack_from("=QQI", body)
            self.files[path][at:at + size] = body[40:40 + size]
            return struct.pack("=II", size, 0)
        if opcode == READ:
            _, at, size = struct.unpack_from("=QQI", body)
            return bytes(self.files[path][at:at + size])
        if opcode == UNLINK:
            name = below(body)
            self.files.pop(name, None)
            return b"" if self.numbers.pop(name, None) else errno.ENOENT
        if opcode in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            return b""
        return errno.ENOSYS

    def add(self, path, mode):
        number = len(self.nodes) + 1
        self.nodes[number] = (path, mode)
        self.numbers[path] = number
        if mode == FILE:
            self.files[path] = bytearray()
        return number

    def attributes(self, node):
        path, mode = self.nodes[node]
        return struct.pack("=6Q3I7I", node, len(self.files.get(path, b"")), 0, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0)

    def entry(self, number):
        return struct.pack("=QQQQII", number, 0, 0, 0, 0, 0) + self.attributes(number)


if __name__ == "__main__":
    fs = PausingFs(sys.argv[1])
    print("ready", flush=True)
    fs.thread.join()
