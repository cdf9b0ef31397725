"""Crossovers along an axis: where the GPU takes over from the host, and where compile or checkpointing starts to pay.

The point is found by looking at every value. Its range comes from drawing the log factors together, with the
covariance that the intervals are made of: errors that both sides of a comparison share move both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simulator.case import Case
from simulator.ladder import Ladder, point_factors
from simulator.steptime import StepTimes, covariance

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
State = Literal["always", "never", "from", "until", "between", "scattered"]
DRAWS = 200
GAUSSIAN_90 = 1.645
THINNED = 256
"""Draws are looked at on this many values of an axis, spread by ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where something holds along an axis.

    ``first`` and ``last`` are the smallest and largest value at which it holds; the ranges are 5 to 95 % of the draws
    in which it holds anywhere, and ``share`` is how many those are. ``None`` where it never holds, and for a ``last``
    without end.
    """

    name: str
    axis: str
    state: State
    first: float | None = None
    first_low: float | None = None
    first_high: float | None = None
    last: float | None = None
    last_low: float | None = None
    last_high: float | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """After how many steps and hours of training compiling one shape has paid for itself; ``inf``: never."""

    value: int
    saved_s_per_step: float
    steps: float
    steps_low: float
    steps_high: float
    hours: float
    hours_low: float
    hours_high: float


def draw_factors(case: Case, count: int = DRAWS, seed: int = 0) -> FloatArray:
    """Log factors drawn from what the fit leaves open, shape (count, components).

    Stretched as the intervals are, so that a draw strays as far as real errors did.
    """
    fit = case.profile.fit
    known = covariance(fit, case.profile.rates)
    random = np.random.default_rng(seed)
    apart = random.multivariate_normal(np.zeros(len(known)), known, size=count, method="eigh", check_valid="ignore")
    drawn: FloatArray = point_factors(case) + apart * (fit.interval_scale / GAUSSIAN_90)
    return drawn


def thinned(count: int, kept: Iterable[Any] = ()) -> NDArray[np.intp]:
    """Rows spread by ratio over ``count`` of them, the first, the last and those ``kept`` among them."""
    spread = np.geomspace(1, count, min(count, THINNED)).round().astype(int) - 1
    return np.unique(np.array([*spread, count - 1, *kept], dtype=np.intp))


def crossing(
    name: str,
    axis: str,
    values: FloatArray,
    holds: BoolArray,
    drawn: Sequence[tuple[FloatArray, BoolArray]],
    ends: FloatArray | None = None,
) -> Crossover:
    """Where ``holds`` along ``values``, with the range over draws: each its values and where it holds there.

    ``ends`` are the ends of what each value stands for, where it stands for a stretch.
    """
    first, last = _edges(values, values if ends is None else ends, holds)
    edges = [_edges(v, v if ends is None else np.append(v[1:], math.inf), h) for v, h in drawn if h.any()]
    firsts, lasts = (np.array(side, dtype=float) for side in zip(*edges, strict=True)) if edges else ((), ())
    return Crossover(
        name=name,
        axis=axis,
        state=_state(holds),
        first=first,
        last=last if last is not None and math.isfinite(last) else None,
        first_low=_quantile(firsts, 0.05),
        first_high=_quantile(firsts, 0.95),
        last_low=_quantile(lasts, 0.05),
        last_high=_quantile(lasts, 0.95),
        share=len(edges) / len(drawn) if drawn else 0.0,
    )


def _edges(values: FloatArray, ends: FloatArray, holds: BoolArray) -> tuple[float | None, float | None]:
    where = np.flatnonzero(holds)
    return (float(values[where[0]]), float(ends[where[-1]])) if len(where) else (None, None)


def _quantile(found: Sequence[float] | FloatArray, share: float) -> float | None:
    if not len(found):
        return None
    value = float(np.quantile(found, share, method="nearest"))
    return value if math.isfinite(value) else None


def _state(holds: BoolArray) -> State:
    where = np.flatnonzero(holds)
    if not len(where):
        return "never"
    first, last = int(where[0]), int(where[-1])
    if last - first + 1 > len(where):
        return "scattered"
    if len(where) == len(holds):
        return "always"
    return "from" if last == len(holds) - 1 else "until" if first == 0 else "between"


def gpu_bound(case: Case, axis: str, rungs: Ladder, draws: FloatArray) -> Crossover:
    """Where the GPU needs at least as long for a micro-batch as the host does."""

    def holds(times: StepTimes) -> BoolArray:
        return np.asarray(times.gpu_s >= times.host_s)

    point = holds(rungs.times(point_factors(case)))
    some = rungs.pick(thinned(len(point), np.flatnonzero(np.diff(point, prepend=point[0]))))
    drawn = [(some.values.astype(float), holds(some.times(factors))) for factors in draws]
    return crossing("gpu_bound", axis, rungs.values.astype(float), point, drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """The same recipe without and with compile, what compiling costs, and the run's steps at each value if known."""

    off: Ladder
    on: Ladder
    compile_s: float
    compile_sd_log: float
    steps: FloatArray | None

    def pick(self, rows: NDArray[np.intp]) -> Compiling:
        """Some of the rows."""
        return Compiling(
            off=self.off.pick(rows),
            on=self.on.pick(rows),
            compile_s=self.compile_s,
            compile_sd_log=self.compile_sd_log,
            steps=None if self.steps is None else self.steps[rows],
        )

    def saved_s(self, factors: FloatArray) -> FloatArray:
        """Seconds that a compiled step takes less."""
        saved: FloatArray = self.off.times(factors).step_s - self.on.times(factors).step_s
        return saved

    def pays(self, factors: FloatArray, compile_s: float) -> BoolArray:
        """Where the run is over sooner when compiled; of a run without length, where a step is."""
        saved = self.saved_s(factors)
        sooner = saved > 0 if self.steps is None else saved * self.steps > compile_s
        return np.asarray(self.on.fits & (sooner | ~self.off.fits))

    def drawn_compile_s(self, count: int, seed: int) -> FloatArray:
        """Draws of the seconds that compiling takes."""
        strays = np.random.default_rng(seed + 1).standard_normal(count)
        drawn: FloatArray = self.compile_s * np.exp(self.compile_sd_log * strays)
        return drawn


