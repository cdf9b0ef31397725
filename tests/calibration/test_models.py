"""Which preset a name, path or hub id means; what a bad config says; that a config's own code never runs."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import subprocess
import sys

import pytest

from calibration.config_files import native_types
from calibration.counts import count
from calibration.models import (
    UnknownModelError,
    build_config,
    build_on_meta,
    model_class,
    resolve,
    warnings_for,
)
from profiles.catalogue import preset_names
from profiles.errors import InvalidInputError, UnknownNameError

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
COUNTS = {
    "pythia-160m": 162_322_944, "pythia-410m": 405_334_016, "pythia-1b": 1_011_781_632, "pythia-2.8b": 2_775_208_960,
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "qwen2.5-0.5b": 494_032_768, "qwen3-0.6b": 596_049_920, "qwen3-4b": 4_022_468_096,
    "bert-base": 109_514_298, "bert-large": 335_174_458, "roberta-base": 124_697_433, "roberta-large": 355_412_057,
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-3b": 2_851_598_336, "tinyllama-1.1b": 1_100_048_384,
    "mixtral-8x7b": 46_702_792_704, "mamba-130m": 129_135_360, "mamba-2.8b": 2_768_345_600,
    "vit-b16": 86_567_656, "vit-l16": 304_326_632, "clip-vit-b32": 151_277_313, "convnext-large": 197_767_336,
    "llama-3.1-8b": 8_030_261_248, "llama-3.2-1b": 1_235_814_400, "qwen2.5-7b": 7_615_616_512,
    "pythia-70m": 70_426_624, "pythia-1.4b": 1_414_647_808, "pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320,
}  # fmt: skip
"""What the models' authors or their users published."""
PRESETS = preset_names()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write(folder, config, name="config.json"):
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(path)


def problem_of(folder, config):
    with pytest.raises(InvalidInputError) as caught:
        resolve(write(folder, config))
    return caught.value


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_holds_the_count_of_its_class(name):
    preset = resolve(name)
    counts = count(build_on_meta(preset), build_config(preset))
    assert counts.params == preset.params
    assert COUNTS.get(name, preset.params) == preset.params


def test_every_published_count_belongs_to_a_preset():
    assert COUNTS.keys() <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_where_its_facts_are_from(name):
    preset = resolve(name)
    assert preset.name == name
    assert preset.source
    assert preset.date
    assert (preset.decoder_seq is not None) == (preset.task == "seq2seq_lm")
    assert preset.run is None or (preset.run.source and preset.run.date)


def test_aliases_are_unique_and_found():
    aliases = [(alias, name) for name in PRESETS for alias in resolve(name).aliases]
    assert len({alias for alias, _ in aliases}) == len(aliases)
    for alias, name in aliases[::7]:
        assert resolve(alias).name == name


def test_pythia_was_trained_on_143000_steps_of_two_million_tokens():
    preset = resolve("EleutherAI/pythia-1b")
    assert preset.run is not None
    assert (preset.run.seq, preset.run.global_batch) == (2048, 1024)
    assert preset.run.tokens == 143_000 * 1024 * 2048


