"""Real models, tiny, in this process: the loop does what its recipe says."""

import json
import random

import pytest
import torch

from calibration.models import build_config, model_class, resolve
from calibration.optimizers import OPTIMIZERS, lion_class
from calibration.support import RefusedError, check, checkpoint_interval, lengths
from calibration.training import build, retarget, set_precision
from profiles.schema import Preset, Recipe

NEOX = {
    "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 32,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 32,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 128,
    "num_layers": 2, "num_heads": 4, "vocab_size": 256, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8,
}  # fmt: skip
CLIP = {
    "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 32,
    "text_config": {key: BERT[key] for key in BERT if key.endswith(("size", "layers", "heads", "embeddings"))},
    "vision_config": {key: VIT[key] for key in VIT if key.endswith(("size", "layers", "heads"))},
}  # fmt: skip

ATTENTION_BIASES = ("k_proj.bias", "key.bias", "q_proj.bias")
"""A softmax does not see a bias of the keys; and where only the first position counts, it attends to itself alone."""


@pytest.fixture(autouse=True)
def _precision_stays():
    yield
    set_precision("fp32")


@pytest.fixture
def preset(tmp_path):
    def make(config) -> Preset:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return resolve(str(path))

    return make


def plain(**knobs):
    return Recipe(**{"precision": "fp32", **knobs})


def snapshot(trainee):
    return [parameter.detach().clone() for parameter in trainee.model.parameters()]


@pytest.mark.parametrize(
    ("config", "knobs"),
    [
        (NEOX, {"seq": 16}), (NEOX, {"seq": 16, "precision": "bf16_pure"}), (BERT, {"seq": 16, "precision": "bf16"}),
        (T5, {"seq": 16, "decoder_seq": 8}), (VIT, {"precision": "bf16_pure"}), (CLIP, {"attention": "eager"}),
    ],
)  # fmt: skip
def test_every_task_trains_every_parameter(preset, config, knobs):
    trainee = build(preset(config), plain(micro_batch=2, **knobs), "cpu")
    before = snapshot(trainee)
    trainee.optimizer.param_groups[0]["lr"] = 0.05
    trainee.step(2)
    after = zip(before, trainee.model.named_parameters(), strict=True)
    still = [name for old, (name, new) in after if torch.equal(old, new)]
    assert not [name for name in still if not name.endswith(ATTENTION_BIASES)]
    assert all(parameter.grad is None for parameter in trainee.model.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in trainee.model.parameters())


def test_shapes_follow_the_recipe_and_no_mask_is_passed(preset):
    trainee = build(preset(T5), plain(micro_batch=3, seq=16, decoder_seq=8), "cpu")
    assert {key: tuple(value.shape) for key, value in trainee.batch.items()} == {"input_ids": (3, 16), "labels": (3, 8)}


def test_lengths_default_to_the_encoder_and_to_the_preset(preset):
    t5, neox = preset(T5), preset(NEOX)
    assert lengths(t5, plain(seq=48)) == (48, 48)
    assert lengths(t5, plain(seq=48, decoder_seq=6)) == (48, 6)
    assert lengths(neox, plain()) == (neox.seq, 0)