def compile_pays(case: Case, axis: str, both: Compiling, draws: FloatArray, seed: int = 0) -> Crossover:
    """Where compile pays for itself within the run, or is the only one of the two that fits; of values that fit."""
    both = both.pick(np.flatnonzero(both.off.fits | both.on.fits))
    holds = both.pays(point_factors(case), both.compile_s)
    if not len(holds):
        return crossing("compile", axis, np.zeros(0), holds, [])
    some = both.pick(thinned(len(holds), np.flatnonzero(np.diff(holds, prepend=holds[0]))))
    values = some.off.values.astype(float)
    costs_s = both.drawn_compile_s(len(draws), seed)
    drawn = [(values, some.pays(factors, float(cost))) for factors, cost in zip(draws, costs_s, strict=True)]
    return crossing("compile", axis, both.off.values.astype(float), holds, drawn)


def break_even(case: Case, both: Compiling, draws: FloatArray, seed: int = 0) -> tuple[BreakEven, ...]:
    """Per value, after how many steps and hours the seconds spent compiling are won back."""
    point = point_factors(case)
    saved = both.saved_s(point)
    steps = _steps(both.compile_s, saved)
    hours = steps * both.off.times(point).step_s / 3600.0
    costs_s = both.drawn_compile_s(len(draws), seed)
    drawn = np.array([_steps(c, both.saved_s(f)) for f, c in zip(draws, costs_s, strict=True)])
    drawn_h = drawn * np.array([both.off.times(f).step_s for f in draws]) / 3600.0
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0, method="nearest")
    low_h, high_h = np.quantile(drawn_h, (0.05, 0.95), axis=0, method="nearest")
    columns = (saved, steps, low, high, hours, low_h, high_h)
    return tuple(
        BreakEven(
            value=int(value), saved_s_per_step=s, steps=n, steps_low=a, steps_high=b, hours=h, hours_low=c, hours_high=d
        )
        for value, s, n, a, b, h, c, d in zip(both.off.values, *(x.tolist() for x in columns), strict=True)
    )


def _steps(compile_s: float, saved_s: FloatArray) -> FloatArray:
    """Whole steps until the saving makes up for the cost; infinite where nothing is saved."""
    steps: FloatArray = np.where(saved_s > 0, np.ceil(compile_s / np.where(saved_s > 0, saved_s, 1.0)), math.inf)
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputing:
    """The same recipe without and with checkpointing, along micro-batches."""

    value: str
    plain: Ladder
    again: Ladder

    def sample_s(self, factors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds per sample over all ranks, without and with."""
        return (
            self.plain.times(factors).step_s / self.plain.samples,
            self.again.times(factors).step_s / self.again.samples,
        )

    def pays(self, factors: FloatArray) -> BoolArray:
        """At which micro-batches checkpointing beats the best of what fits without it."""
        plain_s, again_s = self.sample_s(factors)
        best = np.min(np.where(self.plain.fits, plain_s, math.inf))
        return np.asarray(self.again.fits & (again_s < best))

    def pays_in(self, factors: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Device sizes in bytes at which something starts to fit, and whether checkpointing's best wins from there."""
        plain_s, again_s = self.sample_s(factors)
        limits = np.unique(np.concatenate([self.plain.needed_bytes_high, self.again.needed_bytes_high]))
        best_plain = _best_within(limits, self.plain.needed_bytes_high, plain_s)
        return limits, np.asarray(_best_within(limits, self.again.needed_bytes_high, again_s) < best_plain)

    def thin(self) -> Recomputing:
        """Values spread by ratio, and the last that fits of either kind."""
        kept = [int(np.flatnonzero(rungs.fits).max(initial=0)) for rungs in (self.plain, self.again)]
        rows = thinned(len(self.plain.values), kept)
        return Recomputing(value=self.value, plain=self.plain.pick(rows), again=self.again.pick(rows))


def _best_within(limits: FloatArray, needed: FloatArray, sample_s: FloatArray) -> FloatArray:
    """Per limit, the fewest seconds per sample among what needs no more; infinite where nothing does."""
    order = np.argsort(needed, kind="stable")
    best = np.concatenate([[math.inf], np.minimum.accumulate(sample_s[order])])
    found: FloatArray = best[np.searchsorted(needed[order], limits, side="right")]
    return found


def checkpointing_pays(case: Case, both: Recomputing, draws: FloatArray) -> tuple[Crossover, Crossover]:
    """Over micro-batches: where checkpointing beats everything that fits without. Over device memory: where it wins."""
    some, point, name = both.thin(), point_factors(case), f"checkpointing={both.value}"
    fits, thin_fits = both.again.fits, some.again.fits
    thin_values = some.again.values[thin_fits].astype(float)
    drawn = [(thin_values, some.pays(factors)[thin_fits]) for factors in draws]
    values = both.again.values[fits].astype(float)
    over_sizes = crossing(name, "micro_batch", values, both.pays(point)[fits], drawn)
    limits, holds = both.pays_in(point)
    ends = np.append(limits[1:], math.inf)
    over_memory = crossing(name, "memory_bytes", limits, holds, [some.pays_in(factors) for factors in draws], ends)
    return over_sizes, over_memory
