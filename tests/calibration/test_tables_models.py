"""The model of a table's row: preset, config file or columns; counts against closed forms."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from calibration.counts import count
from calibration.models import build_config, build_on_meta
from calibration.tables import Row, Table, read_table

PLAIN = {"gpu": "A100-80GB", "num_gpus": "1", "seq_len": "512", "micro_batch": "1", "step_time_s": "60"}
SHAPE = {"layers": "4", "hidden": "256", "heads": "4", "kv_heads": "4", "ffn": "1024", "vocab": "1000"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def table(tmp_path: Path):
    def write(*changes: dict[str, str]) -> Table:
        rows = [{**PLAIN, **change} for change in changes]
        path = tmp_path / "models.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)), restval="")
            writer.writeheader()
            writer.writerows(rows)
        return read_table(path)

    return write


def only(read: Table) -> Row:
    assert len(read.rows) == 1, read.problems
    return read.rows[0]


def refusal(read: Table) -> str:
    assert read.rows == ()
    (problem,) = read.problems
    return problem


def gpt2_params(layers: int, hidden: int, vocab: int, positions: int, *, tied: bool) -> int:
    """Attention 4h² + 4h, feed-forward 8h² + 5h, two norms 4h a block; a last norm; tables."""
    return (
        layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden + positions * hidden + vocab * hidden * (1 if tied else 2)
    )


def llama_params(layers: int, hidden: int, kv_width: int, ffn: int, vocab: int, *, tied: bool) -> int:
    block = 2 * hidden**2 + 2 * hidden * kv_width + 3 * hidden * ffn + 2 * hidden
    return layers * block + hidden + vocab * hidden * (1 if tied else 2)


def test_preset_of_that_name_is_used(table):
    row = only(table({"model_name": "BERT_Base", "params": "1.1e8", "layers": "12"}))
    assert (row.preset.name, row.preset.task, row.measurement.model) == ("bert-base", "masked_lm", "bert-base")


def test_preset_that_the_row_contradicts(table):
    assert "layers is 4, and gpt2 has 12; give model_config" in refusal(table({"model_name": "gpt2", "layers": "4"}))
    problem = refusal(table({"model_name": "gpt2", "params": "1.5e9"}))
    assert "gpt2 has 124,439,808 parameters, 91.7% off params 1,500,000,000" in problem


@pytest.mark.parametrize(
    ("name", "kind", "task"),
    [
        ("GPT 9B", "gpt2", "causal_lm"),
        ("Some-LLaMA-1B", "llama", "causal_lm"),
        ("MPT-9b", "mpt", "causal_lm"),
        ("BERT-tiny", "bert", "masked_lm"),
    ],
)
def test_family_follows_from_the_name(table, name, kind, task):
    preset = only(table({"model_name": name, **SHAPE})).preset
    assert (preset.name, preset.config["model_type"], preset.task, preset.seq) == (name, kind, task, 512)
    assert preset.params == count(build_on_meta(preset), build_config(preset)).params


def test_gpt2_from_columns(table):
    preset = only(table({"model_name": "GPT-x", **SHAPE})).preset
    assert preset.params == gpt2_params(4, 256, 1000, 512, tied=True)
    assert preset.config == {
        "model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_inner": 1024, "vocab_size": 1000,
        "n_positions": 512, "tie_word_embeddings": True,
    }  # fmt: skip


def test_blank_ffn_and_vocabulary_are_taken_and_reported(table):
    read = table({"model_name": "GPT-x", **SHAPE, "ffn": "", "vocab": ""})
    assert only(read).preset.params == gpt2_params(4, 256, 51_200, 512, tied=True)
    assert any("ffn=4 × hidden, vocab=51,200" in problem for problem in read.problems)


def test_llama_with_grouped_heads(table):
    preset = only(table({"model_name": "llama-x", **SHAPE, "kv_heads": "2"})).preset
    assert preset.params == llama_params(4, 256, 128, 1024, 1000, tied=False)
    read = table({"model_name": "llama-x", **SHAPE, "kv_heads": ""})
    assert only(read).preset.params == llama_params(4, 256, 256, 1024, 1000, tied=False)
    assert any("kv_heads=heads" in problem for problem in read.problems)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_if_that_is_nearer_the_params(table, tied):
    params = llama_params(4, 256, 256, 1024, 4000, tied=tied)
    change = {"model_name": "llama-x", **SHAPE, "vocab": "4000", "params": str(round(params * 1.01))}
    preset = only(table(change)).preset
    assert (preset.config["tie_word_embeddings"], preset.params) == (tied, params)


def test_more_than_five_percent_off_is_reported(table):
    params = gpt2_params(4, 256, 1000, 512, tied=True)
    assert only(table({"model_name": "GPT-x", **SHAPE, "params": str(round(params / 1.04))})).preset.params == params
    problem = refusal(table({"model_name": "GPT-x", **SHAPE, "params": str(round(params / 1.08))}))
    assert f"gpt2 with the columns' sizes has {params:,} parameters, 8.0% off params" in problem


def test_published_mpt_counts_may_include_positions_that_the_class_lacks(table):
    shape = {**SHAPE, "seq_len": "8192"}
    params = only(table({"model_name": "MPT-x", **shape})).preset.params
    preset = only(table({"model_name": "MPT-x", **shape, "params": str(params + 8192 * 256)})).preset
    assert (preset.config["tie_word_embeddings"], preset.params) == (True, params)


def test_one_mpt_config_serves_every_length(table):
    read = table(*({"model_name": "MPT-x", **SHAPE, "seq_len": seq} for seq in ("512", "2048", "65536")))
    assert len(read.rows) == 3
    assert read.rows[0].preset is read.rows[1].preset is read.rows[2].preset
    assert [row.measurement.recipe.seq for row in read.rows] == [512, 2048, 65536]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": "", "heads": ""}, "layers, heads are blank; allowed: those, or model_config"),
        ({"heads": "3", "kv_heads": "3"}, "256"),
        ({"kv_heads": "2"}, "gpt2 has no grouped heads"),
        ({"decoder_seq": "64"}, "a model with a decoder of its own needs model_config"),
        ({"model_name": "MPT-x", "ffn": "1000"}, "mpt needs an ffn that is a multiple of hidden"),
    ],
)
def test_columns_that_make_no_model(table, change, said):
    problem = refusal(table({"model_name": "GPT-x", **SHAPE, **change}))
    assert problem.startswith("line 2 not used: ")
    assert said in problem


def test_one_model_is_built_once(table, monkeypatch):
    from calibration import table_families

    built = []
    monkeypatch.setattr(
        table_families, "build", lambda *given, real=table_families.build: built.append(1) or real(*given)
    )
    read = table(*({"model_name": "GPT-x", **SHAPE, "micro_batch": str(batch)} for batch in range(1, 101)))
    assert len(read.rows) == 100
    assert len(built) == 1
    assert len({id(row.preset) for row in read.rows}) == 1


def test_one_name_never_means_two_configs(table):
    read = table({"model_name": "GPT-x", **SHAPE}, {"model_name": "GPT-x", **SHAPE, "layers": "5"})
    first, second = read.rows
    assert first.preset.name == first.measurement.model == "GPT-x"
    assert second.preset.name == second.measurement.model == f"GPT-x-{second.measurement.config_hash[:6]}"
    assert first.measurement.config_hash != second.measurement.config_hash


def test_hash_is_that_of_the_traced_workload(table):
    from calibration.trace import config_hash

    row = only(table({"model_name": "GPT-x", **SHAPE}))
    assert row.measurement.config_hash == config_hash(row.preset)


def test_config_file_beside_the_table(table, tmp_path):
    config = {
        "model_type": "gpt_neox", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 999, "max_position_embeddings": 512,
        "architectures": ["GPTNeoXForCausalLM"],
    }  # fmt: skip
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.json").write_text(json.dumps(config), encoding="utf-8")
    row = only(table({"model_name": "mine", "model_config": "configs/mine.json"}))
    assert (row.preset.name, row.preset.config["model_type"]) == ("mine", "gpt_neox")
    clash = only(table({"model_name": "gpt2", "model_config": "configs/mine.json"}))
    assert clash.preset.name == f"gpt2-{clash.measurement.config_hash[:6]}"
    assert "layers is 9, and mine has 2" in refusal(
        table({"model_name": "mine", "model_config": "configs/mine.json", "layers": "9"})
    )


def test_config_file_that_is_not_there(table):
    assert "no such file" in refusal(table({"model_name": "mine", "model_config": "nowhere.json"}))


def test_encoder_decoder_preset(table):
    rate = {"step_time_s": "", "tokens_per_s_per_gpu": "1000"}
    row = only(table({"model_name": "t5-small", "decoder_seq": "128", **rate}))
    assert (row.measurement.recipe.seq, row.measurement.recipe.decoder_seq) == (512, 128)
    assert row.measurement.step_s == pytest.approx(0.64)  # 640 positions at 1000 a second
    alone = only(table({"model_name": "t5-small", "decoder_seq": "", **rate}))
    assert (alone.measurement.recipe.decoder_seq, alone.measurement.step_s) == (None, pytest.approx(1.024))


def test_images_have_a_fixed_length(table):
    row = only(table({"model_name": "vit-b16", "seq_len": "", "step_time_s": "1"}))
    assert row.measurement.recipe.seq is None
    assert "197 positions, fixed by its config" in refusal(table({"model_name": "vit-b16", "seq_len": "512"}))
