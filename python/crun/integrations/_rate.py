# SPDX-License-Identifier: Apache-2.0
"""Samples a second, between reports."""
from __future__ import annotations

import time
from typing import Optional


class Rate:
    def __init__(self) -> None:
        self.since: Optional[float] = None
        self.samples = 0.0

    def add(self, samples: float) -> None:
        """samples: of all ranks, in one step."""
        if self.since is None:
            self.since = time.monotonic()  # the first step also sets things up
        else:
            self.samples += samples

    def take(self) -> Optional[float]:
        """Since the last time; None: not known yet."""
        now = time.monotonic()
        if self.since is None or self.samples == 0 or now <= self.since:
            return None
        rate, self.since, self.samples = self.samples / (now - self.since), now, 0.0
        return rate
