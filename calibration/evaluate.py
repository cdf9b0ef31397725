"""Evaluate: fit on a sparse part of a table, predict the rest, score; or score a profile as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration import ablation, closed_form, rules
from calibration import baselines as simple
from calibration.fit import fit_profile
from calibration.gate import gated
from calibration.regret import Cell, by_prediction, cells_of, if_called_fitting, regret, regret_scores
from calibration.repeats import CLASSES, repeat_class, repeat_noise, repeats_of
from calibration.rows import TimeRows, time_rows, usable
from calibration.scores import (
    by_knob,
    host_bound,
    memory_scores,
    part,
    predict_rows,
    predict_steps,
    reserved_scores,
    time_scores,
)
from calibration.tables import Row, Table, read_table
from calibration.verdicts import decided, limit_bytes, oom_scores, verdicts_of
from profiles.errors import InvalidInputError
from profiles.records import measurement_identity
from profiles.schema import Fit, Measurement, Profile, Workload
from simulator.rates import datasheet_profile, datasheet_rates

__all__ = ["Split", "evaluate", "predict_rows", "regret", "starting_profile", "time_scores", "workloads_of"]

PRIORS = ("profile", "probes", "datasheet")
AT_RANDOM = "random"
DRAWS = 5
"""Random choices that an adaptive one is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Records to fit on and records to score, with the workloads of both and the profile the fit starts from.

    ``own`` are the fitted rows that were chosen from the table itself: nothing is scored on them, but a recipe among
    them can be picked, and be the best. ``alternatives``: as many drawn from the table at random, several times.
    """

    fitted: tuple[Measurement, ...]
    scored: tuple[Measurement, ...]
    workloads: Mapping[str, Workload]
    profile: Profile
    problems: tuple[str, ...] = ()
    own: tuple[Measurement, ...] = ()
    alternatives: tuple[tuple[Measurement, ...], ...] = ()


def evaluate(
    table: Path,
    *,
    calibrate_on: Path | Sequence[Path] | None = None,
    calibrate: int = 0,
    seed: int = 0,
    choose: str = AT_RANDOM,
    prior: str = "profile",
    baselines: bool = False,
    ablate: bool = False,
    repeats: Sequence[Path] = (),
) -> dict[str, object]:
    """The scores of a table, in the shape of the command's JSON.

    ``calibrate_on`` fits on other files, ``calibrate`` on that many rows of the table (out-of-memory rows count), drawn
    with ``seed`` or picked by the policy ``choose``; without either the profile is scored as it is. Recipes that were
    fitted are not scored. ``repeats`` are files with further runs of the same recipes, for the noise floor.

    Raises:
        InvalidInputError: no such prior or policy, a table that cannot be read, or nothing left to score.
    """
    _check(calibrate, prior, choose)
    split = _split(table, calibrate_on, calibrate, seed, choose, prior)
    if not any(record.status == "ok" and record.step_s for record in split.scored):
        raise InvalidInputError(f"table {table}", ["no row that ran is left to score", *split.problems])
    again = [row.measurement for path in repeats for row in read_table(path).rows]
    split = replace(split, problems=(*split.problems, *_seen_before(split)))
    told = score_split(split, again=again, baselines=baselines, ablate=ablate)
    return {"table": str(table.name), "prior": prior, **told}


def _seen_before(split: Split) -> Iterator[str]:
    """How many rows to score the starting profile was fitted to itself; nothing where it starts without a fit."""
    if not split.profile.fit.measurements:
        return
    from calibration.calibrate import journal_path, known_records

    known = set(known_records(split.profile, journal_path(split.profile.machine.name)))
    seen = sum(record in known for record in split.scored)
    if seen:
        yield (
            f"{seen} of {len(split.scored)} scored rows are records that the profile of {split.profile.machine.name} "
            "was fitted to: these are no predictions; --prior probes starts without that fit"
        )


def fit_of(split: Split) -> Fit:
    """The fit to the rows that are for it; where there are none, the one that the profile starts with."""
    start = split.profile.fit
    if not split.fitted:
        return start
    return fit_profile(split.fitted, split.workloads, split.profile.rates, start=start)


def score_split(
    split: Split, *, again: Sequence[Measurement] = (), baselines: bool = False, ablate: bool = False
) -> dict[str, object]:
    """Every score of a split, of which at least one row to score ran; ``again`` are repeats of its recipes."""
    fit = fit_of(split)
    rows = time_rows(split.scored, split.workloads, split.profile.rates)
    ablated, skipped = ablation.ablations(split) if ablate else (None, ())
    return {
        "fitted": len(split.fitted),
        "scored": len(split.scored),
        **_time(rows, split, fit, again),
        **_memory_and_choice(split, fit),
        **({"leave_one_model_out": leave_one_model_out(split)} if len({r.model for r in split.fitted}) > 1 else {}),
        **_baselines(split, rows, baselines),
        "ablations": ablated,
        "problems": [*split.problems, *skipped],
    }


def _time(rows: TimeRows, split: Split, fit: Fit, again: Sequence[Measurement]) -> dict[str, object]:
    """Step-time scores of all rows, by what bounds them, by how well they repeat, and by knob."""
    predicted, sd = predict_rows(rows, fit, split.profile, split.workloads)
    bound = host_bound(rows, fit)
    known = repeats_of([*split.fitted, *split.scored, *again])
    own = np.array([repeat_class(record, known) for record in rows.measurements])
    return {
        "step_time": time_scores(rows, predicted, sd, fit),
        "step_time_gpu_bound": part(rows, predicted, sd, fit, ~bound),
        "step_time_host_bound": part(rows, predicted, sd, fit, bound),
        **{f"step_time_{name}": part(rows, predicted, sd, fit, own == name) for name in CLASSES},
        "repeat_noise": repeat_noise(known),
        "by": by_knob(rows, split.workloads, predicted, sd, fit),
    }


def _memory_and_choice(split: Split, fit: Fit) -> dict[str, object]:
    """Scores of memory, of the verdicts, and of the recipes picked by both models together."""
    profile = replace(split.profile, fit=fit)
    scored, known = decided(split.scored), recipes_of(split)
    everything = verdicts_of(known, split.workloads, profile)
    ranking = by_prediction(predict_steps(known, split.workloads, profile))
    return {
        "memory": memory_scores(split.scored, split.workloads, fit),
        "memory_reserved": reserved_scores(split.scored, split.workloads, fit, limit_bytes(profile)),
        "oom": oom_scores(verdicts_of(scored, split.workloads, profile)),
        "regret": regret_scores(cells_of(known, split.workloads), ranking, if_called_fitting(everything.fits)),
    }


def recipes_of(split: Split) -> list[Measurement]:
    """The table's records that say whether their recipe fits, fitted ones too: what a choice is made among."""
    return decided((*split.own, *split.scored))


