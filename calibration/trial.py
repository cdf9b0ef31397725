"""One order to measure one recipe, and how it and its answer travel between processes as single lines of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from profiles.errors import InvalidInputError
from profiles.schema import Measurement, Recipe, Status

MAX_REASON = 600
"""Longest reason kept with a failed measurement, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to measure, where, and for how long.

    ``model`` is a preset's name or a path; ``machine`` is the name that the record will carry. ``measure_s`` is the
    time given to windows that count; ``timeout_s`` ends the trial, whatever it is doing. ``limit_bytes`` caps the
    memory that the trial may take beyond what its process needs anyway; ``None``: all that there is. ``config_hash``,
    where given, tells models of one name apart; the worker computes it for the record in any case. ``solved_from``:
    an accumulation above 2 follows from whole steps at these two; (1, 2) is the cheapest that one rank allows.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    model: str
    recipe: Recipe
    machine: str
    device: Literal["cpu", "cuda"] = "cpu"
    measure_s: float = 2.0
    timeout_s: float = 300.0
    limit_bytes: int | None = None
    config_hash: str | None = None
    solved_from: tuple[int, int] = (2, 4)

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}, which is not above 0"
            for name in ("measure_s", "timeout_s", "limit_bytes")
            if (value := getattr(self, name)) is not None and value <= 0
        ]
        if not 1 <= self.solved_from[0] < self.solved_from[1]:
            problems.append(f"solved_from is {self.solved_from}, not two rising accumulations")
        if problems:
            raise InvalidInputError("trial", problems)


def failed(trial: Trial, status: Status, reason: str, *, trial_s: float | None = None, note: str = "") -> Measurement:
    """The record of a trial that gave no timing."""
    return Measurement(
        model=trial.model,
        config_hash=trial.config_hash,
        machine=trial.machine,
        recipe=trial.recipe,
        status=status,
        reason=reason[:MAX_REASON],
        trial_s=trial_s,
        note=note,
    )


def share_trainee(one: Trial, other: Trial) -> bool:
    """Whether two trials can be run by one process on one model: they differ in sizes and checkpointing alone."""
    same = ("model", "config_hash", "machine", "device", "limit_bytes")
    knobs = ("precision", "attention", "optimizer", "compile")
    return (
        one.device == "cuda"
        and one.recipe.compile == "off"
        and all(getattr(one, name) == getattr(other, name) for name in same)
        and all(getattr(one.recipe, name) == getattr(other.recipe, name) for name in knobs)
    )


def grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials in their order, neighbours that can share a trainee together."""
    groups: list[list[Trial]] = []
    for trial in trials:
        if groups and share_trainee(groups[-1][0], trial):
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def encode(value: Trial | Measurement) -> str:
    """One line of JSON, without the line break."""
    return json.dumps(dataclasses.asdict(value), allow_nan=False)


def encode_group(trials: Sequence[Trial]) -> str:
    """Trials for one process as one line of JSON, without the line break."""
    return json.dumps([dataclasses.asdict(trial) for trial in trials], allow_nan=False)


def decode_group(line: str | bytes) -> list[Trial]:
    """The trials that ``encode_group`` wrote; ValueError on anything else."""
    from pydantic import TypeAdapter

    return TypeAdapter(list[Trial]).validate_json(line)


def decode_measurement(line: str | bytes) -> Measurement:
    """The measurement that ``encode`` wrote; ValueError on anything else."""
    from pydantic import TypeAdapter

    return TypeAdapter(Measurement).validate_json(line)
