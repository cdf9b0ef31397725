"""Workloads and profiles on disk: round trips, damage, who wins, and writing all or nothing."""

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles import files, store
from profiles.errors import InvalidInputError, PacelineError
from profiles.machines import parse_machine
from profiles.schema import (
    Correction,
    Device,
    Fit,
    MemoryPoint,
    Op,
    Profile,
    Rate,
    Recipe,
    Software,
    Stack,
    Variant,
    Workload,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def workload(name="tiny", ops=3):
    one = Op(kind="matmul", phase="forward", stack=0, bits=16, launches=((2.0, 0, 0, 0),), bytes=((4.0, 1, 1, 0),),
             flops=((8.0, 1, 1, 0), (2.5, 1, 2, 0)), dims=(((1.0, 0, 0, 0),),) * 4, pad="odd", causal=True)  # fmt: skip
    point = MemoryPoint(label="end of forward", logits=((12.0, 1, 1, 0),), block_gradients=((), ((4.0, 0, 0, 0),)))
    variant = Variant(numerics="amp", attention="sdpa", checkpointed=False, ops=(one,) * ops, memory=(point,))
    return Workload(
        name=name, task="causal_lm", model_type="gpt_neox", config={"hidden_size": 8, "rope": None, "eps": 1e-5},
        config_hash="abc", params=10, active_params=10, embedding_params=2, parameter_tensors=3, largest_parameter=4,
        layers=2, seq=128, stacks=(Stack(name="layers", depth=2),), variants=(variant,),
        unavailable={"eager": "no such kernel"}, transformers_version="5", torch_version="2",
    )  # fmt: skip


def profile(machine="1xH200", created_at="2026-01-02T03:04:05+00:00", **changes):
    rate = Rate(value=7e14, sd_log=0.1, basis="probe", source="product probe", date="2026-01-02")
    fit = Fit(corrections=(Correction(component="matmul", log_factor=-0.1, identified=True),), covariance=((0.5,),),
              calibrated={"micro_batch": ("1", "64")})  # fmt: skip
    values = {
        "machine": parse_machine(machine), "provenance": "measured", "rates": {"matmul": rate}, "fit": fit,
        "created_at": created_at, "device": Device(name="NVIDIA H200"), "software": Software(torch="2.11.0"),
    }  # fmt: skip
    return Profile(**(values | changes))


def test_home_is_a_function_of_the_environment(tmp_path, monkeypatch):
    assert store.home() == tmp_path / "home"
    monkeypatch.setenv("PACELINE_HOME", "")
    assert store.home().name == "paceline"
    monkeypatch.setenv("PACELINE_HOME", "~/somewhere")
    assert store.home() == Path.home() / "somewhere"
    assert not (tmp_path / "home").exists()


# ---------------------------------------------------------------------------------------------- workloads


def test_workload_round_trip_and_deterministic_bytes(own):
    path = store.save_workload(workload())
    assert path == own / "traces" / "tiny.json.gz"
    assert store.load_workload("tiny") == workload()
    before = path.read_bytes()
    store.save_workload(workload())
    assert path.read_bytes() == before
    assert "tiny" in store.workload_names()


def test_a_plain_json_trace_is_read_too(own):
    (own / "traces").mkdir(parents=True)
    (own / "traces" / "tiny.json").write_bytes(files.to_json(workload()))
    assert store.load_workload("tiny") == workload()


def test_a_hub_id_is_a_safe_file_name(own):
    path = store.save_workload(workload("org/model: 1"))
    assert path.parent == own / "traces"
    assert store.load_workload("org/model: 1").name == "org/model: 1"


def test_never_traced_is_none():
    assert store.load_workload("no such model") is None
    assert store.load_workload("../../etc/passwd") is None


def test_defaults_are_left_out_of_files():
    text = files.to_json(workload()).decode()
    assert "max_seq" not in text
    assert '"decoder_seq"' not in text
    assert '"rope":null' in text  # inside the config nothing is a default


def test_the_wrong_trace_under_a_name_is_refused(own):
    path = store.save_workload(workload("one"))
    path.rename(path.with_name("two.json.gz"))
    with pytest.raises(InvalidInputError, match="holds the trace of 'one', not of 'two'"):
        store.load_workload("two")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-10], "truncated or corrupted gzip"),
        (lambda data: b"not gzip", "truncated or corrupted gzip"),
        (lambda data: data[:40] + b"\xff" + data[41:], "corrupted"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-30]), "not valid JSON"),
        (lambda data: gzip.compress(b"\xff\xfe{}"), "not UTF-8"),
        (lambda data: gzip.compress(b"[]"), "content: "),
        (lambda data: gzip.compress(b"{}"), "params: is required but missing"),
        (lambda data: b"", "content: |not valid JSON|gzip"),
    ],
)
def test_a_damaged_trace_is_one_clear_error_that_names_the_file(damage, told):
    path = store.save_workload(workload())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInputError, match=told) as caught:
        store.load_workload("tiny")
    assert caught.value.subject == str(path)


