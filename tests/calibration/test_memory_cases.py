"""Users' reports of memory on one GPU, answered from a data sheet: what fits, what does not, and what eats it."""

from __future__ import annotations

from functools import cache

import pytest

from calibration.trace import trace
from profiles.machines import parse_machine
from profiles.schema import Config, Preset, Task, Workload
from simulator.case import Case
from simulator.memory_phases import memory_phases
from simulator.planning import predict
from simulator.rates import datasheet_profile
from simulator.recipes import complete
from simulator.results import Prediction

MIB, GIB, GB = 2**20, 2**30, 1e9


def preset(model_type: str, task: Task = "causal_lm", **config: object) -> Preset:
    facts = {"model_type": model_type, **config}
    return Preset(name=model_type, task=task, config=facts, params=0, seq=512, source="test", date="2026-11-30")


def decoder(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: object) -> Config:
    return {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "tie_word_embeddings": False, **more,
    }  # fmt: skip


MODELS = {
    "llama-7b": preset("llama", **decoder(32000, 4096, 32, 32, 32, 11008)),
    "llama-7b-64k": preset("llama", **decoder(64000, 4096, 32, 32, 32, 11008)),
    "llama-3-8b": preset("llama", **decoder(128256, 4096, 32, 32, 8, 14336)),
    "gpt2": preset("gpt2"),
    "gpt2-large": preset("gpt2", n_embd=1280, n_layer=36, n_head=20),
    "bert-base": preset("bert", "masked_lm", max_position_embeddings=1024),
    "llama-1b-eager": preset("llama", attn_implementation="eager", **decoder(32000, 2048, 16, 16, 16, 5632)),
}


@cache
def traced(name: str) -> Workload:
    return trace(MODELS[name])


def case(name: str, machine: str) -> Case:
    return Case(workload=traced(name), profile=datasheet_profile(parse_machine(machine)))


def answer(name: str, machine: str, **recipe: object) -> Prediction:
    asked = case(name, machine)
    return predict(asked, complete(recipe, asked))


def logits(prediction: Prediction) -> int:
    return prediction.memory_breakdown_bytes["logits_and_loss"]


@pytest.mark.parametrize("name", ["gpt2", "llama-7b"])
def test_the_breakdown_adds_up_to_the_device_total(name: str) -> None:
    found = answer(name, "1xA100-80GB", micro_batch=4, precision="bf16_pure")
    assert sum(found.memory_breakdown_bytes.values()) == found.peak_device_bytes
    assert all(part >= 0 for part in found.memory_breakdown_bytes.values())
    assert found.peak_bytes < found.peak_reserved_bytes < found.peak_device_bytes < found.peak_bytes_high


# ---------------------------------------------------------------------- large vocabularies (M04, M05, M20)


def test_logits_of_one_sequence_of_a_64k_vocabulary_are_whole_copies_of_1000_mib() -> None:
    # litgpt#684: 1 · 4096 · 64000 · 4 bytes is the failing allocation.
    parts = answer("llama-7b-64k", "1xA100-40GB", micro_batch=1, seq=4096, precision="fp32").memory_breakdown_bytes
    copies = parts["logits_and_loss"] / (1000.0 * MIB)
    assert copies == pytest.approx(round(copies), abs=1e-3)
    assert 2 <= round(copies) <= 4


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "bf16_pure"])
@pytest.mark.parametrize(("name", "vocabulary"), [("llama-7b", 32000), ("llama-7b-64k", 64000), ("gpt2", 50257)])
def test_logits_are_named_as_a_buffer_of_their_own(name: str, vocabulary: int, precision: str) -> None:
    """One fp32 copy of one sequence, to the byte; beyond some number of samples it is the largest tensor of all."""
    asked = case(name, "1xA100-40GB")
    seq = 1024 if name == "gpt2" else 4096
    for micro_batch in (1, 3, 4):
        found = memory_phases(asked, complete({"micro_batch": micro_batch, "seq": seq, "precision": precision}, asked))
        assert found.logits is not None
        assert found.logits.bytes == micro_batch * seq * vocabulary * 4
    assert found.largest_buffer == found.logits
    assert found.peak_phase == "backward_at_the_head"


def test_a_64k_vocabulary_makes_exactly_the_failing_allocation() -> None:
    asked = case("llama-7b-64k", "1xA100-40GB")
    found = memory_phases(asked, complete({"micro_batch": 1, "seq": 4096, "precision": "bf16_pure"}, asked))
    assert (found.largest_buffer.name, found.largest_buffer.mib) == ("logits", 1000.0)


@pytest.mark.parametrize(("micro_batch", "reported_mib"), [(1, 196.3), (4, 785.3)])
def test_logits_of_gpt2_are_whole_copies_of_the_reported_allocation(micro_batch: int, reported_mib: float) -> None:
    found = answer("gpt2", "1xA100-40GB", micro_batch=micro_batch, seq=1024, precision="fp32", attention="eager")
    copies = logits(found) / MIB / reported_mib
    assert copies == pytest.approx(round(copies), rel=1e-3)
    assert 2 <= round(copies) <= 4


