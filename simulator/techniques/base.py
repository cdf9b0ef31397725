"""What a technique is: one knob of the recipe, with its default, its values, its text form and its rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from profiles.schema import Recipe
from simulator.case import Case

Value = str | int | None
LARGEST_WHOLE = 10**8
"""Micro-batch × accumulation × ranks of such numbers still fits 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a recipe is illegal: the rule, the reason with its numbers, and the nearest legal alternative.

    ``nearest`` is text that can be typed instead (``precision=fp16``); empty when no value of the knob helps.
    """

    knob: str
    rule: str
    reason: str
    nearest: str = ""

    def __str__(self) -> str:
        """One line for people."""
        hint = f"; nearest: {self.nearest}" if self.nearest else ""
        return f"{self.reason} (rule {self.rule}){hint}"


class Technique(Protocol):
    """One knob. ``knob`` is the field of ``Recipe``; ``allowed`` says in words which values exist.

    Values that the person fixed stand in ``case.fixed``; a default may depend on them.
    """

    knob: str
    allowed: str

    def default(self, case: Case) -> Value:
        """The value used when nobody names one."""
        ...

    def values(self, case: Case) -> tuple[Value, ...]:
        """What the search tries; the rules still apply to each."""
        ...

    def parse(self, text: str) -> Value:
        """The value that the text names.

        Raises:
            ValueError: it names none; the message says what is allowed.
        """
        ...

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Why this knob's value is illegal in this recipe, or ``None``. All values are of their knobs' domains."""
        ...


def parse_choice(knob: str, text: str, choices: Iterable[str]) -> str:
    """The one of ``choices`` that the text names.

    Raises:
        ValueError: none of them; the message lists them.
    """
    known = tuple(choices)
    if text.strip() in known:
        return text.strip()
    raise ValueError(f"{knob}={text} is not allowed; allowed: {', '.join(known)}")


def parse_whole(knob: str, text: str) -> int:
    """A whole number from 1 to ``LARGEST_WHOLE``.

    Raises:
        ValueError: it is not; the message says what is allowed.
    """
    if re.fullmatch(r"[0-9]{1,9}", text.strip()) and 1 <= int(text) <= LARGEST_WHOLE:
        return int(text)
    raise ValueError(f"{knob}={text} is not allowed; allowed: a whole number from 1 to {LARGEST_WHOLE:,}")
