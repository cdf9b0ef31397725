"""Heads and positions read from a config, against what the architectures are known to hold."""

from __future__ import annotations

import pytest

from calibration.models import attention_heads, build_config, fixed_seq, max_positions, resolve
from profiles.catalogue import preset_names
from profiles.schema import Preset


def config_of(model_type, task="causal_lm", **config):
    facts = {"model_type": model_type, **config}
    return build_config(
        Preset(name=model_type, task=task, config=facts, params=0, seq=1, source="test", date="2026-11-30")
    )


def preset_config(name):
    return build_config(resolve(name))


@pytest.mark.parametrize(
    ("name", "heads"),
    [("pythia-1b", 8), ("gpt2-xl", 25), ("t5-3b", 32), ("bert-large", 16), ("qwen2.5-0.5b", 14), ("mamba-130m", None),
     ("clip-vit-b32", 8), ("vit-l16", 16), ("convnext-large", None)],
)  # fmt: skip
def test_heads(name, heads):
    assert attention_heads(preset_config(name)) == heads


@pytest.mark.parametrize(
    ("name", "positions"),
    [("gpt2", 1024), ("bert-base", 512), ("roberta-base", 512), ("pythia-1b", None), ("llama-3.1-8b", None),
     ("t5-base", None), ("mamba-130m", None), ("convnext-large", None)],
)  # fmt: skip
def test_only_tables_of_positions_bound_the_length(name, positions):
    assert max_positions(preset_config(name)) == positions


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (config_of("opt", hidden_size=24, word_embed_proj_dim=24, max_position_embeddings=256), 256),
        (config_of("bart", "seq2seq_lm", d_model=64, max_position_embeddings=128), 128),
        (config_of("gptj", n_embd=64, n_head=4, rotary_dim=8, n_positions=64), 64),
        (config_of("mpt", d_model=32, n_heads=4, max_seq_len=100), 100),
        (config_of("openai-gpt", n_embd=24, n_head=4, n_positions=77), 77),
        (config_of("esm", "masked_lm", vocab_size=33, hidden_size=40, num_attention_heads=4, pad_token_id=1,
                   max_position_embeddings=66, position_embedding_type="absolute"), 64),
        (config_of("esm", "masked_lm", vocab_size=33, hidden_size=40, num_attention_heads=4, pad_token_id=1,
                   max_position_embeddings=66, position_embedding_type="rotary"), None),
    ],
    ids=lambda value: getattr(value, "model_type", str(value)),
)  # fmt: skip
def test_reserved_positions_are_not_usable(config, positions):
    assert max_positions(config) == positions


def test_a_vision_tower_does_not_bound_the_text():
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    text = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert max_positions(config_of("llava", vision_config=vision, text_config=text)) is None


@pytest.mark.parametrize(
    ("name", "positions"),
    [("vit-b16", 14 * 14 + 1), ("clip-vit-b32", 77 + 7 * 7 + 1), ("convnext-xlarge", 56 * 56), ("pythia-1b", None),
     ("t5-base", None)],
)  # fmt: skip
def test_vision_fixes_its_length(name, positions):
    preset = resolve(name)
    assert fixed_seq(build_config(preset)) == positions
    assert positions in (None, preset.seq)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (config_of("vit", "image_classification", image_size=[32, 64], patch_size=16), 2 * 4 + 1),
        (config_of("deit", "image_classification", image_size=224, patch_size=16), 196 + 2),
        (config_of("dinov2_with_registers", "image_classification", image_size=224, patch_size=14), 256 + 1 + 4),
        (config_of("resnet", "image_classification"), 1),
    ],
    ids=lambda value: getattr(value, "model_type", str(value)),
)  # fmt: skip
def test_patches_class_and_register_tokens_are_positions(config, positions):
    assert fixed_seq(config) == positions


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_trains_beyond_its_positions(name):
    preset = resolve(name)
    limit = max_positions(build_config(preset))
    assert limit is None or preset.task == "contrastive" or preset.seq <= limit
