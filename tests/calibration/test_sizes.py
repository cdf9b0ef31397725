"""Resized models against transformers' own counts and against traces of the resized model itself."""

from dataclasses import replace

import numpy as np
import pytest

from calibration import sizes
from calibration.trace import trace
from profiles import store
from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.schema import Recipe
from profiles.store import load_preset, load_workload, read_profile
from simulator.calibrated import depth_of, width_of
from simulator.components import COMPONENTS, Choice, component_seconds
from simulator.memory import PARTS, memory

PLAIN = Recipe(micro_batch=3, seq=256)
FULL = replace(PLAIN, checkpointing="full")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def h200():
    return read_profile(SHIPPED / "fitted" / "1xH200.json")


def built_params(preset, **changes):
    """Parameters of the class that transformers builds, each counted once."""
    import torch
    import transformers

    auto = {
        "causal_lm": "AutoModelForCausalLM",
        "masked_lm": "AutoModelForMaskedLM",
        "seq2seq_lm": "AutoModelForSeq2SeqLM",
        "image_classification": "AutoModelForImageClassification",
    }[preset.task]
    facts = {key: value for key, value in {**preset.config, **changes}.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(preset.config["model_type"], **facts)
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    return sum(parameter.numel() for parameter in model.parameters()), len(list(model.parameters()))


DEEPER = {
    "pythia-70m": {"num_hidden_layers": 9},
    "bert-base": {"num_hidden_layers": 5},
    "qwen2.5-0.5b": {"num_hidden_layers": 30},
    "t5-small": {"num_layers": 8, "num_decoder_layers": 8},
    "vit-b16": {"num_hidden_layers": 16},
}


@pytest.mark.parametrize("model", DEEPER)
def test_counts_at_another_depth_are_those_of_the_class(model):
    preset, own = load_preset(model), load_workload(model)
    changes = DEEPER[model]
    depth = next(iter(changes.values()))
    found = sizes.at_depths(preset, own, [depth])[depth]
    assert (found.params, found.parameter_tensors) == built_params(preset, **changes)
    assert depth_of(found) == depth
    assert found.embedding_params == own.embedding_params
    assert found.layers == sum(stack.depth for stack in found.stacks)
    assert found.config_hash != own.config_hash
    assert found.name != own.name


@pytest.mark.parametrize("recipe", [PLAIN, FULL], ids=["plain", "full"])
def test_time_and_memory_at_another_depth_are_those_of_its_own_trace(recipe):
    preset = load_preset("pythia-14m")
    deeper = replace(preset, name="deeper", config={**preset.config, "num_hidden_layers": 11})
    own = trace(deeper, numerics=("amp",), attentions=("sdpa",))
    found = sizes.at_depths(preset, load_workload("pythia-14m"), [11])[11]
    rates, fit, choice = h200().rates, h200().fit, Choice.of(recipe)
    rows = np.array([[1.0, 128.0, 0.0], [4.0, 512.0, 0.0], [32.0, 2048.0, 0.0]])
    one, other = (component_seconds(workload, rates, choice, rows) for workload in (found, own))
    assert one == pytest.approx(other, rel=1e-9)
    assert one.shape == (3, len(COMPONENTS))
    accumulates = np.array([False, True, False])
    one, other = (memory(workload, choice, rows, accumulates, fit, 1e12).parts for workload in (found, own))
    assert one == pytest.approx(other, rel=1e-9)
    assert one.shape == (3, len(PARTS))


def test_the_own_depth_is_the_model_itself():
    own = load_workload("pythia-70m")
    assert sizes.at_depths(load_preset("pythia-70m"), own, [6])[6] is own


def test_depths_that_cannot_be_made_are_refused_together():
    own = load_workload("pythia-70m")
    with pytest.raises(InvalidInputError) as caught:
        sizes.at_depths(load_preset("pythia-70m"), own, [1, 2, 6])
    assert len(caught.value.problems) == 2
    assert "from 3" in caught.value.problems[0]
    with pytest.raises(InvalidInputError, match="no repeated blocks"):
        sizes.at_depths(load_preset("convnext-large"), load_workload("convnext-large"), [3])


WIDER = {
    "pythia-70m": {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "gpt2": {"n_embd": 1024, "n_head": 16},
    "bert-base": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "qwen2.5-0.5b": {
        "hidden_size": 1792, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 9728,
    },
    "t5-small": {"d_model": 1024, "num_heads": 16, "d_ff": 4096},
    "vit-b16": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "mamba-130m": {"hidden_size": 384},
}  # fmt: skip


@pytest.mark.parametrize("model", WIDER)
def test_parameters_at_another_width_are_those_of_the_class(model):
    preset, changes = load_preset(model), WIDER[model]
    width = next(iter(changes.values()))
    found = sizes.with_width(preset, width)
    assert found.params == built_params(preset, **changes)[0]
    assert width_of(replace(load_workload(model), config=found.config)) == width
    assert preset.config == load_preset(model).config, "the preset itself stays as it is"


def test_nested_models_keep_their_ratio():
    preset = load_preset("clip-vit-b32")
    found = sizes.with_width(preset, 1536).config
    assert (found["vision_config"]["hidden_size"], found["text_config"]["hidden_size"]) == (1536, 1024)
    assert (found["vision_config"]["num_attention_heads"], found["text_config"]["num_attention_heads"]) == (24, 16)


def test_widths_are_traced_once_and_only_as_far_as_needed(monkeypatch):
    preset, own = load_preset("pythia-14m"), load_workload("pythia-14m")
    assert preset.config["hidden_size"] == 128
    found = sizes.at_widths(preset, own, [128, 64], PLAIN)
    assert found[128] is own
    assert found[64].params == sizes.with_width(preset, 64).params
    assert {(v.numerics, v.attention, v.checkpointed) for v in found[64].variants} == {("amp", "sdpa", False)}
    again = sizes.at_widths(preset, own, [64], FULL)[64]
    assert {v.checkpointed for v in again.variants} == {False, True}
    monkeypatch.setattr("calibration.trace.trace", None)
    assert sizes.at_widths(preset, own, [64], FULL)[64] == again
    assert store.load_workload("pythia-14m@width=64") == again


def test_widths_that_cannot_be_made_are_refused_together_before_anything_is_traced(monkeypatch):
    monkeypatch.setattr("calibration.trace.trace", None)
    preset, own = load_preset("bert-base"), load_workload("bert-base")
    with pytest.raises(InvalidInputError) as caught:
        sizes.at_widths(preset, own, [100, 128, 130], PLAIN)
    assert [p.partition(";")[0] for p in caught.value.problems] == [
        "width=100 is not allowed",
        "width=130 is not allowed",
    ]
    assert "multiples of 64" in caught.value.problems[0]
    with pytest.raises(InvalidInputError, match="no single hidden size"):
        sizes.with_width(load_preset("convnext-large"), 64)


def test_default_widths_surround_the_model_and_can_be_made():
    preset = load_preset("bert-base")
    found = sizes.default_widths(preset)
    assert found == [192, 384, 576, 768, 1152, 1536]
    assert all(sizes.with_width(preset, width) for width in found)
    assert sizes.default_widths(load_preset("convnext-large")) == []
