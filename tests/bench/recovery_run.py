"""What runs of bench_recovery.py have in common, whatever is trained: what is measured of one, and that none is left behind."""
import math
import statistics

WORLD = 4


class Run:
    """self.p: the process; follow(kills, seed) kills ranks of it, and reads to the end."""

    def __init__(self, gap, fault):
        self.gap, self.fault = gap, fault
        self.times, self.steps = [], []  # from a kill to the next step; of steps; s
        self.again, self.lost = 0, 0  # steps that were done again, processes that were not kept

    def read(self, kills, seed):
        try:
            self.follow(kills, seed)
        finally:  # also where something is wrong
            self.p.terminate()
            self.p.wait()

    def p99(self):
        return sorted(self.times)[math.ceil(0.99 * len(self.times)) - 1]

    def step(self):
        return statistics.median(self.steps)

    def tell_rest(self, equal):
        return f"steps done again {self.again}, processes not kept {self.lost}, weights {'equal' if equal else 'DIFFER'}"
