"""Parameter counts against published figures, and against closed forms that never see the module."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from calibration.counts import Counts, count
from calibration.models import build_config, build_on_meta
from profiles.errors import InvalidInputError
from profiles.schema import Config, Preset, Task


def preset(model_type: str, task: Task = "causal_lm", **config: object) -> Preset:
    facts = {"model_type": model_type, **config}
    return Preset(name=model_type, task=task, config=facts, params=0, seq=1, source="test", date="2026-11-30")


def counted(model: Preset) -> Counts:
    return count(build_on_meta(model), build_config(model))


def decoder(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: object) -> Config:
    return {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def qwen3_moe(width: int, layers: int, heads: int, inner: int) -> Config:
    experts = {"moe_intermediate_size": inner, "num_experts": 128, "num_experts_per_tok": 8}
    sparse = {"decoder_sparse_step": 1, "mlp_only_layers": [], "head_dim": 128}
    return decoder(151936, width, layers, heads, 4, 6144, **experts, **sparse)


def esm(width: int, layers: int) -> Config:
    table = {"max_position_embeddings": 1026, "position_embedding_type": "rotary", "pad_token_id": 1}
    return decoder(33, width, layers, 20, 20, 4 * width, **table) | {"tie_word_embeddings": True}


LLAVA = {
    "text_config": {"model_type": "llama", **decoder(32064, 4096, 32, 32, 32, 11008)},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768,
    },
    "vision_feature_layer": -2,
}  # fmt: skip
FLAN_T5_BASE = {
    "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
    "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
BART = {"vocab_size": 50265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072}
BART |= {"decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12}
MAMBA2 = {"vocab_size": 50288, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 128, "num_heads": 24}
MAMBA2 |= {"head_dim": 64, "n_groups": 1, "tie_word_embeddings": True}
MPT = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4, "no_bias": True, "vocab_size": 50432}
GPT_NEO = {"vocab_size": 50257, "hidden_size": 768, "num_layers": 12, "num_heads": 12}
GPT_NEO |= {"attention_types": [[["global", "local"], 6]], "max_position_embeddings": 2048}
STARCODER = {"vocab_size": 49152, "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 8192, "n_inner": 8192}
FALCON = {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
FALCON |= {"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "bias": False}
OLMOE = decoder(50304, 2048, 16, 16, 16, 1024, num_experts=64, num_experts_per_tok=8)
GPT_J = {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}
RWKV = {"vocab_size": 50277, "hidden_size": 768, "num_hidden_layers": 12, "tie_word_embeddings": False}
DISTILBERT = {"vocab_size": 30522, "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}
ALBERT = {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "intermediate_size": 3072}
ALBERT |= {"num_hidden_layers": 12, "num_attention_heads": 12}
WHISPER = {"vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536}
WHISPER |= {"decoder_ffn_dim": 1536, "encoder_attention_heads": 6, "decoder_attention_heads": 6}
MODERNBERT = {"vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12}
MODERNBERT |= {"intermediate_size": 1152}
GEMMA = {"head_dim": 256, "tie_word_embeddings": True}


def opt(width: int, layers: int, heads: int) -> Config:
    sizes = {"vocab_size": 50272, "hidden_size": width, "word_embed_proj_dim": width, "ffn_dim": 4 * width}
    return {**sizes, "num_hidden_layers": layers, "num_attention_heads": heads}


def bloom(width: int) -> Config:
    return {"vocab_size": 250880, "n_embed": width, "n_layer": 24, "n_head": 16}


PUBLISHED = {
    "qwen3-30b-a3b": (preset("qwen3_moe", **qwen3_moe(2048, 48, 32, 768)), 30_532_122_624),
    "qwen3-235b-a22b": (preset("qwen3_moe", **qwen3_moe(4096, 94, 64, 1536)), 235_093_634_560),
    "falcon-7b": (preset("falcon", **FALCON), 6_921_720_704),
    "starcoder-1b": (preset("gpt_bigcode", **STARCODER, multi_query=True), 1_137_207_296),
    "bloom-560m": (preset("bloom", **bloom(1024)), 559_214_592),
    "bloom-1b1": (preset("bloom", **bloom(1536)), 1_065_314_304),
    "mpt-7b": (preset("mpt", **MPT), 6_649_286_656),
    "distilbert": (preset("distilbert", "masked_lm", **DISTILBERT), 66_985_530),
    "gpt-neo-125m": (preset("gpt_neo", **GPT_NEO), 125_198_592),
    "gpt-j-6b": (preset("gptj", **GPT_J), 6_050_882_784),
    "albert-base-v2": (preset("albert", "masked_lm", **ALBERT), 11_221_680),
    "smollm2-135m": (
        preset("llama", **decoder(49152, 576, 30, 9, 3, 1536) | {"tie_word_embeddings": True}), 134_515_008,
    ),
    "qwen2.5-72b": (preset("qwen2", **decoder(152064, 8192, 80, 64, 8, 29568)), 72_706_203_648),
    "olmoe-1b-7b": (preset("olmoe", **OLMOE), 6_919_161_856),
    "gemma-2b": (preset("gemma", **decoder(256000, 2048, 18, 8, 1, 16384) | GEMMA), 2_506_172_416),
    "gemma-7b": (preset("gemma", **decoder(256000, 3072, 28, 16, 16, 24576) | GEMMA), 8_537_680_896),
    "gemma-3-1b": (preset("gemma3_text", **decoder(262144, 1152, 26, 4, 1, 6912) | GEMMA), 999_885_952),
    "mistral-nemo": (preset("mistral", **decoder(131072, 5120, 40, 32, 8, 14336, head_dim=128)), 12_247_782_400),
    "phi-2": (preset("phi", **decoder(51200, 2560, 32, 32, 32, 10240)), 2_779_683_840),
    "opt-125m": (preset("opt", **opt(768, 12, 12)), 125_239_296),
    "opt-1.3b": (preset("opt", **opt(2048, 24, 32)), 1_315_758_080),
    "modernbert-base": (preset("modernbert", "masked_lm", **MODERNBERT), 149_655_232),
    "bart-base": (preset("bart", "seq2seq_lm", **BART), 139_420_416),
    "whisper-tiny": (preset("whisper", "seq2seq_lm", **WHISPER), 37_760_640),
    "mamba2-130m": (preset("mamba2", **MAMBA2), 128_989_632),
    "rwkv-169m": (preset("rwkv", **RWKV), 169_342_464),
    "llava-1.5-7b": (preset("llava", **LLAVA), 7_063_427_072),
    "esm2-150m": (preset("esm", "masked_lm", **esm(640, 30)), 148_140_154),
    "esm2-650m": (preset("esm", "masked_lm", **esm(1280, 33)), 651_043_254),
    "flan-t5-base": (preset("t5", "seq2seq_lm", **FLAN_T5_BASE), 222_903_552),
}  # fmt: skip
"""Models that are no preset: unique parameters of the transformers class; flan-t5-base is tied by transformers 5."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_equals_the_published_count(name):
    model, params = PUBLISHED[name]
    assert counted(model).params == params


