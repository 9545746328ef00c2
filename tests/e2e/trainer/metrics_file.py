"""What a trainer wrote into its metrics.jsonl."""
import json

import numpy as np


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_of(folder):
    """The records of steps, without those of evaluations and checkpoints."""
    return [record for record in records(folder) if "lr" in record]


def losses(folder):
    return [step["loss"] for step in steps_of(folder)]


def loss_curve(folder):
    return np.array(losses(folder))
