"""The noise floor: how far runs of one recipe in fresh processes differ, and which rows repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from profiles.records import measurement_identity
from profiles.schema import Measurement

FloatArray = NDArray[np.float64]
Class = Literal["repeatable", "noisy", "unrepeated"]
CLASSES: tuple[Class, ...] = ("repeatable", "noisy", "unrepeated")
REPEATS_WITHIN = 0.03
"""A recipe repeats when its slowest run takes at most this fraction longer than its fastest."""


def repeats_of(records: Sequence[Measurement]) -> dict[str, FloatArray]:
    """Step times in seconds by recipe identity, of recipes with two or more runs that ran."""
    times: dict[str, list[float]] = defaultdict(list)
    for record in dict.fromkeys(records):
        if record.status == "ok" and record.step_s:
            times[measurement_identity(record)].append(record.step_s)
    return {name: np.array(own) for name, own in times.items() if len(own) >= 2}


def repeat_class(record: Measurement, repeats: Mapping[str, FloatArray]) -> Class:
    """Whether the record's recipe repeats within ``REPEATS_WITHIN``, does not, or was run once only."""
    own = repeats.get(measurement_identity(record))
    if own is None:
        return "unrepeated"
    return "repeatable" if _repeats(own) else "noisy"


def _repeats(own: FloatArray) -> bool:
    return bool(own.max() <= own.min() * (1.0 + REPEATS_WITHIN))


def repeat_noise(repeats: Mapping[str, FloatArray]) -> dict[str, object] | None:
    """Spread of the runs of one recipe: |log of step time ÷ the recipe's median|, over all and by class.

    ``mean`` is what a mean absolute error cannot fall much below. ``None`` without repeats.
    """
    if not repeats:
        return None
    within = {name: own for name, own in repeats.items() if _repeats(own)}
    beyond = {name: own for name, own in repeats.items() if name not in within}
    return {**_spread(repeats), "repeatable": _spread(within), "noisy": _spread(beyond)}


def _spread(repeats: Mapping[str, FloatArray]) -> dict[str, float | int | None]:
    if not repeats:
        return {"recipes": 0, "runs": 0, "mean": None, "median": None, "p95": None}
    ratios = np.concatenate([np.abs(np.log(own / np.median(own))) for own in repeats.values()])
    return {
        "recipes": len(repeats),
        "runs": len(ratios),
        "mean": float(ratios.mean()),
        "median": float(np.median(ratios)),
        "p95": float(np.quantile(ratios, 0.95)),
    }
