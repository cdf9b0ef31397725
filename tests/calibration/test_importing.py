"""Outside measurements become a profile; twice is the same as once; what was known before stays known."""

from dataclasses import replace
from pathlib import Path

import pytest

from calibration import evaluate, import_table
from calibration.question import build_case
from profiles import store
from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.records import append_measurement, read_measurements
from profiles.schema import Measurement, Recipe
from profiles.store import load_workload
from simulator import Case, Run, predict
from simulator.rates import datasheet_profile

RECORDS = SHIPPED / "measured" / "1xH200"
SLOWER = 1.2
MACHINE = "1xA100-80GB"
RECIPES = [
    Recipe(micro_batch=b, seq=s, precision=p, checkpointing=c)
    for b, s in ((4, 2048), (16, 1024), (32, 2048))
    for p in ("bf16", "tf32")
    for c in ("none", "full")
]
CSV = """gpu,num_nodes,num_gpus,model_name,seq_len,micro_batch,grad_accum,precision,attention,act_ckpt,step_time_s
A100-80GB,1,1,pythia-410m,2048,8,1,bf16,sdpa,none,0.31
A100-80GB,1,1,pythia-410m,2048,16,1,bf16,sdpa,none,0.60
A100-80GB,1,1,pythia-410m,2048,16,1,bf16,sdpa,full,0.75
A100-80GB,1,1,no-such-model,2048,16,1,bf16,sdpa,full,0.75
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def record(recipe, machine=MACHINE, model="pythia-410m", factor=SLOWER):
    workload = load_workload(model)
    case = Case(workload=workload, profile=datasheet_profile(parse_machine(machine)), run=Run())
    facts = {"config_hash": workload.config_hash, "origin": "import", "status": "ok"}
    return Measurement(
        model=model, machine=machine, recipe=recipe, step_s=factor * predict(case, recipe).step_s, **facts
    )


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "outside.jsonl"
    for recipe in RECIPES:
        append_measurement(path, record(recipe))
    return path


def test_an_imported_table_makes_a_profile_that_knows_its_rows(table):
    done = import_table(table)
    assert done.imported == len(RECIPES)
    assert done.problems == ()
    profile = store.read_profile(done.profile_path)
    assert profile.provenance == "measured"
    assert profile.machine.name == MACHINE
    assert profile.fit.measurements == len(RECIPES)
    assert profile.fit.models == ("pythia-410m",)
    case = build_case("pythia-410m", MACHINE, Run(seq=2048), {}, published_batch=False)
    assert case.profile == profile
    truth = record(Recipe(micro_batch=12, seq=2048)).step_s
    found = predict(case, Recipe(micro_batch=12, seq=2048))
    assert found.provenance == "predicted"
    assert found.step_s == pytest.approx(truth, rel=0.04)
    before = predict(replace(case, profile=datasheet_profile(case.machine)), found.recipe)
    assert before.step_s == pytest.approx(truth / SLOWER, rel=1e-6)


def test_twice_adds_nothing_twice(table):
    first, again = import_table(table), import_table(table)
    assert (first.imported, again.imported) == (len(RECIPES), 0)
    assert len(read_measurements(store.home() / "measured" / f"{MACHINE}--imported.jsonl")) == len(RECIPES)
    assert store.read_profile(again.profile_path).fit.measurements == len(RECIPES)


def test_a_longer_table_adds_what_is_new(table):
    import_table(table)
    append_measurement(table, record(Recipe(micro_batch=24, seq=2048)))
    done = import_table(table)
    assert done.imported == 1
    assert store.read_profile(done.profile_path).fit.measurements == len(RECIPES) + 1


def test_a_table_of_another_model_joins_the_fit_of_the_first(table, tmp_path):
    import_table(table)
    other = tmp_path / "other.jsonl"
    append_measurement(other, record(Recipe(micro_batch=8, seq=2048), model="pythia-160m"))
    profile = store.read_profile(import_table(other).profile_path)
    assert profile.fit.models == ("pythia-160m", "pythia-410m")
    assert profile.fit.measurements == len(RECIPES) + 1


def test_rows_for_a_calibrated_machine_join_its_own_records(tmp_path):
    """Four outside rows must not replace the eighty runs behind the shipped profile."""
    shipped = store.load_profile("1xH200")
    table = tmp_path / "h200.jsonl"
    for one in read_measurements(RECORDS / "shakedown.jsonl")[:4]:
        append_measurement(table, one)
    profile = store.read_profile(import_table(table).profile_path)
    assert profile.fit.measurements == shipped.fit.measurements + 4
    assert set(shipped.measurement_files) < set(profile.measurement_files)
    assert profile.verified == shipped.verified
    scores = evaluate(RECORDS / "held_out.jsonl")["step_time"]
    assert scores["mape"] <= 0.06


def test_a_csv_is_imported_and_its_bad_rows_are_told(tmp_path):
    path = tmp_path / "outside.csv"
    path.write_text(CSV)
    done = import_table(path)
    assert done.imported == 3
    assert any("no-such-model" in problem for problem in done.problems)
    case = build_case("pythia-410m", MACHINE, Run(seq=2048), {}, published_batch=False)
    recipes = [Recipe(micro_batch=8, seq=2048), Recipe(micro_batch=16, seq=2048, checkpointing="full")]
    assert [predict(case, r).step_s for r in recipes] == pytest.approx([0.31, 0.75], rel=0.1)


def test_of_several_machines_one_must_be_named(table):
    append_measurement(table, record(Recipe(micro_batch=4, seq=1024, precision="fp16"), machine="1xV100-16GB"))
    with pytest.raises(InvalidInputError, match="--machine") as caught:
        import_table(table)
    assert "1xA100-80GB, 1xV100-16GB" in str(caught.value)
    done = import_table(table, machine="1xV100-16GB")
    assert done.imported == 1
    assert store.read_profile(done.profile_path).machine.name == "1xV100-16GB"
    with pytest.raises(InvalidInputError, match="machines in it: 1xA100-80GB, 1xV100-16GB"):
        import_table(table, machine="1xT4")


def test_a_table_with_nothing_to_use_leaves_nothing_behind(tmp_path):
    path = tmp_path / "outside.jsonl"
    append_measurement(path, replace(record(Recipe(precision="fp16"), machine="1xV100-16GB"), recipe=Recipe()))
    with pytest.raises(InvalidInputError, match="modelled"):
        import_table(path)
    assert not store.home().exists()
    with pytest.raises(InvalidInputError, match="no such file"):
        import_table(tmp_path / "nothing.csv")


def test_an_impossible_row_is_not_used_and_says_why(table):
    append_measurement(table, record(Recipe(micro_batch=48, seq=2048), factor=0.05))
    done = import_table(table)
    assert done.imported == len(RECIPES)
    assert any("of the dense" in problem for problem in done.problems)
