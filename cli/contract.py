"""Answers as JSON: the keys that scripts rely on. Ratios are fractions, unknown is ``null``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from calibration import Calibration, Verification
    from calibration.largest import LargestFound
    from profiles.schema import Profile, Recipe
    from simulator import Case, Plan, Prediction
    from simulator.results import Extra

Json = dict[str, Any]


def show(answer: Mapping[str, object]) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json.dumps(plain(answer), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: object) -> Any:  # noqa: ANN401
    """The value in JSON's own types; what is infinite or not a number is unknown."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Path) else plain(value.item() if hasattr(value, "item") else str(value))


def recipe_json(case: Case, recipe: Recipe) -> Json:
    """Every knob, with the lengths that the case implies."""
    decoder_seq = case.decoder_seq(recipe) or None
    return asdict(replace(recipe, seq=case.seq(recipe), decoder_seq=decoder_seq))


def prediction_json(case: Case, prediction: Prediction) -> Json:
    """One recipe's time, money and memory with their breakdowns, and the verdict."""
    return {
        **asdict(prediction),
        **memory_json(case, prediction.recipe),
        "recipe": recipe_json(case, prediction.recipe),
        "verdict": prediction.verdict,
    }


def memory_json(case: Case, recipe: Recipe) -> Json:
    """Where in a step memory peaks, on which single tensors, and what creating the model takes."""
    from simulator.memory_phases import memory_phases

    found = memory_phases(case, recipe)
    return {
        "memory_phases_bytes": found.phases_bytes,
        "peak_phase": found.peak_phase,
        "largest_buffer": asdict(found.largest_buffer),
        "buffers_bytes": {buffer.name: buffer.bytes for buffer in found.buffers},
        "load_peak_bytes": found.load_peak_bytes,
        "attention_bytes": found.attention_bytes,
    }


def predicted_json(case: Case, prediction: Prediction) -> Json:
    """One recipe's answer: with what was asked, the limits that were given, and the runs that would narrow it most."""
    from simulator.coverage import coverage

    return {
        **question_json(case),
        **prediction_json(case, prediction),
        "within_limits": within_limits(case, prediction),
        "coverage": coverage_json(case, coverage(case, [prediction.recipe])),
    }


def coverage_json(case: Case, extra: Sequence[Extra]) -> list[Json]:
    """The runs that would narrow an answer most; a factor is from the point to either end of its interval."""
    return [{**asdict(one), "recipe": recipe_json(case, one.recipe)} for one in extra]


def within_limits(case: Case, prediction: Prediction) -> dict[str, bool | None]:
    """Per limit that was given, whether the recipe keeps it; ``None`` if its total is unknown."""
    totals = {"max_days": prediction.days, "max_usd": prediction.usd, "max_kwh": prediction.kwh}
    limits = {name: limit for name in totals if (limit := getattr(case.run, name)) is not None}
    return {name: None if (total := totals[name]) is None else bool(total <= limit) for name, limit in limits.items()}


def plan_json(case: Case, plan: Plan) -> Json:
    """The ranked recipes, four to compare with, and what was left out and why."""
    marks = {"best": plan.best, "median": plan.median, "worst": plan.worst, "naive": plan.naive}
    return {
        **question_json(case),
        **{mark: one and prediction_json(case, one) for mark, one in marks.items()},
        "recipes": [prediction_json(case, one) for one in plan.recipes],
        "infeasible": plan.infeasible,
        "refused": plan.refused,
        "space_size": plan.space_size,
        "feasible": plan.feasible,
        "oom": plan.oom,
        "over_budget": plan.over_budget,
        "ties": plan.ties,
        "tied": plan.tied,
        "coverage": coverage_json(case, plan.coverage),
        "reasons": plan.reasons,
    }


def question_json(case: Case) -> Json:
    """What was asked and on which knowledge the answer rests."""
    return {
        "model": case.workload.name,
        "machine": case.machine.name,
        "run": case.run,
        "fixed": case.fixed,
        "price": case.price,
        "profile": profile_json(case.profile),
    }


def profile_json(profile: Profile) -> Json:
    """Where a profile comes from."""
    return {
        "machine": profile.machine.name,
        "provenance": profile.provenance,
        "created_at": profile.created_at,
        "torch": profile.software.torch,
        "measurements": profile.fit.measurements,
        "models": profile.fit.models,
        "note": profile.note,
    }


def calibration_json(done: Calibration) -> Json:
    """The profile that calibration wrote, and each real run behind it."""
    return {
        "profile": done.profile_path,
        "machine": done.profile.machine.name,
        "measurements": done.measurements,
        "seconds": done.seconds,
    }


def verification_json(case: Case, done: Verification) -> Json:
    """Predicted beside measured for every recipe that was really run."""
    return {
        **question_json(case),
        "verified": [
            {
                "recipe": recipe_json(case, one.recipe),
                "predicted_step_s": one.predicted.step_s,
                "predicted_step_s_low": one.predicted.step_s_low,
                "predicted_step_s_high": one.predicted.step_s_high,
                "measured_step_s": one.measured.step_s,
                "predicted_peak_bytes": one.predicted.peak_bytes,
                "measured_peak_bytes": one.measured.peak_bytes,
                "error": one.error,
                "random": one.drawn,
                "status": one.measured.status,
                "reason": one.measured.reason,
            }
            for one in done.verified
        ],
        "best": prediction_json(case, done.best),
        "profile_path": done.profile_path,
    }


def largest_json(case: Case, done: LargestFound) -> Json:
    """The largest micro-batch that ran, and each real run behind it in order."""
    found = done.largest
    return {
        **question_json(case),
        "recipe": recipe_json(case, done.recipe),
        "largest": {
            "micro_batch": found.micro_batch,
            "smallest_oom": found.smallest_oom,
            "predicted": found.predicted,
            "proven": found.proven,
            "exact_probability": found.exact_probability,
            "runs": [
                {
                    "micro_batch": one.recipe.micro_batch,
                    "grad_accum": one.recipe.grad_accum,
                    "status": one.measured.status,
                    "reason": one.measured.reason,
                    "predicted_peak_bytes": one.predicted.peak_bytes,
                    "measured_peak_bytes": one.measured.peak_bytes,
                    "step_s": one.measured.step_s,
                }
                for one in done.verified
            ],
        },
        "profile_path": done.profile_path,
    }
