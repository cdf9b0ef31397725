"""Ways to choose which rows of a table a calibration would have measured: the product's own and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibration.campaign import estimate_trial_s
from calibration.candidates import EDGE, Pool, make_trial
from calibration.choose import OVERHEAD_S, Belief, Chooser
from calibration.fit import fit_time
from calibration.rows import TimeRows, calibrated_range, memory_within, seconds_of, time_rows
from profiles.records import measurement_identity
from profiles.schema import Measurement, Profile, Workload
from simulator.outlook import device_limit_bytes
from simulator.steptime import covariance, log_factors, step_times

FloatArray = NDArray[np.float64]
BUDGET_S = 600.0
"""The budget that rations compiled shapes and seeds; the number of runs, not time, ends a replay."""
MEASURE_S = 1.2
EXCHANGES = 10
"""Rounds in which D-optimal choice may swap rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Records as candidates. Policies look at ``pool``, and through ``fitted`` and ``took_s`` at rows already picked.

    ``closed`` are places of rows predicted not to fit the device. ``place`` is each record's row in ``rows``, −1 for
    those that did not run.
    """

    records: tuple[Measurement, ...]
    workloads: Mapping[str, Workload]
    profile: Profile
    pool: Pool
    closed: tuple[int, ...]
    rows: TimeRows
    place: NDArray[np.intp]

    @property
    def allowed(self) -> list[int]:
        """Places of the rows that may be picked."""
        return sorted(set(range(len(self.records))) - set(self.closed))

    def fitted(self, picked: Sequence[int]) -> Profile:
        """The profile with the fit to the picked rows that ran; as it starts if none did."""
        ran = [int(self.place[i]) for i in picked if self.place[i] >= 0]
        if not ran:
            return self.profile
        known = subset(self.rows, ran)
        fit = replace(
            fit_time(known, self.profile.rates, start=self.profile.fit),
            models=tuple(sorted({r.model for r in known.measurements})),
            calibrated=calibrated_range(known.measurements, self.workloads),
        )
        return replace(self.profile, fit=fit)

    def others(self, picked: Sequence[int]) -> TimeRows:
        """Every row that ran and whose recipe was not picked."""
        seen = {measurement_identity(self.records[i]) for i in picked}
        return subset(
            self.rows, [i for i, r in enumerate(self.rows.measurements) if measurement_identity(r) not in seen]
        )

    def took_s(self, index: int) -> float:
        """Wall seconds of a row's trial; as predicted where the record does not say."""
        return self.records[index].trial_s or float(self.pool.fixed_cost_s[index])


def subset(rows: TimeRows, index: Sequence[int]) -> TimeRows:
    """Some of the rows, in the order of ``index``."""
    return TimeRows(
        seconds=rows.seconds[index],
        grad_accum=rows.grad_accum[index],
        log_step=rows.log_step[index],
        noise=rows.noise[index],
        sessions=tuple(rows.sessions[i] for i in index),
        measurements=tuple(rows.measurements[i] for i in index),
    )


def table_of(records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile) -> Table:
    """The records as a calibration that starts from ``profile`` would see them beforehand."""
    seconds = np.array([seconds_of(workloads[r.model], profile.rates, r) for r in records])
    grad_accum = np.array([float(r.recipe.grad_accum) for r in records])
    step_s = step_times(seconds, grad_accum, log_factors(profile.fit)).step_s
    trials = tuple(
        make_trial(workloads[r.model], r.recipe, profile, "cuda", MEASURE_S, float(s))
        for r, s in zip(records, step_s, strict=True)
    )
    limit = device_limit_bytes(profile.machine)
    memories = [memory_within(r, workloads[r.model], profile.fit, limit) for r in records]
    ran = [i for i, r in enumerate(records) if r.status == "ok" and r.step_s]
    place = np.full(len(records), -1, dtype=np.intp)
    place[ran] = np.arange(len(ran))
    pool = Pool(
        trials=trials,
        seconds=seconds,
        grad_accum=grad_accum,
        fixed_cost_s=np.array([estimate_trial_s(t, float(s)) for t, s in zip(trials, step_s, strict=True)]),
        needed_bytes=np.array([float(m.needed_bytes[0]) for m in memories]),
    )
    return Table(
        records=tuple(records),
        workloads=workloads,
        profile=profile,
        pool=pool,
        closed=tuple(i for i, m in enumerate(memories) if m.peak_bytes_high[0] > EDGE * limit),
        rows=time_rows(records, workloads, profile.rates),
        place=place,
    )