def test_logits_of_llama_3_at_8192_tokens_are_copies_of_2_1_gb() -> None:
    found = answer("llama-3-8b", "1xH200", micro_batch=1, seq=8192, precision="bf16")
    copies = logits(found) / (8192 * 128256 * 2)
    assert copies == pytest.approx(round(copies), abs=1e-3)
    assert 4 <= round(copies) <= 6  # 16-bit logits, their fp32 copy, its gradient


def test_twice_the_vocabulary_costs_its_logits_at_least() -> None:
    sizes = [answer(n, "1xH200", micro_batch=4, seq=4096, precision="bf16_pure") for n in ("llama-7b", "llama-7b-64k")]
    per_logit = (logits(sizes[1]) - logits(sizes[0])) / (4 * 4096 * 32000)
    assert 4 <= per_logit <= 12  # bytes: 16-bit logits, their fp32 copy and gradient, in part or all at once


# -------------------------------------------------------------------------- fits or not (M06, M07, M08, M17)


def test_gpt2_large_at_16_does_not_fit_a_24_gb_card_and_at_2_it_does() -> None:
    # transformers#24491: weights and gradients alone suggested a fit.
    large, small = (
        answer("gpt2-large", "1xRTX-3090", micro_batch=b, seq=600, precision="fp16", attention="eager") for b in (16, 2)
    )
    assert (large.verdict, small.verdict) == ("oom", "fits")
    assert large.fit_probability < 0.01 < 0.99 < small.fit_probability
    states = sum(large.memory_breakdown_bytes[k] for k in ("weights", "optimizer_state"))
    assert states == pytest.approx(12 * 774_030_080, rel=1e-3)
    assert large.memory_breakdown_bytes["activations"] > 35.8 * GB  # a formula that knows of no fp32 softmax


def test_llama_7b_activations_are_four_times_the_rule_of_thumb() -> None:
    # LOMO#16: 12·h·b·s·L suggests 12 GB (6.4e9 numbers), about 45 GB were measured.
    parts = answer(
        "llama-7b", "1xA100-80GB", micro_batch=8, seq=512, precision="bf16_pure", attention="eager"
    ).memory_breakdown_bytes
    assert 29 * GB < parts["activations"] + parts["logits_and_loss"] < 50 * GB


def test_llama_7b_in_pure_bf16_does_not_fit_one_40_gb_card() -> None:
    # litgpt#1432: 8 bytes a parameter, 53.9 GB before any activation.
    found = answer("llama-7b", "1xA100-40GB", micro_batch=1, precision="bf16_pure")
    assert found.verdict == "oom"
    parts = found.memory_breakdown_bytes
    assert parts["weights"] + parts["optimizer_state"] == pytest.approx(6 * 6_738_415_616, rel=1e-3)
    assert found.peak_bytes > 8 * 6_738_415_616


def test_what_fits_until_the_optimizers_state_appears_does_not_fit() -> None:
    """The first step runs without Adam's state; its peak says nothing of the second step's."""
    found = answer("llama-7b", "1xA100-40GB", micro_batch=1, seq=4096, precision="bf16_pure")
    first_step = found.peak_device_bytes - found.memory_breakdown_bytes["optimizer_state"]
    assert first_step < found.memory_limit_bytes < found.peak_device_bytes
    assert found.verdict == "oom"


def test_adam_holds_a_second_moment_beside_the_momentum_of_sgd() -> None:
    adam, sgd = (
        answer("gpt2", "1xA100-40GB", micro_batch=8, precision="bf16", optimizer=o) for o in ("adamw_fused", "sgd")
    )
    assert adam.peak_bytes - sgd.peak_bytes == pytest.approx(4 * 124_439_808, rel=0.01)


# ------------------------------------------------------------------------------ attention and lengths (M22, M24)


def test_a_config_that_asks_for_eager_is_warned_of_and_sdpa_needs_less() -> None:
    recipe = {"micro_batch": 1, "seq": 8192, "precision": "bf16_pure"}
    eager, sdpa = (answer("llama-1b-eager", "1xA100-80GB", attention=a, **recipe) for a in ("eager", "sdpa"))
    assert any("eager" in warning for warning in sdpa.warnings)
    # Sixteen layers keep the 16-bit scores of 16 heads, at least once.
    assert eager.peak_bytes - sdpa.peak_bytes > 16 * 16 * 8192**2 * 2


@pytest.mark.parametrize("micro_batch", [8, 50])
def test_a_length_of_711_is_as_good_as_any_other(micro_batch: int) -> None:
    # unilm#917: 514 words and 197 image tokens; 8 samples on a V100, about 50 on an A100-80GB.
    machine = "1xV100-32GB" if micro_batch == 8 else "1xA100-80GB"
    found = [answer("bert-base", machine, micro_batch=micro_batch, precision="fp16", seq=s) for s in (704, 711, 718)]
    assert [p.verdict for p in found] == ["fits"] * 3
    peaks = [p.peak_bytes for p in found]
    assert peaks[1] == pytest.approx((peaks[0] + peaks[2]) / 2, rel=1e-3)
    assert peaks == sorted(peaks)
    assert [p.step_s for p in found] == sorted(p.step_s for p in found)
