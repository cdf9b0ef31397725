"""The model that a row of a table trained: a config file, else a preset, else a config built from its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from calibration import table_families
from calibration.building import build_config, build_on_meta, size_of
from calibration.counts import count
from calibration.lengths import fixed_seq, max_positions
from calibration.models import resolve
from calibration.table_aliases import Aliases
from calibration.table_columns import Cells
from profiles.catalogue import load_preset, normalise
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.schema import Preset

LARGEST_MISS = 0.05
"""A model further than this fraction from a row's ``params`` is not the one that ran."""
_SHAPE = ("model_config", "model_name", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
_STATED = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}
_READ_BY_EVERY_TOKEN = ("causal_lm", "masked_lm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row's model. ``matrix_params`` take part in a product with every position; ``None`` where that is not so.

    ``fixed_seq`` and ``max_seq`` bound the length as the config does; ``taken`` are sizes that blank cells left open.
    """

    preset: Preset
    config_hash: str
    matrix_params: int | None
    fixed_seq: int | None = None
    max_seq: int | None = None
    taken: tuple[str, ...] = ()


class Models:
    """The models of one table. Each is built once; one name never means two configs."""

    def __init__(self, table: Path, aliases: Aliases) -> None:
        self._table = table
        self._aliases = aliases
        self._date = datetime.fromtimestamp(table.stat().st_mtime, UTC).date().isoformat()
        self._found: dict[tuple[str | None, ...], Found | tuple[str, ...]] = {}
        self._presets: dict[str, Preset] = {}
        self._hashes: dict[str, str] = {}

    def find(self, cells: Cells, problems: list[str]) -> Found | None:
        """The model of a row; ``None`` if there is none, with every reason added to ``problems``."""
        key = tuple(cells.text.get(name) for name in _SHAPE)
        if key not in self._found:
            try:
                self._found[key] = self._find(cells)
            except InvalidInputError as error:
                self._found[key] = error.problems
        found = self._found[key]
        if isinstance(found, Found):
            return found
        problems.extend(found)
        return None

    def _find(self, cells: Cells) -> Found:
        name = cells.text.get("model_name", "")
        if not name:
            raise InvalidInputError("model", ["model_name is blank"])
        shipped = _shipped(name)
        if "model_config" in cells.text:
            preset = resolve(str(self._table.parent / cells.text["model_config"]))
            return self._named(_known(preset, cells), name, shipped)
        if shipped is not None:
            return self._named(_known(shipped, cells), shipped.name, shipped)
        return self._named(self._built(name, cells), name, None)

    def _built(self, name: str, cells: Cells) -> Found:
        family = self._aliases.meaning("family", name)
        if family not in table_families.FAMILIES:
            raise InvalidInputError("model", [f"{name} is no preset, and no family of the aliases; give model_config"])
        built = table_families.build(family, cells)
        extra = table_families.positions_published(family, cells)
        _check_params(f"{family} with the columns' sizes", built.params, cells, extra)
        preset = Preset(
            name=name,
            task=built.task,
            config=built.config,
            params=built.params,
            seq=cells.whole("seq_len") or 1,
            source=f"columns of {self._table.name}",
            date=self._date,
        )
        return Found(preset=preset, config_hash=_hash(preset), matrix_params=built.matrix_params, taken=built.notes)

    def _named(self, found: Found, name: str, shipped: Preset | None) -> Found:
        """The same under a name that means no other config, in this table or among the presets."""
        if shipped is not None:
            self._hashes.setdefault(normalise(name), _hash(shipped))
        own = self._hashes.setdefault(normalise(name), found.config_hash) == found.config_hash
        unique = name if own else f"{name}-{found.config_hash[:6]}"
        preset = self._presets.setdefault(unique, replace(found.preset, name=unique))
        return replace(found, preset=preset)


def _shipped(name: str) -> Preset | None:
    try:
        return load_preset(name)
    except UnknownNameError:
        return None


def _known(preset: Preset, cells: Cells) -> Found:
    """A model with a config of its own, if the row's sizes do not contradict it."""
    config = build_config(preset)
    problems = [
        f"{column} is {told}, and {preset.name} has {real}; give model_config"
        for column, standard in _STATED.items()
        if (told := cells.whole(column)) and (real := size_of(config.get_text_config(), standard)) and told != real
    ]
    if problems:
        raise InvalidInputError("model", problems)
    _check_params(preset.name, preset.params, cells)
    counts = count(build_on_meta(preset), config) if preset.task in _READ_BY_EVERY_TOKEN else None
    return Found(
        preset=preset,
        config_hash=_hash(preset),
        fixed_seq=fixed_seq(config),
        max_seq=max_positions(config),
        matrix_params=counts.active_params - counts.embedding_params if counts else None,
    )


def _check_params(name: str, params: int, cells: Cells, extra: int = 0) -> None:
    told = cells.whole("params")
    if told is None:
        return
    miss = table_families.distance(params, told, extra)
    if miss > LARGEST_MISS:
        problem = f"{name} has {params:,} parameters, {miss:.1%} off params {told:,}; model_config says more"
        raise InvalidInputError("model", [problem])


def _hash(preset: Preset) -> str:
    from calibration.trace import config_hash

    return config_hash(preset)
