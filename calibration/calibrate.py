"""Calibrate: probes, then real runs chosen one by one, then the fit; minutes, and resumable."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from calibration.campaign import Journal, Measurer, measure_trial, raise_if_all_failed
from calibration.candidates import build_pool
from calibration.choose import Chooser
from calibration.fit import fit_profile
from calibration.gate import gated
from calibration.question import load_or_trace
from calibration.rows import usable
from calibration.trial import Trial
from profiles import store
from profiles.errors import CampaignError, InvalidInputError, PacelineError
from profiles.files import folders
from profiles.records import read_measurements
from profiles.schema import Machine, Measurement, Profile, Rate, Software, Workload
from simulator.rates import datasheet_profile

Progress = Callable[[str, float], None]
"""Called with what happens now and the share of the budget that is spent."""
PROBE_SHARE, PROBE_MOST_S, PROBE_LEAST_S = 0.25, 60.0, 10.0
MEASURE_S = {"cpu": 2.0, "cuda": 1.2}
MAX_TRIAL_SHARE = 0.15
"""No single trial may take more of the budget."""
LEAST_TIMEOUT_S = 30.0
"""A trial that hangs may run past the budget by no more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration yields: the profile, where it lies, its measurements and the seconds they took."""

    profile: Profile
    profile_path: Path
    measurements: tuple[Measurement, ...]
    seconds: float


def calibrate(
    models: Sequence[str],
    *,
    budget_s: float,
    machine: str | None = None,
    seed: int = 0,
    seqs: Sequence[int] = (),
    on_progress: Progress | None = None,
    measurer: Measurer | None = None,
) -> Calibration:
    """Measure this machine for ``budget_s`` seconds and store the profile.

    Records go to an append-only journal as they come; a calibration that is run again uses those that are there.

    Raises:
        InvalidInputError: an unknown model, a budget below a minute, or ``machine`` is not the one we are on.
        CampaignError: nothing could be measured; carries the first error.
    """
    begun = time.monotonic()
    here, device, workloads = _check(models, budget_s, machine)
    tell = on_progress or (lambda _text, _share: None)
    tell("probes", 0.0)
    rates = probe_rates(here, device, float(np.clip(PROBE_SHARE * budget_s, PROBE_LEAST_S, PROBE_MOST_S)))
    profile = replace(datasheet_profile(here), rates=rates, provenance="measured", created_at=now(), note="")
    campaign = _Campaign(profile, workloads, device, seed, measurer or _local())
    campaign.run(begun, budget_s, seqs, tell)
    raise_if_all_failed(campaign.records)
    if not campaign.records:
        raise CampaignError(f"the budget of {budget_s:g} s was spent before the first run; give a longer one")
    profile = finished(campaign.profile, campaign.records, campaign.journal.path, time.monotonic() - begun)
    profile = replace(profile, verified=_still_verified(here.name, campaign.journal.path))
    path = store.save_profile(profile)
    return Calibration(
        profile=profile, profile_path=path, measurements=tuple(campaign.records), seconds=time.monotonic() - begun
    )


def _still_verified(machine: str, journal: Path) -> tuple[Measurement, ...]:
    """What earlier verifications of this machine found, as far as it is in this journal: same machine, same torch."""
    earlier = store.load_profile(machine)
    if earlier is None or not journal.exists():
        return ()
    held = set(read_measurements(journal))
    return tuple(record for record in earlier.verified if record in held)


def _check(models: Sequence[str], budget_s: float, machine: str | None) -> tuple[Machine, str, dict[str, Workload]]:
    from calibration.machine import this_device, this_machine

    here = this_machine()
    problems = [] if models else ["name at least one model to calibrate on"]
    if not budget_s >= 60:
        problems.append(f"a budget of {budget_s:g} s is too short; allowed: 60 s and more")
    if machine is not None and machine not in {here.name, here.gpu.name}:
        problems.append(f"this machine is {here.name}, not {machine}; calibrate on the machine itself")
    workloads = {}
    for model in models:
        try:
            workload = load_or_trace(model)
            workloads[workload.name] = workload
        except InvalidInputError as error:
            problems += [f"{error.subject}: {problem}" for problem in error.problems]
    if problems:
        raise InvalidInputError("calibrate", problems)
    return here, this_device(), workloads


def _local() -> Measurer:
    from calibration.local import LocalMeasurer

    return LocalMeasurer()


def now() -> str:
    """The present moment, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def probe_rates(machine: Machine, device: str, budget_s: float) -> dict[str, Rate]:
    """Every rate of the machine: probed where a probe could run, else from the data sheet. Raw samples are kept.

    Raises:
        CampaignError: the probe process died; carries the end of its error output.
    """
    from calibration.local import worker_environment
    from calibration.probes import read_report, write_report

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probes.json"
        command = [sys.executable, "-m", "calibration.probes", "--device", device, "--budget", f"{budget_s:g}"]
        environment = worker_environment()
        done = subprocess.run(
            [*command, "--out", str(out)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode or not out.exists():
            raise CampaignError(f"the probes failed: {done.stderr.strip()[-600:]}")
        report = read_report(out)
        write_report(report, store.home() / "measured" / f"{machine.name}--probes--{now().replace(':', '')}.json")
        return {**datasheet_profile(machine).rates, **report["rates"]}


class _Campaign:
    """The runs of one calibration: what is known so far decides what is measured next."""

    def __init__(
        self, profile: Profile, workloads: Mapping[str, Workload], device: str, seed: int, measurer: Measurer
    ) -> None:
        self.profile, self.workloads, self.device, self.measurer = profile, workloads, device, measurer
        self.seed = seed
        self.journal = Journal(journal_path(profile.machine.name), retry=("crash", "timeout", "invalid"))
        self.records: list[Measurement] = []
        self.known = self._earlier()

    def run(self, begun: float, budget_s: float, seqs: Sequence[int], tell: Progress) -> None:
        """Measure until the budget is spent."""
        pool = build_pool(
            self.workloads,
            self.profile,
            device=self.device,
            seqs=seqs,
            measure_s=MEASURE_S[self.device],
            max_trial_s=MAX_TRIAL_SHARE * budget_s,
        )
        if not pool.trials:
            raise CampaignError("no recipe of these models is predicted to fit this machine within the budget")
        chooser = Chooser(pool, self._fitted() if self.known else self.profile, budget_s=budget_s, seed=self.seed)
        try:
            while (left_s := budget_s - (time.monotonic() - begun)) > 0:
                chosen = chooser.next(self.profile, left_s)
                if chosen is None:
                    break
                trial = pool.trials[chosen]
                tell(describe(trial), 1.0 - left_s / budget_s)
                record = self._measure(replace(trial, timeout_s=min(trial.timeout_s, max(left_s, LEAST_TIMEOUT_S))))
                chooser.saw(chosen, record.trial_s, record.status)
        finally:
            self.measurer.close()

    def _earlier(self) -> tuple[Measurement, ...]:
        """Records of other models from earlier calibrations of this machine: they stay in the fit."""
        path = self.journal.path
        records = read_measurements(path) if path.exists() else ()
        others = [r for r in records if r.model not in self.workloads and r.status in {"ok", "oom"}]
        self.all_workloads = known_workloads(others, self.workloads)
        return tuple(r for r in others if usable(r, self.all_workloads, self.profile))

    def _fitted(self) -> Profile:
        mine = [r for r in self.records if usable(r, self.all_workloads, self.profile)]
        fit = fit_profile([*self.known, *mine], self.all_workloads, self.profile.rates)
        return replace(self.profile, fit=fit)

    def _measure(self, trial: Trial) -> Measurement:
        workload = self.workloads[trial.model]
        record = self.journal.find(trial) or measure_trial(
            trial, self.measurer, self.journal, lambda r: gated(r, workload, self.profile)
        )
        self.records.append(record)
        ran = [r for r in self.records if r.status == "ok"]
        if ran:
            self.profile = self._fitted()
        return record


def describe(trial: Trial) -> str:
    """A trial in a few words."""
    from simulator.recipes import format_recipe

    return f"{trial.model}: {format_recipe(trial.recipe)}"


def journal_path(machine: str) -> Path:
    """Where the records of this machine and this torch go; versions are never mixed in one file."""
    from importlib.metadata import version

    minor = ".".join(version("torch").split("+")[0].split(".")[:2])
    return store.home() / "measured" / f"{machine}--torch{minor}.jsonl"


def known_records(profile: Profile, journal: Path) -> list[Measurement]:
    """The records behind a profile, as far as their files are still there, and the journal's; none twice."""
    named = [folder / name for name in profile.measurement_files for folder in folders("measured")]
    paths = dict.fromkeys(path for path in (*named, journal) if path.exists())
    return list(dict.fromkeys(record for path in paths for record in read_measurements(path)))


def known_workloads(records: Sequence[Measurement], own: Mapping[str, Workload]) -> dict[str, Workload]:
    """Beside ``own``, the workload of every recorded model that can still be found."""
    known = dict(own)
    for name in {r.model for r in records} - set(own):
        try:
            known[name] = load_or_trace(name)
        except PacelineError:
            continue
    return known


def finished(profile: Profile, records: Sequence[Measurement], journal: Path, seconds: float | None) -> Profile:
    """The profile with what its records say of software, device, power and time."""
    ran = [r for r in records if r.status == "ok"]
    newest = ran[-1] if ran else records[-1]
    powers = [r.device.power_w for r in ran if r.device and r.device.power_w]
    device = newest.device
    if device is not None and powers:
        device = replace(device, power_w=float(np.median(powers)))
    return replace(
        profile,
        software=newest.software or Software(),
        device=device,
        measurement_files=(journal.name,),
        calibration_s=seconds if seconds is not None else profile.calibration_s,
        created_at=now(),
    )


def refit(profile: Profile, records: Sequence[Measurement], workloads: Mapping[str, Workload]) -> Profile:
    """The profile fitted again to these records; those that the model has nothing to say of are left out."""
    kept = [r for r in records if usable(r, workloads, profile)]
    return replace(profile, fit=fit_profile(kept, workloads, profile.rates)) if kept else profile
