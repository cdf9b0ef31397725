"""Regret: the throughput of the recipe that a predictor picks ÷ that of the best one, over recipes that really ran.

A *cell* holds the recipes that are alternatives: equal model, machine, lengths and global batch, so throughput goes as
1 / step time. A pick that ran out of memory has no throughput; after verifying three it costs one of the three.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.rows import TimeRows, ranks_of
from profiles.files import to_plain
from profiles.schema import Measurement, Recipe, Workload

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
CELL_LEAST = 3
"""Recipes that ran which make a cell worth scoring."""
VERIFIED = 3
TIE = 1e-9
"""Predictions closer than this fraction are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One recipe of a cell: its places among the records and its median step time; ``None`` if it never ran."""

    recipe: Recipe
    places: tuple[int, ...]
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Recipes that are alternatives. ``seq`` and ``decoder_seq`` are ``None`` where the model fixes them."""

    model: str
    machine: str
    seq: int | None
    decoder_seq: int | None
    global_batch: int
    candidates: tuple[Candidate, ...]

    @property
    def ran(self) -> BoolArray:
        """Which candidates ran at least once."""
        return np.array([c.step_s is not None for c in self.candidates])

    @property
    def kept_share(self) -> FloatArray:
        """Each candidate's throughput ÷ that of the best; 0 for those that never ran."""
        best = min(c.step_s for c in self.candidates if c.step_s is not None)
        return np.array([0.0 if c.step_s is None else best / c.step_s for c in self.candidates])


Regret = dict[str, Any]
Ranking = Callable[[Cell], FloatArray]
"""Per candidate a number, the lowest first: predicted seconds, or a place in a list."""
Admission = Callable[[Cell], BoolArray]
"""Which candidates may be picked."""


