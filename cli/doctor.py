"""``doctor``: what is installed, which devices are here, which profile applies, and what is missing for what."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import profiles
import profiles.store
from profiles.errors import PacelineError
from profiles.schema import Machine

State = Literal["ok", "warn", "missing"]
PACKAGES = {
    "torch": "tracing, measuring",
    "transformers": "tracing, measuring",
    "scikit-learn": "fitting profiles",
    "numpy": "every prediction",
    "nvidia-ml-py": "clocks and power of measurements",
}
FOLDERS = ("simulator", "calibration", "profiles", "cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at: what was found, and what would not work without it."""

    name: str
    state: State
    found: str
    needed_for: str = ""


def examine() -> list[Check]:
    """Every check, in order; one that fails never hides the others."""
    return [check for part in CHECKS for check in _guarded(part)]


def _guarded(part: Callable[[], list[Check]]) -> list[Check]:
    try:
        return part()
    except (PacelineError, ImportError, OSError, RuntimeError) as error:
        return [Check(name=part.__name__.strip("_"), state="warn", found=str(error).splitlines()[0])]


def _versions() -> list[Check]:
    found = [Check(name="python", state="ok", found=platform.python_version())]
    for package, purpose in PACKAGES.items():
        try:
            found.append(Check(name=package, state="ok", found=metadata.version(package), needed_for=purpose))
        except metadata.PackageNotFoundError:
            found.append(Check(name=package, state="missing", found="not installed", needed_for=purpose))
    return found


def _names() -> list[Check]:
    """Another distribution that owns one of our import names would be imported in our place."""
    ours = Path(__file__).resolve().parents[1]
    foreign = [
        f"{name} is {spec.origin}"
        for name in FOLDERS
        if (spec := find_spec(name)) is not None and spec.origin and ours not in Path(spec.origin).resolve().parents
    ]
    state: State = "warn" if foreign else "ok"
    return [Check(name="import names", state=state, found="; ".join(foreign) or "all four are Paceline's own")]


def _compiler() -> list[Check]:
    known = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if known:
        return [Check(name="C++ compiler", state="ok", found=known, needed_for="compile=on")]
    return [Check(name="C++ compiler", state="missing", found="none on PATH", needed_for="compile=on")]


def _devices() -> list[Check]:
    cores = Check(
        name="host", state="ok", found=f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    )
    if find_spec("torch") is None:
        return [cores, Check(name="GPUs", state="missing", found="torch is needed to see them", needed_for="measuring")]
    import torch

    if not torch.cuda.is_available():
        return [
            cores,
            Check(name="GPUs", state="warn", found="none: measuring uses the CPU", needed_for="GPU profiles"),
        ]
    return [cores, *(_gpu(torch.cuda.get_device_name(index), index) for index in range(torch.cuda.device_count()))]


def _gpu(name: str, index: int) -> Check:
    try:
        known = profiles.load_gpu(name).name
    except PacelineError as error:
        return Check(name=f"GPU {index}", state="warn", found=str(error), needed_for="measuring on it")
    return Check(name=f"GPU {index}", state="ok", found=f"{name}, known as {known}")


def _profile() -> list[Check]:
    from calibration.machine import this_machine
    from calibration.question import best_profile

    machine: Machine = this_machine()
    profile = best_profile(machine)
    if profile.provenance == "datasheet":
        found = f"{machine.name}: data sheet only; run: paceline calibrate"
        return [Check(name="profile", state="warn", found=found, needed_for="narrow intervals here")]
    found = f"{machine.name}: {profile.provenance} {profile.created_at[:10]}, {profile.fit.measurements} real runs"
    return [Check(name="profile", state="ok", found=found), *_torch_of(profile.software.torch)]


def _torch_of(measured_with: str | None) -> list[Check]:
    installed = metadata.version("torch")
    if measured_with is None or measured_with.split(".")[:2] == installed.split(".")[:2]:
        return []
    found = f"measured with torch {measured_with}, installed is {installed}; calibrate again"
    return [Check(name="profile's torch", state="warn", found=found)]


def _home() -> list[Check]:
    folder = profiles.home()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        return [Check(name="user files", state="ok", found=str(folder), needed_for="profiles, traces, measurements")]
    return [
        Check(
            name="user files",
            state="missing",
            found=f"{nearest} is read-only; set PACELINE_HOME",
            needed_for="calibrating",
        )
    ]


def _measurements() -> list[Check]:
    problems = profiles.store.measurement_problems()
    if not problems:
        return [Check(name="measurements", state="ok", found="no damaged line in the user's files")]
    more = f"; {len(problems) - 1} more" if len(problems) > 1 else ""
    found = f"damaged lines are left out: {problems[0]}{more}"
    return [Check(name="measurements", state="warn", found=found, needed_for="fitting to every run")]


CHECKS: tuple[Callable[[], list[Check]], ...] = (_versions, _names, _compiler, _devices, _profile, _home, _measurements)


def show(checks: list[Check], *, as_json: bool) -> None:
    """All checks as a table or as JSON."""
    if as_json:
        from cli import contract

        return contract.show({"checks": [asdict(check) for check in checks]})
    from cli import render

    rows = [(check.state, check.name, check.found, check.needed_for) for check in checks]
    render.show_rows(("", "what", "found", "needed for"), rows, folds=["found", "needed for"])
