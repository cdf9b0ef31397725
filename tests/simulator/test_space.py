import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InvalidInputError
from profiles.schema import Recipe
from simulator import space as space_module
from simulator.recipes import check
from simulator.space import enumerate_space

PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
CHECKPOINTING = ["none", "full", "every_2", "every_3", "every_4"]


def brute_force(case):
    """Every combination by plain loops and ``check``: legal recipes in order, and refusals by their first rule."""
    fixed, run = case.fixed, case.run
    wanted, slack = run.global_batch, run.global_batch_tolerance
    top = 4096 if wanted is None else max(1, int(wanted * (1 + slack) + 1e-6) // case.ranks)
    micros = [fixed["micro_batch"]] if "micro_batch" in fixed else range(1, top + 1)
    legal, refused = [], Counter()
    for precision, attention, compiled, checkpointing in itertools.product(
        [fixed["precision"]] if "precision" in fixed else PRECISIONS,
        ["eager", "sdpa"],
        ["off"] if case.machine.gpu.kind == "cpu" else ["off", "on"],
        [fixed["checkpointing"]] if "checkpointing" in fixed else CHECKPOINTING,
    ):
        for micro in micros:
            accum = fixed.get("grad_accum", 1)
            if wanted is not None and "grad_accum" not in fixed:
                accum = min(range(1, wanted + 2), key=lambda a: (abs(a * micro * case.ranks - wanted), a))
            recipe = Recipe(
                micro_batch=micro,
                grad_accum=accum,
                seq=case.workload.seq,
                precision=precision,
                attention=attention,
                compile=compiled,
                checkpointing=checkpointing,
            )
            broken = check(recipe, case)
            if broken:
                refused[broken[0].rule] += 1
            else:
                legal.append(recipe)
    return legal, dict(refused)


@settings(max_examples=25, deadline=None)
@given(
    gpu=st.sampled_from(["A100", "V100", "CPU", "MI250X"]),
    gpus=st.integers(1, 3),
    multiple=st.integers(1, 8),
    tolerance=st.sampled_from([0.0, 0.1, 0.3]),
    fixed=st.fixed_dictionaries(
        {},
        optional={
            "micro_batch": st.just(1),
            "grad_accum": st.just(1),
            "precision": st.just("fp32"),
            "checkpointing": st.sampled_from(["none", "every_5"]),
        },
    ),
    depth=st.integers(1, 6),
)
def test_equals_brute_force(make_case, make_workload, gpu, gpus, multiple, tolerance, fixed, depth):
    case = make_case(
        gpu=gpu,
        gpus=gpus,
        workload=make_workload(depths=(depth,)),
        fixed=fixed,
        global_batch=gpus * multiple,
        global_batch_tolerance=tolerance,
    )
    legal, refused = brute_force(case)
    if not legal:
        with pytest.raises(InvalidInputError):
            enumerate_space(case)
        return
    space = enumerate_space(case)
    assert [space.recipe(index) for index in range(len(space))] == legal
    assert space.refused == refused


@settings(max_examples=50, deadline=None)
@given(
    gpus=st.sampled_from([1, 2, 3, 4, 6, 8]),
    nodes=st.integers(1, 3),
    global_batch=st.integers(1, 4000),
    percent=st.sampled_from([0, 0, 2, 10]),
)
def test_global_batch_is_kept(make_case, gpus, nodes, global_batch, percent):
    case = make_case(gpus=gpus, nodes=nodes, global_batch=global_batch, global_batch_tolerance=percent / 100)
    makeable = [
        b for b in range(1, 4401) if b % (gpus * nodes) == 0 and 100 * abs(b - global_batch) <= percent * global_batch
    ]
    if not makeable:
        with pytest.raises(InvalidInputError, match="a global batch of"):
            enumerate_space(case)
        return
    space = enumerate_space(case)
    actual = space.micro_batch * space.grad_accum * case.ranks
    assert (np.abs(actual - global_batch) * 100 <= percent * global_batch).all()
    assert space.micro_batch.max() * case.ranks <= global_batch * (1 + percent / 100)
    assert set(actual.tolist()) <= set(makeable)


def test_every_divisor_is_there(make_case):
    space = enumerate_space(make_case(gpus=2, global_batch=48, fixed={"precision": "bf16", "compile": "off"}))
    assert sorted(set(space.micro_batch.tolist())) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert space.refused == {"global_batch": (24 - 8) * 2 * 5}


def test_without_a_global_batch_every_micro_batch_up_to_4096(make_case):
    space = enumerate_space(make_case())
    assert len(space) == 4 * 2 * 2 * 5 * 4096
    assert set(space.grad_accum.tolist()) == {1}
    assert space.micro_batch[space.block(3)].tolist() == list(range(1, 4097))


def test_columns_agree_with_recipes(make_case):
    space = enumerate_space(make_case(gpu="V100", global_batch=12))
    for index in range(len(space)):
        recipe = space.recipe(index)
        assert recipe.micro_batch == space.micro_batch[index]
        for knob, known in space.values.items():
            assert known[space.codes[knob][index]] == getattr(recipe, knob)
    for number, combination in enumerate(space.combinations):
        block = space.block(number)
        assert set(space.combination[block].tolist()) == {number}
        assert replace(space.recipe(block.start), micro_batch=1, grad_accum=1) == combination


def test_a_million_recipes_ask_each_rule_once_a_combination(make_case, monkeypatch):
    asked = []
    real = space_module.broken_rules
    monkeypatch.setattr(space_module, "broken_rules", lambda *args: asked.append(1) or real(*args))
    space = enumerate_space(make_case(global_batch=20_000, global_batch_tolerance=0.5))
    assert len(space) >= 1_000_000
    assert len(asked) == 4 * 2 * 2 * 5


def test_a_tiny_model_ends_at_the_global_batch(make_case):
    assert enumerate_space(make_case(gpus=4, global_batch=256)).micro_batch.max() == 64


def test_accumulation_is_not_held_against_a_limit_on_the_micro_batch(make_case):
    space = enumerate_space(make_case(global_batch=32, fixed={"grad_accum": 8}))
    assert set(space.micro_batch.tolist()) == {4}


@pytest.mark.parametrize(
    ("gpu", "fixed", "told"),
    [
        ("V100", {"precision": "bf16"}, ["V100 has 7.0", "nearest: precision=fp16"]),
        (
            "V100",
            {"precision": "bf16_pure", "checkpointing": "every_9"},
            ["V100 has 7.0", "nearest: checkpointing=every_6"],
        ),
        ("A100", {"micro_batch": 5}, ["micro_batch 5 × grad_accum 3 × 1 ranks = 15", "micro_batch=4,grad_accum=4"]),
        ("A100", {"grad_accum": 7}, ["not the global batch 16", "nearest: micro_batch=2,grad_accum=8"]),
        ("A100", {"precision": "fp8", "atention": "sdpa"}, ["precision=fp8", "did you mean attention"]),
    ],
)
def test_an_illegal_fixed_value_is_refused_with_the_way_out(make_case, gpu, fixed, told):
    with pytest.raises(InvalidInputError) as caught:
        enumerate_space(make_case(gpu=gpu, global_batch=16, fixed=fixed))
    for words in told:
        assert words in str(caught.value)


def test_values_that_conflict_only_with_each_other_are_refused(make_case, make_workload):
    variants = [("amp", "eager", False), ("fp32", "sdpa", False), ("fp32", "sdpa", True)]
    case = make_case(workload=make_workload(variants), fixed={"attention": "eager", "precision": "fp32"})
    with pytest.raises(InvalidInputError, match="nearest: attention=sdpa"):
        enumerate_space(case)


def test_ranks_that_cannot_make_the_batch_name_those_they_can(make_case):
    with pytest.raises(InvalidInputError, match="a global batch of 1020 or 1026"):
        enumerate_space(make_case(gpus=6, global_batch=1024))
    space = enumerate_space(make_case(gpus=6, global_batch=1024, global_batch_tolerance=0.02))
    assert {1020, 1026} <= set((space.micro_batch * space.grad_accum * 6).tolist())
