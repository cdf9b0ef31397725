"""Ablations: the evaluation again with one ingredient of the model taken out, on the same rows.

An ingredient is taken out before the fit, so that the others may make up for it: a component by a prior that pins its
factor at nothing, a property of the rates by its neutral value. One more ablation is one more line in ``ABLATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibration.fit import fit_profile
from calibration.rows import time_rows
from calibration.scores import Score, predict_rows, time_scores
from profiles.records import measurement_identity
from profiles.schema import Correction, Fit, Measurement, Rate
from simulator.components import COMPONENTS
from simulator.rates import datasheet_rates
from simulator.steptime import covariance, log_factors

if TYPE_CHECKING:
    from calibration.evaluate import Split

FloatArray = NDArray[np.float64]
Ablation = Callable[["Split"], Sequence["Split"]]
"""The splits to evaluate in place of the given one, their scores averaged; none where there is nothing to take out."""
GONE_LOG = -60.0
"""A factor of e^−60 leaves nothing of a component."""
LOOSE_SD_LOG = 3.0
"""A prior this wide, a factor of 20 either way, shrinks next to nothing; wider ones keep Gauss-Newton from settling."""


def ablations(split: Split) -> tuple[dict[str, Score | None], tuple[str, ...]]:
    """Step-time scores by ablation, ``None`` where it does not apply, and a line for each that does not."""
    told: dict[str, Score | None] = {}
    problems = []
    for name, ablation in ABLATIONS.items():
        scores = [score for one in ablation(split) if (score := _compared(one, split)) is not None]
        told[name] = _mean(scores) if scores else None
        if not scores:
            problems.append(f"ablation {name} skipped: {_NEEDS.get(name, 'no row is left to score')}")
    return told, tuple(problems)


def _compared(ablated: Split, split: Split) -> Score | None:
    """The ablated scores; where not all rows are left to score, with the intact model's error on those that are."""
    score = _scores(ablated)
    if score is None or len(ablated.scored) == len(split.scored):
        return score
    intact = _scores(replace(split, scored=ablated.scored))
    return None if intact is None else {**score, "mape_intact": intact["mape"]}


def _scores(split: Split) -> Score | None:
    rates, start = split.profile.rates, split.profile.fit
    rows = time_rows(split.scored, split.workloads, rates)
    if not len(rows):
        return None
    fit = fit_profile(split.fitted, split.workloads, rates, start=start) if split.fitted else start
    return time_scores(rows, *predict_rows(rows, fit, split.profile, split.workloads), fit)


def _mean(scores: Sequence[Score]) -> Score:
    """The mean of every score; whole numbers stay whole where all are equal."""
    if len(scores) == 1:
        return scores[0]
    return {name: float(np.mean([one[name] for one in scores])) for name in scores[0]} | {"draws": len(scores)}


# --------------------------------------------------------------------------------------------------- the prior


def _with(split: Split, *, rates: Mapping[str, Rate] | None = None, fit: Fit | None = None) -> Split:
    profile = split.profile
    return replace(split, profile=replace(profile, rates=dict(rates or profile.rates), fit=fit or profile.fit))


def _prior(split: Split, change: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]) -> Split:
    """The split with another prior of the log factors; ``change`` maps its mean and covariance to new ones."""
    start, rates = split.profile.fit, split.profile.rates
    mean, spread = change(log_factors(start), covariance(start, rates))
    told = tuple(
        Correction(component=name, log_factor=float(mean[i]), identified=False) for i, name in enumerate(COMPONENTS)
    )
    rows = tuple(tuple(float(x) for x in row) for row in spread)
    return _with(split, fit=replace(start, corrections=told, covariance=rows))