def test_a_preset_needs_no_torch():
    code = (
        "import sys; from calibration.models import resolve; resolve('gpt2')\n"
        "print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_config_file_becomes_a_preset(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = write(folder, LLAMA)
    preset = resolve(path)
    attention, gated, norms = 64 * 64 * 2 + 2 * 64 * 16, 3 * 64 * 96, 2 * 64
    assert preset.params == 2 * 320 * 64 + 4 * (attention + gated + norms) + 64
    assert (preset.name, preset.task, preset.seq, preset.decoder_seq) == ("my-model", "causal_lm", 512, None)
    assert "torch_dtype" not in preset.config
    assert resolve(str(folder)) == dataclasses.replace(preset, source=str(folder))
    assert resolve(write(folder, LLAMA, "small.json")).name == "small"


def test_our_own_preset_file_is_read_by_path(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text('name = "tiny"\ntask = "causal_lm"\nparams = 1\nseq = 8\nsource = "s"\ndate = "2026-01-01"\n'
                    '[config]\nmodel_type = "mamba"\nhidden_size = 8\nnum_hidden_layers = 1\n')  # fmt: skip
    assert resolve(str(path)).config["hidden_size"] == 8
    path.write_text(path.read_text().replace("mamba", "mambo"))
    with pytest.raises(UnknownNameError, match="mamba"):
        resolve(str(path))


def test_a_hub_id_is_read_from_the_local_cache_only(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some-lab--some-model"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    write(snapshot, LLAMA)
    preset = resolve("some-lab/some-model")
    assert (preset.name, preset.config["hidden_size"]) == ("some-model", 64)
    with pytest.raises(UnknownModelError):
        resolve("some-lab/another-model")


@pytest.mark.parametrize(
    "name", ["pythai-1b", "pythia", "no/such/model", "", "x" * 5000, "~nobody-by-that-name", "a\0b"]
)
def test_an_unknown_model_names_near_ones_and_the_way_out(name):
    with pytest.raises(UnknownModelError) as caught:
        resolve(name)
    assert "config.json" in str(caught.value)
    assert "pythia-1b" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{not json", "is not JSON"),
        ("", "is not JSON"),
        ("[1, 2]", "JSON list"),
        ({}, "model_type is missing"),
        ({"model_type": 7, "hidden_size": 8}, "model_type is 7"),
        (LLAMA | {"hidden_size": 0}, "hidden_size is 0"),
        (LLAMA | {"num_attention_heads": 7}, r"\(64\) is not a multiple of the number of attention heads \(7"),
        (LLAMA | {"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        (LLAMA | {"hidden_size": "wide"}, "hidden_size is 'wide'; allowed: a number from 1"),
        ({"model_type": "gpt2", "n_embd": 100, "n_layer": 2, "n_head": 7}, "hidden_size 100 is not a multiple"),
        ({"model_type": "gpt2", "n_layer": 2}, r"n_embd is missing \(also accepted: hidden_size\)"),
        ({"model_type": "sam"}, "no class to pre-train 'sam'"),
        (
            LLAMA | {"hidden_act": "no_such_activation"},
            "llama cannot be built from this config: unknown value 'no_such_activation'",
        ),
    ],
)
def test_a_bad_config_is_one_clear_message(tmp_path, config, said):
    error = problem_of(tmp_path, config)
    assert error.exit_code == 2
    assert any(re.search(said, problem) for problem in error.problems), error.problems
    assert all(len(problem) < 500 for problem in error.problems)


def test_all_problems_of_a_config_are_told_at_once(tmp_path):
    config = {"model_type": "llama", "num_attention_heads": -1, "vocab_size": 0, "text_config": {"hidden_size": -2}}
    problems = problem_of(tmp_path, config).problems
    named = ("hidden_size is missing", "num_hidden_layers is missing", "num_attention_heads is -1", "vocab_size is 0")
    assert [any(p.startswith(name) for p in problems) for name in (*named, "text_config.hidden_size is -2")] == [
        True
    ] * 5


def test_words_and_nan_for_sizes_are_told_with_the_rest(tmp_path):
    config = LLAMA | {
        "num_hidden_layers": "two",
        "vocab_size": float("nan"),
        "hidden_size": 0,
        "auto_map": {"A": "b.C"},
    }
    problems = problem_of(tmp_path, config).problems
    assert {problem.split()[0] for problem in problems} == {"num_hidden_layers", "vocab_size", "hidden_size", "asks"}


def test_an_unknown_type_is_told_with_the_rest(tmp_path):
    first, *others = problem_of(tmp_path, LLAMA | {"model_type": "lama", "hidden_size": -1}).problems
    assert "did you mean llama" in first
    assert others == ["hidden_size is -1; allowed: a number from 1"]


def test_an_unknown_width_name_is_shown_beside_the_missing_one(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "hidden_size"} | {"decoder_embed_dim": 1024}
    (problem,) = problem_of(tmp_path, config).problems
    assert problem.startswith("hidden_size is missing")
    assert "decoder_embed_dim = 1024" in problem


def test_a_missing_file_and_an_empty_folder_are_told_apart(tmp_path):
    with pytest.raises(InvalidInputError, match="no such file"):
        resolve(str(tmp_path / "config.json"))
    with pytest.raises(InvalidInputError, match=r"holds no config\.json"):
        resolve(str(tmp_path))


def test_an_unknown_model_type_names_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError) as caught:
        resolve(write(tmp_path, LLAMA | {"model_type": "lama"}))
    assert "llama" in caught.value.nearest


REMOTE = {
    "auto_map": {"AutoConfig": "modeling_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"},
    "trust_remote_code": True,
}


def remote_config(folder, model_type):
    marker = folder / "executed"
    (folder / "modeling_evil.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import LlamaConfig as EvilConfig, LlamaForCausalLM as EvilModel\n"
    )
    return write(folder, LLAMA | REMOTE | {"model_type": model_type}), marker


def test_code_of_an_unknown_type_is_refused_and_never_run(tmp_path):
    path, marker = remote_config(tmp_path, "evil")
    assert "evil" not in native_types()
    with pytest.raises(InvalidInputError, match="never executed"):
        resolve(path)
    assert not marker.exists()


def test_code_of_a_preset_is_refused_too():
    preset = dataclasses.replace(resolve("pythia-14m"), config=LLAMA | REMOTE | {"model_type": "evil"})
    with pytest.raises(InvalidInputError, match="never executed"):
        build_on_meta(preset)


def test_code_beside_a_native_type_is_refused_and_never_run(tmp_path):
    path, marker = remote_config(tmp_path, "llama")
    with pytest.raises(InvalidInputError, match=r"remove auto_map, trust_remote_code to use transformers' own class"):
        resolve(path)
    assert not marker.exists()


def test_code_asked_for_inside_a_nested_config_is_refused(tmp_path):
    config = {"model_type": "llava", "text_config": LLAMA | {"auto_map": {"AutoConfig": "evil.Evil"}}}
    assert any("text_config.auto_map" in problem for problem in problem_of(tmp_path, config).problems)


def test_a_config_that_asks_for_nothing_is_used(tmp_path):
    assert resolve(write(tmp_path, LLAMA | {"auto_map": {}, "trust_remote_code": False})).config["hidden_size"] == 64


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}, "masked_lm"),
        (
            {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "is_decoder": True}, "causal_lm",
        ),
        (
            {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "architectures": ["BertLMHeadModel"]}, "causal_lm",
        ),
        (
            {"model_type": "bart", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2}, "seq2seq_lm",
        ),
        ({"model_type": "t5", "d_model": 8, "num_layers": 1, "num_heads": 2}, "seq2seq_lm"),
        ({"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
         "image_classification"),
        ({"model_type": "clip"}, "contrastive"),
        ({"model_type": "clip", "architectures": ["CLIPForImageClassification"]}, "image_classification"),
        ({"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}, "causal_lm"),
    ],
)  # fmt: skip
def test_the_task_follows_architectures_then_the_type(tmp_path, config, task):
    assert resolve(write(tmp_path, config)).task == task


def test_a_task_that_the_type_lacks_is_refused():
    with pytest.raises(InvalidInputError, match="allowed tasks: causal_lm"):
        model_class(dataclasses.replace(resolve("pythia-14m"), task="seq2seq_lm"))


def test_building_ignores_dtype_cache_and_attention_of_the_file(tmp_path):
    import torch

    preset = resolve(write(tmp_path, LLAMA | {"use_cache": True, "_attn_implementation": "eager", "dtype": "float16"}))
    model = build_on_meta(preset)
    assert model.config.use_cache is False
    assert model.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert build_on_meta(preset, "eager").config._attn_implementation == "eager"


def test_nested_configs_lose_their_cache_too():
    config = {"text_config": {"model_type": "llama", **{k: v for k, v in LLAMA.items() if k != "model_type"}}}
    preset = dataclasses.replace(resolve("pythia-14m"), config={"model_type": "llava", **config})
    assert build_config(preset).text_config.use_cache is False


def test_building_twice_leaves_the_preset_as_it_was():
    preset = resolve("clip-vit-b32")
    before = json.dumps(preset.config)
    build_config(preset)
    assert json.dumps(preset.config) == before


def test_an_untied_config_that_the_class_ties_is_told_with_the_version():
    import transformers

    (warning,) = warnings_for(resolve("t5-v1.1-base"))
    assert "tie_word_embeddings: false" in warning
    assert transformers.__version__ in warning
    assert f"{32128 * 768:,}" in warning
    assert warnings_for(resolve("t5-base")) == ()


def test_eager_attention_of_a_config_is_told(tmp_path):
    preset = resolve(write(tmp_path, LLAMA | {"attn_implementation": "eager"}))
    assert any("eager" in warning for warning in warnings_for(preset))
    assert warnings_for(resolve(write(tmp_path, LLAMA))) == ()


def test_a_size_left_to_the_class_is_told(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    (warning,) = warnings_for(resolve(write(tmp_path, config)))
    assert "vocab_size" in warning
    assert "32000" in warning
