"""What to measure next: the run that narrows the predictions most for what it costs.

Two things are unknown beforehand: the log factors of the components, and what the model's form leaves, which is alike
in runs that spend their time alike. Both are Gaussian, so what a run would tell of any other follows exactly. Without
the second, the choice trusts single extreme runs and loses to random rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.candidates import Pool
from calibration.rows import REPEAT_FLOOR_LOG
from calibration.seeds import Alternatives, seed_groups
from profiles.schema import Profile
from simulator.components import group_mask
from simulator.steptime import covariance

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
FORM_SD_LOG, HOST_FORM_SD_LOG = 0.10, 0.20
"""What the model's form leaves in the log of a step time; what comes on top where the host decides."""
FORM_REACH = 0.25
"""Distance between two runs' shares at which what the form leaves hangs together by e^(−1/2)."""
NOISE_SD_LOG, HOST_NOISE_SD_LOG = 0.02, 0.05
"""What one run strays by on its own; what comes on top where the host decides."""
OVERHEAD_S = 100.0
"""Added to every candidate's seconds: a few dear runs teach more than many cheap ones, which are all host-bound."""
SEED_SHARE = 0.08
"""No seed but the compiled one may take more of the budget."""
COMPILE_SHARE = 0.35
"""Compiled shapes are rationed: no more than this share of the budget."""
TARGETS = 400


class Belief:
    """What is believed of the log step times of runs with these shares, before any of them is measured."""

    def __init__(self, shares: FloatArray, factors: FloatArray) -> None:
        host = np.clip(shares[:, group_mask("host")].sum(axis=1), 0.0, 1.0)
        self.shares, self.factors = shares, factors
        self.form = np.hypot(FORM_SD_LOG, HOST_FORM_SD_LOG * host)
        self.noise = np.sqrt(REPEAT_FLOOR_LOG**2 + NOISE_SD_LOG**2 + (HOST_NOISE_SD_LOG * host) ** 2)

    def between(self, some: Sequence[int] | NDArray[np.intp], others: Sequence[int] | NDArray[np.intp]) -> FloatArray:
        """Prior covariance of runs with runs, noise left out."""
        left, right = self.shares[some], self.shares[others]
        apart = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1) - 2.0 * left @ right.T
        alike = np.exp(-np.maximum(apart, 0.0) / (2.0 * FORM_REACH**2))
        joint: FloatArray = left @ self.factors @ right.T + np.outer(self.form[some], self.form[others]) * alike
        return joint

    def variance(self) -> FloatArray:
        """Prior variance of every run, noise left out."""
        own: FloatArray = np.einsum("ij,ij->i", self.shares @ self.factors, self.shares) + self.form**2
        return own


def narrowing(belief: Belief, measured: Sequence[int], targets: Sequence[int] | NDArray[np.intp]) -> FloatArray:
    """Mean reduction of the targets' standard deviations, noise included, by measuring each run after ``measured``.

    Standard deviations and not variances, so that a few unknown recipes do not outweigh the rest.
    """
    every = np.arange(len(belief.shares))
    own, joint = belief.variance(), belief.between(targets, every)
    if measured:
        seen = belief.between(measured, every)
        known = np.linalg.solve(seen[:, measured] + np.diag(belief.noise[measured] ** 2), seen)
        own = own - np.einsum("ij,ij->j", seen, known)
        joint = joint - seen[:, targets].T @ known
    noisy = own + belief.noise**2
    before = noisy[targets][:, None]
    after = np.sqrt(np.maximum(before - joint**2 / noisy, 0.0))
    narrower: FloatArray = np.mean(np.sqrt(before) - after, axis=0)
    return narrower


class Chooser:
    """Chooses the runs of one calibration out of a pool: the seeds, then what narrows most, within the rations.

    Call ``next`` for a run and ``saw`` with what it took; nothing but what real runs tell goes into the choice.
    ``start`` is the profile before the first run. ``overhead_s`` is added to each run's seconds; infinity weighs the
    gain alone. Trials that are ``closed`` are never chosen.
    """

    def __init__(
        self,
        pool: Pool,
        start: Profile,
        *,
        budget_s: float,
        seed: int = 0,
        overhead_s: float = OVERHEAD_S,
        closed: Sequence[int] = (),
    ) -> None:
        self.pool, self.budget_s, self.overhead_s = pool, budget_s, overhead_s
        self.factors = covariance(start.fit, start.rates)
        self.random = np.random.default_rng(seed)
        self.seeds: list[Alternatives] = seed_groups(pool)
        self.compiled = np.array([t.recipe.compile == "on" for t in pool.trials])
        self.open = np.ones(len(pool.trials), dtype=bool)
        self.open[list(closed)] = False
        self.measured: list[int] = []
        self.compile_s = 0.0
        self.slowness: list[float] = []

    def next(self, profile: Profile, left_s: float) -> int | None:
        """The trial to measure with ``left_s`` seconds left, by its place in the pool; ``None`` if none is affordable.

        ``profile`` carries the fit to everything measured so far.
        """
        costs = self.pool.fixed_cost_s * (np.median(self.slowness) if self.slowness else 1.0)
        ration_s = COMPILE_SHARE * self.budget_s - self.compile_s
        allowed = self.open & (costs <= left_s) & (~self.compiled | (costs <= ration_s))
        chosen = self._seed(allowed, costs)
        return self._best(profile, allowed, costs) if chosen is None else chosen

    def saw(self, index: int, took_s: float | None, status: str = "ok") -> None:
        """Told how a chosen run ended and what it took; once memory ran out, nothing that needs as much is tried."""
        expected_s = float(self.pool.fixed_cost_s[index])
        self.open[index] = False
        self.slowness.append(float(np.clip((took_s or expected_s) / expected_s, 0.3, 10.0)))
        if self.compiled[index]:
            self.compile_s += took_s or 0.0
        if status == "ok":
            self.measured.append(index)
        if status == "oom":
            self.open &= self.pool.needed_bytes < self.pool.needed_bytes[index]

    def _seed(self, allowed: BoolArray, costs: FloatArray) -> int | None:
        while self.seeds:
            group = self.seeds.pop(0)
            affordable = [
                i for i in group if allowed[i] and (self.compiled[i] or costs[i] <= SEED_SHARE * self.budget_s)
            ]
            if affordable:
                return affordable[0]
        return None

    def _best(self, profile: Profile, allowed: BoolArray, costs: FloatArray) -> int | None:
        if not allowed.any():
            return None
        belief = Belief(self.pool.shares(profile), self.factors)
        count = len(belief.shares)
        targets = self.random.choice(count, min(TARGETS, count), replace=False)
        weighed = costs + self.overhead_s if np.isfinite(self.overhead_s) else np.ones(count)
        worth = narrowing(belief, self.measured, targets) / weighed
        return int(np.argmax(np.where(allowed, worth, -np.inf)))
