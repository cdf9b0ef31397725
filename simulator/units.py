"""Constants, conversions, and the quantities that people type (``300B``, ``10m``, ``1024±2%``)."""

from __future__ import annotations

import math
import re

from profiles.errors import InvalidInputError

KIB = 2**10
MIB = 2**20
GIB = 2**30
KB = 10**3
MB = 10**6
GB = 10**9
TFLOPS = 10**12
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0
WH_PER_KWH = 1000.0

_COUNT_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_DURATION_SUFFIX_S = {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}
_WHOLE = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = rf"{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_LARGEST_BATCH = 10**9
_MOST_DIGITS = 12
_LONGEST_SHOWN = 60


def to_gib(size_bytes: float) -> float:
    """GiB (2^30 bytes) of a size in bytes."""
    return size_bytes / GIB


def parse_count(text: str, what: str = "count") -> float:
    """A positive count such as ``300B``, ``1.5T``, ``2e9`` or ``100_000``; K, M, B, T are powers of a thousand.

    Raises:
        InvalidInputError: it is not such a number, or not above zero.
    """
    match = re.fullmatch(rf"({_NUMBER})\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if match:
        count = float(match[1]) * _COUNT_SUFFIX[match[2].upper()]
        if 0 < count < math.inf:
            return count
    raise refused(what, text, "a number above zero, with K, M, B or T for 1e3, 1e6, 1e9, 1e12, such as 300B")


def parse_amount(text: str, what: str = "amount") -> float:
    """A positive plain number, such as a limit in USD, kWh or days.

    Raises:
        InvalidInputError: it is not a number above zero.
    """
    if re.fullmatch(_NUMBER, text.strip()) and 0 < float(text) < math.inf:
        return float(text)
    raise refused(what, text, "a number above zero, such as 250 or 0.5")


def parse_duration_s(text: str, what: str = "duration") -> float:
    """Seconds of ``90s``, ``10m``, ``1.5h``, ``2d`` or a sum such as ``1h30m``.

    Raises:
        InvalidInputError: a unit is missing or unknown, or the duration is not above zero.
    """
    compact = "".join(text.lower().split())
    if re.fullmatch(rf"(?:{_NUMBER}[smhd])+", compact):
        parts = re.findall(rf"({_NUMBER})([smhd])", compact)
        duration_s = sum(float(number) * _DURATION_SUFFIX_S[unit] for number, unit in parts)
        if 0 < duration_s < math.inf:
            return duration_s
    raise refused(what, text, "a duration above zero with its unit (s, m, h, d), such as 90s, 10m or 1h30m")


def parse_batch(text: str, what: str = "global batch") -> tuple[int, float]:
    """Samples per optimizer step and the fraction by which it may be missed: ``1024±2%`` is ``(1024, 0.02)``.

    ``1024+-2%`` and ``1024+/-2%`` mean the same, and ``1024`` alone allows nothing.

    Raises:
        InvalidInputError: it is not a whole number from 1, or the tolerance is not below 100 %.
    """
    compact = "".join(text.split())
    match = re.fullmatch(rf"({_WHOLE})(?:(?:±|\+/?-)({_NUMBER})%)?", compact)
    if match and len(match[1]) <= _MOST_DIGITS:
        batch, tolerance = int(match[1]), float(match[2] or 0) / 100
        if 1 <= batch <= _LARGEST_BATCH and tolerance < 1:
            return batch, tolerance
    raise refused(what, text, f"a whole number from 1 to {_LARGEST_BATCH:,}, or one with a tolerance such as 1024±2%")


def refused(what: str, text: str, allowed: str) -> InvalidInputError:
    """The error for a typed quantity that cannot be used; a long text is cut short."""
    shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return InvalidInputError(what, [f"{shown!r} is not allowed; allowed: {allowed}"])
