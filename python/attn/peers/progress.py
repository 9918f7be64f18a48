# SPDX-License-Identifier: Apache-2.0
"""How far a run is: a bar on a terminal, a line for each step elsewhere; both with the time left.

Invariant: it writes to one stream that nothing is read from, and never raises because of it.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from typing import Optional, TextIO

BAR = 24


def clock(seconds: float) -> str:
    """
    >>> clock(7.4), clock(61), clock(3700)
    ('7 s', '1:01', '1:01:40')
    """
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    def __init__(self, total: int, out: Optional[TextIO] = None) -> None:
        self.total, self.done, self.started = total, 0, time.perf_counter()
        self.out = out or sys.stderr
        self.live = self.out.isatty()

    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def left(self) -> Optional[float]:
        """Seconds, as if what is left took as long as what is done; None before the first step."""
        return self.elapsed() / self.done * (self.total - self.done) if self.done else None

    def begin(self, what: str) -> None:
        if self.live:
            self._bar(what)

    def step(self, what: str, said: str) -> None:
        """`what` is done; said: what came of it."""
        self.done += 1
        left = self.left() or 0.0
        if self.live:
            self._write(f"\r\x1b[K{what}: {said}\n")
            self._bar("")
        else:
            self._write(f"[{self.done}/{self.total}] {what}: {said}, about {clock(left)} left\n")

    def close(self) -> None:
        if self.live:
            self._write("\r\x1b[K")

    def _bar(self, what: str) -> None:
        filled, left = BAR * self.done // max(self.total, 1), self.left()
        line = (f"[{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.total}"
                + (f", about {clock(left)} left" if left is not None else "")
                + (f"  {what}" if what else ""))
        self._write("\r\x1b[K" + line[:shutil.get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.out.write(text)
            self.out.flush()
