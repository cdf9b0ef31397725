"""What tables write for a knob, a GPU or a model family, and what it means: ``table_aliases.toml``."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.catalogue import normalise
from profiles.errors import InvalidInputError
from profiles.files import folders, read_toml

FILE = "table_aliases.toml"


@dataclass(frozen=True, slots=True)
class Aliases:
    """Sections of the alias file: section → normalised text or pattern → meaning."""

    sections: Mapping[str, Mapping[str, str]]

    def meaning(self, section: str, text: str) -> str | None:
        """What a text means there, an exact entry before a pattern; ``None`` if the file does not say."""
        entries, wanted = self.sections.get(section, {}), normalise(text)
        if wanted in entries:
            return entries[wanted]
        return next((value for key, value in entries.items() if fnmatch.fnmatchcase(wanted, key)), None)

    def blank(self, knob: str) -> str | None:
        """The value of a knob that a row leaves blank."""
        return self.sections["blank"].get(knob)

    def known(self, section: str) -> str:
        """The texts that a section understands, for a message."""
        return ", ".join(dict.fromkeys([*self.sections.get(section, {}), *self.sections.get(section, {}).values()]))


def load_aliases() -> Aliases:
    """The shipped aliases with the user's before and over them.

    Raises:
        InvalidInputError: the user's file is not TOML, or holds something other than sections of texts.
    """
    user, shipped = folders(FILE)
    sections = _read(shipped)
    if user.is_file():
        for name, entries in _read(user).items():
            sections[name] = {**entries, **{k: v for k, v in sections.get(name, {}).items() if k not in entries}}
    return Aliases(sections)


def _read(path: Path) -> dict[str, dict[str, str]]:
    plain = read_toml(path)
    problems = [
        f"{name}: must be a section of texts"
        for name, entries in plain.items()
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values())
    ]
    if problems:
        raise InvalidInputError(str(path), problems)
    return {name: {_key(key, name): value for key, value in entries.items()} for name, entries in plain.items()}


def _key(key: str, section: str) -> str:
    return key if section == "blank" else normalise(key)
