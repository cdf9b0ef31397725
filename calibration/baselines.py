"""What people would do without a cost model, on the same rows: the yardsticks of every evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.regret import by_prediction, cells_of, if_ran, regret_scores
from calibration.rows import TimeRows, time_rows
from calibration.scores import errors
from simulator.components import COMPONENTS, group_mask
from simulator.outlook import model_flops
from simulator.techniques.precision import PRECISIONS, product_flops_per_s

if TYPE_CHECKING:
    from calibration.evaluate import Split

FloatArray = NDArray[np.float64]
Baseline = Callable[["Split", TimeRows, TimeRows], FloatArray]


def scores(split: Split, rows: TimeRows) -> dict[str, dict[str, Any]]:
    """Step-time errors and regret of every baseline, fitted on the same rows as the model.

    Without fitted rows only those that need none are scored. A baseline says nothing of memory: which recipes fit is
    known to it by trial.
    """
    fitted = time_rows(split.fitted, split.workloads, split.profile.rates)
    measured = np.exp(rows.log_step)
    every = time_rows((*split.own, *split.scored), split.workloads, split.profile.rates)
    cells = cells_of(every.measurements, split.workloads)
    results = {}
    for name, baseline in BASELINES.items():
        if len(fitted) or name in UNFITTED:
            predicted = baseline(split, fitted, rows)
            regret = regret_scores(cells, by_prediction(baseline(split, fitted, every)), if_ran)
            results[name] = {**errors(predicted, measured), "regret": regret}
    return results


def _ideal_s(split: Split, rows: TimeRows) -> FloatArray:
    """Seconds per step at the data sheet's dense peak: model FLOPs ÷ peak."""
    gpu = split.profile.machine.gpu
    ideal = []
    for record in rows.measurements:
        workload, recipe = split.workloads[record.model], record.recipe
        flops = model_flops(workload, recipe.seq or workload.seq, recipe.decoder_seq or workload.decoder_seq or 0)
        peak = product_flops_per_s(gpu, PRECISIONS[recipe.precision].product) or gpu.fp32_flops_per_s
        ideal.append(flops * recipe.micro_batch * recipe.grad_accum / peak)
    return np.array(ideal)


def constant_mfu(split: Split, fitted: TimeRows, rows: TimeRows) -> FloatArray:
    """One MFU for all: the median of the fitted rows."""
    mfu = np.median(_ideal_s(split, fitted) / np.exp(fitted.log_step))
    return np.asarray(_ideal_s(split, rows) / mfu)


def best_efficiency(split: Split, fitted: TimeRows, rows: TimeRows) -> FloatArray:
    """One MFU for all: the best seen, as a data sheet reader would hope."""
    mfu = np.max(_ideal_s(split, fitted) / np.exp(fitted.log_step))
    return np.asarray(_ideal_s(split, rows) / mfu)


def roofline(split: Split, fitted: TimeRows, rows: TimeRows) -> FloatArray:
    """The traced operations at probed rates, without fit, kernel floor, power limit or host time."""
    plain = np.array([not name.endswith("floor") and name != "power" for name in COMPONENTS])
    gpu = rows.seconds[:, plain & group_mask("gpu")].sum(axis=1) * rows.grad_accum
    return np.asarray(gpu + rows.seconds[:, plain & group_mask("step_gpu")].sum(axis=1))


def _knobs(rows: TimeRows) -> FloatArray:
    """Raw knobs as numbers: sizes on the log, categories one-hot by sorted name."""
    categories = ("model", "precision", "attention", "checkpointing", "optimizer", "compile")
    names = {c: sorted({_value(r, c) for r in rows.measurements}) for c in categories}
    table = []
    for record in rows.measurements:
        recipe = record.recipe
        sizes = [np.log(recipe.micro_batch), np.log(recipe.grad_accum), np.log(recipe.seq or 1)]
        hot = [float(_value(record, c) == name) for c in categories for name in names[c]]
        table.append([*sizes, *hot])
    return np.array(table)


def _value(record: object, category: str) -> str:
    holder = record if category == "model" else record.recipe  # type: ignore[attr-defined]
    return str(getattr(holder, category))


def _both(fitted: TimeRows, rows: TimeRows) -> tuple[FloatArray, FloatArray]:
    """Knobs of both tables over the same categories."""
    joined = TimeRows(
        seconds=np.vstack([fitted.seconds, rows.seconds]),
        grad_accum=np.concatenate([fitted.grad_accum, rows.grad_accum]),
        log_step=np.concatenate([fitted.log_step, rows.log_step]),
        noise=np.concatenate([fitted.noise, rows.noise]),
        sessions=(*fitted.sessions, *rows.sessions),
        measurements=(*fitted.measurements, *rows.measurements),
    )
    knobs = _knobs(joined)
    return knobs[: len(fitted)], knobs[len(fitted) :]


def boosting(split: Split, fitted: TimeRows, rows: TimeRows) -> FloatArray:
    """Gradient boosting of log step time on raw knobs."""
    from sklearn.ensemble import GradientBoostingRegressor

    train, test = _both(fitted, rows)
    model = GradientBoostingRegressor(n_estimators=300, max_depth=3, learning_rate=0.05, random_state=0)
    return np.asarray(np.exp(model.fit(train, fitted.log_step).predict(test)))


def nearest(split: Split, fitted: TimeRows, rows: TimeRows) -> FloatArray:
    """The nearest fitted row by raw knobs, its time scaled by the ratio of model FLOPs."""
    from sklearn.neighbors import KNeighborsRegressor

    train, test = _both(fitted, rows)
    model = KNeighborsRegressor(n_neighbors=1)
    per_flop = model.fit(train, fitted.log_step - np.log(_ideal_s(split, fitted))).predict(test)
    return np.asarray(np.exp(per_flop + np.log(_ideal_s(split, rows))))


BASELINES: dict[str, Baseline] = {
    "constant_mfu": constant_mfu,
    "best_efficiency": best_efficiency,
    "roofline": roofline,
    "gradient_boosting": boosting,
    "nearest_neighbour": nearest,
}
UNFITTED = ("roofline",)
"""Baselines that need no fitted row."""
