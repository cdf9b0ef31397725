"""Errors that a person can cause, as one tree.

    PacelineError
    ├── UnknownNameError     a model, GPU, machine, knob … that nobody declared; carries the nearest matches
    ├── InvalidInputError    a file, option or value that cannot be used; carries every problem found
    ├── InfeasibleError      the question is well-formed but nothing satisfies it
    └── CampaignError        measuring could not run at all

The command line turns each into one message and the exit code in ``exit_code``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class PacelineError(Exception):
    """Base of every error that is the user's to mend, never a bug of ours."""

    exit_code = 2


class InvalidInputError(PacelineError):
    """Input that cannot be used; ``problems`` lists all of them, each with what is allowed."""

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{subject}:", *(f"  - {problem}" for problem in self.problems)]))


class UnknownNameError(InvalidInputError):
    """A name that is not known, with the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        lowered = {candidate.lower(): candidate for candidate in names}
        near = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        self.name = name
        self.nearest = tuple(near)
        super().__init__(f"unknown {kind}", [f"{name!r} is not a known {kind}; {hint}"])


class InfeasibleError(PacelineError):
    """Nothing satisfies the question; says which constraint binds and the cheapest way out."""

    exit_code = 3


class CampaignError(PacelineError):
    """A measurement campaign that could not run at all; carries the first trial's own error."""

    exit_code = 4
