"""Rows of CSV tables: every rule of the schema, with expected values worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from calibration.table_columns import COLUMNS
from calibration.tables import Table, read_table
from profiles.errors import InvalidInputError
from profiles.schema import Measurement

PLAIN = {
    "source": "a report", "gpu": "A100", "gpu_mem_gib": "80", "num_nodes": "1", "num_gpus": "1", "model_name": "gpt2",
    "seq_len": "1024", "micro_batch": "8", "grad_accum": "4", "global_batch": "32", "precision": "amp_bf16",
    "attention": "flash", "act_ckpt": "none", "zero_stage_or_sharding": "none", "offload": "none", "tp": "1", "pp": "1",
    "dp": "1", "compile": "no", "optimizer": "adamw_fused", "step_time_s": "2.5", "oom": "0", "cp": "1",
    "note": "by hand",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def table(tmp_path: Path):
    """Write rows, each a change of ``PLAIN``, and read them; ``None`` drops a cell, ``without`` a whole column."""

    def write(*changes: dict[str, str | None], without: tuple[str, ...] = ()) -> Table:
        rows = [{name: text for name, text in {**PLAIN, **change}.items() if text is not None} for change in changes]
        names = [name for name in COLUMNS if name not in without]
        names += sorted({name for row in rows for name in row} - set(COLUMNS))
        path = tmp_path / "outside.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        return read_table(path)

    return write


def only(read: Table) -> Measurement:
    assert len(read.rows) == 1, read.problems
    assert read.left_out == ()
    return read.rows[0].measurement


def refusal(read: Table, line: int = 2) -> str:
    """The one problem of a table with one unusable row."""
    assert read.rows == ()
    assert read.left_out == (line,)
    (problem,) = read.problems
    assert problem.startswith(f"line {line} not used: ")
    return problem


def test_plain_row_becomes_one_measurement(table):
    read = table({})
    record = only(read)
    assert (record.model, record.machine, record.status, record.step_s) == ("gpt2", "1xA100-80GB", "ok", 2.5)
    recipe = record.recipe
    assert (recipe.micro_batch, recipe.grad_accum, recipe.seq, recipe.decoder_seq) == (8, 4, 1024, None)
    assert (recipe.precision, recipe.attention, recipe.compile) == ("bf16", "sdpa", "off")
    assert (recipe.checkpointing, recipe.optimizer) == ("none", "adamw_fused")
    assert (record.origin, record.note) == ("import:outside.csv", "a report; by hand")
    assert (record.peak_bytes, record.peak_reserved_bytes, record.memory_kind) == (None, None, None)
    assert read.rows[0].line == 2
    assert read.rows[0].preset.name == "gpt2"
    assert read.problems == ()


def test_bad_row_is_left_out_and_the_others_are_used(table):
    read = table({}, {"mfu": "1.7"}, {"step_time_s": "3"})
    assert [row.line for row in read.rows] == [2, 4]
    assert read.left_out == (3,)
    assert read.problems == ("line 3 not used: mfu (not percent) is '1.7'; allowed: a fraction from 0 to 1, or blank",)


def test_rows_with_the_same_trouble_share_a_line(table):
    read = table({"mfu": "2"}, {"mfu": "2"}, {}, {"mfu": "2"})
    assert read.left_out == (2, 3, 5)
    assert len(read.problems) == 1
    assert read.problems[0].startswith("lines 2-3, 5 (3 rows) not used: mfu")


def test_line_numbers_count_lines_and_not_rows(table):
    read = table({"note": "one\ntwo\nthree"}, {"mfu": "3"})
    assert read.left_out == (5,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step_time_s": "nan"}, "step_time_s (seconds) is 'nan'; allowed: a number above zero"),
        ({"step_time_s": "NaN"}, "step_time_s (seconds) is 'NaN'"),
        ({"step_time_s": "inf"}, "step_time_s (seconds) is 'inf'"),
        ({"step_time_s": "1e999"}, "step_time_s (seconds) is '1e999'"),
        ({"step_time_s": "-2.5"}, "step_time_s (seconds) is '-2.5'; allowed: a number above zero"),
        ({"step_time_s": "0"}, "step_time_s (seconds) is '0'"),
        ({"step_time_s": "2500 ms"}, "step_time_s (seconds) is '2500 ms' with its unit"),
        ({"peak_mem_gib": "40GB"}, "peak_mem_gib (GiB) is '40GB' with its unit"),
        ({"mfu": "41.5%"}, "mfu (not percent) is '41.5%' with its unit"),
        ({"mfu": "41.5"}, "allowed: a fraction from 0 to 1"),
        ({"micro_batch": "2.5"}, "micro_batch is '2.5'; allowed: a whole number from 1"),
        ({"micro_batch": "0"}, "micro_batch is '0'; allowed: a whole number from 1"),
        ({"params": "1,342"}, "params is '1,342'"),
        ({"t_opt_s": "-0.1"}, "t_opt_s (seconds) is '-0.1'; allowed: a number from zero"),
        ({"step_time_ms": "2500"}, "column step_time_ms is not in the schema; did you mean step_time_s (seconds)?"),
        ({"colour": "red"}, "column colour is not in the schema"),
        ({"tp": "2"}, "dp 1 × tp 2 × pp 1 × cp 1 = 2, which is not num_gpus 1"),
        ({"num_gpus": "8", "dp": "3"}, "= 3, which is not num_gpus 8"),
        ({"num_gpus": "8", "dp": "8", "num_nodes": "3", "global_batch": "256"}, "8 is not a multiple of num_nodes 3"),
        ({"global_batch": "33"}, "dp 1 × micro_batch 8 × grad_accum 4 = 32, which does not give global_batch 33"),
        ({"peak_mem_gib": "80.5"}, "peak_mem_gib is 80.5, and A100-80GB has 80.0 GiB"),
        ({"peak_reserved_gib": "90"}, "peak_reserved_gib is 90, and A100-80GB has 80.0 GiB"),
        ({"peak_mem_gib": "9", "peak_reserved_gib": "8"}, "peak_reserved_gib is below peak_mem_gib"),
        ({"tflops_per_gpu": "400"}, "tflops_per_gpu is 400 TFLOP/s, above the dense bf16 peak of A100-80GB, 312;"),
        ({"oom": "1"}, "oom is 1, and there is a time"),
        ({"oom": "perhaps"}, "oom is 'perhaps'; allowed: 0, 1, or blank"),
        ({"step_time_s": None, "oom": None}, "nothing is measured"),
        ({"memory_kind": "some"}, "memory_kind is 'some'; known: allocated, reserved, device"),
        ({"gpu": None}, "gpu is blank"),
        ({"gpu": "A200"}, "'A200' is not a known GPU"),
        ({"gpu": "H100", "gpu_mem_gib": "40"}, "gpu_mem_gib is 40, and H100-80GB has 79.1 GiB"),
        ({"model_name": None}, "model_name is blank"),
        ({"seq_len": None}, "seq_len is blank"),
        ({"seq_len": "2048"}, "the position table of gpt2 ends at 1024"),
        ({"decoder_seq": "128"}, "gpt2 has no decoder of its own"),
        ({"precision": "int4"}, "precision is 'int4', which no alias maps to a recipe value; known: "),
        ({"attention": "ring"}, "attention is 'ring', which no alias maps"),
        ({"gpu": "V100", "gpu_mem_gib": "32"}, "precision is bf16, and V100-32GB has no bf16 matrix products"),
        ({"step_time_s": None, "t_micro_s": "0.5"}, "t_micro_s needs t_opt_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_reported(table, change, said):
    assert said in refusal(table(change))


def test_all_problems_of_a_row_are_told(table):
    problem = refusal(table({"mfu": "2", "oom": "maybe", "tp": "2", "global_batch": "33"}))
    assert "mfu" in problem
    assert "tp 2" in problem
    problem = refusal(table({"precision": "int4", "attention": "ring", "oom": "maybe"}))
    assert all(word in problem for word in ("int4", "ring", "maybe"))


def test_row_with_more_or_fewer_cells_than_columns(tmp_path):
    path = tmp_path / "ragged.csv"
    header = "gpu,gpu_mem_gib,num_gpus,model_name,seq_len,micro_batch,step_time_s"
    good = "A100,80,1,gpt2,1024,8,0.5"
    path.write_text(f"{header}\n{good}\n{good},9\n\n{good.removesuffix(',0.5')}\n", encoding="utf-8")
    read = read_table(path)
    assert [row.line for row in read.rows] == [2]
    assert read.left_out == (3, 5)
    assert "line 3 not used: 8 cells under 7 columns" in read.problems
    assert any(problem.startswith("line 5 not used: 6 cells under 7 columns") for problem in read.problems)


def test_step_time_in_the_wrong_unit_contradicts_the_tokens(table):
    # 32 samples × 1024 tokens in 2.5 s on one GPU are 13,107 tokens/s
    assert only(table({"tokens_per_s_per_gpu": "13107"})).step_s == 2.5
    assert "tokens_per_s_per_gpu makes 2.5" in refusal(table({"tokens_per_s_per_gpu": "13107", "step_time_s": "2500"}))


def test_step_time_above_the_peak_of_the_card(table):
    # GPT-2's products: 124.4M parameters less 1024 × 768 positions; × 6 × 32,768 tokens in 0.05 s = 486 TFLOP/s
    problem = refusal(table({"step_time_s": "0.05"}))
    assert "in 0.05 s a step is 486.2 TFLOP/s, above the dense bf16 peak of A100-80GB, 312;" in problem
    assert only(table({"step_time_s": "0.08"})).step_s == 0.08


def test_step_time_follows_from_tokens_and_the_global_batch(table):
    change = {"step_time_s": None, "tokens_per_s_per_gpu": "16384", "num_gpus": "4", "dp": "4", "global_batch": "128"}
    assert only(table(change)).step_s == pytest.approx(128 * 1024 / (16384 * 4))


def test_step_time_follows_from_micro_and_optimizer_time(table):
    record = only(table({"step_time_s": None, "t_micro_s": "0.5", "t_opt_s": "0.25"}))
    assert (record.step_s, record.micro_s, record.optimizer_s) == (2.25, 0.5, 0.25)


def test_stated_step_time_wins_over_its_parts(table):
    record = only(table({"t_micro_s": "0.5"}))
    assert (record.step_s, record.micro_s, record.optimizer_s) == (2.5, 0.5, None)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (None, "peak_bytes"),
        ("allocated", "peak_bytes"),
        ("unknown", "peak_bytes"),
        ("reserved", "peak_reserved_bytes"),
        ("device", "peak_device_bytes"),
    ],
)
def test_peak_memory_stands_under_its_own_kind(table, kind, field):
    record = only(table({"peak_mem_gib": "1.5", "memory_kind": kind}))
    peaks = {name: getattr(record, name) for name in ("peak_bytes", "peak_reserved_bytes", "peak_device_bytes")}
    assert peaks == {**dict.fromkeys(peaks), field: 1_610_612_736}
    assert record.memory_kind == (kind or "allocated")


def test_reserved_beside_allocated(table):
    record = only(table({"peak_mem_gib": "1", "peak_reserved_gib": "2"}))
    assert (record.peak_bytes, record.peak_reserved_bytes) == (2**30, 2**31)
    differing = {"peak_mem_gib": "1", "peak_reserved_gib": "2", "memory_kind": "reserved"}
    assert "peak_reserved_gib is another value" in refusal(table(differing))


def test_memory_up_to_the_rounded_size_of_the_card_is_possible(table):
    assert only(table({"peak_mem_gib": "79.9"})).peak_bytes == round(79.9 * 2**30)


def test_memory_alone_is_a_measurement(table):
    record = only(table({"step_time_s": None, "oom": None, "peak_mem_gib": "7"}))
    assert (record.status, record.step_s, record.peak_bytes) == ("ok", None, 7 * 2**30)


def test_out_of_memory_row(table):
    record = only(table({"step_time_s": None, "oom": "1", "micro_batch": "512", "global_batch": "2048"}))
    assert (record.status, record.step_s, record.peak_bytes) == ("oom", None, None)
    assert record.reason == "the table says out of memory"


def test_row_that_says_only_that_it_fitted(table):
    record = only(table({"step_time_s": None, "oom": "0"}))
    assert (record.status, record.step_s, record.peak_bytes) == ("ok", None, None)


@pytest.mark.parametrize(
    ("change", "machine"),
    [
        ({"gpu": "A100-80GB"}, "1xA100-80GB"),
        ({"gpu": "A100", "gpu_mem_gib": "40"}, "1xA100-40GB"),
        ({"gpu": "A100-SXM-80GB", "gpu_mem_gib": None}, "1xA100-80GB"),
        ({"gpu": "A100-PCIe", "gpu_mem_gib": "40"}, "1xA100-40GB-PCIe"),
        ({"gpu": "H100"}, "1xH100-80GB"),
        ({"gpu": "h100", "gpu_mem_gib": "79.1"}, "1xH100-80GB"),
        ({"gpu": "V100-SXM2", "gpu_mem_gib": "16", "precision": "fp16"}, "1xV100-16GB"),
        ({"gpu": "Titan RTX", "gpu_mem_gib": "24", "precision": "fp16"}, "1xTitan-RTX"),
        ({"gpu": "cpu", "gpu_mem_gib": None, "precision": "fp32"}, "cpu"),
        ({"num_gpus": "8", "dp": "8", "global_batch": "256"}, "8xA100-80GB"),
        (
            {"gpu": "H100@8xib400", "num_nodes": "2", "num_gpus": "16", "dp": "16", "global_batch": "512"},
            "2x8xH100-80GB@8xib400",
        ),
    ],
)
def test_machine_in_words(table, change, machine):
    read = table(change)
    assert only(read).machine == machine
    assert read.problems == ()


def test_nodes_without_a_network_keep_the_text_and_are_reported(table):
    read = table({"num_nodes": "2", "num_gpus": "16", "dp": "16", "global_batch": "512"})
    assert only(read).machine == "2x8xA100-80GB"
    assert read.problems == (
        "line 2 used: several nodes without a network; write it behind the GPU, such as H100@8xib400",
    )


def test_network_that_is_none(table):
    change = {"gpu": "H100@pigeons", "num_nodes": "2", "num_gpus": "16", "dp": "16", "global_batch": "512"}
    assert "'pigeons' is not a network" in refusal(table(change))


def test_card_of_unknown_size_matters_only_where_memory_does(table):
    read = table({"gpu_mem_gib": None})
    assert only(read).machine == "1xA100-80GB"
    assert read.problems == ("line 2 used: gpu A100 without gpu_mem_gib taken as A100-80GB",)
    assert "'A100' is not a known GPU" in refusal(table({"gpu_mem_gib": None, "peak_mem_gib": "9"}))
    assert "'A100' is not a known GPU" in refusal(table({"gpu_mem_gib": None, "step_time_s": None, "oom": "1"}))


def test_blank_degree_follows_from_the_others(table):
    assert only(table({"num_gpus": "4", "dp": None, "global_batch": "128"})).machine == "4xA100-80GB"
    assert only(table({"num_gpus": None})).machine == "1xA100-80GB"
    blank = dict.fromkeys(("tp", "pp", "cp"))
    assert only(table({"num_gpus": "4", "dp": "4", "global_batch": "128", **blank})).machine == "4xA100-80GB"
    unknown = {"num_gpus": "4", "dp": "2", "global_batch": "64", **blank}
    assert "tp, pp, cp are blank, and do not follow from num_gpus 4" in refusal(table(unknown))
    assert "num_gpus and dp are blank" in refusal(table({"num_gpus": None, "dp": None}))


def test_column_that_the_table_lacks_is_neutral(table):
    change = {"num_gpus": "4", "grad_accum": None, "global_batch": None, "num_nodes": None}
    lacking = ("tp", "pp", "cp", "dp", "grad_accum", "global_batch", "num_nodes")
    record = only(table(change, without=lacking))
    assert (record.machine, record.recipe.micro_batch, record.recipe.grad_accum) == ("4xA100-80GB", 8, 1)


def test_blank_batch_follows_from_the_others(table):
    assert only(table({"grad_accum": None})).recipe.grad_accum == 4
    assert only(table({"micro_batch": None})).recipe.micro_batch == 8
    assert only(table({"global_batch": None})).recipe.grad_accum == 4
    assert "does not give global_batch 33" in refusal(table({"grad_accum": None, "global_batch": "33"}))
    assert "grad_accum, global_batch are blank" in refusal(table({"grad_accum": None, "global_batch": None}))


def test_blank_nodes_are_unknown_beyond_one_gpu(table):
    assert only(table({"num_nodes": None})).machine == "1xA100-80GB"
    change = {"num_nodes": None, "num_gpus": "8", "dp": "8", "global_batch": "256"}
    assert "num_nodes is blank, and 8 GPUs may stand in one node or several" in refusal(table(change))


@pytest.mark.parametrize(
    ("column", "text", "knob", "value"),
    [
        ("precision", "BF16", "precision", "bf16"),
        ("precision", "bf16_pure", "precision", "bf16_pure"),
        ("precision", "float32", "precision", "fp32"),
        ("attention", "Flash-Attention-2", "attention", "sdpa"),
        ("attention", "standard", "attention", "eager"),
        ("act_ckpt", "1", "checkpointing", "full"),
        ("act_ckpt", "yes", "checkpointing", "full"),
        ("act_ckpt", "every_3", "checkpointing", "every_3"),
        ("compile", "1", "compile", "on"),
        ("compile", "yes", "compile", "on"),
        ("optimizer", "Adam", "optimizer", "adamw_fused"),
        ("optimizer", "adamw_foreach", "optimizer", "adamw_foreach"),
    ],
)
def test_what_tables_write_for_a_knob(table, column, text, knob, value):
    assert getattr(only(table({column: text})).recipe, knob) == value


@pytest.mark.parametrize("text", ["zero0", "0", "NO_SHARD", "DDP", "none"])
def test_plain_data_parallel_by_any_name_is_used(table, text):
    change = {"zero_stage_or_sharding": text, "num_gpus": "2", "dp": "2", "global_batch": "64"}
    assert only(table(change)).machine == "2xA100-80GB"


def test_blank_knobs_get_the_listed_value_and_are_reported(table):
    names = ("precision", "attention", "act_ckpt", "zero_stage_or_sharding", "offload", "compile", "optimizer")
    read = table(dict.fromkeys(names))
    assert only(read).recipe.precision == "bf16"
    taken = "precision=bf16, attention=sdpa, checkpointing=none, compile=off, optimizer=adamw_fused, offload=none"
    assert read.problems == (f"line 2 used: blank cells taken as {taken}",)
    assert only(read).note.endswith(f"blank cells taken as {taken}")
    two = {"zero_stage_or_sharding": None, "num_gpus": "2", "dp": "2", "global_batch": "64"}
    assert table(two).problems == ("line 2 used: blank cells taken as sharding=none",)


def test_blank_precision_is_one_that_the_card_has(table):
    assert only(table({"gpu": "V100", "gpu_mem_gib": "32", "precision": None})).recipe.precision == "fp16"
    assert only(table({"gpu": "cpu", "gpu_mem_gib": None, "precision": None})).recipe.precision == "fp32"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"zero_stage_or_sharding": "3"}, "sharding=zero3"),
        ({"zero_stage_or_sharding": "1"}, "sharding=zero1"),
        ({"zero_stage_or_sharding": "FULL_SHARD"}, "sharding=fsdp_full"),
        ({"zero_stage_or_sharding": "fsdp FULL_SHARD min_num_params=2K"}, "sharding=fsdp_full"),
        ({"zero_stage_or_sharding": "SHARD_GRAD_OP"}, "sharding=fsdp_grad"),
        ({"zero_stage_or_sharding": "hsdp"}, "sharding=hybrid"),
        ({"offload": "optimizer (cpu)"}, "offload=optimizer"),
        ({"offload": "optimizer+param (cpu)"}, "offload=all"),
        ({"act_ckpt": "selective"}, "checkpointing=selective"),
        ({"precision": "bf16 (fp32 gradient accumulation)"}, "precision=bf16_master"),
        ({"optimizer": "bnb 8-bit Adam"}, "optimizer=adamw_8bit"),
        ({"num_gpus": "8", "tp": "8"}, "tp=8"),
        ({"num_gpus": "8", "cp": "8"}, "cp=8"),
        ({"num_gpus": "4", "pp": "4", "schedule": "1F1B"}, "pp=4, schedule=1f1b"),
    ],
)
def test_what_this_version_does_not_model(table, change, said):
    assert refusal(table(change)) == f"line 2 not used: not modelled by this version: {said}"


def test_rows_not_modelled_are_counted_by_reason(table):
    tensor = {"num_gpus": "16", "tp": "16"}
    read = table(
        {"num_gpus": "8", "tp": "8"}, tensor, {}, {"zero_stage_or_sharding": "zero3"}, {"num_gpus": "2", "tp": "2"}
    )
    assert read.left_out == (2, 3, 5, 6)
    assert read.problems == (
        "lines 2-3, 6 (3 rows) not used: not modelled by this version: tp=2/8/16",
        "line 5 not used: not modelled by this version: sharding=zero3",
    )


def test_schedule_of_one_stage_means_nothing(table):
    assert only(table({"schedule": "1f1b"})).status == "ok"


ANYTHING = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(column=st.sampled_from(sorted(COLUMNS)), text=ANYTHING | st.integers(-3, 10**20).map(str))
@example(column="hidden", text="99999999999999999")
@example(column="layers", text="99999999999999999")
@example(column="num_gpus", text="99999999999999999")
@example(column="model_config", text="..")
def test_whatever_a_cell_holds_the_row_is_used_or_reported(table, column, text):
    shape = {"layers": "4", "hidden": "256", "heads": "4", "model_name": "GPT-x"}
    read = table({**shape, column: text})
    assert len(read.rows) + len(read.left_out) == 1
    assert len([problem for problem in read.problems if "not used" in problem]) == len(read.left_out)


# --------------------------------------------------------------------------------------------- not a table at all


HEADER = b"gpu,num_gpus,model_name,seq_len,micro_batch"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "this file is empty"),
        (b" \n\n", "this file is empty"),
        (b"\x89PNG\r\n\0\0", "this is a binary file"),
        ("gpu,num_gpus\n".encode("utf-16"), "this is a binary file"),
        (b"\xff\xfe\xfa", "not UTF-8 text"),
        (b'{"step_s": 2}\n', "the first line is '{\"step_s\": 2}'"),
        (b"gpu;num_gpus;model_name\nA100;1;gpt2\n", "separated by ';' and not by commas"),
        (HEADER + b",oom\n", "there is a header but no row"),
        (HEADER + b',oom\nA100,1,"gpt2,8\n', "the row that begins on line 2 is broken"),
        (HEADER.replace(b"_len", b"") + b",oom\nA100,1,gpt2,8,1,0\n", "missing columns: seq_len"),
        (HEADER + b"\nA100,1,gpt2,8,1\n", "nothing measured: at least one of step_time_s"),
        (HEADER + b",oom,gpu\nA100,1,gpt2,8,1,0,A100\n", "column gpu is there 2 times"),
    ],
)
def test_what_is_no_table_is_one_clear_error(tmp_path, content, said):
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError) as raised:
        read_table(path)
    assert said in str(raised.value)
    assert "broken.csv" in str(raised.value)


def test_all_problems_of_a_header_are_told_at_once(tmp_path):
    path = tmp_path / "header.csv"
    path.write_text("gpu,gpu,step_time_ms,model_name\nA100,A100,4,gpt2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as raised:
        read_table(path)
    text = str(raised.value)
    assert "column gpu is there 2 times" in text
    assert "missing columns: num_gpus, seq_len, micro_batch" in text
    assert "did you mean step_time_s (seconds)?" in text
    assert "nothing measured" in text


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InvalidInputError, match="no such file"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_table(tmp_path)


def test_byte_order_mark_and_spaces_and_case_in_the_header(tmp_path):
    path = tmp_path / "sheet.csv"
    text = "GPU , Gpu_Mem_GiB,num_gpus,model_name,seq_len,micro_batch,step_time_s\r\nA100,80,1,gpt2,1024,8,0.5\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert only(read_table(path)).step_s == 0.5
