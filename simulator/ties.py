"""Ties: which recipes cannot be told from the best one inside the joint interval of their difference.

Two predictions share most of their error: the same rates and the same host are behind both. With S the covariance of
the log factors and x₁, x₂ the gradients of both log step times, the log of their ratio has the variance
(x₁ − x₂)ᵀ S (x₁ − x₂) plus each one's own noise. Linear in the log factors, which are small.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Recipe
from simulator.calibrated import beyond_sd_log, calibrated_range, size_sd_log
from simulator.case import Case
from simulator.components import COMPONENTS, Choice
from simulator.outlook import seconds_of, sizes_of
from simulator.space import Space
from simulator.steptime import covariance, gradient, log_factors, predictive_sd

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]
TIE_FLOOR_LOG = 0.01
"""Step times closer than this on the log are never told apart: repeats on one device differ by as much."""
CLOSE_LOG = math.log(1.3)
"""Recipes slower than the best by more are looked at only where one about as slow turned out a tie."""
LOOKED_AT = 20_000


def sd_log_of_ratio(case: Case, space: Space, rows: IntArray) -> FloatArray:
    """Standard deviation of log (step time of each row of the space ÷ of the first of these rows); 0 for itself."""
    fit, rates = case.profile.fit, case.profile.rates
    seconds, extra = np.empty((len(rows), len(COMPONENTS))), np.empty(len(rows))
    combination, grad_accum = space.combination[rows], space.grad_accum[rows].astype(float)
    for one in np.unique(combination):
        mine = np.flatnonzero(combination == one)
        recipe, micro_batch = space.combinations[int(one)], space.micro_batch[rows[mine]]
        seconds[mine] = seconds_of(case, Choice.of(recipe), sizes_of(case, recipe, micro_batch))
        extra[mine] = _beyond(case, recipe, micro_batch)
    known, shares = covariance(fit, rates), gradient(seconds, grad_accum, log_factors(fit))
    whole = predictive_sd(seconds, grad_accum, fit, rates) ** 2
    noise = np.maximum(whole - np.einsum("ij,ij->i", shares @ known, shares), 0.0)
    apart = shares - shares[0]
    shared = np.maximum(np.einsum("ij,ij->i", apart @ known, apart), 0.0)
    variance: FloatArray = shared + noise + noise[0] + (extra - extra[0]) ** 2
    variance[0] = 0.0
    sd: FloatArray = np.sqrt(variance)
    return sd


def _beyond(case: Case, recipe: Recipe, micro_batch: NDArray[np.int64]) -> FloatArray:
    """Sd beyond the calibrated range: the combination's own, and what each micro-batch adds."""
    fit = case.profile.fit
    if not fit.measurements:
        return np.zeros(len(micro_batch))
    low, _ = calibrated_range(fit, "micro_batch") or (1.0, 1.0)
    inside = beyond_sd_log(case, replace(recipe, micro_batch=math.ceil(low)))
    return inside + size_sd_log(fit, "micro_batch", micro_batch)


def tied(case: Case, space: Space, sample_s: FloatArray, order: IntArray) -> BoolArray:
    """Which of the ranked recipes are ties of the first: their 90 % joint interval holds a ratio of 1.

    ``order`` are rows of the space by rising ``sample_s``. Rows far behind are not looked at while none in the outer
    half of those near is a tie, nor any after the first ``LOOKED_AT``.
    """
    near = order[:LOOKED_AT]
    behind = np.log(sample_s[near] / sample_s[near[0]])
    scale, reach, mask = case.profile.fit.interval_scale, CLOSE_LOG, np.zeros(len(order), dtype=bool)
    while True:
        end = int(np.searchsorted(behind, reach, side="right"))
        width = np.maximum(TIE_FLOOR_LOG, scale * sd_log_of_ratio(case, space, near[:end]))
        mask[:end] = behind[:end] <= width
        if end == len(near) or not mask[np.searchsorted(behind, reach / 2) : end].any():
            return mask
        reach *= 2
