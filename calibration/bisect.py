"""The largest micro-batch that fits, found with few trials and without steps of powers of two."""

from __future__ import annotations

from collections.abc import Callable


def largest_micro_batch(fits: Callable[[int], bool], cap: int, hint: int | None = None) -> int:
    """The largest batch in 1 … ``cap`` that fits, 0 if not even 1 does.

    ``fits`` must be true up to some batch and false beyond. It is never asked twice about one batch, nor beyond
    ``cap``; the answer itself was always asked about. ``hint`` is where the edge is thought to be: a good one costs
    two trials.
    """
    low, high = 0, cap + 1
    probe = min(max(hint, 1), cap) if hint is not None else cap
    reach = 1
    while high - low > 1:
        if fits(probe):
            low, probe = probe, probe + reach
        else:
            high, probe = probe, probe - reach
        reach *= 2
        if not low < probe < high or (low > 0 and high <= cap):
            probe = _between(low, high, cap)
    return low


def _between(low: int, high: int, cap: int) -> int:
    """The middle of what is open; ``cap`` itself while nothing above ``low`` has failed."""
    return cap if high == cap + 1 else (low + high) // 2
