"""The outcome of a test."""


class Case:
    """unit: what can be run again by itself, a C program or a test of pytest."""

    def __init__(self, name, unit, outcome, why="", seconds=0.0, cpu=0.0):
        self.name, self.unit, self.outcome, self.why, self.seconds, self.cpu = name, unit, outcome, why, seconds, cpu
