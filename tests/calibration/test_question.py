"""From typed words to a case: names, profiles, prices, published runs, and every problem at once."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.question import best_profile, build_case, load_or_trace, published_run
from profiles import store
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.machines import parse_machine
from profiles.schema import Fit
from simulator import Run
from simulator.rates import datasheet_profile


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def test_a_case_joins_what_is_known():
    case = build_case("pythia-1b", "1xH200", Run(seq=1024), {"precision": "bf16"})
    assert case.workload.name == "pythia-1b"
    assert case.profile.provenance == "measured"
    assert case.run.seq == 1024
    assert dict(case.fixed) == {"precision": "bf16"}
    assert case.price is not None
    assert case.price.gpu == "H200"
    assert case.energy == store.energy()


def test_a_published_run_fills_what_is_left_open_and_nothing_else():
    known = store.load_preset("pythia-1b").run
    assert published_run("pythia-1b", Run()) == Run(tokens=known.tokens, global_batch=known.global_batch, seq=known.seq)
    mine = Run(tokens=1e9, seq=512, global_batch=7)
    assert published_run("pythia-1b", mine) == mine
    assert published_run("pythia-1b", Run(steps=5)).tokens is None, "a length was given"
    assert published_run("pythia-1b", Run(samples=5.0)).tokens is None
    assert published_run("pythia-1b", Run(), batch=False).global_batch is None
    assert published_run("not a preset", Run(seq=3)) == Run(seq=3)


def test_bad_model_and_bad_machine_are_told_together():
    with pytest.raises(InvalidInputError) as caught:
        build_case("pythia-1c", "1xH201", Run(), {})
    text = str(caught.value)
    assert "'pythia-1c'" in text
    assert "pythia-1b" in text
    assert "H201" in text
    assert "H200" in text
    assert caught.value.exit_code == 2


def test_an_unknown_model_names_its_neighbours():
    with pytest.raises(UnknownNameError, match="pythia-160m"):
        load_or_trace("pythia-16m0")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "no_such_type"}'])
def test_a_file_that_is_no_config_is_one_message(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"config|model_type") as caught:
        build_case(str(path), "1xH200", Run(), {})
    assert len(caught.value.problems) == 1


def test_a_given_price_wins_over_the_listed_one():
    given = build_case("pythia-160m", "1xH200", Run(), {}, price_usd_per_gpu_h=1.25).price
    assert given.rent_usd_per_gpu_h == 1.25
    assert given.basis == "given by the user"
    listed = build_case("pythia-160m", "1xH200", Run(), {}).price
    assert listed.rent_usd_per_gpu_h != 1.25


def test_the_machines_own_profile_then_one_gpus_then_the_data_sheet():
    own = best_profile(parse_machine("1xH200"))
    assert own.provenance == "measured"
    assert own.machine.name == "1xH200"
    eight = best_profile(parse_machine("2x8xH200@ib400"))
    assert (eight.provenance, eight.fit, eight.rates) == ("transferred", own.fit, own.rates)
    assert (eight.machine.name, eight.machine.gpus_per_node, eight.machine.nodes) == ("2x8xH200@ib400", 8, 2)
    sheet = best_profile(parse_machine("1xA100-80GB"))
    assert sheet == datasheet_profile(parse_machine("1xA100-80GB"))


def test_the_newest_profile_of_ones_own_wins_over_the_shipped_one():
    shipped = best_profile(parse_machine("1xH200"))
    for day, noise in ((2, 0.2), (3, 0.3), (1, 0.1)):
        moment = f"2020-01-0{day}T00:00:00+00:00"
        store.save_profile(replace(shipped, created_at=moment, fit=replace(Fit(), noise_sd_log=noise)))
    assert best_profile(parse_machine("1xH200")).fit.noise_sd_log == 0.3


def test_a_profile_is_found_by_name_or_refused_with_those_known():
    assert best_profile(parse_machine("1xH200"), "1xH200").machine.name == "1xH200"
    with pytest.raises(InvalidInputError, match=r"known: .*1xH200"):
        best_profile(parse_machine("1xH200"), "1xH2OO")


def test_a_damaged_profile_is_told_and_not_passed_over():
    path = store.home() / "fitted" / "1xH200.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"machine": ')
    with pytest.raises(InvalidInputError, match=r"1xH200\.json"):
        build_case("pythia-160m", "1xH200", Run(), {})


def test_another_minor_version_of_torch_is_warned_of(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.99.1")
    case = build_case("pythia-160m", "1xH200", Run(), {})
    assert any("torch 2.11" in w and "2.99.1" in w for w in case.warnings)
    same = case.profile.software.torch
    monkeypatch.setattr("importlib.metadata.version", lambda _: same)
    assert build_case("pythia-160m", "1xH200", Run(), {}).warnings == ()
    assert build_case("pythia-160m", "1xA100-80GB", Run(), {}).warnings == (), "a data sheet has no version"


ASK = """
import json, sys
from calibration.question import build_case
from simulator import Run
case = build_case(sys.argv[1], "1xH200", Run(), {})
print(json.dumps([case.workload.name, sorted({"torch", "transformers", "sklearn"} & set(sys.modules))]))
"""


@pytest.mark.parametrize("model", ["pythia-1b", "pythia-410m"])
def test_a_shipped_model_needs_no_torch(tmp_path, model):
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, model], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [model, []]


def test_a_model_of_ones_own_is_traced_once_and_then_remembered(tmp_path, monkeypatch):
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config |= {"intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"architectures": ["GPTNeoXForCausalLM"]}))
    first = load_or_trace(str(path))
    assert first.layers == 4
    monkeypatch.setattr("calibration.trace.trace", lambda _: pytest.fail("traced again"))
    assert load_or_trace(str(path)) == first