def cells_of(records: Sequence[Measurement], workloads: Mapping[str, Workload]) -> tuple[Cell, ...]:
    """The cells of ``decided`` records with at least ``CELL_LEAST`` recipes that ran, in order of first appearance."""
    grouped: dict[tuple[object, ...], dict[Recipe, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, record in enumerate(records):
        recipe = _own_lengths(record.recipe, workloads.get(record.model))
        batch = recipe.micro_batch * recipe.grad_accum * ranks_of(record.machine)
        grouped[record.model, record.machine, recipe.seq, recipe.decoder_seq, batch][recipe].append(place)
    cells = (_cell(records, list(recipes.values()), workloads) for recipes in grouped.values())
    return tuple(cell for cell in cells if cell.ran.sum() >= CELL_LEAST)


def _own_lengths(recipe: Recipe, workload: Workload | None) -> Recipe:
    """The recipe with the lengths that it leaves to the model; as it is where the model is unknown."""
    if workload is None:
        return recipe
    if workload.fixed_seq:
        return replace(recipe, seq=None, decoder_seq=None)
    decoder = None if workload.decoder_seq is None else recipe.decoder_seq or recipe.seq or workload.decoder_seq
    return replace(recipe, seq=recipe.seq or workload.seq, decoder_seq=decoder)


def _cell(records: Sequence[Measurement], places: Sequence[Sequence[int]], workloads: Mapping[str, Workload]) -> Cell:
    first = records[places[0][0]]
    recipe = _own_lengths(first.recipe, workloads.get(first.model))
    return Cell(
        model=first.model,
        machine=first.machine,
        seq=recipe.seq,
        decoder_seq=recipe.decoder_seq,
        global_batch=recipe.micro_batch * recipe.grad_accum * ranks_of(first.machine),
        candidates=tuple(_candidate([records[i] for i in own], own, workloads) for own in places),
    )


def _candidate(runs: Sequence[Measurement], places: Sequence[int], workloads: Mapping[str, Workload]) -> Candidate:
    times = [r.step_s for r in runs if r.status == "ok" and r.step_s]
    return Candidate(
        recipe=_own_lengths(runs[0].recipe, workloads.get(runs[0].model)),
        places=tuple(places),
        step_s=float(np.median(times)) if times else None,
    )


# ---------------------------------------------------------------------------------------------------- scores


def by_prediction(predicted_s: FloatArray) -> Ranking:
    """Ranks by predicted seconds, one a record; a recipe with several records counts with the median."""
    return lambda cell: np.array([np.median(predicted_s[list(c.places)]) for c in cell.candidates])


def if_called_fitting(fits: BoolArray) -> Admission:
    """Admits recipes that the model calls fitting, one verdict a record; of several the first."""
    return lambda cell: np.array([fits[c.places[0]] for c in cell.candidates])


def if_ran(cell: Cell) -> BoolArray:
    """Admits recipes that ran: what fits is known by trial."""
    return cell.ran


def regret_scores(cells: Sequence[Cell], ranking: Ranking, admission: Admission) -> Regret:
    """Kept share of the best throughput by the first pick and by the best measured of the first ``VERIFIED``.

    Mean and worst over the cells, each of which is told in ``cells_detail``. Ties are broken at random: their score is
    the exact expectation.
    """
    details = [_detail(cell, ranking(cell), admission(cell)) for cell in cells]
    told: Regret = {"cells": len(details)}
    for name in ("top1", "top3"):
        kept = [float(detail[name]) for detail in details]
        told |= {name: float(np.mean(kept)) if kept else None, f"{name}_worst": min(kept, default=None)}
    return {**told, "cells_detail": details}


def _detail(cell: Cell, rank: FloatArray, admitted: BoolArray) -> Regret:
    share, ran = cell.kept_share, cell.ran
    order = [i for i in np.argsort(rank, kind="stable").tolist() if admitted[i]]
    verified = max(order[:VERIFIED], key=lambda i: float(share[i]), default=None)
    return {
        "model": cell.model,
        "machine": cell.machine,
        "seq": cell.seq,
        "decoder_seq": cell.decoder_seq,
        "global_batch": cell.global_batch,
        "recipes": len(cell.candidates),
        "ran": int(ran.sum()),
        "top1": expected_best(share, rank, admitted, 1),
        "top3": expected_best(share, rank, admitted, VERIFIED),
        "pick": _told(cell, order[0]) if order else None,
        "pick_verified": None if verified is None else _told(cell, verified),
        "optimum": _told(cell, int(np.argmax(share))),
    }


def _told(cell: Cell, index: int) -> Regret:
    candidate = cell.candidates[index]
    return {
        "recipe": to_plain(candidate.recipe),
        "status": "oom" if candidate.step_s is None else "ok",
        "step_s": candidate.step_s,
    }


def expected_best(share: FloatArray, rank: FloatArray, admitted: BoolArray, count: int) -> float:
    """The expected largest ``share`` among the ``count`` admitted ones that rank first, ties broken at random.

    0 where nothing is admitted.
    """
    values, keys = share[admitted], rank[admitted]
    taken = min(count, len(keys))
    if not taken:
        return 0.0
    cut = np.sort(keys)[taken - 1]
    tied = np.abs(keys - cut) <= TIE * np.abs(cut)
    sure = ~tied & (keys < cut)
    return _expected_largest(values[tied], taken - int(sure.sum()), float(values[sure].max(initial=0.0)))


def _expected_largest(values: FloatArray, drawn: int, least: float) -> float:
    """Expectation of max(``least``, largest of ``drawn`` values taken without replacement).

    The i-th smallest (from 0) of n values is the largest drawn in C(i, drawn − 1) of C(n, drawn) ways.
    """
    ways = [math.comb(i, drawn - 1) for i in range(len(values))]
    sums = sum(w * max(float(v), least) for w, v in zip(ways, np.sort(values), strict=True))
    return sums / math.comb(len(values), drawn)


def regret(rows: TimeRows, predicted_s: FloatArray, workloads: Mapping[str, Workload] | None = None) -> Regret:
    """``regret_scores`` over rows that all ran and are all taken to fit."""
    return regret_scores(cells_of(rows.measurements, workloads or {}), by_prediction(predicted_s), if_ran)
