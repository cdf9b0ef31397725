"""The contract that every technique keeps, and the rules of each."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema import Recipe
from simulator.recipes import check, complete, parse_recipe
from simulator.techniques import BATCH_KNOBS, TECHNIQUES
from simulator.techniques.checkpointing import checkpointed_blocks
from simulator.techniques.precision import PRECISIONS, product_flops_per_s

MACHINES = ["A100", "V100", "MI250X", "CPU"]


@pytest.fixture(params=TECHNIQUES, ids=lambda technique: technique.knob)
def technique(request):
    return request.param


def test_there_is_one_technique_per_knob():
    assert sorted(one.knob for one in TECHNIQUES) == sorted(field.name for field in fields(Recipe))
    assert set(BATCH_KNOBS) <= {one.knob for one in TECHNIQUES}


@pytest.mark.parametrize("gpu", MACHINES)
def test_the_default_is_legal(technique, make_case, gpu):
    case = make_case(gpu=gpu, gpus=4, global_batch=64)
    recipe = replace(complete({}, case), **{technique.knob: technique.default(case)})
    assert technique.refuse(recipe, case) is None


@pytest.mark.parametrize("gpu", MACHINES)
def test_values_are_distinct_hold_the_default_and_parse_back(technique, make_case, gpu):
    case = make_case(gpu=gpu, gpus=4, global_batch=64)
    values = technique.values(case)
    assert technique.default(case) in values
    assert len(set(values)) == len(values)
    for value in values:
        assert value is None or technique.parse(str(value)) == value


@pytest.mark.parametrize("text", ["", "nonsense", "-1", "1.5"])
def test_bad_text_is_refused_with_what_is_allowed(technique, text):
    with pytest.raises(ValueError, match=f"{technique.knob}=.*allowed: "):
        technique.parse(text)


@pytest.mark.parametrize("gpu", MACHINES)
def test_the_nearest_alternative_is_legal(make_case, make_workload, gpu):
    case = make_case(gpu=gpu, gpus=3, global_batch=96, workload=make_workload(max_seq=2048))
    for knob, value in [
        *(("precision", name) for name in PRECISIONS),
        ("checkpointing", "every_7"),
        ("seq", 4096),
        ("micro_batch", 5),
    ]:
        recipe = replace(complete({}, case), **{knob: value})
        for refusal in check(recipe, case):
            mended = replace(recipe, **parse_recipe(refusal.nearest))
            assert refusal.rule not in [other.rule for other in check(mended, case)]
            assert mended != recipe


# ---------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize(
    ("gpu", "precision", "rule", "nearest"),
    [
        ("V100", "bf16", "precision_needs_capability_8", "precision=fp16"),
        ("V100", "bf16_pure", "precision_needs_capability_8", "precision=fp16"),
        ("V100", "tf32", "precision_needs_capability_8", "precision=fp32"),
        ("CPU", "fp16", "precision_needs_gpu", "precision=bf16"),
        ("CPU", "tf32", "precision_needs_gpu", "precision=fp32"),
        ("MI250X", "tf32", "precision_without_peak", "precision=fp32"),
    ],
)
def test_precision_rules(make_case, gpu, precision, rule, nearest):
    (refusal,) = check(Recipe(precision=precision), make_case(gpu=gpu))
    assert (refusal.rule, refusal.nearest) == (rule, nearest)
    assert precision in refusal.reason


@pytest.mark.parametrize(
    ("gpu", "legal"),
    [
        ("A100", ["fp32", "tf32", "fp16", "bf16", "bf16_pure"]),
        ("V100", ["fp32", "fp16"]),
        ("MI250X", ["fp32", "fp16", "bf16", "bf16_pure"]),
        ("CPU", ["fp32", "bf16", "bf16_pure"]),
    ],
)
def test_legal_precisions(make_case, gpu, legal):
    case = make_case(gpu=gpu)
    assert [name for name in PRECISIONS if not check(Recipe(precision=name), case)] == legal


def test_the_search_never_rounds_weights_unasked(make_case):
    (technique,) = (one for one in TECHNIQUES if one.knob == "precision")
    assert technique.values(make_case()) == ("fp32", "tf32", "fp16", "bf16")


def test_untraced_numerics_are_refused_with_the_reason(make_case, make_workload):
    workload = make_workload([("fp32", "eager", False)], unavailable={"amp": "its scan has no 16-bit kernel"})
    refusals = check(Recipe(attention="eager"), make_case(workload=workload))
    assert refusals[0].rule == "precision_not_traced"
    assert "its scan has no 16-bit kernel" in refusals[0].reason
    assert refusals[0].nearest == "precision=tf32"


def test_peaks_belong_to_their_products(make_case):
    gpu = make_case().machine.gpu
    peaks = [product_flops_per_s(gpu, PRECISIONS[name].product) for name in PRECISIONS]
    assert peaks == [19.5e12, 156e12, 312e12, 312e12, 312e12]


# ------------------------------------------------------------------------- attention, compile, checkpointing


def test_attention_that_the_class_lacks(make_case, make_workload):
    workload = make_workload([("amp", "eager", False)], unavailable={"sdpa": "the class has no sdpa"})
    case = make_case(workload=workload)
    assert complete({}, case).attention == "eager"
    (refusal,) = check(Recipe(attention="sdpa"), case)
    assert (refusal.rule, refusal.nearest) == ("attention_not_traced", "attention=eager")
    assert "the class has no sdpa" in refusal.reason


def test_compile_is_searched_on_a_gpu_alone(make_case):
    (technique,) = (one for one in TECHNIQUES if one.knob == "compile")
    assert technique.values(make_case()) == ("off", "on")
    assert technique.values(make_case(gpu="CPU")) == ("off",)
    assert check(Recipe(compile="on", precision="fp32"), make_case(gpu="CPU")) == []


@given(st.integers(2, 99), st.integers(1, 200))
def test_checkpointed_blocks_are_counted_one_by_one(interval, depth):
    assert checkpointed_blocks(f"every_{interval}", depth) == sum(index % interval == 0 for index in range(depth))
    assert checkpointed_blocks("full", depth) == depth
    assert checkpointed_blocks("none", depth) == 0


def test_checkpointing_needs_blocks_and_a_variant(make_case, make_workload):
    (no_blocks,) = check(Recipe(checkpointing="full"), make_case(workload=make_workload(depths=())))
    assert no_blocks.rule == "checkpointing_needs_blocks"
    untraced = make_workload([("amp", "sdpa", False)], unavailable={"sdpa, checkpointing": "the class cannot"})
    (no_variant,) = check(Recipe(checkpointing="every_2"), make_case(workload=untraced))
    assert no_variant.rule == "checkpointing_not_traced"
    assert "the class cannot" in no_variant.reason


@pytest.mark.parametrize(
    ("depths", "value", "nearest"),
    [((6,), "every_6", None), ((6,), "every_7", "every_6"), ((2, 6), "every_5", None), ((1,), "every_2", "full")],
)
def test_an_interval_longer_than_the_model(make_case, make_workload, depths, value, nearest):
    refusals = check(Recipe(checkpointing=value), make_case(workload=make_workload(depths=depths)))
    assert [refusal.nearest for refusal in refusals] == ([f"checkpointing={nearest}"] if nearest else [])


# ---------------------------------------------------------------------------------------- sequence and batch


def test_a_position_table_ends(make_case, make_workload):
    case = make_case(workload=make_workload(max_seq=2048))
    assert check(Recipe(seq=2047), case) == []
    (refusal,) = check(Recipe(seq=2049), case)
    assert (refusal.rule, refusal.nearest) == ("seq_beyond_positions", "seq=2048")
    assert check(Recipe(seq=711), case) == []


def test_the_runs_length_is_judged_too(make_case, make_workload):
    case = make_case(workload=make_workload(max_seq=2048), seq=4096)
    assert [refusal.rule for refusal in check(Recipe(), case)] == ["seq_beyond_positions"]


def test_images_fix_their_length(make_case, make_workload):
    case = make_case(workload=make_workload(seq=197, fixed_seq=True))
    assert check(Recipe(seq=197), case) == []
    (refusal,) = check(Recipe(seq=196), case)
    assert (refusal.rule, refusal.nearest) == ("seq_fixed_by_config", "seq=197")


def test_decoder_length_needs_a_decoder(make_case, make_workload):
    assert [refusal.rule for refusal in check(Recipe(decoder_seq=64), make_case())] == ["decoder_seq_needs_decoder"]
    case = make_case(workload=make_workload(seq=512, decoder_seq=114, max_seq=1024))
    assert check(Recipe(decoder_seq=64), case) == []
    assert [refusal.knob for refusal in check(Recipe(seq=512, decoder_seq=1025), case)] == ["decoder_seq"]


@pytest.mark.parametrize(
    ("micro_batch", "grad_accum", "legal"), [(4, 4, True), (16, 1, True), (3, 5, False), (4, 5, False), (32, 1, False)]
)
def test_global_batch_is_exact(make_case, micro_batch, grad_accum, legal):
    case = make_case(gpus=8, global_batch=128)
    assert (check(Recipe(micro_batch=micro_batch, grad_accum=grad_accum), case) == []) is legal


def test_global_batch_tolerance_includes_its_edge(make_case):
    case = make_case(global_batch=100, global_batch_tolerance=0.02)
    assert [b for b in range(90, 110) if not check(Recipe(micro_batch=b), case)] == [98, 99, 100, 101, 102]
    (refusal,) = check(Recipe(micro_batch=103), case)
    assert "103 samples, not the global batch 100 ± 2 %" in refusal.reason
