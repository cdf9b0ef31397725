"""Import: outside measurements become a profile of their machine, without any hardware at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from calibration.calibrate import finished, known_records, known_workloads, now
from calibration.evaluate import starting_profile, workloads_of
from calibration.fit import fit_profile
from calibration.gate import gated
from calibration.rows import usable
from calibration.tables import Row, read_table
from profiles import store
from profiles.errors import InvalidInputError
from profiles.records import append_measurement, measurement_identity, read_measurements
from profiles.schema import Measurement, Profile, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Where the profile lies, how many records are new in it, and what could not be used."""

    profile_path: Path
    imported: int
    problems: tuple[str, ...]


def import_table(table: Path, *, machine: str | None = None) -> Imported:
    """Bring a table's measurements into the profile of their machine; running it twice adds nothing twice.

    ``machine`` picks one where the table holds several.

    Raises:
        InvalidInputError: the table cannot be read, holds nothing that can be used, or several machines.
    """
    read = read_table(table)
    rows = _of_one_machine(table, read.rows, machine, read.problems)
    profile = starting_profile(rows[0].measurement.machine, "probes")
    workloads = workloads_of(rows)
    judged = [
        gated(row.measurement, workloads[row.measurement.model], profile)
        for row in rows
        if usable(row.measurement, workloads, profile)
    ]
    kept = [record for record in judged if record.status != "invalid"]
    problems = (*read.problems, *(f"not used: {r.model}: {r.reason}" for r in judged if r.status == "invalid"))
    if not kept:
        raise InvalidInputError(f"table {table}", ["no row's recipe is one that is modelled", *problems])
    journal = store.home() / "measured" / f"{kept[0].machine}--imported.jsonl"
    fresh = _add(journal, kept)
    path = store.save_profile(_profile(profile, journal, workloads))
    return Imported(profile_path=path, imported=fresh, problems=problems)


def _of_one_machine(
    table: Path, rows: tuple[Row, ...], machine: str | None, problems: tuple[str, ...]
) -> tuple[Row, ...]:
    names = sorted({row.measurement.machine for row in rows})
    if machine is None and len(names) > 1:
        raise InvalidInputError(f"table {table}", [f"several machines: {', '.join(names)}; name one with --machine"])
    kept = tuple(row for row in rows if machine is None or row.measurement.machine == machine)
    if not kept:
        known = f"machines in it: {', '.join(names)}" if names else "no row can be used"
        raise InvalidInputError(f"table {table}", [known, *problems])
    return kept


def _add(journal: Path, records: list[Measurement]) -> int:
    """Append what the journal does not hold yet: same recipe, same origin, same step time. Returns how many."""
    held = read_measurements(journal) if journal.exists() else ()
    seen = {(measurement_identity(r), r.origin, r.step_s, r.started_at) for r in held}
    fresh = [r for r in records if (measurement_identity(r), r.origin, r.step_s, r.started_at) not in seen]
    for record in fresh:
        append_measurement(journal, record)
    return len(fresh)


def _profile(profile: Profile, journal: Path, workloads: Mapping[str, Workload]) -> Profile:
    """The profile fitted to its own records and all of the journal's that can be used."""
    known = known_records(profile, journal)
    workloads = known_workloads(known, workloads)
    records = [r for r in known if usable(r, workloads, profile)]
    fitted = replace(
        profile,
        fit=fit_profile(records, workloads, profile.rates),
        provenance="measured",
        created_at=now(),
        note="fitted to imported measurements",
    )
    files = tuple(dict.fromkeys((*profile.measurement_files, journal.name)))
    return replace(finished(fitted, records, journal, None), measurement_files=files)
