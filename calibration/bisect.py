"""The largest micro-batch that runs, found with at most three real runs and without steps of powers of two.

The memory model says how many bytes each micro-batch needs, and how sure it is. Each run corrects it: a peak that was
measured gives the scale of what moves, running out of memory bounds it from below. The guess moves with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MOST_RUNS = 3
CONFIDENT = 0.01
"""A next size that fits with less than this probability is not worth a run."""
LIKELY = 0.2
"""An edge of this probability is aimed at; below it, samples are so small that any other may be the edge too."""
SURPRISE_WEIGHT, SURPRISE_SD_LOG = 0.1, 0.15
"""Share of doubt that the model misses something, and how far off what moves may then be."""
PEAK_SD_LOG = 0.002
"""Standard deviation of a measured peak around the model, once its scale is right."""
LIMIT_SD = 0.0015
"""Standard deviation of the share of the device that the allocator cannot use, beyond its mean."""
UPPER_Z = 2.33
_SCALE_STEPS, _SHIFT_STEPS, _REACH_SD = 481, 41, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """What the memory model says of every micro-batch, ascending; bytes per device.

    ``fixed_bytes`` are sure, ``moving_bytes`` are scaled by a factor around 1 with ``scale_sd_log``. Outside of the
    allocator the device holds ``outside_bytes`` ± ``outside_sd_bytes``; the allocator loses the share ``lost`` of what
    is allocated.
    """

    micro_batches: tuple[int, ...]
    fixed_bytes: FloatArray
    moving_bytes: FloatArray
    scale_sd_log: float
    outside_bytes: float
    outside_sd_bytes: float
    lost: float
    limit_bytes: float

    def predicted(self) -> int:
        """How many of the micro-batches fit even with the upper value (99 %) of what they need."""
        need = (self.fixed_bytes + self.moving_bytes) * (1 + self.lost) + self.outside_bytes
        sd = np.hypot(self.moving_bytes * self.scale_sd_log, self.outside_sd_bytes)
        return int(np.searchsorted(np.maximum.accumulate(need + UPPER_Z * sd), self.limit_bytes, side="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one run ended. ``fits`` is ``None`` where it says nothing of memory (a crash, a timeout).

    ``peak_bytes`` is the peak allocated, ``outside_bytes`` what the device held beside the allocator.
    """

    fits: bool | None
    peak_bytes: int | None = None
    outside_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """What the runs proved. Micro-batches, 0 where not even the smallest ran.

    ``predicted`` was the largest that the model called safe before any run, ``runs`` the sizes run, in order.
    ``proven``: the next larger size ran out of memory, or there is none. ``exact_probability`` is the model's, after
    all runs, that nothing larger fits.
    """

    micro_batch: int
    smallest_oom: int | None
    predicted: int
    runs: tuple[int, ...]
    proven: bool
    exact_probability: float


def largest_that_runs(memories: Memories, run: Callable[[int], Ran], *, most_runs: int = MOST_RUNS) -> Largest:
    """The largest micro-batch that runs, with at most ``most_runs`` calls of ``run``.

    First the largest that the model calls safe; then, corrected, the likeliest edge. It ends when a size ran and the
    next one failed or is not worth a run, when the runs are spent, or when a run says nothing of memory.
    """
    belief = _Belief(memories)
    safe = memories.predicted()
    runs: list[int] = []
    while len(runs) < most_runs and not belief.settled():
        index = belief.next_index(safe)
        runs.append(memories.micro_batches[index - 1])
        result = run(runs[-1])
        if result.fits is None:
            break
        belief.learn(index, result)
    sizes = (0, *memories.micro_batches)
    return Largest(
        micro_batch=sizes[belief.ran],
        smallest_oom=sizes[belief.failed] if belief.failed < len(sizes) else None,
        predicted=sizes[safe],
        runs=tuple(runs),
        proven=belief.failed == belief.ran + 1,
        exact_probability=1.0 - belief.more_fits(),
    )


