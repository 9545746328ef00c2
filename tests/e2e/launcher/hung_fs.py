"""A file system that takes every request and answers none: whoever asks it waits in the kernel, deaf to SIGKILL, until release(). Linux's FUSE
device by hand, root only."""

import ctypes
import os
import struct
import threading

libc = ctypes.CDLL(None, use_errno=True)
INIT = 26
MNT_FORCE, MNT_DETACH = 1, 2


class HungFs:
    def __init__(self, folder):
        """OSError where it cannot be mounted."""
        self.folder = os.fsencode(str(folder))
        os.makedirs(folder, exist_ok=True)
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d" % (self.fd, os.getuid(), os.getgid())
        if libc.mount(b"hung", self.folder, b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, os.strerror(error))
        self.asked = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 17)
            except OSError:  # released
                os.close(self.fd)
                return
            _, opcode, unique = struct.unpack_from("=IIQ", request)
            if opcode == INIT:
                answer = struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 1 << 16, 1, 0, 0, 0, *[0] * 7)
                os.write(self.fd, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
            else:
                self.asked.set()

    def release(self):
        """Fail all that wait, and go."""
        libc.umount2(self.folder, MNT_FORCE | MNT_DETACH)