def _without(split: Split, *starts: str) -> Split:
    """The split without the components whose names start with one of ``starts``."""
    gone = np.array([name.startswith(starts) for name in COMPONENTS])

    def pin(mean: FloatArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.where(gone, GONE_LOG, mean), np.where(gone[:, None] | gone[None, :], 0.0, spread)

    return _prior(split, pin)


def _rates_at(split: Split, value: float, *parts: str) -> Split:
    """The split with every rate whose name has one of ``parts`` in it at ``value``."""
    named = [name for name in split.profile.rates if any(part in name for part in parts)]
    changed = {name: replace(split.profile.rates[name], value=value) for name in named}
    return _with(split, rates={**split.profile.rates, **changed})


# ----------------------------------------------------------------------------------------------- the ablations


def no_fit(split: Split) -> Sequence[Split]:
    """No real step: the prior alone."""
    return [replace(split, fitted=())] if split.fitted else []


def no_probes(split: Split) -> Sequence[Split]:
    """The data sheet's rates in place of probes, and no earlier fit, which would be of the probes' rates."""
    return [_with(split, rates=datasheet_rates(split.profile.machine.gpu), fit=Fit())]


def no_launch(split: Split) -> Sequence[Split]:
    """No cost per operation: neither the host's dispatch nor the floor of a kernel."""
    return [_without(split, "dispatch.", "optimizer_dispatch.", "compiled.dispatch", "floor", "compiled.floor",
                     "optimizer.floor")]  # fmt: skip


def no_host(split: Split) -> Sequence[Split]:
    """The host is never what a step waits for."""
    return [_without(split, "dispatch.", "optimizer_dispatch.", "compiled.dispatch")]


def no_shrinkage(split: Split) -> Sequence[Split]:
    """Least squares on relative errors alone: factors are drawn to no prior, only their starting values are kept."""
    if not split.fitted:
        return []
    return [_prior(split, lambda mean, spread: (mean, np.eye(len(mean)) * LOOSE_SD_LOG**2))]


def no_adaptive_choice(split: Split) -> Sequence[Split]:
    """As many rows drawn at random in place of the chosen ones; scored on the same rows less the drawn recipes.

    ``mape_intact`` is the chosen rows' error on what each draw leaves.
    """
    return [_refitted(split, drawn) for drawn in split.alternatives]


def _refitted(split: Split, fitted: tuple[Measurement, ...]) -> Split:
    seen = {measurement_identity(record) for record in fitted}
    return replace(split, fitted=fitted, scored=tuple(r for r in split.scored if measurement_identity(r) not in seen))


def no_power(split: Split) -> Sequence[Split]:
    """Clocks never fall under sustained load."""
    return [_without(split, "power")]


def no_attention_tail(split: Split) -> Sequence[Split]:
    """Causal attention computes exactly half of the keys at every length."""
    return [_rates_at(split, 0.0, "_tail")]


def no_padding(split: Split) -> Sequence[Split]:
    """Products with an unaligned leading dimension cost what aligned ones do."""
    return [_rates_at(split, 1.0, "_odd_factor_", "_even_factor_")]


def no_shapes(split: Split) -> Sequence[Split]:
    """Products run at one rate whatever their shape."""
    return [_rates_at(split, 0.0, "_half_k", "_half_tiles")]


def no_sessions(split: Split) -> Sequence[Split]:
    """One speed of the host for all sessions."""

    def alike(records: Sequence[Measurement]) -> tuple[Measurement, ...]:
        return tuple(replace(record, session=None) for record in records)

    one = replace(split, fitted=alike(split.fitted), scored=alike(split.scored))
    return [_with(one, fit=replace(split.profile.fit, host_sessions={}))]


ABLATIONS: dict[str, Ablation] = {
    "no_fit": no_fit,
    "no_probes": no_probes,
    "no_launch": no_launch,
    "no_host": no_host,
    "no_shrinkage": no_shrinkage,
    "no_adaptive_choice": no_adaptive_choice,
    "no_power": no_power,
    "no_attention_tail": no_attention_tail,
    "no_padding": no_padding,
    "no_shapes": no_shapes,
    "no_sessions": no_sessions,
}
_NEEDS = {
    "no_fit": "nothing was fitted",
    "no_shrinkage": "nothing was fitted",
    "no_adaptive_choice": "the fitted rows were not chosen from the table; give --calibrate N --choose adaptive",
}
