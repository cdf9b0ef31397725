"""The columns of a table of measurements, and its cells as text and numbers: what is known before any meaning."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from profiles.errors import InvalidInputError
from profiles.files import read_bytes, read_text

Kind = Literal["text", "count", "positive", "from_zero", "fraction"]
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WITH_UNIT = re.compile(rf"{_NUMBER.pattern}\s*[a-zA-Z%µ/]+")
_LARGEST = 1e18
_ALLOWED: dict[Kind, str] = {
    "text": "",
    "count": "a whole number from 1",
    "positive": "a number above zero",
    "from_zero": "a number from zero",
    "fraction": "a fraction from 0 to 1",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, what its cells hold, and the unit they are in."""

    name: str
    kind: Kind = "text"
    unit: str = ""


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("source"),
        Column("gpu"),
        Column("gpu_mem_gib", "positive", "GiB"),
        Column("num_nodes", "count"),
        Column("num_gpus", "count"),
        Column("model_name"),
        Column("params", "count"),
        Column("layers", "count"),
        Column("hidden", "count"),
        Column("heads", "count"),
        Column("kv_heads", "count"),
        Column("ffn", "count"),
        Column("vocab", "count"),
        Column("seq_len", "count"),
        Column("micro_batch", "count"),
        Column("grad_accum", "count"),
        Column("global_batch", "count"),
        Column("precision"),
        Column("attention"),
        Column("act_ckpt"),
        Column("zero_stage_or_sharding"),
        Column("offload"),
        Column("tp", "count"),
        Column("pp", "count"),
        Column("dp", "count"),
        Column("schedule"),
        Column("compile"),
        Column("optimizer"),
        Column("step_time_s", "positive", "seconds"),
        Column("tokens_per_s_per_gpu", "positive", "tokens/s"),
        Column("tflops_per_gpu", "from_zero", "TFLOP/s"),
        Column("mfu", "fraction", "not percent"),
        Column("peak_mem_gib", "positive", "GiB"),
        Column("oom"),
        Column("note"),
        Column("cp", "count"),
        Column("decoder_seq", "count"),
        Column("memory_kind"),
        Column("model_config"),
        Column("t_micro_s", "positive", "seconds"),
        Column("t_opt_s", "from_zero", "seconds"),
        Column("peak_reserved_gib", "positive", "GiB"),
    )
}
REQUIRED = ("gpu", "num_gpus", "model_name", "seq_len", "micro_batch")
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "t_micro_s", "peak_mem_gib", "peak_reserved_gib", "oom")
"""At least one of these must be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One row of a table. ``problems`` are cells that cannot be read.

    A blank cell is in neither mapping. ``columns`` are those that the table has.
    """

    line: int
    columns: frozenset[str]
    text: dict[str, str]
    numbers: dict[str, float]
    problems: tuple[str, ...] = ()

    def number(self, name: str) -> float | None:
        """The number in a column, ``None`` where unknown."""
        return self.numbers.get(name)

    def whole(self, name: str) -> int | None:
        """The count in a column, ``None`` where unknown."""
        value = self.numbers.get(name)
        return None if value is None else int(value)

    def count(self, name: str) -> int | None:
        """Like ``whole``, but 1 where the table lacks the column altogether: it had no use for it."""
        return self.whole(name) if name in self.columns else 1


def read_cells(path: Path) -> tuple[Cells, ...]:
    """The rows of a CSV table in the schema of ``COLUMNS``.

    Raises:
        InvalidInputError: not a CSV file, no rows, or a header with columns missing or named twice.
    """
    if b"\0" in read_bytes(path)[:65536]:
        raise _not_a_table(path, "this is a binary file")
    text = read_text(path)
    if not text.strip():
        raise _not_a_table(path, "this file is empty")
    lines = _lines(path, text)
    _, header = next(lines)
    names = [name.strip().lower() for name in header]
    _check_header(path, names)
    rows = tuple(_cells(line, names, values) for line, values in lines)
    if not rows:
        raise _not_a_table(path, "there is a header but no row")
    return rows


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line on which each begins; blank lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    begins = 1
    try:
        for values in reader:
            if values:
                yield begins, values
            begins = reader.line_num + 1
    except csv.Error as error:
        raise _not_a_table(path, f"the row that begins on line {begins} is broken: {error}") from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    if not set(names) & set(COLUMNS):
        shown = ",".join(names)
        found = f"the first line is {shown[:80] + '…' if len(shown) > 80 else shown!r}"
        separator = next((f", separated by {mark!r} and not by commas" for mark in ";\t|" if mark in shown), "")
        raise _not_a_table(path, found + separator)
    problems = [f"column {name} is there {names.count(name)} times" for name in COLUMNS if names.count(name) > 1]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        near = [f"{name}: {hint}" for name in names if name not in COLUMNS and (hint := _nearest(name))]
        problems.append(f"missing columns: {', '.join(missing)}" + (f" (found {'; '.join(near)})" if near else ""))
    if not set(names) & set(MEASURED):
        problems.append(f"nothing measured: at least one of {', '.join(MEASURED)} is needed")
    if problems:
        raise InvalidInputError(f"table {path}", [*problems, f"allowed columns: {', '.join(COLUMNS)}"])


def _not_a_table(path: Path, found: str) -> InvalidInputError:
    allowed = f"allowed: a CSV table with a header of at least {', '.join(REQUIRED)}, or measurements as .jsonl"
    return InvalidInputError(f"table {path}", [f"{found}; {allowed}"])


def _cells(line: int, names: Sequence[str], values: Sequence[str]) -> Cells:
    problems: list[str] = []
    if len(values) != len(names):
        problems.append(f"{len(values)} cells under {len(names)} columns")
    text = {name: value.strip() for name, value in zip(names, values, strict=False) if value.strip()}
    numbers: dict[str, float] = {}
    for name, value in text.items():
        column = COLUMNS.get(name)
        if column is None:
            hint = _nearest(name)
            problems.append(f"column {name or 'without a name'} is not in the schema" + (f"; {hint}" if hint else ""))
        elif column.kind != "text":
            _read_number(column, value, numbers, problems)
    return Cells(line=line, columns=frozenset(names), text=text, numbers=numbers, problems=tuple(problems))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, COLUMNS, n=1)
    if not near:
        return ""
    unit = COLUMNS[near[0]].unit
    return f"did you mean {near[0]}{f' ({unit})' if unit else ''}?"


def _read_number(column: Column, text: str, numbers: dict[str, float], problems: list[str]) -> None:
    unit = f" ({column.unit})" if column.unit else ""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if _allowed(column.kind, value):
        numbers[column.name] = value
        return
    why = " with its unit" if _WITH_UNIT.fullmatch(text) else ""
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    problems.append(f"{column.name}{unit} is {shown!r}{why}; allowed: {_ALLOWED[column.kind]}, or blank")


def _allowed(kind: Kind, value: float) -> bool:
    if not abs(value) <= _LARGEST:
        return False
    if kind == "count":
        return value >= 1 and value == int(value)
    return {"positive": value > 0, "from_zero": value >= 0, "fraction": 0 <= value <= 1}[kind]
