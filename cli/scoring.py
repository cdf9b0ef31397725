"""``evaluate``: predictions scored against a table of measurements, as one table a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli import contract, human
from cli.progress import progress
from profiles.errors import InvalidInputError

PRIORS = ("profile", "probes", "datasheet")
Scores = Mapping[str, Any]
Line = tuple[str, ...]
Column = tuple[str, str, Callable[[Any], str]]


def evaluate(table: Path, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Score predictions against a table of measurements; ``options`` are those of ``calibration.evaluate``."""
    import calibration

    _check(options)
    with progress("evaluating"):
        scores = calibration.evaluate(table, **options)
    if as_json:
        return contract.show(scores)
    show_scores(scores)


def _check(options: Mapping[str, Any]) -> None:
    problems = []
    if options["calibrate_on"] and options["calibrate"]:
        problems.append("--calibrate-on and --calibrate exclude each other: fit on a file, or on rows of the table")
    if options["prior"] not in PRIORS:
        problems.append(f"--prior {options['prior']!r} is not allowed; allowed: {', '.join(PRIORS)}")
    if problems:
        raise InvalidInputError("evaluate", problems)


def show_scores(scores: Scores) -> None:
    """One table a question; fractions as per cent, ``?`` where unknown."""
    from cli import render

    plain = contract.plain(scores)
    if "table" in plain:
        counts = f"{plain['fitted']} records fitted, {plain['scored']} scored"
        render.show_lines([f"{plain['table']}: {counts}; the fit starts from the {plain['prior']} prior"])
    for title, columns, lines in _sections(plain):
        if lines:
            names = [title, *(name for name, _, _ in columns)]
            shown = [(label, *(_cell(one, key, told) for _, key, told in columns)) for label, one in lines]
            render.show_lines([""])
            render.show_rows(names, shown, right=names[1:], folds=[])
    render.show_lines(["", *plain["problems"]] if plain.get("problems") else [])


def _cell(scores: Scores | None, key: str, told: Callable[[Any], str]) -> str:
    """The number at a dotted key as text; ``?`` where a part of the key is missing or unknown."""
    value: Any = scores
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return human.UNKNOWN if value is None else told(value)


def _signed(fraction: float) -> str:
    return human.percent(fraction, signed=True)


def _share(fraction: float) -> str:
    return f"{fraction:.2%}"


ERRORS: tuple[Column, ...] = (
    ("n", "n", lambda count: f"{count:.0f}"),
    ("MAPE", "mape", human.percent),
    ("median", "median", human.percent),
    ("p95", "p95", human.percent),
    ("bias", "bias", _signed),
)
INTERVAL: tuple[Column, ...] = (
    ("inside 90 %", "coverage90", human.percent),
    ("width", "interval_width", human.percent),
)
MEMORY: tuple[Column, ...] = (
    ("n", "n", str),
    ("median", "median", _share),
    ("p95", "p95", _share),
    ("max", "max", _share),
    ("bias", "bias", lambda fraction: f"{fraction:+.2%}"),
)
OOM: tuple[Column, ...] = (
    ("ran out", "n_oom", str),
    ("found", "recall", human.percent),
    ("ran", "n_ran", str),
    ("false alarms", "false_alarm", human.percent),
)
CHOICE: tuple[Column, ...] = (
    ("cells", "cells", str),
    ("top 1", "top1", _share),
    ("worst", "top1_worst", _share),
    ("after three", "top3", _share),
    ("worst ", "top3_worst", _share),
)
NOISE: tuple[Column, ...] = (
    ("recipes", "recipes", str),
    ("runs", "runs", str),
    ("mean", "mean", _share),
    ("median", "median", _share),
    ("p95", "p95", _share),
)
PARTS = {
    "all rows": "step_time",
    "GPU-bound": "step_time_gpu_bound",
    "host-bound": "step_time_host_bound",
    "repeats within 3 %": "step_time_repeatable",
    "repeats do not": "step_time_noisy",
    "run once": "step_time_unrepeated",
}


def _sections(scores: Scores) -> Iterator[tuple[str, Sequence[Column], list[tuple[str, Scores | None]]]]:
    """Per table its title, its columns, and its lines with the scores they show."""
    yield "step time", (*ERRORS, *INTERVAL), [(label, scores[key]) for label, key in PARTS.items() if scores.get(key)]
    yield "model left out", (*ERRORS, *INTERVAL), list((scores.get("leave_one_model_out") or {}).items())
    yield "noise of repeats", NOISE, _whole_and_parts(scores.get("repeat_noise"), ("repeatable", "noisy"))
    memory = {"allocated": "memory", "reserved": "memory_reserved"}
    yield "memory", MEMORY, [(label, scores[key]) for label, key in memory.items() if scores.get(key)]
    yield "memory limit", OOM, _whole_and_parts(scores.get("oom"), ("near_limit", "away_from_limit"))
    yield "regret", CHOICE, list(_choices(scores))
    yield "without a model", ERRORS, _named(scores.get("baselines"))
    yield "16 bytes rule", MEMORY, _under(scores.get("memory_baselines"), "memory")
    yield "16 bytes rule", OOM, _under(scores.get("memory_baselines"), "oom")
    yield "without", (*ERRORS, *INTERVAL), _named(scores.get("ablations"))
    knobs = (scores.get("by") or {}).items()
    lines = [(f"{knob}={value}", one) for knob, values in knobs for value, one in values.items()]
    yield "knob", tuple(c for c in (*ERRORS, *INTERVAL) if c[1] in {"n", "mape", "bias", "coverage90"}), lines


def _choices(scores: Scores) -> Iterator[tuple[str, Scores | None]]:
    if scores.get("regret"):
        yield "paceline", scores["regret"]
    for name, one in _named(scores.get("baselines")):
        yield name, one and one.get("regret")
    yield from _named(scores.get("choice_baselines"))


def _whole_and_parts(scores: Scores | None, parts: Sequence[str]) -> list[tuple[str, Scores | None]]:
    if not scores:
        return []
    return [("overall", scores), *((name.replace("_", " "), scores[name]) for name in parts if scores.get(name))]


def _named(scores: Scores | None) -> list[tuple[str, Scores | None]]:
    return [(name.removeprefix("no_").replace("_", " "), one) for name, one in (scores or {}).items()]


def _under(scores: Scores | None, key: str) -> list[tuple[str, Scores | None]]:
    return [(name, one[key]) for name, one in _named(scores) if one and one.get(key)]