def _baselines(split: Split, rows: TimeRows, wanted: bool) -> dict[str, object]:
    """Scores of the yardsticks on the same rows: of time, of choice without a time, and of memory."""
    if not wanted:
        return dict.fromkeys(("baselines", "choice_baselines", "memory_baselines"))
    cells: tuple[Cell, ...] = cells_of(recipes_of(split), split.workloads)
    closed = closed_form.closed_form_scores(split.scored, split.workloads, split.profile)
    return {
        "baselines": simple.scores(split, rows),
        "choice_baselines": rules.rule_scores(cells),
        "memory_baselines": {"closed_form": closed},
    }


def _check(calibrate: int, prior: str, choose: str) -> None:
    from calibration.policies import POLICIES

    problems = []
    if prior not in PRIORS:
        problems.append(f"prior={prior} is not allowed; allowed: {', '.join(PRIORS)}")
    if calibrate < 0:
        problems.append(f"calibrate={calibrate} is not allowed; allowed: 0 and more")
    if choose not in POLICIES:
        problems.append(f"choose={choose} is not allowed; allowed: {', '.join(POLICIES)}")
    if problems:
        raise InvalidInputError("evaluate", problems)


def _split(
    table: Path, calibrate_on: Path | Sequence[Path] | None, calibrate: int, seed: int, choose: str, prior: str
) -> Split:
    read = read_table(table)
    files = [calibrate_on] if isinstance(calibrate_on, Path) else list(calibrate_on or ())
    others = [read_table(path) for path in files]
    if not read.rows:
        raise InvalidInputError(f"table {table}", ["no row can be used", *read.problems])
    all_rows = [row for one in (*others, read) for row in one.rows]
    profile = starting_profile(_one_machine(table, all_rows), prior)
    workloads = workloads_of(all_rows)
    problems = [problem for one in (read, *others) for problem in one.problems]
    own, outside = _kept([read], workloads, profile, problems), _kept(others, workloads, profile, problems)
    split = split_records(own, workloads, profile, calibrate, seed=seed, choose=choose, outside=outside)
    return replace(split, problems=(*problems, *split.problems))


