"""Everything stored, by name: GPUs, presets, traced workloads, fitted profiles, prices, measurements.

User files live in ``home()`` and override the shipped ones of the same name. Every error names the file.
"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

from profiles.catalogue import gpu_names, load_gpu, load_preset, preset_names
from profiles.consistency import profile_problems
from profiles.errors import InvalidInputError
from profiles.files import file_stem, folders, home, list_files, load_json, to_json, write_whole
from profiles.prices import energy, prices, purchase_price, rent_price
from profiles.records import (
    append_measurement,
    identity,
    measurement_identity,
    read_measurements,
    read_measurements_and_problems,
)
from profiles.schema import Profile, Workload

__all__ = [
    "append_measurement",
    "energy",
    "gpu_names",
    "home",
    "identity",
    "load_gpu",
    "load_preset",
    "load_profile",
    "load_workload",
    "measurement_identity",
    "measurement_problems",
    "preset_names",
    "prices",
    "profile_names",
    "purchase_price",
    "read_measurements",
    "read_measurements_and_problems",
    "read_profile",
    "rent_price",
    "save_profile",
    "save_workload",
    "workload_names",
]

_TRACES = (".json.gz", ".json")


def load_workload(name: str) -> Workload | None:
    """The traced model of that name, the user's own before the shipped one; ``None`` if it was never traced.

    Raises:
        InvalidInputError: the file is damaged, or holds the trace of another model.
    """
    stem = file_stem(name)
    for path in (folder / f"{stem}{suffix}" for folder in folders("traces") for suffix in _TRACES):
        if path.exists():
            workload = load_json(Workload, path)
            if file_stem(workload.name) != stem:
                raise InvalidInputError(str(path), [f"name: holds the trace of {workload.name!r}, not of {name!r}"])
            return workload
    return None


def save_workload(workload: Workload, folder: Path | None = None) -> Path:
    """Store a traced model in the user's folder; equal workloads make equal files.

    Raises:
        PacelineError: the file cannot be written.
    """
    path = (folder or home() / "traces") / f"{file_stem(workload.name)}.json.gz"
    return write_whole(path, gzip.compress(to_json(workload), mtime=0))


def workload_names() -> tuple[str, ...]:
    """File names, without their endings, of every traced model."""
    paths = [path for folder in folders("traces") for path in list_files(folder, _TRACES)]
    return tuple(sorted({path.name.removesuffix(".gz").removesuffix(".json") for path in paths}))


def load_profile(machine_name: str) -> Profile | None:
    """The newest profile of that machine, the user's own before shipped ones; ``None`` if it was never calibrated.

    Files are called ``MACHINE.json`` or ``MACHINE--ANYTHING.json``.

    Raises:
        InvalidInputError: a file of that machine is damaged or describes another one.
    """
    stem = file_stem(machine_name)
    for folder in folders("fitted"):
        paths = [path for path in list_files(folder, (".json",)) if _machine_of(path) == stem]
        found = [_profile_of(path, machine_name) for path in paths]
        if found:
            return max(found, key=lambda profile: _moment(profile.created_at))
    return None


def read_profile(path: Path) -> Profile:
    """The profile in one file. Raises InvalidInputError with every problem."""
    profile = load_json(Profile, path)
    problems = profile_problems(profile)
    try:
        _moment(profile.created_at)
    except ValueError:
        problems.append(f"created_at: must be an ISO date and time, got {profile.created_at!r}")
    if problems:
        raise InvalidInputError(str(path), problems)
    return profile


def save_profile(profile: Profile, folder: Path | None = None) -> Path:
    """Store a profile, by default in the user's folder, beside older ones of the machine.

    Raises:
        PacelineError: the file cannot be written.
    """
    moment = file_stem(profile.created_at.replace(":", ""))
    path = (folder or home() / "fitted") / f"{file_stem(profile.machine.name)}--{moment}.json"
    return write_whole(path, to_json(profile, indent=1) + b"\n")


def profile_names() -> tuple[str, ...]:
    """Names, as files spell them, of every machine that has a profile."""
    return tuple(sorted({_machine_of(path) for folder in folders("fitted") for path in list_files(folder, (".json",))}))


def measurement_problems() -> tuple[str, ...]:
    """One line for every line of the user's files of measurements that cannot be used: file, number, reason."""
    paths = list_files(home() / "measured", (".jsonl",))
    return tuple(problem for path in paths for problem in read_measurements_and_problems(path)[1])


def _machine_of(path: Path) -> str:
    return path.stem.partition("--")[0]


def _profile_of(path: Path, machine_name: str) -> Profile:
    profile = read_profile(path)
    if file_stem(profile.machine.name) != file_stem(machine_name):
        problem = f"machine.name: holds the profile of {profile.machine.name!r}, not of {machine_name!r}"
        raise InvalidInputError(str(path), [problem])
    return profile


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