def dense_llama(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int, head: int) -> int:
    """V, D, L … of a gated decoder with two norms a block, separate output head."""
    attention = 2 * width * head * heads + 2 * width * head * kv_heads
    return 2 * vocabulary * width + layers * (attention + 3 * width * inner + 2 * width) + width


@pytest.mark.parametrize(
    ("shape", "head_dim"), [((32000, 2048, 22, 32, 4, 5632), None), ((977, 96, 5, 6, 3, 200), 8)]
)  # fmt: skip
def test_a_dense_decoder_equals_its_closed_form(shape, head_dim):
    head = head_dim or shape[1] // shape[3]
    counts = counted(preset("llama", **decoder(*shape), head_dim=head))
    assert counts.params == counts.active_params == dense_llama(*shape, head)
    assert counts.embedding_params == shape[0] * shape[1]
    assert counts.parameter_tensors == 3 + 9 * shape[2]
    assert counts.largest_parameter == shape[0] * shape[1]


def test_mixtral_activates_two_of_eight_experts():
    config = decoder(32000, 4096, 32, 32, 8, 14336, num_local_experts=8, num_experts_per_tok=2)
    counts = counted(preset("mixtral", **config))
    assert (counts.params, counts.active_params) == (46_702_792_704, 12_879_925_248)


