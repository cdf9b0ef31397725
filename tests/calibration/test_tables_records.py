"""Our own records as a table, the alias file, and tables of other people where a folder of them is named."""

from __future__ import annotations

import csv
import os
import tomllib
from pathlib import Path

import pytest

from calibration.table_aliases import load_aliases
from calibration.table_recipes import COLUMN_OF, FOREIGN, FOREIGN_VALUES
from calibration.tables import read_table
from calibration.trace import config_hash
from profiles.catalogue import load_gpu, load_preset
from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.records import append_measurement
from profiles.schema import Measurement, Recipe
from simulator.recipes import BY_KNOB

OUTSIDE = os.environ.get("PACELINE_TABLES")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(model: str, batch: int, hashed: str | None = None) -> Measurement:
    recipe = Recipe(micro_batch=batch)
    return Measurement(model=model, config_hash=hashed, machine="1xH200", recipe=recipe, status="ok", step_s=0.5)


# --------------------------------------------------------------------------------------------------- our records


def test_records_come_back_with_their_lines_and_presets(tmp_path):
    path = tmp_path / "runs.jsonl"
    mine = [record("gpt2", 1), record("pythia-14m", 2, config_hash(load_preset("pythia-14m")))]
    append_measurement(path, mine[0])
    with path.open("ab") as stream:
        stream.write(b"\n{broken\n")
    append_measurement(path, mine[1])
    read = read_table(path)
    assert [row.line for row in read.rows] == [1, 4]
    assert [row.measurement for row in read.rows] == mine
    assert [row.preset.name for row in read.rows] == ["gpt2", "pythia-14m"]
    assert read.left_out == (3,)
    assert "line 3: skipped" in read.problems[0]


def test_records_of_a_model_that_is_not_known_or_has_changed(tmp_path):
    path = tmp_path / "runs.jsonl"
    for measurement in (record("gpt2", 1), record("no-such-model", 1), record("gpt2", 2, "0" * 12)):
        append_measurement(path, measurement)
    read = read_table(path)
    assert [row.line for row in read.rows] == [1]
    assert read.left_out == (2, 3)
    assert read.problems[0].startswith("line 2 not used: 'no-such-model' is not a known model")
    assert read.problems[1] == "line 3 not used: gpt2 was measured with another config than it has now"


def test_empty_records(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\n\n")
    with pytest.raises(InvalidInputError, match="this file is empty"):
        read_table(path)


# ------------------------------------------------------------------------------------------------- the alias file


def test_every_alias_means_a_value_of_the_recipe():
    sections = tomllib.loads((SHIPPED / "table_aliases.toml").read_text(encoding="utf-8"))
    assert set(COLUMN_OF) <= set(sections)
    for knob in COLUMN_OF:
        for text, value in sections[knob].items():
            if knob in FOREIGN:
                assert value in (FOREIGN[knob].neutral, *FOREIGN[knob].known), text
            elif value not in FOREIGN_VALUES.get(knob, ()):
                assert BY_KNOB[knob].parse(value) == value, text


def test_every_usual_gpu_exists_and_is_needed():
    sections = tomllib.loads((SHIPPED / "table_aliases.toml").read_text(encoding="utf-8"))
    for text, name in sections["gpu_without_memory"].items():
        assert load_gpu(name).name == name
        with pytest.raises(InvalidInputError):
            load_gpu(text)


def test_users_aliases_add_and_replace(home):
    home.mkdir()
    (home / "table_aliases.toml").write_text(
        '[precision]\n"mixed" = "fp16"\n"amp-bf16" = "bf16_pure"\n', encoding="utf-8"
    )
    aliases = load_aliases()
    assert aliases.meaning("precision", "Mixed") == "fp16"
    assert aliases.meaning("precision", "amp_bf16") == "bf16_pure"
    assert aliases.meaning("precision", "float32") == "fp32"
    assert aliases.meaning("attention", "flash") == "sdpa"


def test_exact_alias_wins_over_a_pattern(home):
    home.mkdir()
    (home / "table_aliases.toml").write_text('[attention]\n"f*" = "eager"\n', encoding="utf-8")
    assert load_aliases().meaning("attention", "flash") == "sdpa"
    assert load_aliases().meaning("attention", "fancy") == "eager"


@pytest.mark.parametrize(
    ("text", "said"), [("[precision]\nx = 1\n", "precision: must be a section"), ("x", "not valid TOML")]
)
def test_alias_file_that_cannot_be_used(home, text, said):
    home.mkdir()
    (home / "table_aliases.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=said):
        load_aliases()


# ------------------------------------------------------------------------------------------------ outside tables


@pytest.mark.skipif(not OUTSIDE, reason="PACELINE_TABLES names no folder of measured tables")
def test_outside_tables_are_read_and_every_row_is_accounted_for():
    paths = sorted(Path(OUTSIDE or "").glob("*.csv"))
    assert paths
    for path in paths:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = sum(1 for row in csv.reader(stream) if row) - 1
        read = read_table(path)
        assert len(read.rows) + len(read.left_out) == rows, path.name
        assert not {row.line for row in read.rows} & set(read.left_out), path.name
        told = " ".join(problem for problem in read.problems if " not used: " in problem)
        assert bool(told) == bool(read.left_out), path.name