def test_every_problem_has_its_path_and_text_is_not_taken_for_numbers():
    path = store.save_workload(workload())
    plain = json.loads(gzip.decompress(path.read_bytes()))
    plain["params"] = "10"
    plain["variants"][0]["ops"][1]["kind"] = "matmull"
    plain["variants"][0]["ops"][2]["colour"] = 1
    path.write_bytes(gzip.compress(json.dumps(plain).encode()))
    with pytest.raises(InvalidInputError) as caught:
        store.load_workload("tiny")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "params", "variants.0.ops.1.kind", "variants.0.ops.2.colour",
    ]  # fmt: skip
    assert "'matmul'" in str(caught.value)


def test_no_infinity_or_nan_goes_in_or_out(own):
    with pytest.raises(PacelineError, match="cannot store a Profile"):
        store.save_profile(profile(calibration_s=float("nan")))
    path = store.save_profile(profile(calibration_s=1.0))
    path.write_text(path.read_text().replace('"calibration_s": 1.0', '"calibration_s": NaN'))
    with pytest.raises(InvalidInputError, match="finite"):
        store.load_profile("1xH200")


def test_a_note_may_say_nan():
    store.save_profile(profile(note="NaN and Infinity were seen"))
    assert store.load_profile("1xH200").note == "NaN and Infinity were seen"


# ----------------------------------------------------------------------------------------------- profiles


def test_profile_round_trip(own):
    path = store.save_profile(profile())
    assert path == own / "fitted" / "1xH200--2026-01-02T030405+0000.json"
    assert store.load_profile("1xH200") == profile()
    assert store.read_profile(path) == profile()
    assert "1xH200" in store.profile_names()


def test_the_newest_profile_wins_whatever_its_time_zone():
    for moment in ("2026-03-01T12:00:00+00:00", "2026-03-01T23:30:00+12:00", "2026-03-01T11:59:00", "2025-12-31"):
        store.save_profile(profile(created_at=moment))
    assert store.load_profile("1xH200").created_at == "2026-03-01T12:00:00+00:00"


def test_a_machine_whose_name_begins_alike_is_another_one():
    store.save_profile(profile("1xH100-PCIe"))
    store.save_profile(profile("1xA100-80GB-PCIe"))
    assert store.load_profile("1xA100-80GB") is None
    assert store.load_profile("1xA100-80GB-PCIe").machine.gpu.name == "A100-80GB-PCIe"


def test_own_profiles_win_over_shipped_newer_ones(own, tmp_path, monkeypatch):
    newer, older = profile(created_at="2026-09-09"), profile(created_at="2026-01-01")
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    store.save_profile(newer, tmp_path / "shipped" / "fitted")
    assert store.load_profile("1xH200").created_at == "2026-09-09"
    store.save_profile(older)
    assert store.load_profile("1xH200").created_at == "2026-01-01"
    assert store.profile_names() == ("1xH200",)


def test_a_damaged_profile_is_not_passed_over_in_silence():
    path = store.save_profile(profile())
    path.write_text(path.read_text()[:-40])
    with pytest.raises(InvalidInputError, match="not valid JSON") as caught:
        store.load_profile("1xH200")
    assert caught.value.subject == str(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("2026-01-02T03:04:05+00:00", "yesterday", "created_at: must be an ISO date"),
        ('"name": "1xH200"', '"name": "2xH200"', "holds the profile of '2xH200'"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(old, new, told):
    path = store.save_profile(profile())
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidInputError, match=told):
        store.load_profile("1xH200")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    value=st.floats(0, allow_infinity=False, exclude_min=True), sd=st.floats(0, allow_infinity=False),
    note=TEXT, keys=st.lists(TEXT.filter(lambda key: key not in {"micro_batch", "seq"})),
    seconds=st.none() | NUMBERS, overhead=st.integers(0, 2**63 - 1), batch=st.integers(1, 10**6),
)  # fmt: skip
def test_any_profile_reads_back_the_same(value, sd, note, keys, seconds, overhead, batch):
    rate = Rate(value=value, sd_log=sd, basis="default", source=note, date="")
    fit = Fit(device_overhead_bytes=overhead, calibrated={key: (note,) for key in keys})
    given_profile = profile(rates=dict.fromkeys(keys, rate), fit=fit, note=note, calibration_s=seconds)
    path = store.save_profile(given_profile)
    assert store.read_profile(path) == given_profile
    recipe = Recipe(micro_batch=batch, seq=batch)
    assert files.parse_json(Recipe, files.to_json(recipe).decode(), "") == recipe


# --------------------------------------------------------------------------------------- writing and reading


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(own, monkeypatch):
    path = store.save_workload(workload())
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(PacelineError, match=f"cannot write {path}: No space left on device; nothing was changed"):
        store.save_workload(workload(ops=9))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_stop_in_the_middle_leaves_the_old_file_and_no_rubbish(monkeypatch):
    path = store.save_workload(workload())
    before = path.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        store.save_workload(workload(ops=9))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_device_that_is_really_full(tmp_path):
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(PacelineError, match="No space left on device"):
        files.write_whole(tmp_path / "x.json", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_should_be(own):
    own.parent.mkdir(exist_ok=True)
    own.write_text("")
    with pytest.raises(PacelineError, match="cannot write"):
        store.save_profile(profile())
    assert store.load_profile("1xH100-NVL") is None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written(number, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PacelineError, match=os.strerror(number)):
        store.save_workload(workload())


def test_a_file_that_may_not_be_read_is_named(monkeypatch):
    path = store.save_workload(workload())

    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InvalidInputError, match="Permission denied") as caught:
        store.load_workload("tiny")
    assert caught.value.subject == str(path)


