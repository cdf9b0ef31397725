"""Tables of outside measurements: CSV files in one schema, and our own records; each row used or reported.

A blank cell is unknown, never zero. A column that the table lacks altogether has its neutral value (``tp`` 1, one
node). A knob that a row leaves blank gets the value that ``table_aliases.toml`` lists for it, which is reported. So is
every row that cannot be used: cells outside the schema, values that cannot be, texts that no alias explains, a model
that the row does not describe, and knobs that this version does not model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.models import resolve
from calibration.table_columns import read_cells
from calibration.table_rows import LeftOut, Reading, Row, Used, read_row
from profiles.errors import InvalidInputError
from profiles.files import read_bytes
from profiles.records import read_measurements_and_problems
from profiles.schema import Measurement, Preset

__all__ = ["Row", "Table", "read_table"]

_RECORDS = (".jsonl", ".jsonl.gz")
_MOST_RANGES = 30


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a table that can be used, and everything to tell of it.

    ``problems`` say which lines are not used and why, and on which something was taken for granted. ``left_out`` are
    the numbers of the lines not used: with ``rows`` they are all rows of the file.
    """

    rows: tuple[Row, ...]
    problems: tuple[str, ...]
    left_out: tuple[int, ...] = ()


def read_table(path: Path) -> Table:
    """The measurements of a table: ``.jsonl`` holds our own records, anything else is read as CSV.

    Raises:
        InvalidInputError: there is no such file, or it is no table: empty, binary, or without the needed columns.
    """
    if path.name.endswith(_RECORDS):
        return _records(path)
    cells, reading = read_cells(path), Reading(path)
    return _table([read_row(row, reading) for row in cells])


def _table(outcomes: Sequence[Used | LeftOut]) -> Table:
    left_out = [outcome for outcome in outcomes if isinstance(outcome, LeftOut)]
    used = [outcome for outcome in outcomes if isinstance(outcome, Used)]
    noted = ((note, outcome.row.line) for outcome in used for note in outcome.notes)
    return Table(
        rows=tuple(outcome.row for outcome in used),
        problems=(*_wrong(left_out), *_foreign(left_out), *_by_text(noted, "used: ", _MOST_RANGES)),
        left_out=tuple(outcome.line for outcome in left_out),
    )


def _wrong(left_out: Iterable[LeftOut]) -> Iterator[str]:
    return _by_text((("; ".join(row.reasons), row.line) for row in left_out if row.reasons), "not used: ", sys.maxsize)


def _foreign(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """One line per set of knobs that this version does not model, with the values met."""
    groups: dict[tuple[str, ...], list[LeftOut]] = {}
    for row in left_out:
        if row.foreign:
            groups.setdefault(tuple(sorted(row.foreign)), []).append(row)
    for knobs, rows in groups.items():
        met = {knob: "/".join(sorted({row.foreign[knob] for row in rows}, key=_as_number)) for knob in knobs}
        said = ", ".join(f"{knob}={values}" for knob, values in met.items())
        yield f"{_lines([row.line for row in rows], _MOST_RANGES)} not used: not modelled by this version: {said}"


def _as_number(text: str) -> tuple[int, str]:
    return (int(text) if text.isdecimal() else 0, text)


def _by_text(told: Iterable[tuple[str, int]], verdict: str, most: int) -> Iterator[str]:
    groups: dict[str, list[int]] = {}
    for text, line in told:
        groups.setdefault(text, []).append(line)
    for text, lines in groups.items():
        yield f"{_lines(lines, most)} {verdict}{text}"


def _lines(lines: Sequence[int], most: int) -> str:
    """``line 7``, or ``lines 2-5, 9 (5 rows)``; a long list is cut short."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    more = ", …" if len(ranges) > most else ""
    return f"lines {', '.join(shown)}{more} ({len(lines)} rows)"


def _records(path: Path) -> Table:
    records, problems = read_measurements_and_problems(path)
    numbers = [number for number, line in enumerate(read_bytes(path).split(b"\n"), start=1) if line.strip()]
    if not numbers:
        raise InvalidInputError(f"table {path}", ["this file is empty; allowed: one measurement a line"])
    broken = [n for n in numbers if any(problem.startswith(f"{path}, line {n}:") for problem in problems)]
    good = [number for number in numbers if number not in broken]
    presets = {model: _resolved(model) for model in dict.fromkeys(record.model for record in records)}
    outcomes = [_record(line, record, presets) for line, record in zip(good, records, strict=True)]
    table = _table(outcomes)
    return Table(table.rows, (*problems, *table.problems), tuple(sorted((*broken, *table.left_out))))


def _resolved(model: str) -> Preset | InvalidInputError:
    try:
        return resolve(model)
    except InvalidInputError as error:
        return error


def _record(line: int, record: Measurement, presets: dict[str, Preset | InvalidInputError]) -> Used | LeftOut:
    from calibration.trace import config_hash

    preset = presets[record.model]
    if isinstance(preset, InvalidInputError):
        return LeftOut(line=line, reasons=preset.problems)
    if record.config_hash not in (None, config_hash(preset)):
        return LeftOut(line=line, reasons=(f"{record.model} was measured with another config than it has now",))
    return Used(row=Row(line=line, preset=preset, measurement=record))
