"""Replay: calibrations run again on a table of records, to see which way of choosing runs pays.

A policy of ``calibration.policies`` picks rows one by one; the fit to them is scored on all the other rows, repeats of
the picked recipes left out. Time alone is fitted and scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibration.campaign import WORKER_START_S
from calibration.evaluate import predict_rows, regret, time_scores
from calibration.policies import POLICIES, Table, table_of
from profiles.errors import UnknownNameError
from profiles.schema import Measurement, Profile, Workload

COUNTS = (6, 10, 20, 30)
PROBES_S = 60.0
"""Seconds that a calibration of ten minutes gives to its probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What ``count`` picked runs gave. Errors and coverage are fractions; ``regret`` is 1 where the pick is best.

    ``seconds``: worker start, probes and the picked trials' own wall seconds. ``picked`` are rows of the table, at most
    ``count`` of them.
    """

    policy: str
    count: int
    seed: int
    scored: int
    mape: float
    median: float
    p95: float
    coverage90: float
    regret: float | None
    seconds: float
    picked: tuple[int, ...]


def choose_rows(
    policy: str,
    records: Sequence[Measurement],
    workloads: Mapping[str, Workload],
    profile: Profile,
    count: int,
    seed: int = 0,
) -> list[int]:
    """Which ``count`` records a policy measures, by place, in its order.

    ``profile`` holds the rates of probes and the fit that the calibration starts from. Rows that are predicted not to
    fit the device are never chosen, and fewer than ``count`` come back where nothing else is left.

    Raises:
        UnknownNameError: no such policy.
    """
    return _chosen(policy, table_of(records, workloads, profile), count, seed)


def replay(
    policy: str,
    records: Sequence[Measurement],
    workloads: Mapping[str, Workload],
    profile: Profile,
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
) -> tuple[Score, ...]:
    """One score a count.

    Raises:
        UnknownNameError: no such policy.
    """
    return replay_table(policy, table_of(records, workloads, profile), counts, seed)


def replay_table(policy: str, table: Table, counts: Sequence[int], seed: int) -> tuple[Score, ...]:
    """``replay`` on a table that is built once for many policies and seeds; counts that leave nothing to score go."""
    one_shot = policy in POLICIES and POLICIES[policy].one_shot
    longest = _chosen(policy, table, max(counts), seed) if not one_shot else []
    scores = (
        score(policy, table, _chosen(policy, table, n, seed) if one_shot else longest[:n], n, seed) for n in counts
    )
    return tuple(one for one in scores if one is not None)


def _chosen(policy: str, table: Table, count: int, seed: int) -> list[int]:
    if policy not in POLICIES:
        raise UnknownNameError("policy", policy, list(POLICIES))
    return POLICIES[policy].choose(table, count, seed)


def score(policy: str, table: Table, picked: Sequence[int], count: int, seed: int) -> Score | None:
    """The fit to the picked rows, scored on the recipes that are not among them; ``None`` if there are none."""
    rest = table.others(picked)
    if not len(rest):
        return None
    fit = table.fitted(picked).fit
    predicted, sd = predict_rows(rest, fit, table.profile, table.workloads)
    errors = time_scores(rest, predicted, sd, fit)
    return Score(
        policy=policy,
        count=count,
        seed=seed,
        scored=len(rest),
        mape=errors["mape"],
        median=errors["median"],
        p95=errors["p95"],
        coverage90=errors["coverage90"],
        regret=regret(rest, predicted)["top1"],
        seconds=WORKER_START_S + PROBES_S + sum(table.took_s(i) for i in picked),
        picked=tuple(picked),
    )
