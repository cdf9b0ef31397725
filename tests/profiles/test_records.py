"""Measurements as JSON lines: appended whole, read in spite of damage, with an identity that outlives new knobs."""

import errno
import json
import multiprocessing
import os
from dataclasses import field as dataclass_field
from dataclasses import make_dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.errors import InvalidInputError, PacelineError
from profiles.files import to_json, to_plain
from profiles.records import (
    append_measurement,
    identity,
    measurement_identity,
    read_measurements,
    read_measurements_and_problems,
)
from profiles.schema import Device, Measurement, Recipe, Software


def measured(batch=8, **changes):
    values = {
        "model": "pythia-160m", "machine": "1xH200", "recipe": Recipe(micro_batch=batch), "status": "ok",
        "step_s": 0.0656, "samples_s": (0.0655, 0.0657), "peak_bytes": 7 * 2**30, "device": Device(name="NVIDIA H200"),
        "software": Software(torch="2.11.0"),
    }  # fmt: skip
    return Measurement(**(values | changes))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "new folder" / "records.jsonl"


def test_what_is_appended_is_read_in_order(log):
    records = [measured(batch) for batch in (1, 2, 4)] + [measured(64, status="oom", reason="CUDA out of memory")]
    for record in records:
        append_measurement(log, record)
    assert read_measurements(log) == tuple(records)
    assert len(log.read_bytes().splitlines()) == 4


def test_records_leave_out_what_has_its_default(log):
    append_measurement(log, measured(8))
    assert json.loads(log.read_text()) == {
        "model": "pythia-160m", "machine": "1xH200", "recipe": {"micro_batch": 8}, "status": "ok", "step_s": 0.0656,
        "samples_s": [0.0655, 0.0657], "peak_bytes": 7516192768, "device": {"name": "NVIDIA H200"},
        "software": {"torch": "2.11.0"},
    }  # fmt: skip


def test_an_old_record_without_a_knob_had_its_default(log):
    log.parent.mkdir()
    log.write_text('{"model":"m","machine":"cpu","recipe":{"micro_batch":2},"status":"ok","step_s":1.5}\n')
    [record] = read_measurements(log)
    assert record.recipe == Recipe(micro_batch=2)
    assert record.recipe.compile == "off"
    assert record.software == Software()


def test_a_newer_record_with_an_unknown_knob_is_a_reported_problem(log):
    append_measurement(log, measured(1))
    with log.open("a") as stream:
        stream.write('{"model":"m","machine":"cpu","recipe":{"micro_batch":2,"warp":9},"status":"ok"}\n')
    append_measurement(log, measured(4))
    records, problems = read_measurements_and_problems(log)
    assert [record.recipe.micro_batch for record in records] == [1, 4]
    assert problems == (f"{log}, line 2: skipped, recipe.warp: not a known field",)


@pytest.mark.parametrize("keep", [1, 30, 100])
def test_a_line_cut_off_by_a_kill_is_skipped_and_the_next_starts_afresh(log, keep):
    append_measurement(log, measured(1))
    line = to_json(measured(2))
    with log.open("ab") as stream:
        stream.write(line[:keep])
    records, problems = read_measurements_and_problems(log)
    assert [record.recipe.micro_batch for record in records] == [1]
    assert len(problems) == 1
    assert "line 2: skipped, cut off" in problems[0]
    append_measurement(log, measured(4))
    records, problems = read_measurements_and_problems(log)
    assert [record.recipe.micro_batch for record in records] == [1, 4]
    assert [problem.split(":")[0] for problem in problems] == [f"{log}, line 2"]


def test_a_whole_last_line_without_its_end_counts(log):
    append_measurement(log, measured(1))
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    append_measurement(log, measured(2))
    assert read_measurements_and_problems(log) == ((measured(1), measured(2)), ())


def test_damage_in_the_middle_is_reported_by_line_and_the_rest_is_used(log):
    for batch in (1, 2, 3, 4):
        append_measurement(log, measured(batch))
    lines = log.read_bytes().splitlines()
    lines[1] = b"\x00\xff\xfe garbage"
    lines[2] = b'{"model": 3}'
    log.write_bytes(b"\n".join([*lines, b"", b"  "]) + b"\n")
    records, problems = read_measurements_and_problems(log)
    assert [record.recipe.micro_batch for record in records] == [1, 4]
    assert len(problems) == 2
    assert "line 2: skipped, not UTF-8" in problems[0]
    assert "line 3: skipped, model: input should be a valid string, got 3" in problems[1]
    assert "machine: is required" in problems[1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step_s": 0.0}, "step_s: must be above zero"),
        ({"step_s": -0.1}, "step_s: must be finite and not below zero, got -0.1"),
        ({"step_s": None, "peak_bytes": None}, "step_s: is required"),
        ({"peak_bytes": -1}, "peak_bytes: must be finite and not below zero"),
        ({"peak_reserved_bytes": -1}, "peak_reserved_bytes"),
        ({"samples_s": (1.0, -2.0)}, "samples_s.1: must be"),
        ({"trial_s": -1.0}, "trial_s"),
    ],
)
def test_a_record_that_cannot_be_true_is_skipped_and_told(log, changes, told):
    append_measurement(log, measured(1))
    append_measurement(log, measured(2, **changes))
    records, (problem,) = read_measurements_and_problems(log)
    assert records == (measured(1),)
    assert problem.startswith(f"{log}, line 2: skipped, ")
    assert told in problem


def test_an_endless_number_is_skipped(log):
    log.parent.mkdir()
    log.write_text('{"model":"m","machine":"cpu","recipe":{},"status":"ok","step_s":1e999,"trial_s":-3}\n')
    records, (problem,) = read_measurements_and_problems(log)
    assert records == ()
    assert "step_s" in problem