def test_one_step_is_the_textbook_step(preset):
    """Against a loop written out here: accumulate, clip to 1, SGD with momentum."""
    neox = preset({**NEOX, "hidden_dropout": 0.0, "attention_dropout": 0.0})
    trainee = build(neox, plain(seq=16, optimizer="sgd", attention="eager"), "cpu")
    oracle = model_class(neox).from_config(build_config(neox), attn_implementation="eager", dtype=torch.float32).train()
    oracle.load_state_dict(trainee.model.state_dict())
    optimizer = torch.optim.SGD(oracle.parameters(), lr=1e-6, momentum=0.9)
    for group in (*optimizer.param_groups, *trainee.optimizer.param_groups):
        group["lr"] = 0.1
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            (oracle(**trainee.batch).loss / 3).backward()
        norm = torch.sqrt(sum((parameter.grad**2).sum() for parameter in oracle.parameters()))
        for parameter in oracle.parameters():
            parameter.grad *= min(1.0, 1.0 / float(norm))
        optimizer.step()
        trainee.step(3)
    for mine, theirs in zip(trainee.model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "states"), [("none", []), ("full", [0, 1, 2, 3]), ("every_2", [0, 2]), ("every_3", [0, 3])]
)
def test_checkpointing_recomputes_the_layers_it_names(preset, name, states):
    trainee = build(preset(NEOX), plain(seq=16, checkpointing=name), "cpu")
    layers = trainee.model.gpt_neox.layers
    calls = [0] * len(layers)
    for index, layer in enumerate(layers):
        layer.attention.register_forward_pre_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    trainee.step(1)
    assert [index for index, count in enumerate(calls) if count == 2] == states
    assert set(calls) <= {1, 2}


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter"),
    [("adamw_fused", 8), ("adamw_foreach", 8), ("adamw_forloop", 8), ("sgd", 4), ("lion", 4)],
)
def test_optimizer_states_have_their_size(preset, name, bytes_per_parameter):
    trainee = build(preset(NEOX), plain(seq=16, optimizer=name), "cpu")
    trainee.step(1)
    held = [value for state in trainee.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    state_bytes = sum(value.numel() * value.element_size() for value in held if value.dim() > 0)
    assert state_bytes == bytes_per_parameter * sum(parameter.numel() for parameter in trainee.model.parameters())


def test_adafactor_keeps_rows_and_columns_only(preset):
    trainee = build(preset(NEOX), plain(seq=16, optimizer="adafactor"), "cpu")
    trainee.step(1)
    weights = sum(parameter.numel() for parameter in trainee.model.parameters())
    held = [value for state in trainee.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert sum(value.numel() for value in held) < 0.1 * weights


def test_lion_follows_its_paper():
    """Against algorithm 2 in plain Python: sign of the interpolation, decoupled decay, slow momentum."""
    rng = random.Random(0)
    weight, momentum, rate, decay = 0.7, 0.0, 0.01, 0.1
    parameter = torch.nn.Parameter(torch.tensor([weight], dtype=torch.float64))
    optimizer = lion_class()([parameter], lr=rate, betas=(0.9, 0.99), weight_decay=decay)
    for _ in range(25):
        gradient = rng.gauss(0.0, 1.0)
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        mixed = 0.9 * momentum + 0.1 * gradient
        weight = weight - rate * ((mixed > 0) - (mixed < 0) + decay * weight)
        momentum = 0.99 * momentum + 0.01 * gradient
    assert parameter.item() == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize(("precision", "matmul", "convolution"), [("fp32", "highest", False), ("tf32", "high", True)])
def test_precision_sets_products_and_convolutions_alike(precision, matmul, convolution):
    set_precision(precision)
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 is convolution


@pytest.mark.parametrize(("precision", "stored", "computed"), [
    ("fp32", torch.float32, torch.float32), ("bf16", torch.float32, torch.bfloat16),
    ("fp16", torch.float32, torch.float16), ("bf16_pure", torch.bfloat16, torch.bfloat16),
])  # fmt: skip
def test_weights_and_products_have_the_precision_asked_for(preset, precision, stored, computed):
    trainee = build(preset(NEOX), plain(seq=16, precision=precision), "cpu")
    seen = set()
    trainee.model.gpt_neox.layers[0].mlp.dense_h_to_4h.register_forward_hook(lambda *args: seen.add(args[2].dtype))
    trainee.step(1)
    assert {parameter.dtype for parameter in trainee.model.parameters()} == {stored}
    assert seen == {computed}


def test_every_problem_of_a_recipe_is_named_at_once(preset):
    bad = Recipe(micro_batch=0, precision="fp8", attention="flash", compile="maybe", optimizer="adam", decoder_seq=4,
                 checkpointing="every_0")  # fmt: skip
    with pytest.raises(RefusedError) as refused:
        check(preset(NEOX), bad, "cpu")
    for word in ("micro_batch", "fp8", "flash", "maybe", "'adam'", "adamw_fused", "every_0", "decoder_seq"):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("config", "knobs", "text"),
    [
        (VIT, {"seq": 99}, "17 positions"), (BERT, {"seq": 33}, "32 positions"), (NEOX, {"precision": "tf32"}, "8.0"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
          "vocab_size": 64, "state_size": 4}, {"seq": 8}, "sdpa"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(preset, config, knobs, text):
    with pytest.raises(RefusedError, match=text):
        build(preset(config), plain(**knobs), "cpu")


def test_checkpoint_intervals():
    names = ("none", "full", "every_2", "every_12", "every_0", "every_", "some")
    assert [checkpoint_interval(name) for name in names] == [0, 1, 2, 12, None, None, None]


def test_the_table_of_optimizers_is_complete():
    assert set(OPTIMIZERS) == {"adamw_fused", "adamw_foreach", "adamw_forloop", "sgd", "adafactor", "lion"}


def test_a_retargeted_trainee_is_the_one_built_for_the_recipe(preset):
    one = plain(seq=16, micro_batch=2, checkpointing="none")
    for other in (
        plain(seq=32, micro_batch=3, checkpointing="full"), plain(seq=16, micro_batch=1, checkpointing="every_2"), one,
    ):  # fmt: skip
        trainee, fresh = build(preset(NEOX), one, "cpu"), build(preset(NEOX), other, "cpu")
        retarget(trainee, preset(NEOX), other)
        assert {k: v.shape for k, v in trainee.batch.items()} == {k: v.shape for k, v in fresh.batch.items()}
        layers = [[layer.gradient_checkpointing for layer in t.model.gpt_neox.layers] for t in (trainee, fresh)]
        assert layers[0] == layers[1]
        retarget(trainee, preset(NEOX), one)
        assert not any(layer.gradient_checkpointing for layer in trainee.model.gpt_neox.layers)
    with pytest.raises(RefusedError, match="micro_batch is 0"):
        retarget(trainee, preset(NEOX), plain(micro_batch=0))
