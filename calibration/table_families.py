"""A transformers config from a table's columns, for a model that is no preset and has no config file."""

from __future__ import annotations

from dataclasses import dataclass, field

from calibration.building import build_config, build_on_meta
from calibration.counts import Counts, count
from calibration.table_columns import Cells
from profiles.errors import InvalidInputError
from profiles.schema import Config, Preset, Task

USUAL_VOCABULARY = 51_200
USUAL_FFN = 4
_NEEDED = ("layers", "hidden", "heads", "seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one transformers class names a table's columns. ``tied`` holds where the table gives no ``params``.

    ``positions``: its field for a learned table of positions, with ``shortest`` entries at least. A family without one
    may still be published with it: then ``params`` may count ``seq_len`` × ``hidden`` more.
    """

    task: Task
    fields: dict[str, str]
    positions: str | None = None
    shortest: int = 1
    published_with_positions: bool = False
    tied: bool
    fixed: Config = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        task="causal_lm",
        tied=True,
        positions="n_positions",
        fields={"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "ffn": "n_inner", "vocab": "vocab_size"},
    ),
    "llama": Family(
        task="causal_lm",
        tied=False,
        fields={
            "hidden": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "kv_heads": "num_key_value_heads",
            "ffn": "intermediate_size",
            "vocab": "vocab_size",
        },
    ),
    "bert": Family(
        task="masked_lm",
        tied=True,
        positions="max_position_embeddings",
        shortest=512,
        fields={
            "hidden": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "ffn": "intermediate_size",
            "vocab": "vocab_size",
        },
    ),
    "mpt": Family(
        task="causal_lm",
        tied=True,
        published_with_positions=True,
        fields={"hidden": "d_model", "layers": "n_layers", "heads": "n_heads", "vocab": "vocab_size"},
        fixed={"max_seq_len": 65_536},  # its biases hold no parameters: one config serves every length
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A config built from columns, with its counts at full depth and what was taken for granted."""

    task: Task
    config: Config
    params: int
    matrix_params: int
    notes: tuple[str, ...]


def build(family_name: str, cells: Cells) -> Built:
    """The config that a row's columns describe, tied or not as is nearer to its ``params``.

    Raises:
        InvalidInputError: a size is blank, the class cannot have such sizes, or no such model has the row's ``params``.
    """
    family, sizes, notes = FAMILIES[family_name], _sizes(cells), _notes(cells, family_name)
    problems = _problems(family_name, cells, sizes)
    if problems:
        raise InvalidInputError("model", problems)
    config = {"model_type": family_name, **family.fixed, **_config(family, sizes)}
    params = cells.whole("params")
    choices = (family.tied,) if params is None else (True, False)
    built = [_built(family, {**config, "tie_word_embeddings": tied}, notes) for tied in choices]
    if params is None:
        return built[0]
    extra = sizes["seq_len"] * sizes["hidden"] if family.published_with_positions else 0
    return min(built, key=lambda one: distance(one.params, params, extra))


def distance(params: int, told: int, extra: int = 0) -> float:
    """How far a count is from the one told, as a fraction of it; ``extra`` parameters may be counted or not."""
    return min(abs(params / told - 1), abs((params + extra) / told - 1))


def positions_published(family_name: str, cells: Cells) -> int:
    """Parameters of a table of positions that a published count may include and the class does not have."""
    published = FAMILIES[family_name].published_with_positions
    return (cells.whole("seq_len") or 0) * (cells.whole("hidden") or 0) if published else 0


def _sizes(cells: Cells) -> dict[str, int]:
    sizes = {name: cells.whole(name) or 0 for name in _NEEDED}
    sizes["kv_heads"] = cells.whole("kv_heads") or sizes["heads"]
    sizes["ffn"] = cells.whole("ffn") or USUAL_FFN * sizes["hidden"]
    sizes["vocab"] = cells.whole("vocab") or USUAL_VOCABULARY
    return sizes


def _notes(cells: Cells, family_name: str) -> tuple[str, ...]:
    taken = {"ffn": f"{USUAL_FFN} × hidden", "vocab": f"{USUAL_VOCABULARY:,}"}
    if "kv_heads" in FAMILIES[family_name].fields:
        taken["kv_heads"] = "heads"
    return tuple(f"{name}={value}" for name, value in taken.items() if name not in cells.numbers)


def _problems(family_name: str, cells: Cells, sizes: dict[str, int]) -> list[str]:
    problems: list[str] = []
    blank = [name for name in _NEEDED if name not in cells.numbers]
    name, fields = cells.text.get("model_name", ""), FAMILIES[family_name].fields
    if blank:
        problems.append(f"{name} is no preset, and {', '.join(blank)} are blank; allowed: those, or model_config")
    if "decoder_seq" in cells.numbers:
        problems.append(f"{name} is no preset, and a model with a decoder of its own needs model_config")
    if "kv_heads" not in fields and sizes["kv_heads"] != sizes["heads"]:
        problems.append(f"{family_name} has no grouped heads, but kv_heads is not heads; model_config says more")
    if "ffn" not in fields and not blank and sizes["ffn"] % sizes["hidden"]:
        problems.append(f"{family_name} needs an ffn that is a multiple of hidden; model_config says more")
    return problems


def _config(family: Family, sizes: dict[str, int]) -> Config:
    config: Config = {key: sizes[column] for column, key in family.fields.items()}
    if "ffn" not in family.fields:
        config["expansion_ratio"] = sizes["ffn"] // sizes["hidden"]
    if family.positions:
        config[family.positions] = max(family.shortest, sizes["seq_len"])
    return config


def _built(family: Family, config: Config, notes: tuple[str, ...]) -> Built:
    """Counted on one and two blocks: what a further block adds is exact, since all are alike."""
    depth_key = family.fields["layers"]
    one, two = (_counts(family, {**config, depth_key: depth}) for depth in (1, 2))
    further = config[depth_key] - 1
    return Built(
        task=family.task,
        config=config,
        params=one.params + further * (two.params - one.params),
        matrix_params=_matrix_params(one) + further * (_matrix_params(two) - _matrix_params(one)),
        notes=notes,
    )


def _counts(family: Family, config: Config) -> Counts:
    preset = Preset(
        name=str(config["model_type"]), task=family.task, config=config, params=0, seq=1, source="columns", date=""
    )
    return count(build_on_meta(preset), build_config(preset))


def _matrix_params(counts: Counts) -> int:
    return counts.active_params - counts.embedding_params
