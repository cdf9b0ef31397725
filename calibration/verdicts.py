"""Whether recipes fit: what the model calls out of memory beside what really ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.rows import memory_within
from profiles.schema import Measurement, Profile, Workload
from simulator.outlook import device_limit_bytes

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
NEAR_LIMIT = 0.03
"""A predicted need within this fraction of the limit is near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """One row a record that ran or ran out of memory: needed bytes ÷ the limit, called ``fits``, really ran."""

    load: FloatArray
    fits: BoolArray
    ran: BoolArray


def decided(records: Sequence[Measurement]) -> list[Measurement]:
    """The records that say whether their recipe fits: those that ran or ran out of memory."""
    return [r for r in records if r.status in {"ok", "oom"}]


def verdicts_of(records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile) -> Verdicts:
    """The profile's verdicts on ``decided`` records, in their order."""
    load, fits, limit = [], [], limit_bytes(profile)
    for record in records:
        memory = memory_within(record, workloads[record.model], profile.fit, limit)
        load.append(float(memory.needed_bytes[0]) / limit)
        fits.append(bool(memory.peak_bytes_high[0] <= limit))
    return Verdicts(
        load=np.array(load),
        fits=np.array(fits, dtype=bool),
        ran=np.array([r.status == "ok" for r in records], dtype=bool),
    )


def limit_bytes(profile: Profile) -> float:
    """What one process may use on the profile's device."""
    return float(device_limit_bytes(profile.machine))


def oom_scores(verdicts: Verdicts) -> dict[str, object]:
    """Recall of out-of-memory and false alarms: of all records, near the limit and away from it.

    A false alarm is a run that worked and is called out of memory; ``false_fits`` counts out-of-memory runs that are
    called fitting. Near the limit is a predicted need within ``NEAR_LIMIT`` of it.
    """
    near = np.abs(verdicts.load - 1.0) <= NEAR_LIMIT
    away = _counts(verdicts, ~near)
    return {
        **_counts(verdicts, np.ones_like(near)),
        "false_alarm_away_from_limit": away["false_alarm"],
        "near_limit": _counts(verdicts, near),
        "away_from_limit": away,
    }


def _counts(verdicts: Verdicts, mask: BoolArray) -> dict[str, float | int | None]:
    ran, fits = verdicts.ran[mask], verdicts.fits[mask]
    n_oom, n_ran = int((~ran).sum()), int(ran.sum())
    missed, alarms = int((~ran & fits).sum()), int((ran & ~fits).sum())
    return {
        "n_oom": n_oom,
        "n_ran": n_ran,
        "recall": (n_oom - missed) / n_oom if n_oom else None,
        "false_fits": missed,
        "false_alarm": alarms / n_ran if n_ran else None,
        "false_alarms": alarms,
    }