def test_qwen3_moe_activates_the_router_and_eight_experts():
    counts = counted(PUBLISHED["qwen3-30b-a3b"][0])
    width, layers, experts, inner = 2048, 48, 128, 768
    attention = 2 * width * 128 * 32 + 2 * width * 128 * 4 + 2 * 128
    block = attention + 2 * width + width * experts + 8 * 3 * width * inner
    assert counts.active_params == 2 * 151936 * width + layers * block + width
    assert counts.active_params == pytest.approx(3.353e9, rel=1e-3)


def test_olmoe_activates_what_is_published():
    assert counted(PUBLISHED["olmoe-1b-7b"][0]).active_params == pytest.approx(1.282e9, rel=1e-3)


def test_shared_experts_are_always_active():
    config = decoder(500, 64, 3, 4, 4, 96, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2)
    config |= {"n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16}
    config |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2, "topk_group": 1}
    counts = counted(preset("deepseek_v3", **config))
    assert counts.params - counts.active_params == 2 * (8 - 2) * 3 * 64 * 32


def test_experts_in_a_module_list_count_by_their_share():
    config = {"vocab_size": 100, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config |= {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    counts = counted(preset("switch_transformers", "seq2seq_lm", **config, num_decoder_layers=2))
    sparse_blocks = 2  # one in the encoder, one in the decoder
    assert counts.params - counts.active_params == sparse_blocks * (4 - 1) * 2 * 16 * 24


def test_experts_without_a_number_of_visits_are_refused():
    from torch import nn

    model = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))})
    with pytest.raises(InvalidInputError, match="num_experts_per_tok"):
        count(model, SimpleNamespace(model_type="toy", num_experts=3))


def test_a_tied_table_is_no_lookup_and_counts_once():
    tied = counted(preset("gpt2", vocab_size=1000, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    untied = counted(
        preset("gpt2", vocab_size=1000, n_embd=32, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=False)
    )
    assert untied.params - tied.params == 1000 * 32
    assert tied.embedding_params == 64 * 32
    assert untied.embedding_params == 64 * 32 + 1000 * 32
    assert untied.parameter_tensors - tied.parameter_tensors == 1


def test_gpt2_equals_its_closed_form():
    vocabulary, positions, width, layers = 50257, 1024, 768, 12
    block = 12 * width**2 + 13 * width
    counts = counted(preset("gpt2", vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=12))
    assert counts.params == (vocabulary + positions) * width + layers * block + 2 * width
    assert counts.parameter_tensors == 2 + 12 * layers + 2
    assert counts.largest_parameter == vocabulary * width


def test_buffers_are_bytes_by_their_own_type():
    counts = counted(preset("bert", "masked_lm", vocab_size=100, hidden_size=8, num_hidden_layers=1,
                            num_attention_heads=2, intermediate_size=16, max_position_embeddings=512))  # fmt: skip
    int64_bytes, position_ids, token_type_ids = 8, 512, 512
    assert counts.buffer_bytes == int64_bytes * (position_ids + token_type_ids)


def test_a_convolutional_model_is_counted_too():
    model = preset("convnext", "image_classification", depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 24, 32], num_labels=7)
    widths, depths, patch = [8, 16, 24, 32], [1, 1, 2, 1], 4
    blocks = sum(n * (49 * w + w + 2 * w + 8 * w * w + 5 * w + w) for n, w in zip(depths, widths, strict=True))
    stem = 3 * patch**2 * widths[0] + 3 * widths[0]
    down = sum(2 * a + math.prod((a, b, 4)) + b for a, b in itertools.pairwise(widths))
    assert counted(model).params == stem + blocks + down + 2 * widths[-1] + 7 * widths[-1] + 7
