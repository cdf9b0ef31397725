"""One row of a table becomes one measurement, or the reasons why it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from calibration.table_aliases import load_aliases
from calibration.table_columns import Cells
from calibration.table_gpus import Cards
from calibration.table_layout import Layout, layout_of
from calibration.table_measured import Outcome, Times, outcome_of, times_of
from calibration.table_models import Found, Models
from calibration.table_recipes import Knobs, knobs_of
from profiles.errors import InvalidInputError
from profiles.schema import Measurement, Preset, Recipe
from simulator.recipes import parse_recipe, recipe_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement, the line of the table that it stands on, and its model."""

    line: int
    preset: Preset
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A row that can be used, and what was taken for granted to do so."""

    row: Row
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row that cannot be used: what is wrong with it, else the knobs that this version does not model."""

    line: int
    reasons: tuple[str, ...] = ()
    foreign: dict[str, str] = field(default_factory=dict)


class Reading:
    """What the rows of one table share: its name, the aliases, and the cards and models met so far."""

    def __init__(self, table: Path) -> None:
        self.origin = f"import:{table.name}"
        self.aliases = load_aliases()
        self.cards = Cards(self.aliases)
        self.models = Models(table, self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    layout: Layout
    knobs: Knobs
    outcome: Outcome


def read_row(cells: Cells, read: Reading) -> Used | LeftOut:
    """What a row says. Its model is built only if the rest of it can be used."""
    problems = list(cells.problems)
    ran = _ran(cells, read, problems)
    if ran is None or problems:
        return LeftOut(line=cells.line, reasons=tuple(problems))
    if foreign := ran.knobs.foreign():
        return LeftOut(line=cells.line, foreign=foreign)
    found = read.models.find(cells, problems)
    if found is None:
        return LeftOut(line=cells.line, reasons=tuple(problems))
    recipe = _recipe(cells, ran, found, problems)
    times = times_of(cells, ran.layout, ran.knobs.values["precision"], found, problems)
    if recipe is None or problems:
        return LeftOut(line=cells.line, reasons=tuple(problems))
    notes = _notes(ran, found)
    record = _measurement(cells, ran, found, recipe, times, notes, read.origin)
    return Used(row=Row(line=cells.line, preset=found.preset, measurement=record), notes=notes)


def _ran(cells: Cells, read: Reading, problems: list[str]) -> _Ran | None:
    layout = layout_of(cells, read.cards, problems)
    if layout is None:
        return None
    knobs = knobs_of(cells, layout.degrees, layout.gpu, read.aliases, problems)
    outcome = outcome_of(cells, layout, knobs.values.get("precision", ""), read.aliases, problems)
    return _Ran(layout=layout, knobs=knobs, outcome=outcome) if outcome else None


def _recipe(cells: Cells, ran: _Ran, found: Found, problems: list[str]) -> Recipe | None:
    lengths = {"seq": cells.whole("seq_len"), "decoder_seq": cells.whole("decoder_seq")}
    problems.extend(_length_problems(found, lengths["seq"], lengths["decoder_seq"]))
    counts = {"micro_batch": ran.layout.micro_batch, "grad_accum": ran.layout.grad_accum}
    told = {knob: value for knob, value in {**counts, **lengths}.items() if value is not None}
    try:
        return recipe_of(parse_recipe({**ran.knobs.modelled(), **told}))
    except InvalidInputError as error:
        problems.extend(error.problems)
        return None


def _length_problems(found: Found, seq: int | None, decoder_seq: int | None) -> list[str]:
    name, problems = found.preset.name, list[str]()
    if seq is None and found.fixed_seq is None:
        problems.append("seq_len is blank")
    if seq and found.fixed_seq and seq != found.fixed_seq:
        problems.append(f"seq_len is {seq}, and {name} has {found.fixed_seq} positions, fixed by its config")
    if seq and found.max_seq and seq > found.max_seq:
        problems.append(f"seq_len is {seq}, and the position table of {name} ends at {found.max_seq}")
    if decoder_seq and found.preset.decoder_seq is None:
        problems.append(f"decoder_seq is {decoder_seq}, and {name} has no decoder of its own")
    return problems


def _notes(ran: _Ran, found: Found) -> tuple[str, ...]:
    taken = (*(f"{knob}={value}" for knob, value in ran.knobs.blank.items()), *found.taken)
    return (*ran.layout.notes, *((f"blank cells taken as {', '.join(taken)}",) if taken else ()))


def _measurement(
    cells: Cells, ran: _Ran, found: Found, recipe: Recipe, times: Times, notes: tuple[str, ...], origin: str
) -> Measurement:
    said, outcome, peaks = (cells.text.get("source"), cells.text.get("note"), *notes), ran.outcome, ran.outcome.peaks
    return Measurement(
        model=found.preset.name,
        config_hash=found.config_hash,
        machine=ran.layout.machine,
        recipe=recipe,
        status=outcome.status,
        reason="the table says out of memory" if outcome.status == "oom" else None,
        step_s=times.step_s,
        micro_s=times.micro_s,
        optimizer_s=times.optimizer_s,
        peak_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        peak_device_bytes=peaks.device_bytes,
        memory_kind=peaks.kind,
        origin=origin,
        note="; ".join(text for text in said if text),
    )
