"""Plan: every legal recipe of a case scored, the best few explained, and why the others lost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InfeasibleError, InvalidInputError
from profiles.schema import Recipe
from simulator import money
from simulator.case import Case
from simulator.components import Choice
from simulator.coverage import coverage
from simulator.outlook import memory_limit_bytes, outlook, prediction, ran_out, same_recipe, sizes_of
from simulator.recipes import check, complete, format_recipe, parse_recipe
from simulator.results import Plan, Prediction
from simulator.space import Space, enumerate_space
from simulator.ties import TIE_FLOOR_LOG, tied
from simulator.units import GIB

FloatArray = NDArray[np.float64]
COVERED = 5
"""The coverage of a plan is for this many of its best recipes."""
RIVAL = 3.0
"""Recipes that need more than this many times the device's memory are no rivals worth naming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One row a recipe of the space. ``sample_s`` is seconds per sample over all ranks, what recipes compete on."""

    step_s: FloatArray
    sample_s: FloatArray
    peak_bytes_high: FloatArray
    fits: NDArray[np.bool_]


def predict(case: Case, recipe: Recipe) -> Prediction:
    """Time, money and memory of one recipe; one that does not fit is an answer too (``fits`` is false).

    Raises:
        InvalidInputError: the recipe breaks rules; all of them, each with the nearest legal alternative.
    """
    refusals = check(recipe, case)
    if refusals:
        raise InvalidInputError(f"recipe {format_recipe(recipe)}", [str(r) for r in refusals])
    return prediction(case, recipe)


def score(case: Case, space: Space) -> Scores:
    """Step time and memory of every recipe of the space."""
    step = np.empty(len(space))
    high = np.empty(len(space))
    proven = np.zeros(len(space), dtype=bool)
    for index, recipe in enumerate(space.combinations):
        block = space.block(index)
        micro_batch = space.micro_batch[block]
        view = outlook(
            case, Choice.of(recipe), sizes_of(case, recipe, micro_batch), space.grad_accum[block].astype(float)
        )
        step[block], high[block] = view.times.step_s, view.memory.peak_bytes_high
        smallest = ran_out(case, recipe)
        if smallest is not None:
            proven[block] = micro_batch >= smallest
    batch = space.micro_batch * space.grad_accum * case.ranks
    return Scores(
        step_s=step, sample_s=step / batch, peak_bytes_high=high, fits=(high <= memory_limit_bytes(case)) & ~proven
    )


