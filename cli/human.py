"""Numbers as people read them: seconds, days, money, GiB, per cent. ``?`` is unknown."""

from __future__ import annotations

from simulator.units import DAY_S, HOUR_S, to_gib

UNKNOWN = "?"
_TIMES = ((DAY_S, "d"), (HOUR_S, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def seconds(value_s: float | None) -> str:
    """``37.4 ms``, ``1.27 s``, ``12.3 min``."""
    if value_s is None:
        return UNKNOWN
    unit_s, name = next((unit for unit in _TIMES if value_s >= unit[0]), _TIMES[-1])
    return f"{digits(value_s / (unit_s or 1e-9))} {name}"


def seconds_range(low_s: float | None, high_s: float | None) -> str:
    """``35.1–39.9 ms``: both ends, the unit once where it is the same."""
    low, high = seconds(low_s), seconds(high_s)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same else low}–{high}"


def days_range(low: float | None, high: float | None) -> str:
    """``19.5–21.2``, in days."""
    return UNKNOWN if low is None or high is None else f"{digits(low)}–{digits(high)}"


def gib(size_bytes: float | None) -> str:
    """GiB with one or two digits after the point."""
    return UNKNOWN if size_bytes is None else digits(to_gib(size_bytes))


def percent(fraction: float | None, *, signed: bool = False) -> str:
    """A fraction as per cent."""
    if fraction is None:
        return UNKNOWN
    return f"{fraction:+.1%}" if signed else f"{fraction:.1%}"


def usd(value: float | None) -> str:
    """Dollars, cents only below a hundred."""
    if value is None:
        return UNKNOWN
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"


def count(value: float | None) -> str:
    """``300B``, ``1.01B``, ``70.4M``: a count with three digits."""
    if value is None:
        return UNKNOWN
    for unit, letter in _COUNTS:
        if value >= unit:
            return f"{float(f'{value / unit:.3g}'):g}{letter}"
    return f"{value:g}"


def digits(value: float | None) -> str:
    """Three significant digits, thousands in full."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
