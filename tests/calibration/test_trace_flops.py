"""FLOPs of a trace: against torch's counter on real runs of the full-depth model, and against closed forms."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from calibration.building import build_config, model_class, quiet
from calibration.inputs import make_inputs
from calibration.monomials import value
from calibration.trace import trace
from profiles.schema import Config, Preset, Task, Variant, Workload
from simulator.case import variant_of
from simulator.outlook import model_flops

WIDTHS: Config = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 160}
WORDS: Config = {"vocab_size": 503, **WIDTHS}


def preset(model_type: str, task: Task = "causal_lm", decoder_seq: int | None = None, **config: object) -> Preset:
    facts = {"model_type": model_type, **config}
    return Preset(
        name=model_type, task=task, config=facts, params=0, seq=64, decoder_seq=decoder_seq, source="test",
        date="2026-11-30",
    )  # fmt: skip


T5: Config = {"vocab_size": 503, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 5, "num_decoder_layers": 4}
T5 |= {"num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0}
MODELS = {
    "gpt_neox": preset("gpt_neox", **WORDS),
    "gpt2": preset("gpt2", vocab_size=503, n_embd=64, n_layer=5, n_head=4),
    "llama": preset("llama", num_key_value_heads=2, **WORDS),
    "bert": preset("bert", "masked_lm", **WORDS),
    "t5": preset("t5", "seq2seq_lm", 64, **T5),
    "vit": preset("vit", "image_classification", image_size=32, patch_size=8, num_labels=10, **WIDTHS),
    "mixtral": preset("mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **WORDS),
}
POINTS = [(1, 16, 8), (3, 37, 20), (2, 64, 64)]


@cache
def traced(name: str) -> Workload:
    """Mixtral in bf16, which its grouped product needs."""
    return trace(MODELS[name], numerics=("pure" if name == "mixtral" else "fp32",))


def variant(workload: Workload, attention: str) -> Variant:
    numerics = "pure" if workload.model_type == "mixtral" else "fp32"
    found = variant_of(workload, numerics, attention, False)
    assert found
    return found


def flops(workload: Workload, chosen: Variant, point: tuple[int, int, int], causal_half: bool = False) -> Any:
    """(forward, forward + backward) FLOPs of the trace at its real depth."""
    batch, seq, decoder_seq = (point[0], 1, 1) if workload.fixed_seq else point
    totals = {"forward": 0.0, "backward": 0.0}
    for op in chosen.ops:
        blocks = workload.stacks[op.stack].depth if op.stack >= 0 else 1
        factor = 0.5 if causal_half and op.causal else 1.0
        totals[op.phase] += factor * blocks * value(op.flops, batch, seq, decoder_seq)
    return totals["forward"], totals["forward"] + totals["backward"]


def counted(model: Preset, point: tuple[int, int, int]) -> tuple[int, int]:
    """The same, by torch's counter during a real forward and backward pass on random weights.

    Experts are looped over as plain products: the counter is blind to grouped ones.
    """
    config = build_config(model)
    extra = {"experts_implementation": "eager"} if model.name == "mixtral" else {}
    with quiet():
        real = model_class(model).from_config(config, attn_implementation="eager", dtype=torch.float32, **extra)
    inputs = make_inputs(model, config, *point, "cpu")
    with quiet(), FlopCounterMode(display=False) as counter:
        loss = real.train()(**inputs).loss
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_products_equal_torchs_counter_at_full_depth(name: str, point: tuple[int, int, int]) -> None:
    workload = traced(name)
    assert flops(workload, variant(workload, "eager"), point) == counted(MODELS[name], point)


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2", "llama"])
def test_fused_attention_of_a_decoder_counts_full_or_causal_half(name: str) -> None:
    # The two products of eager attention are the only difference, 4·s²·h FLOPs a layer and sample.
    workload, (batch, seq, _) = traced(name), POINTS[1]
    attention = 5 * 4 * batch * seq**2 * 64
    eager = flops(workload, variant(workload, "eager"), POINTS[1])[0]
    fused = variant(workload, "sdpa")
    causal = name != "llama"  # grouped heads in fp32 have no fused kernel, so nothing is skipped
    assert flops(workload, fused, POINTS[1])[0] == eager
    assert eager - flops(workload, fused, POINTS[1], causal_half=True)[0] == (attention / 2 if causal else 0)


def test_fused_attention_backward_computes_five_products_for_two() -> None:
    workload, point = traced("gpt2"), POINTS[1]
    extra = 5 * 2 * point[0] * point[1] ** 2 * 64  # the scores once more
    totals = [flops(workload, variant(workload, kind), point)[1] for kind in ("eager", "sdpa")]
    assert totals[1] - totals[0] == extra


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_attention_of_an_encoder_is_never_halved(name: str) -> None:
    workload = traced(name)
    fused = variant(workload, "sdpa")
    assert flops(workload, fused, POINTS[1], causal_half=True) == flops(workload, fused, POINTS[1])


def test_only_the_decoders_own_attention_of_an_encoder_decoder_is_causal() -> None:
    # T5's biases are masks, for which the memory-efficient kernel skips nothing.
    workload = traced("t5")
    assert not [op for op in variant(workload, "sdpa").ops if op.causal]


# ------------------------------------------------------------------------------------------------ closed forms


def decoder(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: object) -> Config:
    return {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def norms(layers: int, width: int) -> int:
    """Weights of a decoder's RMS norms: two a layer and the last one; they enter no product."""
    return (2 * layers + 1) * width


