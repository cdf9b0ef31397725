"""Recipes in tables: what all rows have in common is said once, above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cli.contract import recipe_json

if TYPE_CHECKING:
    from profiles.schema import Recipe
    from simulator import Case

_ALWAYS_SHOWN = ("micro_batch", "grad_accum")
_QUIET = {"compile": "off", "checkpointing": "none"}
SHORT = {
    "micro_batch": "mb", "grad_accum": "ga", "attention": "", "precision": "", "optimizer": "", "compile": "compile ",
    "checkpointing": "ckpt ", "seq": "seq ", "decoder_seq": "dec ",
}  # fmt: skip


def shared_knobs(case: Case, recipes: Sequence[Recipe]) -> dict[str, object]:
    """The knobs that have one value in all of these recipes."""
    rows = [recipe_json(case, recipe) for recipe in recipes]
    return {
        knob: value
        for knob, value in rows[0].items()
        if knob not in _ALWAYS_SHOWN and all(row[knob] == value for row in rows)
    }


def knobs_text(knobs: Mapping[str, object], *, short: bool = False) -> str:
    """``micro_batch=16, precision=bf16``, which ``--recipe`` reads; or short words for a table's cell."""
    told = {knob: value for knob, value in knobs.items() if value is not None}
    if not short:
        return ", ".join(f"{knob}={value}" for knob, value in told.items()) or "nothing in common"
    told = {knob: value for knob, value in told.items() if _QUIET.get(knob) != value}
    return " ".join(f"{SHORT.get(knob, knob + '=')}{value}" for knob, value in told.items())
