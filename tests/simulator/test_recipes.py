import json
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidInputError
from profiles.schema import Recipe
from simulator.recipes import UNMODELLED, check, complete, format_recipe, parse_recipe, recipe_of

RECIPES = st.builds(
    Recipe,
    micro_batch=st.integers(1, 5000),
    grad_accum=st.integers(1, 5000),
    seq=st.none() | st.integers(1, 10**6),
    decoder_seq=st.none() | st.integers(1, 10**6),
    precision=st.sampled_from(["fp32", "tf32", "fp16", "bf16", "bf16_pure"]),
    attention=st.sampled_from(["eager", "sdpa"]),
    compile=st.sampled_from(["off", "on"]),
    checkpointing=st.sampled_from(["none", "full", "every_2", "every_17"]),
    optimizer=st.sampled_from(["adamw_fused", "adamw_foreach", "adamw_forloop", "sgd", "lion", "adafactor"]),
)


def problems_of(source):
    with pytest.raises(InvalidInputError) as caught:
        parse_recipe(source)
    return caught.value.problems


@given(RECIPES, st.booleans())
def test_text_parses_back(recipe, hidden):
    assert recipe_of(parse_recipe(format_recipe(recipe, defaults_hidden=hidden))) == recipe


@given(RECIPES)
def test_json_parses_back(recipe):
    assert recipe_of(parse_recipe(json.dumps(asdict(recipe)))) == recipe


def test_text_and_json_mean_the_same():
    expected = {"micro_batch": 16, "precision": "fp16", "checkpointing": "every_3"}
    assert parse_recipe("micro_batch=16, precision=fp16 ,checkpointing=every_3") == expected
    assert parse_recipe('{"micro_batch": 16, "precision": "fp16", "checkpointing": "every_3"}') == expected
    assert parse_recipe(expected) == expected
    assert parse_recipe("") == {}


def test_short_text_hides_defaults():
    assert (
        format_recipe(Recipe(micro_batch=8, compile="on")) == "micro_batch=8,precision=bf16,attention=sdpa,compile=on"
    )
    assert format_recipe(Recipe()) == "micro_batch=1,precision=bf16,attention=sdpa"
    assert format_recipe(Recipe(), defaults_hidden=False).count("=") == len(fields(Recipe)) - 2


def test_all_problems_at_once():
    problems = problems_of("micro_bach=3,precision=fp8,micro_batch=0,seq=1,seq=2,sharding=zero2,optimizer=sophia")
    assert len(problems) == 6
    assert "did you mean micro_batch" in problems[0]
    assert problems[1] == "precision=fp8 is not allowed; allowed: fp32, tf32, fp16, bf16, bf16_pure"
    assert "a whole number from 1" in problems[2]
    assert problems[3] == "seq is named twice; name it once"
    assert problems[4] == "sharding=zero2 is not modelled by this version; allowed: none"
    assert "sophia is not modelled by this version; allowed: adamw_fused" in problems[5]


@pytest.mark.parametrize(
    "text",
    [
        "micro_batch",
        "micro_batch=",
        "=3",
        "micro_batch=1,,seq=2",
        "{",
        '{"a": ',
        "{1: 2}",
        '{"micro_batch": 1}}',
        f'{{"seq": {"9" * 5000}}}',
    ],
)
def test_malformed_text_is_refused(text):
    assert problems_of(text)


@pytest.mark.parametrize("value", [True, 1.5, 16.0, None, [16], {"a": 1}, float("nan")])
def test_json_values_of_the_wrong_type_are_refused(value):
    (problem,) = problems_of({"micro_batch": value})
    assert "allowed: a whole number of samples per GPU from 1" in problem


def test_a_knob_twice_in_json_is_refused():
    assert problems_of('{"seq": 1, "seq": 2}') == ("seq is named twice; name it once",)


@pytest.mark.parametrize(
    "text", ["micro_batch=-1", "micro_batch=1.5", "micro_batch=999999999999", "seq=0", "micro_batch=²"]
)
def test_numbers_out_of_range_are_refused(text):
    assert "a whole number from 1 to" in problems_of(text)[0]


@pytest.mark.parametrize("text", ["every_1", "every_0", "every_x", "every_", "each_2"])
def test_bad_checkpointing_is_refused(text):
    assert "every_2" in problems_of(f"checkpointing={text}")[0]


def test_knobs_of_later_versions_at_their_neutral_value_are_accepted():
    neutral = ",".join(f"{knob}={entry.neutral}" for knob, entry in UNMODELLED.items())
    assert parse_recipe(neutral) == {}
    assert parse_recipe('{"tp": 1, "sharding": null}') == {}
    assert len(problems_of("tp=2,pp=4,offload=all,schedule=1f1b,method=rho_loss,sharding=zorro")) == 6


def test_predict_defaults_on_an_a100(make_case):
    assert complete({}, make_case()) == Recipe(seq=2048)


@pytest.mark.parametrize(("gpu", "precision"), [("V100", "fp16"), ("CPU", "fp32"), ("MI250X", "bf16")])
def test_default_precision_is_legal_everywhere(make_case, gpu, precision):
    case = make_case(gpu=gpu)
    recipe = complete({}, case)
    assert recipe.precision == precision
    assert check(recipe, case) == []


def test_accumulation_follows_the_global_batch(make_case):
    case = make_case(gpus=4, global_batch=1024, seq=512)
    assert complete({}, case) == Recipe(grad_accum=256, seq=512)
    assert complete({"micro_batch": 8}, case).grad_accum == 32
    assert complete({"grad_accum": 32}, case).micro_batch == 8


def test_named_knobs_are_kept(make_case):
    fixed = {"micro_batch": 3, "precision": "tf32", "attention": "eager", "optimizer": "lion", "seq": 100}
    assert asdict(complete(fixed, make_case())) | fixed == asdict(complete(fixed, make_case()))


def test_encoder_decoder_lengths(make_case, make_workload):
    case = make_case(workload=make_workload(seq=512, decoder_seq=114))
    assert (complete({}, case).seq, complete({}, case).decoder_seq) == (512, 114)
    assert complete({"seq": 256}, case).decoder_seq == 256
    assert complete({"seq": 256, "decoder_seq": 64}, case).decoder_seq == 64


def test_check_reports_every_broken_rule(make_case):
    case = make_case(gpu="V100", gpus=8, global_batch=1000)
    broken = check(Recipe(precision="bf16", checkpointing="every_9", micro_batch=3), case)
    assert [refusal.rule for refusal in broken] == [
        "precision_needs_capability_8",
        "checkpointing_interval",
        "global_batch",
    ]


def test_check_reports_values_that_do_not_exist(make_case):
    broken = check(Recipe(precision="fp4", micro_batch=-2, attention="flash"), make_case())
    assert sorted(refusal.knob for refusal in broken) == ["attention", "micro_batch", "precision"]
    assert {refusal.rule for refusal in broken} == {"value"}
