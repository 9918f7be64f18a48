# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no arrays: words, numbers, windows and names, as the library takes them.

Invariant: what comes out fits the field of the struct it is for. What does not is refused, with the
argument, its value and what was expected.
"""

from __future__ import annotations

from ctypes import c_float
from typing import Any, Optional, Tuple

from ._library import InvalidArgument

INT64_MAX = (1 << 63) - 1
MOST_ROWS = (1 << 31) - 1  # of one sequence: cu_seqlens are int32
MOST_THREADS = 1024  # attn_open takes no more
MOST_POSITION = 1 << 40  # of a query or a key
NO_WINDOW = (-1, -1)


def choice(name: str, value: Any, table: dict) -> int:
    try:
        return table[value]
    except (KeyError, TypeError):
        words = [repr(word) for word in table]
        raise InvalidArgument(f"{name} is {value!r}, expected {', '.join(words[:-1])} or "
                              f"{words[-1]}") from None


def number(name: str, value: Any) -> float:
    """Infinite where it is too large for a float of C."""
    try:
        return c_float(float(value)).value
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name} is {value!r}, expected a number") from None


def _whole(value: Any) -> Optional[int]:
    """None if it is no whole number."""
    try:
        found = int(value)
        return found if found == value else None  # 2.5 and "2" are not
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: of several numbers
        return None


def integer(name: str, value: Any, low: int, high: int) -> int:
    found = _whole(value)
    if found is None or not low <= found <= high:
        raise InvalidArgument(f"{name} is {value!r}, expected an integer from {low} to {high}")
    return found


def window(value: Any) -> Tuple[int, int]:
    """Beyond what the library can count there is no key: as good as any bound."""
    try:
        left, right = (_whole(n) for n in value)
    except (TypeError, ValueError):
        left = right = None
    if left is None or right is None or left < -1 or right < -1:
        raise InvalidArgument(f"window is {value!r}, expected (left, right), integers of 0 or "
                              "more, -1 for no bound")
    return min(left, INT64_MAX), min(right, INT64_MAX)


def offset_of(q_offset: Any, kv_offset: Any) -> int:
    """The difference, which alone matters."""
    return (integer("q_offset", q_offset, -MOST_POSITION, MOST_POSITION)
            - integer("kv_offset", kv_offset, -MOST_POSITION, MOST_POSITION))


def variant_name(value: Any) -> Optional[str]:
    """None is the library's choice; nothing else is, an empty name least of all."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.isascii() or "\0" in value:
        raise InvalidArgument(f"variant is {value!r}, expected None or the name of a variant")
    return value
