"""Coverage: the few extra runs that would narrow an answer's interval most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Fit, Recipe
from simulator.calibrated import beyond, beyond_sd_log, with_measured
from simulator.case import Case
from simulator.components import Choice
from simulator.gain import after, gain
from simulator.outlook import Outlook, memory_limit_bytes, outlook, sizes_of
from simulator.recipes import check
from simulator.results import Extra
from simulator.steptime import covariance, gradient, log_factors, predictive_sd

FloatArray = NDArray[np.float64]
COUNT = 3
REPEAT_SD_LOG = 0.015
"""No run tells a step time better than this: what fresh processes on one GPU differ by."""
SCALES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidates: the answer's own knobs at these shares of its micro-batch, where 0 means one sample."""


class _Rows:
    """Recipes with their gradients, own noise and sd beyond the calibrated range."""

    def __init__(self, case: Case, recipes: Sequence[Recipe]) -> None:
        fit, rates = case.profile.fit, case.profile.rates
        views = [_view(case, recipe) for recipe in recipes]
        seconds = np.concatenate([view.seconds for view in views])
        grad_accum = np.concatenate([view.grad_accum for view in views])
        self.case, self.recipes = case, recipes
        self.fits = np.array([bool(v.memory.peak_bytes_high[0] <= memory_limit_bytes(case)) for v in views])
        self.shares = gradient(seconds, grad_accum, log_factors(fit))
        whole = predictive_sd(seconds, grad_accum, fit, rates) ** 2
        self.noise_variance = np.maximum(whole - self.parameters(covariance(fit, rates)), REPEAT_SD_LOG**2)

    def parameters(self, known: FloatArray) -> FloatArray:
        """Variance of log step time that the log factors leave."""
        variance: FloatArray = np.einsum("ij,jk,ik->i", self.shares, known, self.shares)
        return variance

    def beyond(self, fit: Fit) -> FloatArray:
        """Sd beyond the calibrated range of ``fit``."""
        return np.array([beyond_sd_log(self.case, recipe, fit) for recipe in self.recipes])

    def factor(self, known: FloatArray, fit: Fit) -> float:
        """Mean factor from point to interval end."""
        sd = np.sqrt(self.parameters(known) + self.noise_variance + self.beyond(fit) ** 2)
        return float(np.exp(fit.interval_scale * sd.mean()))


def coverage(case: Case, answer: Sequence[Recipe], count: int = COUNT) -> tuple[Extra, ...]:
    """Up to ``count`` runs on this machine that together narrow the interval of the answer's recipes most, best first.

    Each is chosen by how much variance it takes out of the answer given those before it: of the log factors, and of
    what lies beyond the calibrated range by covering it. Calibration, which is for a whole space, chooses otherwise.
    """
    targets, runs = _Rows(case, answer), _Rows(case, list(dict.fromkeys(_candidates(case, answer))))
    fit, known = case.profile.fit, covariance(case.profile.fit, case.profile.rates)
    noise = np.sqrt(runs.noise_variance)
    chosen: list[Extra] = []
    before, open_ = targets.factor(known, fit), runs.fits.copy()
    while len(chosen) < count and open_.any():
        worth = gain(runs.shares, noise, targets.shares, known) + _closed(case, runs, targets, fit)
        best = int(np.argmax(np.where(open_, worth, -np.inf)))
        open_ &= ~np.array([_alike(runs.recipes[best], recipe) for recipe in runs.recipes])
        closes = tuple(beyond(case, runs.recipes[best], fit))
        known, fit = after(known, runs.shares[best], float(noise[best])), with_measured(fit, case, runs.recipes[best])
        now = targets.factor(known, fit)
        chosen.append(Extra(recipe=runs.recipes[best], factor_before=before, factor=now, closes=closes))
        before = now
    return tuple(chosen)


def _view(case: Case, recipe: Recipe) -> Outlook:
    sizes = sizes_of(case, recipe, np.array([recipe.micro_batch]))
    return outlook(case, Choice.of(recipe), sizes, np.array([float(recipe.grad_accum)]))


def _candidates(case: Case, answer: Sequence[Recipe]) -> Iterator[Recipe]:
    """Runs of one micro-batch a step with the answer's knobs: smaller and larger ones, plain ones too."""
    for recipe in answer:
        alone = replace(recipe, grad_accum=1)
        kinds = [alone, replace(alone, compile="off"), replace(alone, checkpointing="none")]
        for kind in kinds:
            for scale in SCALES:
                sized = replace(kind, micro_batch=max(1, round(scale * recipe.micro_batch)))
                if not check(sized, _free(case)):
                    yield sized


def _alike(one: Recipe, other: Recipe) -> bool:
    """Whether two runs show much the same: equal but for a micro-batch that is less than half as large again."""
    small, large = sorted((one.micro_batch, other.micro_batch))
    return replace(one, micro_batch=1) == replace(other, micro_batch=1) and large < 1.5 * small


def _free(case: Case) -> Case:
    """The case without a global batch: a run for calibration need not make it."""
    return replace(case, run=replace(case.run, global_batch=None))


def _closed(case: Case, runs: _Rows, targets: _Rows, fit: Fit) -> FloatArray:
    """Mean variance beyond the calibrated range that measuring each run takes out of the targets."""
    now = targets.beyond(fit) ** 2
    if not now.any():
        return np.zeros(len(runs.recipes))
    left = [targets.beyond(with_measured(fit, case, recipe)) ** 2 for recipe in runs.recipes]
    reduction: FloatArray = np.mean(now - np.array(left), axis=1)
    return reduction