def test_what_may_be_unknown_may_be_unknown(log):
    kept = [
        measured(1, step_s=None),
        measured(2, status="oom", step_s=None, peak_bytes=None, samples_s=(), reason="out of memory"),
        measured(4, optimizer_s=-1e-4),
    ]
    for record in kept:
        append_measurement(log, record)
    assert read_measurements_and_problems(log) == (tuple(kept), ())


def test_a_missing_file_is_an_error(log):
    with pytest.raises(InvalidInputError, match="no such file"):
        read_measurements(log)


def test_odd_text_from_a_crash_is_stored_readably(log):
    append_measurement(log, measured(status="crash", step_s=None, reason="bad byte \udcff, line\nbreak \u2028 and é"))
    [record] = read_measurements(log)
    assert record.reason == "bad byte ?, line\nbreak \u2028 and é"


def _space_for(monkeypatch, room):
    real = os.write

    def write(descriptor, data):
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:room])

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("room", [0, 25])
def test_a_full_disk_adds_nothing_and_loses_nothing(log, monkeypatch, room):
    append_measurement(log, measured(1))
    before = log.read_bytes()
    with monkeypatch.context() as patch:
        _space_for(patch, room)
        with pytest.raises(PacelineError, match=r"cannot append to .*(?i:no space left).*nothing was added"):
            append_measurement(log, measured(2))
    assert log.read_bytes() == before
    append_measurement(log, measured(3))
    assert [record.recipe.micro_batch for record in read_measurements(log)] == [1, 3]


def test_a_failing_sync_adds_nothing(log, monkeypatch):
    append_measurement(log, measured(1))
    before = log.read_bytes()

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PacelineError, match="Input/output error"):
        append_measurement(log, measured(2))
    assert log.read_bytes() == before


def test_a_folder_in_the_way_is_one_clear_error(tmp_path):
    with pytest.raises(PacelineError, match="cannot append"):
        append_measurement(tmp_path, measured())


def _append_many(path, start):
    for number in range(start, start + 25):
        append_measurement(path, measured(number + 1, note="x" * 5000))


def test_processes_that_append_at_once_do_not_mix_their_lines(log):
    log.parent.mkdir()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(log, start)) for start in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    records, problems = read_measurements_and_problems(log)
    assert problems == ()
    assert sorted(record.recipe.micro_batch - 1 for record in records) == [*range(25), *range(100, 125)]


RECIPES = st.builds(
    Recipe,
    micro_batch=st.integers(1, 512),
    grad_accum=st.integers(1, 64),
    seq=st.none() | st.integers(1, 10**6),
    precision=st.sampled_from(["fp32", "tf32", "fp16", "bf16", "bf16_pure"]),
    attention=st.sampled_from(["eager", "sdpa"]),
    checkpointing=st.sampled_from(["none", "full", "every_2"]),
)
SECONDS = st.none() | st.floats(1e-6, 1e6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    recipe=RECIPES, step_s=SECONDS, samples=st.lists(st.floats(1e-6, 1e6)), note=st.text(st.characters(codec="utf-8"))
)
def test_any_record_reads_back_the_same(tmp_path, recipe, step_s, samples, note):
    record = measured(recipe=recipe, step_s=step_s, samples_s=tuple(samples), note=note, device=None)
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    append_measurement(path, record)
    assert read_measurements_and_problems(path) == ((record,), ())


# ------------------------------------------------------------------------------------------------- identity


def test_identity_is_of_the_model_machine_and_recipe_only():
    record = measured(8)
    again = replace(
        record, step_s=1.0, status="oom", note="x", started_at="2026-01-01", software=Software(), device=None
    )
    assert measurement_identity(again) == measurement_identity(record)
    others = [
        replace(record, model="pythia-410m"), replace(record, machine="2xH200"), replace(record, config_hash="ff"),
        replace(record, recipe=Recipe(micro_batch=9)), replace(record, recipe=Recipe(micro_batch=8, compile="on")),
    ]  # fmt: skip
    assert len({measurement_identity(other) for other in (record, *others)}) == 6


def test_identity_goes_by_the_config_where_there_is_one():
    assert identity("a name", "ff", "cpu", Recipe()) == identity("another name", "ff", "cpu", Recipe())


def test_identities_are_pinned():
    """Worked out with sha256sum on the text below; a change here would orphan every stored record."""
    # printf '{"machine":"1xH200","model":"pythia-160m","recipe":{"micro_batch":8,"precision":"fp16"}}' | sha256sum
    pinned = identity("pythia-160m", None, "1xH200", Recipe(micro_batch=8, precision="fp16"))
    assert pinned == "e429e91d68670570"


def test_a_knob_added_later_leaves_identities_and_records_alone():
    newer = make_dataclass(
        "Newer", [("tp", int, dataclass_field(default=1))], bases=(Recipe,), frozen=True, kw_only=True
    )
    old = Recipe(micro_batch=8, precision="fp16")
    assert to_plain(newer(micro_batch=8, precision="fp16")) == to_plain(old)
    assert identity("m", None, "cpu", newer(micro_batch=8, precision="fp16")) == identity("m", None, "cpu", old)
    assert identity("m", None, "cpu", newer(tp=2)) != identity("m", None, "cpu", Recipe())


def test_the_defaults_of_stored_knobs_never_change():
    """A stored record that does not name a knob means these values."""
    assert Recipe() == Recipe(
        micro_batch=1, grad_accum=1, seq=None, decoder_seq=None, precision="bf16", attention="sdpa", compile="off",
        checkpointing="none", optimizer="adamw_fused",
    )  # fmt: skip