def split_records(
    records: Sequence[Measurement],
    workloads: Mapping[str, Workload],
    profile: Profile,
    calibrate: int,
    *,
    seed: int = 0,
    choose: str = AT_RANDOM,
    outside: Sequence[Measurement] = (),
) -> Split:
    """Records of one table split into ``calibrate`` chosen ones and the rest; ``outside`` are fitted as well.

    Recipes that are fitted are not scored, whichever record they come from.
    """
    chosen = _choices(records, workloads, profile, calibrate, seed, choose)
    scored, repeated = _unseen(records, chosen[0], outside)
    problem = f"{repeated} rows are of recipes that were fitted and are not scored"
    return Split(
        fitted=(*outside, *chosen[0]),
        scored=scored,
        workloads=workloads,
        profile=profile,
        problems=(problem,) if repeated else (),
        own=chosen[0],
        alternatives=tuple((*outside, *drawn) for drawn in chosen[1:]),
    )


def _kept(
    tables: Sequence[Table], workloads: Mapping[str, Workload], profile: Profile, problems: list[str]
) -> tuple[Measurement, ...]:
    """The records that the model has something to say of; what the physics gate refuses is told in ``problems``."""
    records = [row.measurement for one in tables for row in one.rows]
    judged = [(r, gated(r, workloads[r.model], profile)) for r in records if usable(r, workloads, profile)]
    problems += [now.reason for was, now in judged if now.status != was.status and now.reason]
    return tuple(now for _, now in judged)


def _choices(
    records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile, count: int, seed: int,
    choose: str,
) -> list[tuple[Measurement, ...]]:  # fmt: skip
    """The records to fit on; after them, where they were not drawn at random, as many that were, ``DRAWS`` times."""
    from calibration.replay import choose_rows

    if choose == AT_RANDOM or not count:
        choices = [np.random.default_rng(seed).permutation(len(records))[:count].tolist()]
    else:
        picked = choose_rows(choose, records, workloads, profile, count, seed)
        seeds = range(seed * DRAWS, (seed + 1) * DRAWS)
        choices = [picked, *(choose_rows(AT_RANDOM, records, workloads, profile, len(picked), s) for s in seeds)]
    return [tuple(records[i] for i in sorted(places)) for places in choices]


def _unseen(
    records: Sequence[Measurement], chosen: Sequence[Measurement], outside: Sequence[Measurement]
) -> tuple[tuple[Measurement, ...], int]:
    """The records whose recipe was not fitted, and how many others there are beside the chosen ones."""
    seen = {measurement_identity(record) for record in (*chosen, *outside)}
    unseen = tuple(record for record in records if measurement_identity(record) not in seen)
    return unseen, len(records) - len(unseen) - len(chosen)


def _one_machine(table: Path, rows: Sequence[Row]) -> str:
    """The machine of the rows; of several with one GPU type, the first.

    Raises:
        InvalidInputError: several GPU types, which one profile cannot describe.
    """
    from profiles.machines import parse_machine

    names = sorted({row.measurement.machine for row in rows}, reverse=True)
    gpus = {parse_machine(name).gpu.name: name for name in names}
    if len(gpus) > 1:
        raise InvalidInputError(
            f"table {table}", [f"several GPU types: {', '.join(sorted(gpus))}; score one at a time"]
        )
    return next(iter(gpus.values()))


def starting_profile(machine: str, prior: str) -> Profile:
    """Where the fit starts: the machine's profile with its fit, its rates without the fit, or the data sheet."""
    from calibration.question import best_profile
    from profiles.machines import parse_machine

    parsed = parse_machine(machine)
    if prior == "datasheet":
        return datasheet_profile(parsed)
    profile = best_profile(parsed)
    profile = replace(profile, rates={**datasheet_rates(profile.machine.gpu), **profile.rates})
    return replace(profile, fit=Fit()) if prior == "probes" else profile


def workloads_of(rows: Sequence[Row]) -> dict[str, Workload]:
    """Every model's workload; stored ones are used, others are traced now."""
    from calibration.question import workload_of

    known: dict[str, Workload] = {}
    for row in rows:
        if row.measurement.model not in known:
            known[row.measurement.model] = workload_of(row.preset)
    return known


def leave_one_model_out(split: Split) -> dict[str, dict[str, object]]:
    """Per model, the step-time scores of a fit that saw every other model's records only; also by what bounds them."""
    scores: dict[str, dict[str, object]] = {}
    for model in sorted({r.model for r in split.scored} & {r.model for r in split.fitted}):
        others = [r for r in split.fitted if r.model != model]
        fit = fit_profile(others, split.workloads, split.profile.rates, start=split.profile.fit)
        rows = time_rows([r for r in split.scored if r.model == model], split.workloads, split.profile.rates)
        if len(rows):
            predicted, sd = predict_rows(rows, fit, split.profile, split.workloads)
            bound = host_bound(rows, fit)
            scores[model] = {
                **time_scores(rows, predicted, sd, fit),
                "gpu_bound": part(rows, predicted, sd, fit, ~bound),
                "host_bound": part(rows, predicted, sd, fit, bound),
            }
    return scores
