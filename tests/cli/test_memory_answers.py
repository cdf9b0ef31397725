"""What ``predict`` says of memory, and ``verify --largest`` in front of a scripted machine."""

import json

import pytest

import calibration.largest
import calibration.machine
from calibration.question import build_case
from calibration.testing import FakeMachine
from profiles import parse_machine
from simulator import Run, predict

MIB = 2**20
GPT2 = ("predict", "gpt2", "-m", "1xA100-40GB", "-r", "micro_batch=4,precision=fp32,attention=eager")


def test_predict_names_the_logits_the_phase_and_the_largest_buffer(paceline):
    answer = paceline(*GPT2, "--json").json
    assert answer["largest_buffer"] == {"name": "logits", "bytes": 4 * 1024 * 50257 * 4}
    assert answer["buffers_bytes"]["logits"] / MIB == pytest.approx(785.3, abs=0.05)
    assert answer["buffers_bytes"]["attention_scores"] == 4 * 12 * 1024**2 * 4
    assert answer["buffers_bytes"]["parameter"] == 50257 * 768 * 4
    assert max(answer["memory_phases_bytes"].values()) == answer["peak_bytes"]
    assert answer["memory_phases_bytes"][answer["peak_phase"]] == answer["peak_bytes"]
    assert answer["peak_phase"] == "backward_at_the_head"
    assert 4 * 124_439_808 < answer["load_peak_bytes"] < answer["peak_bytes"]
    assert set(answer["attention_bytes"]) == {"eager", "sdpa"}
    assert answer["attention_bytes"]["eager"] == answer["peak_device_bytes"] > answer["attention_bytes"]["sdpa"]


def test_plan_says_it_of_every_recipe(paceline):
    asked = ("plan", "pythia-14m", "-m", "1xT4", "--tokens", "1B", "--global-batch", "8", "--top", "3", "--json")
    for one in paceline(*asked).json["recipes"]:
        assert max(one["memory_phases_bytes"].values()) == one["peak_bytes"]
        assert one["largest_buffer"]["bytes"] == max(one["buffers_bytes"].values())


def test_people_read_it_too(paceline):
    shown = paceline(*GPT2).out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "logits 785.3 MiB" in lines
    assert sum(line.endswith("the peak") for line in lines) == 1
    assert next(line for line in lines if line.endswith("the peak")).startswith("backward at the head")
    assert any(line.startswith("loading, at most 0.") for line in lines)
    assert any(line.startswith("on the device by attention:") for line in lines)
    assert max(map(len, shown.splitlines())) <= 80


def test_a_model_that_asks_for_eager_is_warned_and_sees_both_numbers(paceline, tmp_path):
    config = {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 688, "attn_implementation": "eager",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    recipe = "micro_batch=1,precision=bf16_pure"
    asked = ("predict", str(path), "-m", "1xA100-40GB", "--seq", "2048")
    both = {a: paceline(*asked, "-r", f"{recipe},attention={a}", "--json").json for a in ("eager", "sdpa")}
    for name, answer in both.items():
        assert any("eager" in warning for warning in answer["warnings"])
        assert answer["attention_bytes"] == {a: other["peak_device_bytes"] for a, other in both.items()}
        assert answer["recipe"]["attention"] == name
    # Four layers keep the 16-bit scores of 8 heads; logits and states do not change.
    assert both["eager"]["peak_bytes"] - both["sdpa"]["peak_bytes"] > 4 * 8 * 2048**2 * 2


@pytest.fixture
def scripted(monkeypatch):
    """An H200 that needs 3 % more than predicted."""
    case = build_case("pythia-160m", "1xH200", Run(seq=2048), {}, published_batch=False)
    machine = FakeMachine(
        step_s=lambda r: predict(case, r).step_s,
        peak_bytes=lambda r: round(1.03 * predict(case, r).peak_bytes),
        memory_bytes=case.machine.gpu.memory_bytes,
    )
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: parse_machine("1xH200"))
    monkeypatch.setattr(calibration.machine, "this_device", lambda: "cuda")
    monkeypatch.setattr(calibration.largest, "local_measurer", lambda: machine)
    return machine


def test_verify_largest_finds_it_in_three_runs(paceline, scripted):
    ended = paceline("verify", "pythia-160m", "--seq", "2048", "--largest", "--recipe", "precision=bf16", "--json")
    assert ended.code == 0, ended.err
    largest = ended.json["largest"]
    assert set(largest) >= {"micro_batch", "runs", "smallest_oom", "predicted", "proven"}
    runs = {run["micro_batch"]: run for run in largest["runs"]}
    assert list(runs) == [trial.recipe.micro_batch for trial in scripted.trials]
    assert len(runs) <= 3
    assert runs[largest["micro_batch"]]["status"] == "ok"
    assert runs[largest["micro_batch"]]["measured_peak_bytes"] < 141 * 2**30
    assert largest["proven"] == (largest["smallest_oom"] == largest["micro_batch"] + 1)
    assert all(run["status"] == "oom" for batch, run in runs.items() if batch > largest["micro_batch"])
    assert next(iter(runs)) == largest["predicted"]
    assert ended.json["recipe"]["micro_batch"] == largest["micro_batch"]
    assert "run 1 of at most 3" in ended.err


def test_verify_largest_as_people_read_it(paceline, scripted):
    shown = paceline("verify", "pythia-160m", "--seq", "2048", "--largest", "-r", "precision=bf16").out
    assert "largest micro-batch that ran: " in shown
    assert "predicted as safe before any run: " in shown
    assert shown.count(" ok ") + shown.count(" oom ") >= len(scripted.trials)
    assert max(map(len, (line for line in shown.splitlines() if "/" not in line))) <= 80


def test_largest_and_random_exclude_each_other(paceline, scripted):
    ended = paceline("verify", "pythia-160m", "--largest", "--random", "3")
    assert ended.code == 2
    assert "--largest" in ended.err
    assert "--random" in ended.err
    assert not scripted.trials