# ---------------------------------------------------------------------------------------------------- policies


def adaptive(table: Table, count: int, seed: int, overhead_s: float = OVERHEAD_S) -> list[int]:
    """What ``calibrate`` does: its seeds, then what narrows predictions most for its cost; fitted after each run."""
    return _run(table, _chooser(table, seed, overhead_s), count)


def adaptive_per_second(table: Table, count: int, seed: int) -> list[int]:
    """The same by gain ÷ predicted seconds, as if a run cost nothing else."""
    return adaptive(table, count, seed, overhead_s=0.0)


def adaptive_per_run(table: Table, count: int, seed: int) -> list[int]:
    """The same with every run at one price."""
    return adaptive(table, count, seed, overhead_s=np.inf)


def _chooser(table: Table, seed: int, overhead_s: float = OVERHEAD_S) -> Chooser:
    closed = table.closed
    return Chooser(table.pool, table.profile, budget_s=BUDGET_S, seed=seed, overhead_s=overhead_s, closed=closed)


def _run(table: Table, chooser: Chooser, count: int, seeds_only: bool = False) -> list[int]:
    picked: list[int] = []
    while len(picked) < count and (chooser.seeds or not seeds_only):
        chosen = chooser.next(table.fitted(picked), np.inf)
        if chosen is None:
            break
        picked.append(chosen)
        chooser.saw(chosen, table.took_s(chosen), table.records[chosen].status)
    return picked


def uniform(table: Table, count: int, seed: int) -> list[int]:
    """Any rows, each as likely as any other."""
    return [int(i) for i in np.random.default_rng(seed).permutation(table.allowed)[:count]]


def seeds_then_uniform(table: Table, count: int, seed: int) -> list[int]:
    """The seeds of ``calibrate``, then any rows."""
    picked = _run(table, _chooser(table, seed), count, seeds_only=True)
    rest = [i for i in uniform(table, len(table.records), seed) if i not in picked]
    return (picked + rest)[:count]


def d_optimal(table: Table, count: int, seed: int) -> list[int]:
    """All rows at once: log det of the information about the log factors, at the prior, by greedy choice and exchange.

    ``seed`` has no effect.
    """
    prior = covariance(table.profile.fit, table.profile.rates)
    shares = table.pool.shares(table.profile)
    scaled = shares / Belief(shares, prior).noise[:, None]
    picked: list[int] = []
    while len(picked) < min(count, len(table.allowed)):
        picked.append(_most_informative(scaled, prior, picked, table.allowed))
    for _ in range(EXCHANGES):
        before = list(picked)
        for spot in range(len(picked)):
            kept = picked[:spot] + picked[spot + 1 :]
            picked[spot] = _most_informative(scaled, prior, kept, table.allowed)
        if picked == before:
            break
    return picked


def _most_informative(scaled: FloatArray, prior: FloatArray, picked: Sequence[int], allowed: Sequence[int]) -> int:
    """The row that adds most to log det: the one with the largest predictive variance given the picked ones."""
    x = scaled[list(picked)]
    known = prior - prior @ x.T @ np.linalg.solve(np.eye(len(x)) + x @ prior @ x.T, x @ prior)
    variance = np.einsum("ij,jk,ik->i", scaled, known, scaled)
    open_ = [i for i in allowed if i not in set(picked)]
    return int(open_[int(np.argmax(variance[open_]))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``stochastic``: another seed picks other rows. ``one_shot``: fewer runs are not the first of more."""

    choose: Callable[[Table, int, int], list[int]]
    stochastic: bool = False
    one_shot: bool = False


POLICIES = {
    "adaptive": Policy(choose=adaptive),
    "adaptive_per_second": Policy(choose=adaptive_per_second),
    "adaptive_per_run": Policy(choose=adaptive_per_run),
    "seeds_then_random": Policy(choose=seeds_then_uniform, stochastic=True),
    "d_optimal": Policy(choose=d_optimal, one_shot=True),
    "random": Policy(choose=uniform, stochastic=True),
}
"""Every policy by name; one more is one more line."""