def test_a_folder_that_may_not_be_listed_is_named(own, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(PacelineError, match="cannot list"):
        store.gpu_names()


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_path_that_is_no_file(tmp_path, path):
    with pytest.raises(InvalidInputError, match=r"no such file|regular file"):
        store.read_profile(tmp_path / path)


# ------------------------------------------------------------------------------------------------- presets


PRESET = """
name = "mine"
aliases = ["org/mine"]
task = "causal_lm"
params = 5
seq = 64
source = "me"
date = "2026-01-01"
[config]
model_type = "gpt2"
"""


def test_own_presets_add_and_override(own):
    shipped = store.preset_names()
    (own / "models").mkdir(parents=True)
    (own / "models" / "mine.toml").write_text(PRESET)
    assert store.load_preset("org/mine").params == 5
    assert store.load_preset("MINE").config == {"model_type": "gpt2"}
    assert set(store.preset_names()) == {*shipped, "mine"}


def test_a_preset_in_a_file_of_another_name_is_refused(own):
    (own / "models").mkdir(parents=True)
    (own / "models" / "yours.toml").write_text(PRESET)
    with pytest.raises(InvalidInputError, match="must be the file's own name, 'yours'"):
        store.load_preset("yours")


@pytest.mark.parametrize("aliases", ['"one"', "[1]", "{}"])
def test_aliases_of_another_shape_are_refused(own, aliases):
    (own / "models").mkdir(parents=True)
    (own / "models" / "mine.toml").write_text(PRESET.replace('["org/mine"]', aliases))
    with pytest.raises(InvalidInputError, match="must be a list of names"):
        store.load_preset("a name that only an alias could be")


# -------------------------------------------------------------------------------------------------- imports


def test_importing_and_asking_for_a_machine_pulls_in_nothing_heavy():
    code = (
        "import sys, profiles; assert 'pydantic' not in sys.modules; profiles.parse_machine('8xH100');"
        "print([m for m in ('torch', 'transformers', 'numpy', 'sklearn', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------- impossible values


def test_every_impossible_number_of_a_profile_is_told_at_once():
    rate = Rate(value=0.0, sd_log=-0.1, basis="probe", source="s", date="2026-01-02")
    correction = Correction(component="matmul", log_factor=0.1, identified=True)
    fit = Fit(corrections=(correction, correction), covariance=((0.5,),), interval_scale=-1.0,
              calibrated={"seq": ("many", "8")})  # fmt: skip
    path = store.save_profile(profile(rates={"matmul": rate}, fit=fit, created_at="yesterday"))
    with pytest.raises(InvalidInputError) as caught:
        store.read_profile(path)
    assert caught.value.subject == str(path)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "rates.matmul.value", "rates.matmul.sd_log", "fit.interval_scale", "fit.covariance", "fit.calibrated.seq",
        "created_at",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ('"value": 700000000000000.0', '"value": 1e999', "rates.matmul.value"),
        ('"log_factor": -0.1', '"log_factor": 1e999', "corrections.0.log_factor"),
        ("0.5", "1e999", "fit.covariance: every number must be finite"),
        ("0.5", "-0.5", "fit.covariance: no number on the diagonal"),
    ],
)
def test_infinite_and_negative_numbers_are_refused(was, now, told):
    path = store.save_profile(profile())
    assert path.read_text().count(was) == 1
    path.write_text(path.read_text().replace(was, now))
    with pytest.raises(InvalidInputError, match=told):
        store.load_profile("1xH200")


def test_a_profile_may_say_nothing_of_its_covariance():
    correction = Correction(component="matmul", log_factor=0.1, identified=True)
    bare = profile(fit=Fit(corrections=(correction,)))
    assert store.read_profile(store.save_profile(bare)) == bare


# -------------------------------------------------------------------------------------------- what is no file


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_what_is_no_regular_file_is_refused(path):
    with pytest.raises(InvalidInputError, match="allowed is a regular file of at most 256 MB") as caught:
        files.read_bytes(Path(path))
    assert caught.value.subject == path


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="regular file"):
        files.read_bytes(tmp_path / "pipe")


def test_a_file_is_refused_for_its_size_packed_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE_BYTES", 1000)
    small, large = b"x" * 1000, b"x" * 1001
    for name, pack in (("plain", bytes), ("packed.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(small))
        assert files.read_bytes(tmp_path / name) == small
        (tmp_path / name).write_bytes(pack(large))
        with pytest.raises(InvalidInputError, match="at most"):
            files.read_bytes(tmp_path / name)