def plan(case: Case, top: int = 10) -> Plan:
    """The whole space, ranked by seconds per sample; ``top`` recipes in full.

    Recipes that cannot be told from the best one are ties; among them those verified by a real run come first.

    Raises:
        InvalidInputError: fixed knobs or the global batch leave nothing legal.
        InfeasibleError: nothing fits, or nothing keeps the limits; names the constraint and the nearest way out.
    """
    case = replace(case, fixed=parse_recipe(case.fixed))
    space = enumerate_space(case)
    scores = score(case, space)
    within, exceeded = _within_budget(case, space, scores)
    feasible = np.flatnonzero(scores.fits & within)
    if not len(feasible):
        raise _infeasible(case, space, scores, exceeded)
    order = feasible[np.argsort(scores.sample_s[feasible], kind="stable")]
    ties = tied(case, space, scores.sample_s, order)
    order, ties = _verified_first(case, space, order, ties)
    chosen = tuple(prediction(case, space.recipe(int(i))) for i in order[: max(top, 1)])
    return Plan(
        recipes=chosen[:top],
        best=chosen[0],
        median=prediction(case, space.recipe(int(order[len(order) // 2]))),
        worst=prediction(case, space.recipe(int(order[-1]))),
        naive=_naive(case, space, scores),
        space_size=len(space),
        feasible=len(feasible),
        oom=int(np.sum(~scores.fits)),
        over_budget=int(np.sum(scores.fits & ~within)),
        refused=dict(space.refused),
        infeasible={"memory": int(np.sum(~scores.fits)), **exceeded},
        ties=int(np.sum(ties)),
        tied=tuple(ties[:top].tolist()),
        coverage=coverage(case, [one.recipe for one in chosen[:COVERED]]),
        reasons=_reasons(case, chosen, space, scores),
    )


def _within_budget(case: Case, space: Space, scores: Scores) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which recipes keep the limits, and how many break each."""
    within = np.ones(len(space), dtype=bool)
    exceeded: dict[str, int] = {}
    totals = _totals(case, space, scores)
    for name, (limit, value) in totals.items():
        over = value > limit
        exceeded[name] = int(np.sum(over))
        within &= ~over
    return within, exceeded


def _totals(case: Case, space: Space, scores: Scores) -> dict[str, tuple[float, FloatArray]]:
    """Per given limit: the limit and every recipe's total.

    Raises:
        InvalidInputError: a limit without a run length, dollars without a price, or energy without its figures.
    """
    run = case.run
    if run.max_days is None and run.max_usd is None and run.max_kwh is None:
        return {}
    batch: FloatArray = (space.micro_batch * space.grad_accum * case.ranks).astype(np.float64)
    positions: FloatArray = np.array([case.positions(r) for r in space.combinations], dtype=float)[space.combination]
    steps = money.total_steps(run, batch, positions)
    problems = [] if steps is not None else ["a limit needs the run's length; give --tokens, --samples or --steps"]
    if run.max_usd is not None and (case.price is None or case.price.rent_usd_per_gpu_h is None):
        problems.append(f"no rent price is known for {case.machine.gpu.name}; give --price USD per GPU-hour")
    if run.max_kwh is not None and case.energy is None:
        problems.append("max_kwh needs figures of the energy that host and cooling take, and the case has none")
    if problems or steps is None:
        raise InvalidInputError("limits", problems)
    days = money.run_days(steps, scores.step_s)
    hours = money.gpu_hours(days, case.ranks)
    totals: dict[str, tuple[float, FloatArray]] = {}
    if run.max_days is not None:
        totals["max_days"] = (run.max_days, days)
    if run.max_usd is not None and case.price and case.price.rent_usd_per_gpu_h is not None:
        totals["max_usd"] = (run.max_usd, money.rent_usd(hours, case.price.rent_usd_per_gpu_h))
    if run.max_kwh is not None and case.energy:
        totals["max_kwh"] = (run.max_kwh, money.energy_kwh(hours, money.gpu_power_w(case), case.energy))
    return totals


def _infeasible(case: Case, space: Space, scores: Scores, exceeded: dict[str, int]) -> InfeasibleError:
    smallest = int(np.argmin(scores.peak_bytes_high))
    limit = memory_limit_bytes(case)
    if not scores.fits.any():
        need = scores.peak_bytes_high[smallest] / GIB
        return InfeasibleError(
            f"nothing fits: {case.workload.name} needs {need:.1f} GiB on {case.machine.name} even with "
            f"{format_recipe(space.recipe(smallest))}, and the device has {limit / GIB:.1f} GiB.\n"
            f"Cheapest way out: a GPU with at least {math.ceil(need)} GiB, or a shorter --seq."
        )
    lines = [f"nothing keeps the limits ({', '.join(f'{k} refuses {v:,}' for k, v in exceeded.items())})."]
    fitting = np.flatnonzero(scores.fits)
    best = prediction(case, space.recipe(int(fitting[np.argmin(scores.sample_s[fitting])])))
    money_ = "" if best.usd is None else f", ${best.usd:,.0f}"
    energy_ = "" if best.kwh is None else f", {best.kwh:,.0f} kWh"
    lines.append(
        f"Cheapest way out: the fastest that fits, {format_recipe(best.recipe)}, "
        f"takes {best.days:.1f} days{money_}{energy_}."
    )
    return InfeasibleError("\n".join(lines))


def _verified_first(
    case: Case, space: Space, order: NDArray[np.intp], ties: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The order and its ties with ties that a real run verified in front; all others stay as they stand."""
    if not case.profile.verified:
        return order, ties
    verified = np.zeros(len(order), dtype=bool)
    for place in np.flatnonzero(ties):
        verified[place] = _is_verified(case, space.recipe(int(order[place])))
    places = np.argsort(~verified, kind="stable")
    return order[places], ties[places]


def _is_verified(case: Case, recipe: Recipe) -> bool:
    return any(same_recipe(case, record, recipe) for record in case.profile.verified)


def _naive(case: Case, space: Space, scores: Scores) -> Prediction | None:
    """The default recipe at the largest power-of-two micro-batch that fits."""
    base = complete({}, replace(case, fixed={k: v for k, v in case.fixed.items() if k != "micro_batch"}))
    for index, combination in enumerate(space.combinations):
        if Choice.of(combination) != Choice.of(base):
            continue
        block = space.block(index)
        sizes = space.micro_batch[block]
        rows = np.flatnonzero(scores.fits[block] & (sizes & (sizes - 1) == 0))
        if len(rows):
            return prediction(case, space.recipe(block.start + int(rows[-1])))
    return None


def _reasons(case: Case, chosen: tuple[Prediction, ...], space: Space, scores: Scores) -> tuple[str, ...]:
    """In words: what the winner spends its time on, and what the fastest recipe that does not fit lacked."""
    best = chosen[0]
    spent = sorted(((v, k) for k, v in best.time_breakdown_s.items() if k != "overlap"), reverse=True)[:3]
    lines = ["time goes to " + ", ".join(f"{k} {v / best.step_s:.0%}" for v, k in spent)]
    lost = np.flatnonzero(~scores.fits & (scores.peak_bytes_high < RIVAL * memory_limit_bytes(case)))
    if len(lost):
        fastest = int(lost[np.argmin(scores.sample_s[lost])])
        gain = best.step_s / best.global_batch / float(scores.sample_s[fastest])
        if gain > 1.0 + TIE_FLOOR_LOG:
            lines.append(
                f"{format_recipe(space.recipe(fastest))} would be {gain - 1:.1%} faster but needs up to "
                f"{scores.peak_bytes_high[fastest] / GIB:.1f} of {memory_limit_bytes(case) / GIB:.1f} GiB"
            )
    return tuple(lines)
