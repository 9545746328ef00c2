"""A TCP proxy that does wrong, by seed: delays, stalls of one or both ways, resets, answers cut in the middle.

It ends what it carries as its ends do: end-of-file for end-of-file, a reset for a reset; what it breaks by itself it resets, for an end-of-file is
the proof that a node is dead. It never refuses a connection, for that is the proof that a daemon is. Each connection has its own delay, so that a
newer one overtakes an older one.
"""
import random
import socket
import struct
import threading
import time

FAULTS = ("pass", "delay", "stall-up", "stall-down", "stall", "reset", "truncate")


def reset(s):
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    try:
        s.shutdown(socket.SHUT_RD)  # wakes who reads from it
    except OSError:
        pass
    s.close()


class Proxy:
    def __init__(self, host, port, seed=0):
        self.target = (host, port)
        self.random = random.Random(seed)
        self.fault = "pass"
        self.pairs = set()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, timeout=5)
                server.settimeout(None)
            except OSError:
                reset(client)
                continue
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self.lock:
                self.pairs.add(pair)
                delay = self.random.uniform(0, 0.4)
            threading.Thread(target=self._carry, args=(pair, client, server, "stall-up", delay), daemon=True).start()
            threading.Thread(target=self._carry, args=(pair, server, client, "stall-down", delay), daemon=True).start()

    def _break(self, pair):
        with self.lock:
            if pair not in self.pairs:
                return
            self.pairs.discard(pair)
        for s in pair:
            reset(s)

    def _carry(self, pair, source, sink, stall, delay):
        try:
            while True:
                data = source.recv(65536)
                if self.fault == "delay":
                    time.sleep(delay)
                while self.fault in ("stall", stall) and pair in self.pairs:
                    time.sleep(0.01)
                if not data:
                    with self.lock:
                        if pair in self.pairs:  # else we broke it ourselves
                            sink.shutdown(socket.SHUT_WR)
                    return
                if self.fault == "truncate" and stall == "stall-down":
                    sink.sendall(data[: len(data) // 2])
                    self._break(pair)
                    return
                sink.sendall(data)
        except OSError:
            self._break(pair)

    def set(self, fault):
        self.fault = fault
        if fault == "reset":
            self._break_all()

    def _break_all(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self._break(pair)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._break_all()
