"""A folder that several nodes share, on a file system that can stop to answer: what a rendezvous in a folder needs (link, rename, listings)."""

import errno
import os
import struct
import threading

from pausing_fs import (CREATE, DIRECT_IO, FILE, FLUSH, FOLDER, GETATTR, LOOKUP, MKDIR, OPEN, OPENDIR, READ, RELEASE, RELEASEDIR, SETATTR, UNLINK,
                        WRITE, PausingFs)

RMDIR, RENAME, LINK, FSYNC, READDIR, FSYNCDIR = 11, 12, 13, 20, 28, 30
SIZE_IS_SET = 8


class SharedFs(PausingFs):
    def __init__(self, folder):
        self.hold = lambda opcode, pid: False  # whether this request of a process is not answered before resume(), though it is not paused
        self.things = {1: {}}  # number: {name: number}, or what is in the file
        self.modes = {1: FOLDER}
        self.lock = threading.Lock()
        self.held = []  # requests that came while it was paused: whoever asked waits in the kernel
        super().__init__(folder)
        os.listdir(folder)  # it is mounted for good

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 18)
            except OSError:  # unmounted
                os.close(self.fd)
                return
            with self.lock:
                if self.going.is_set() and not self.hold(*struct.unpack_from("=4xI24xI", request)):
                    self.reply(request)
                else:
                    self.held.append(request)
                    self.asked.set()

    def resume(self):
        with self.lock:
            super().resume()
            for request in self.held:
                self.reply(request)
            self.held.clear()

    def new(self, folder, name, thing, mode):
        if name in self.things[folder]:
            return errno.EEXIST
        number = len(self.modes) + 1  # none is used twice
        self.things[number], self.modes[number] = thing, mode
        self.things[folder][name] = number
        return self.entry(number)

    def answer(self, opcode, node, body):
        words = lambda skip: [w.decode() for w in body[skip:].split(bytes(1))]
        here = self.things.get(node)
        if opcode == LOOKUP:
            number = here.get(words(0)[0])
            return self.entry(number) if number else errno.ENOENT
        if opcode in (GETATTR, SETATTR):
            if opcode == SETATTR and struct.unpack_from("=I", body)[0] & SIZE_IS_SET:
                del here[struct.unpack_from("=Q", body, 16)[0]:]
            return struct.pack("=QII", 0, 0, 0) + self.attributes(node)
        if opcode == MKDIR:
            return self.new(node, words(8)[0], {}, 0o40000 | struct.unpack_from("=I", body)[0])
        if opcode == CREATE:
            made = self.new(node, words(16)[0], bytearray(), FILE)
            return made if isinstance(made, int) else made + struct.pack("=QII", 0, DIRECT_IO, 0)
        if opcode == LINK:
            if words(8)[0] in here:
                return errno.EEXIST
            here[words(8)[0]] = struct.unpack_from("=Q", body)[0]
            return self.entry(here[words(8)[0]])
        if opcode == UNLINK:
            return b"" if here.pop(words(0)[0], None) else errno.ENOENT
        if opcode == RMDIR:
            if self.things[here[words(0)[0]]]:
                return errno.ENOTEMPTY
            del here[words(0)[0]]
            return b""
        if opcode == RENAME:
            (old, new), there = words(8)[:2], self.things[struct.unpack_from("=Q", body)[0]]
            in_the_way = self.things.get(there.get(new))
            if isinstance(in_the_way, dict) and in_the_way:
                return errno.ENOTEMPTY
            there[new] = here.pop(old)
            return b""
        if opcode == WRITE:
            _, at, size = struct.unpack_from("=QQI", body)
            here[at:at + size] = body[40:40 + size]
            return struct.pack("=II", size, 0)
        if opcode == READ:
            _, at, size = struct.unpack_from("=QQI", body)
            return bytes(here[at:at + size])
        if opcode == READDIR:
            return self.listing(here, *struct.unpack_from("=QQI", body)[1:])
        if opcode in (FSYNC, FSYNCDIR):
            return b""
        if opcode in (OPEN, OPENDIR, RELEASE, RELEASEDIR, FLUSH):
            return super().answer(opcode, 1, body)
        return super().answer(opcode, node, body)

    def listing(self, folder, at, size):
        out = b""
        for i, (name, number) in enumerate(list(folder.items())[at:], at + 1):
            line = struct.pack("=QQII", number, i, len(name), self.modes[number] >> 12) + name.encode()
            line += bytes(-len(line) % 8)
            if len(out) + len(line) > size:
                break
            out += line
        return out

    def attributes(self, node):
        thing = self.things[node]
        size = len(thing) if isinstance(thing, bytearray) else 0
        return struct.pack("=6Q3I7I", node, size, 0, 0, 0, 0, 0, 0, 0, self.modes[node], 1, os.getuid(), os.getgid(), 0, 4096, 0)
