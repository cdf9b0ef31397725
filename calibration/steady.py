"""When a series of timings has settled, and what it then says; pure functions of the samples.

Samples are means over windows of whole steps, synchronised only at the window's edges. Nothing is dropped for being
slow: work that one step leaves to the next lands in the same window, and what is far above the median is reported.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STEADY_TOLERANCE = 0.02
"""Two neighbouring stretches of a settled series differ by no more than this fraction, noise aside."""
STRETCH = 5
"""Longest stretch, in samples, that is compared with the one before it."""
OVERHEAD_FACTOR = 2.0
"""A sample beyond this many medians holds work that is no part of a step (evaluation, a checkpoint, a hiccup)."""
COVERAGE = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a settled series says, in the unit of its samples.

    ``low_s`` and ``high_s`` bound the median with 90 % confidence (the whole range below five samples).
    ``overhead_s`` is the sum, over samples far above the median, of what they exceed it by.
    """

    median_s: float
    low_s: float
    high_s: float
    overhead_s: float = 0.0

    @property
    def spread(self) -> float:
        """Width of the interval as a fraction of the median."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s else 0.0


def is_steady(samples: Sequence[float], tolerance: float = STEADY_TOLERANCE) -> bool:
    """Whether the last stretch of samples lies where the stretch before it lay, within tolerance or their noise."""
    stretch = min(STRETCH, len(samples) // 2)
    if len(samples) < 3:
        return False
    last, before = samples[-stretch:], samples[-2 * stretch : -stretch]
    level = statistics.median(samples[-2 * stretch :])
    drift = abs(statistics.median(last) - statistics.median(before))
    return drift <= max(tolerance * level, _drift_by_chance(samples[-2 * stretch :]))


def plateau(samples: Sequence[float], tolerance: float = STEADY_TOLERANCE) -> int:
    """Index of the first sample of the plateau that the series ends on; 0 when all of it is settled.

    The level is the median of the last third. A sample belongs to the warm-up while it, or the median of it and
    the four after it, is away from that level by more than the tolerance and three times the noise; so one outlier
    neither starts nor ends a plateau.
    """
    if len(samples) < 3:
        return 0
    tail = samples[-max(3, len(samples) // 3) :]
    level = statistics.median(tail)
    allowed, allowed_alone = (max(tolerance * level, 3.0 * noise(tail) / math.sqrt(n)) for n in (STRETCH, 1))
    for index in range(len(samples) - len(tail)):
        stretch = statistics.median(samples[index : index + STRETCH])
        if abs(stretch - level) <= allowed and abs(samples[index] - level) <= allowed_alone:
            return index
    return len(samples) - len(tail)


def window_means(step_samples_s: Sequence[float], steps: int) -> tuple[float, ...]:
    """Means over consecutive windows of ``steps`` steps; a last incomplete window is left out."""
    whole = len(step_samples_s) // steps
    return tuple(statistics.fmean(step_samples_s[i * steps : (i + 1) * steps]) for i in range(whole))


def summarise(samples_s: Sequence[float]) -> Summary:
    """The median with its interval, and the overhead of samples that are no step; at least one sample."""
    ordered = sorted(samples_s)
    median_s = statistics.median(ordered)
    margin = _order_margin(len(ordered))
    overhead_s = sum(sample - median_s for sample in ordered if sample > OVERHEAD_FACTOR * median_s)
    return Summary(median_s=median_s, low_s=ordered[margin], high_s=ordered[-1 - margin], overhead_s=overhead_s)


def noise(samples: Sequence[float]) -> float:
    """Standard deviation of the samples, from the median step between neighbours; blind to drift and outliers."""
    if len(samples) < 2:
        return 0.0
    steps = [abs(later - earlier) for earlier, later in itertools.pairwise(samples)]
    return statistics.median(steps) / (0.6745 * math.sqrt(2.0))


def _drift_by_chance(samples: Sequence[float]) -> float:
    """Two standard errors of the difference between the medians of the two halves; none below eight samples."""
    half = len(samples) // 2
    if half < 4:
        return 0.0
    return 2.0 * 1.2533 * noise(samples) * math.sqrt(2.0 / half)


def _order_margin(count: int) -> int:
    """How many samples to leave out at either end so that the rest bounds the median with 90 % confidence."""
    outside, margin = 0.0, 0
    for rank in range((count + 1) // 2):
        outside += 2.0 * math.comb(count, rank) / 2.0**count
        if outside > 1.0 - COVERAGE:
            break
        margin = rank
    return margin