class _Belief:
    """Weights over a grid of (scale of what moves, shift of the limit), and the bracket of what runs showed.

    An *index* counts micro-batches from 1: the edge is the index of the largest that fits, 0 if none does.
    """

    def __init__(self, memories: Memories) -> None:
        self.memories = memories
        self.ran, self.failed = 0, len(memories.micro_batches) + 1
        self._tried = False
        z = np.linspace(-_REACH_SD, _REACH_SD, _SCALE_STEPS)
        own = max(memories.scale_sd_log, PEAK_SD_LOG)
        wider = max(SURPRISE_SD_LOG / own, 1.0)
        self._scales = np.exp(z * own * wider)
        expected = wider * np.exp(-0.5 * (z * wider) ** 2)
        self._scale_weights = (1 - SURPRISE_WEIGHT) * expected + SURPRISE_WEIGHT * np.exp(-0.5 * z**2)
        self._outside = (memories.outside_bytes, memories.outside_sd_bytes)
        self._allocated = memories.fixed_bytes + np.outer(self._scales, memories.moving_bytes)

    def _edges(self) -> FloatArray:
        """Probability of every edge from 0 to all, inside the bracket."""
        memories = self.memories
        mean, sd = self._outside
        z = np.linspace(-_REACH_SD, _REACH_SD, _SHIFT_STEPS)
        room = (memories.limit_bytes - mean - z * math.hypot(sd, LIMIT_SD * memories.limit_bytes)) / (1 + memories.lost)
        rising = np.maximum.accumulate(self._allocated, axis=1)
        reached = np.array([np.searchsorted(allocated, room, side="right") for allocated in rising])
        weights = np.outer(self._scale_weights, np.exp(-0.5 * z**2))
        found = np.bincount(reached.ravel(), weights.ravel(), minlength=len(memories.micro_batches) + 1)
        inside = np.zeros_like(found)
        inside[self.ran : self.failed] = found[self.ran : self.failed] + 1e-12 * found.sum() / len(found)
        edges: FloatArray = inside / inside.sum()
        return edges

    def more_fits(self) -> float:
        """Probability that something larger than what ran fits."""
        return float(self._edges()[self.ran + 1 :].sum())

    def settled(self) -> bool:
        """Whether no further run is worth it."""
        if self.failed == self.ran + 1:
            return True
        return self.ran > 0 and self.more_fits() < CONFIDENT

    def next_index(self, safe: int) -> int:
        """The index to run next: the safe one first, then the likeliest edge beyond what ran.

        Where nothing ran yet, or no edge is likely, the one that promises most: its probability to run × what it adds.
        Where nothing is believed to run, the smallest, which proves it.
        """
        first, self._tried = not self._tried, True
        if first and safe > 0:
            return safe
        edges = self._edges()
        beyond = edges[self.ran + 1 : self.failed]
        if not self.ran and beyond.sum() < CONFIDENT:
            return 1
        if self.ran and beyond.max() >= LIKELY * beyond.sum():
            return self.ran + 1 + int(np.argmax(beyond))
        sizes = np.array((0, *self.memories.micro_batches), dtype=float)
        added = sizes[self.ran + 1 : self.failed] - sizes[self.ran]
        return self.ran + 1 + int(np.argmax(np.cumsum(beyond[::-1])[::-1] * added))

    def learn(self, index: int, result: Ran) -> None:
        """Correct the model by how the run at ``index`` ended."""
        if not result.fits:
            self.failed = min(self.failed, index)
            return
        self.ran = max(self.ran, index)
        if result.outside_bytes is not None:
            self._outside = (float(result.outside_bytes), 0.0)
        if result.peak_bytes:
            self._measure(index, float(result.peak_bytes))

    def _measure(self, index: int, peak_bytes: float) -> None:
        """A measured peak gives the scale; a grid around it replaces the one before."""
        fixed, moving = self.memories.fixed_bytes[index - 1], self.memories.moving_bytes[index - 1]
        if moving <= 0:
            return
        scale, sd = max((peak_bytes - fixed) / moving, 1e-3), PEAK_SD_LOG * peak_bytes / moving
        z = np.linspace(-_REACH_SD, _REACH_SD, _SCALE_STEPS)
        self._scales = np.maximum(scale + z * sd, 1e-3)
        self._scale_weights = np.exp(-0.5 * z**2)
        self._allocated = self.memories.fixed_bytes + np.outer(self._scales, self.memories.moving_bytes)
