"""A campaign: many trials, one after the other, each journalled as soon as it is known, none able to end the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from calibration.measuring import measured_accumulations
from calibration.trial import Trial, grouped
from calibration.windows import Clock
from profiles.errors import CampaignError
from profiles.records import append_measurement, identity, measurement_identity, read_measurements_and_problems
from profiles.schema import Measurement, Status

WORKER_START_S = 10.0
"""Importing torch and transformers, once a campaign."""
TRIAL_START_S = {"cpu": 1.0, "cuda": 4.0}
"""Fork, device context and building the model."""
COMPILE_S = {"cpu": 60.0, "cuda": 45.0}
"""Compiling one shape."""
FIRST_STEP_FACTOR = 3.0
"""The first step allocates, loads kernels and picks algorithms; it takes about this many later ones."""
MIN_WINDOWS = 3

Progress = Callable[[int, int, Measurement], None]
"""Called after each trial with how many are done, how many there are, and the newest record."""


Judge = Callable[[Measurement], Measurement]
"""Gives a record back, or its refusal when it cannot be true."""


class Measurer(Protocol):
    """Where trials are measured: this machine, a fake one, or something of yours."""

    def measure(self, trial: Trial) -> Measurement:
        """The record of one trial. Failures of the trial are records, never exceptions."""
        ...

    def measure_group(self, trials: Sequence[Trial]) -> Iterator[Measurement]:
        """The records of trials that share a trainee (see ``trial.grouped``), each as soon as it is known."""
        ...

    def close(self) -> None:
        """End whatever still runs, within seconds. Must be harmless when nothing does."""
        ...


def run_campaign(
    trials: Sequence[Trial],
    measurer: Measurer,
    journal_path: Path,
    *,
    on_progress: Progress | None = None,
    budget_s: float | None = None,
    retry: Collection[Status] = (),
    share: bool = False,
    judge: Judge = lambda r: r,
    clock: Clock = time.monotonic,
) -> list[Measurement]:
    """Measure the trials in order and return their records, those already in the journal included.

    Each record is in the journal before the next trial starts, so a campaign that was killed goes on where it was.
    No trial starts once ``budget_s`` has passed. Records whose status is in ``retry`` are measured again. With
    ``share``, neighbours that can share a trainee do; otherwise each trial has a process of its own. ``judge`` as in
    ``measure_each``.

    Raises:
        CampaignError: the worker cannot start, or every trial failed; then it carries the first one's own error.
        KeyboardInterrupt: passed on, with the journal whole and the measurer closed.
    """
    journal = Journal(journal_path, retry)
    start_s = clock()
    records: list[Measurement] = []

    def told(record: Measurement) -> None:
        records.append(record)
        if on_progress is not None:
            on_progress(len(records), len(trials), record)

    def spent() -> bool:
        return budget_s is not None and clock() - start_s >= budget_s

    for group in grouped(trials) if share else [[trial] for trial in trials]:
        known = {index: record for index, trial in enumerate(group) if (record := journal.find(trial)) is not None}
        for record in known.values():
            told(record)
        open_ = [trial for index, trial in enumerate(group) if index not in known]
        if not open_ or spent():
            continue
        for record in measure_each(open_, measurer, journal, judge):
            told(record)
            if spent():
                break
    raise_if_all_failed(records)
    return records


def measure_each(
    trials: Sequence[Trial], measurer: Measurer, journal: Journal, judge: Judge = lambda r: r
) -> Iterator[Measurement]:
    """Measure trials that share a trainee and journal them as ``judge`` sees them, one by one.

    The measurer is closed on Ctrl-C or any other way out before the last.
    """
    try:
        for record in [measurer.measure(trials[0])] if len(trials) == 1 else measurer.measure_group(trials):
            judged = judge(record)
            journal.add(judged)
            yield judged
    except BaseException:
        with contextlib.suppress(Exception):
            measurer.close()
        raise


def measure_trial(trial: Trial, measurer: Measurer, journal: Journal, judge: Judge = lambda r: r) -> Measurement:
    """``measure_each`` of one trial."""
    (record,) = measure_each([trial], measurer, journal, judge)
    return record


def raise_if_all_failed(records: Sequence[Measurement]) -> None:
    """CampaignError with the first record's own reason if there are records and none of them is ``ok``."""
    if not records or any(record.status == "ok" for record in records):
        return
    first = records[0]
    count = "the only trial" if len(records) == 1 else f"all {len(records)} trials"
    raise CampaignError(f"{count} failed; the first one ({first.model}, {first.status}): {first.reason}")


class Journal:
    """The records of a campaign in an append-only file, and which trials they answer.

    ``problems`` says which lines of the file could not be used, and why; the trials behind them are measured again.
    """

    def __init__(self, path: Path, retry: Collection[Status] = ()) -> None:
        self.path = path
        self._known: dict[str, Measurement] = {}
        records, self.problems = read_measurements_and_problems(path) if path.exists() else ((), ())
        for record in records:
            if record.status not in retry:
                self._remember(record)

    def find(self, trial: Trial) -> Measurement | None:
        """The newest record of this trial, if there is one."""
        return self._known.get(identity(trial.model, trial.config_hash, trial.machine, trial.recipe))

    def add(self, record: Measurement) -> None:
        """Append a record to the file. PacelineError if the disk does not take it."""
        append_measurement(self.path, record)
        self._remember(record)

    def _remember(self, record: Measurement) -> None:
        self._known[identity(record.model, None, record.machine, record.recipe)] = record
        self._known[measurement_identity(record)] = record


def estimate_campaign_s(trials: Sequence[Trial], predicted_step_s: Iterable[float]) -> float:
    """Seconds that a campaign will take: worker start, then for each trial building, warm-up, windows and compiling.

    ``predicted_step_s`` are seconds per optimizer step of each trial's recipe, in the order of the trials.
    """
    pairs = zip(trials, predicted_step_s, strict=True)
    return (WORKER_START_S if trials else 0.0) + sum(estimate_trial_s(trial, step_s) for trial, step_s in pairs)


def estimate_trial_s(trial: Trial, step_s: float) -> float:
    """Seconds that one trial will take, at most its timeout; ``step_s`` is of one step at the recipe's accumulation."""
    accumulations = measured_accumulations(trial)
    round_s = step_s * sum(accumulations) / trial.recipe.grad_accum
    first_s = step_s * accumulations[0] / trial.recipe.grad_accum * FIRST_STEP_FACTOR
    compile_s = COMPILE_S[trial.device] if trial.recipe.compile == "on" else 0.0
    windows_s = max(trial.measure_s, MIN_WINDOWS * round_s)
    return min(trial.timeout_s, TRIAL_START_S[trial.device] + compile_s + first_s + round_s + windows_s)
