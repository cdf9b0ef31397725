"""Depth: three blocks stand for all of them exactly, or the model says that they don't."""

from __future__ import annotations

import dataclasses

import pytest

from calibration.counts import count
from calibration.models import build_config, build_on_meta, resolve, with_depth
from profiles.catalogue import preset_names
from profiles.schema import Preset

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}


def preset(model_type, task="causal_lm", **config):
    facts = {"model_type": model_type, **config}
    return Preset(name=model_type, task=task, config=facts, params=0, seq=1, source="test", date="2026-11-30")


def params(model):
    return count(build_on_meta(model), build_config(model)).params


def lengths(model, names):
    modules = dict(build_on_meta(model).named_modules())
    return [len(modules[name]) for name in names]


@pytest.mark.parametrize("name", [name for name in preset_names() if not name.startswith("convnext")])
def test_three_and_four_blocks_give_the_real_count(name):
    real = resolve(name)
    three, stacks = with_depth(real, 3)
    four, _ = with_depth(real, 4)
    depths = {depth for _, depth in stacks}
    assert len(depths) == 1, "an affine rule in one depth needs equal stacks"
    (depth,) = depths
    assert params(three) + (depth - 3) * (params(four) - params(three)) == real.params
    assert lengths(three, [stack for stack, _ in stacks]) == [3] * len(stacks)


def test_active_parameters_are_affine_too():
    real = resolve("mixtral-8x7b")
    active = []
    for depth in (3, 4):
        shallow, _ = with_depth(real, depth)
        active.append(count(build_on_meta(shallow), build_config(shallow)).active_params)
    assert active[0] + 29 * (active[1] - active[0]) == 12_879_925_248


@pytest.mark.parametrize(
    ("name", "stacks"),
    [
        ("pythia-1b", (("gpt_neox.layers", 16),)),
        ("t5-base", (("encoder.block", 12), ("decoder.block", 12))),
        ("clip-vit-b32", (("text_model.encoder.layers", 12), ("vision_model.encoder.layers", 12))),
    ],
)
def test_stacks_are_named_by_their_module_list(name, stacks):
    assert with_depth(resolve(name), 3)[1] == stacks


def test_encoder_and_decoder_of_different_depth_keep_their_own():
    model = preset("t5", "seq2seq_lm", vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_heads=4,
                   num_layers=5, num_decoder_layers=7)  # fmt: skip
    shallow, stacks = with_depth(model, 3)
    assert stacks == (("encoder.block", 5), ("decoder.block", 7))
    assert lengths(shallow, ["encoder.block", "decoder.block"]) == [3, 3]


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        (preset("gpt2", vocab_size=96, n_embd=32, num_hidden_layers=6, n_head=4), 6),
        (preset("bloom", vocab_size=96, n_embed=32, n_layer=5, n_head=4), 5),
        (preset("mpt", vocab_size=96, d_model=32, n_layers=5, n_heads=4), 5),
        (preset("distilbert", "masked_lm", vocab_size=96, dim=32, hidden_dim=48, n_layers=6, n_heads=4), 6),
        (preset("rwkv", vocab_size=96, hidden_size=32, num_hidden_layers=6), 6),
        (preset("whisper", "seq2seq_lm", vocab_size=60000, d_model=32, encoder_layers=4, decoder_layers=4,
                encoder_attention_heads=4, decoder_attention_heads=4), 4),
        (preset("dinov2", "image_classification", hidden_size=32, num_hidden_layers=6, num_attention_heads=4), 6),
        (preset("qwen2", **SMALL, num_key_value_heads=2, num_hidden_layers=6, layer_types=["full_attention"] * 6), 6),
    ],
)  # fmt: skip
def test_every_name_for_depth_is_set(model, depth):
    shallow, stacks = with_depth(model, 3)
    assert {real for _, real in stacks} == {depth}
    four, _ = with_depth(model, 4)
    assert params(shallow) + (depth - 3) * (params(four) - params(shallow)) == params(model)
    assert params(shallow) < params(model)


def test_lists_by_layer_are_cut_to_fit():
    kinds = ["full_attention"] * 6
    shallow, _ = with_depth(preset("qwen2", **SMALL, num_key_value_heads=2, num_hidden_layers=6, layer_types=kinds), 3)
    assert shallow.config["layer_types"] == ["full_attention"] * 3


def test_a_first_block_of_its_own_is_kept():
    config = SMALL | {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
    config |= {"topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    config |= {"v_head_dim": 8, "num_key_value_heads": 4, "num_hidden_layers": 7}
    one_dense = preset("deepseek_v3", **config, first_k_dense_replace=1)
    shallow, _ = with_depth(one_dense, 3)
    assert [type(layer.mlp).__name__ for layer in build_on_meta(shallow).model.layers] == [
        "DeepseekV3MLP", "DeepseekV3MoE", "DeepseekV3MoE",
    ]  # fmt: skip
    assert with_depth(preset("deepseek_v3", **config, first_k_dense_replace=3), 3) is None


@pytest.mark.parametrize(
    "model",
    [
        preset("gpt_neo", vocab_size=96, hidden_size=32, num_layers=6, num_heads=4,
               attention_types=[[["global", "local"], 3]]),
        preset("gemma3_text", **SMALL, num_key_value_heads=1, head_dim=8, num_hidden_layers=8),
        preset("qwen2", **SMALL, num_key_value_heads=2, num_hidden_layers=4, use_sliding_window=True, sliding_window=8,
               layer_types=["full_attention", "full_attention", "sliding_attention", "full_attention"]),
        preset("qwen3_moe", **SMALL, num_key_value_heads=2, num_hidden_layers=6, num_experts=4, num_experts_per_tok=2,
               moe_intermediate_size=16, decoder_sparse_step=2, head_dim=8),
        preset("smollm3", **SMALL, num_key_value_heads=2, num_hidden_layers=8, pad_token_id=0),
        preset("albert", "masked_lm", **SMALL, embedding_size=16, num_hidden_layers=6),
        preset("convnext", "image_classification", depths=[3, 3, 9, 3], hidden_sizes=[8, 16, 24, 32]),
        preset("swin", "image_classification", embed_dim=12, depths=[2, 2, 6, 2], num_heads=[1, 2, 4, 8]),
        preset("jamba", **SMALL, num_key_value_heads=2, num_hidden_layers=16),
    ],
    ids=lambda model: model.config["model_type"],
)  # fmt: skip
def test_blocks_that_differ_are_not_cut(model):
    assert with_depth(model, 3) is None


def test_a_model_shallower_than_asked_is_not_cut():
    assert with_depth(preset("llama", **SMALL, num_hidden_layers=2), 3) is None
    assert with_depth(preset("llama", **SMALL, num_hidden_layers=5), 6) is None
    assert with_depth(preset("llama", **SMALL, num_hidden_layers=5), 5) is not None


def test_the_real_preset_is_left_alone():
    real = resolve("llama-3.1-8b")
    before = dataclasses.asdict(real)
    with_depth(real, 3)
    assert dataclasses.asdict(real) == before


def test_a_nested_config_keeps_its_widths():
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4}
    text = {"model_type": "llama", **SMALL, "num_hidden_layers": 6}
    model = preset("llava", text_config=text, vision_config={"model_type": "clip_vision_model", **vision})
    shallow, stacks = with_depth(model, 3)
    assert [real for _, real in stacks] == [5, 6]
    assert build_config(shallow).text_config.hidden_size == 32
    assert lengths(shallow, [name for name, _ in stacks]) == [3, 3]