def full_attention(layers: int, width: int, seq: int) -> float:
    """Forward and backward FLOPs of both attention products per token, no causal saving."""
    return 12.0 * layers * width * seq


LLAMA_7B = preset("llama", **decoder(32000, 4096, 32, 32, 32, 11008))


def fused(model: Preset, numerics: str = "amp") -> Workload:
    return trace(model, numerics=(numerics,), attentions=("sdpa",), checkpointing=(False,))  # type: ignore[arg-type]


def test_llama_7b_at_4096_is_192_teraflops_a_sequence_with_full_attention_and_embedding() -> None:
    seq, params = 4096, 6_738_415_616
    ours = model_flops(fused(LLAMA_7B), seq, causal_half=False)
    published = 6.0 * params * seq + full_attention(32, 4096, seq) * seq
    assert published == pytest.approx(191.99e12, rel=1e-4)
    # The published figure charges the input look-up and the norms as products.
    assert ours + 6.0 * seq * (32000 * 4096 + norms(32, 4096)) == published


def test_the_causal_half_of_llama_7b_is_half_its_attention() -> None:
    workload = fused(LLAMA_7B)
    whole, half = model_flops(workload, 4096, causal_half=False), model_flops(workload, 4096)
    assert whole - half == full_attention(32, 4096, 4096) * 4096 / 2


def test_gpt2_costs_8_55e8_flops_a_token() -> None:
    ours = model_flops(fused(preset("gpt2")), 1024, causal_half=False) / 1024
    published = 6.0 * (124_439_808 - 1024 * 768) + full_attention(12, 768, 1024)
    assert published == pytest.approx(8.5517e8, rel=1e-5)
    biases = 12 * (3 * 768 + 768 + 4 * 768 + 768)
    assert ours + 6 * (25 * 2 * 768 + biases) == published


def test_a_tied_head_is_counted_as_a_product() -> None:
    seq = 1024
    model = preset("qwen2", **decoder(151936, 896, 24, 14, 2, 4864) | {"tie_word_embeddings": True})
    ours = model_flops(fused(model), seq, causal_half=False) / seq
    biases = 24 * (14 + 2 * 2) * 64
    assert ours == 6.0 * (494_032_768 - norms(24, 896) - biases) + full_attention(24, 896, seq)


def test_an_untied_input_look_up_costs_nothing() -> None:
    seq, params = 2048, 1_100_048_384
    ours = model_flops(fused(preset("llama", **decoder(32000, 2048, 22, 32, 4, 5632))), seq, causal_half=False) / seq
    assert ours == 6.0 * (params - 32000 * 2048 - norms(22, 2048)) + full_attention(22, 2048, seq)


MIXTRAL = preset("mixtral", **decoder(32000, 4096, 32, 32, 8, 14336, num_local_experts=8, num_experts_per_tok=2))
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []}


@pytest.mark.parametrize("numerics", ["amp", "pure"])
def test_a_mixture_computes_with_its_active_parameters(numerics: str) -> None:
    seq, active = 4096, 12_879_925_248
    ours = model_flops(fused(MIXTRAL, numerics), seq, causal_half=False) / seq
    assert ours == 6.0 * (active - 32000 * 4096 - norms(32, 4096)) + full_attention(32, 4096, seq)


def test_qwen3_30b_a3b_computes_like_a_3_billion_model() -> None:
    model = preset(
        "qwen3_moe", head_dim=128, moe_intermediate_size=768, **EXPERTS, **decoder(151936, 2048, 48, 32, 4, 1)
    )
    workload, seq = fused(model), 4096
    assert (workload.params, round(workload.active_params / 1e6)) == (30_532_122_624, 3353)
    head_norms = 48 * 2 * 128
    products = workload.active_params - 151936 * 2048 - norms(48, 2048) - head_norms
    assert model_flops(workload, seq, causal_half=False) / seq == 6.0 * products + full_attention(48, 4096, seq)


def test_qwen3_235b_at_192k_is_204_petaflops_a_sequence() -> None:
    # Its attention is 8192 wide, not 4096: 64 heads of 128.
    model = preset(
        "qwen3_moe", head_dim=128, moe_intermediate_size=1536, **EXPERTS, **decoder(151936, 4096, 94, 64, 4, 1)
    )
    assert model_flops(fused(model), 196_608) == pytest.approx(204.2e15, rel=0.01)
