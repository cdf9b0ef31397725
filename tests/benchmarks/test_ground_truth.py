"""The ground truth's draw: one exhaustive cell, legal orders elsewhere, repeats, and the same again from its seed."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks import ground_truth
from benchmarks.ground_truth import MACHINE, SHARES, Draw, cell, compiled, draw_all, elsewhere, orders
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.schema import Recipe
from profiles.store import load_workload
from simulator.case import Case
from simulator.rates import datasheet_profile
from simulator.recipes import check

NAMES = ("cell", "elsewhere", "compiled", "repeats")
SMALL = replace(SHARES[1], settings=2, sizes=3, compiled=2)
COUNTS = {"pythia-410m": 30, "pythia-160m": 40, "llama-3.2-1b": 45, "bert-large": 40, "t5-base": 40, "vit-l16": 35}


@cache
def shipped(name):
    return read(SHIPPED / "measured" / MACHINE / f"truth_{name}.drawn.jsonl")


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every file drawn anew: most of ten seconds."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_all(folder)
    return {name: read(folder / f"{name}.drawn.jsonl") for name in NAMES}


def recipe(order):
    return Recipe(**order["recipe"])


def test_the_cell_is_every_combination_once():
    """Oracle: five nested loops over the knobs, every way to divide the global batch among them."""
    every = set()
    for batch in (b for b in range(1, 49) if 48 % b == 0):
        for precision in ("bf16", "bf16_pure", "fp16"):
            for attention in ("sdpa", "eager"):
                for checkpointing in ("none", "every_2", "full"):
                    one = Recipe(
                        micro_batch=batch,
                        grad_accum=48 // batch,
                        seq=2048,
                        precision=precision,
                        attention=attention,
                        checkpointing=checkpointing,
                    )
                    every.add(one)
    made = [one for group in cell() for one in group]
    assert len(made) == len(every) == 180
    assert set(made) == every


def test_a_group_of_the_cell_shares_what_a_process_holds():
    groups = cell()
    held = [{(r.precision, r.attention, r.compile, r.optimizer) for r in group} for group in groups]
    assert all(len(one) == 1 for one in held)
    assert len(set().union(*held)) == len(groups) == 6


def test_the_same_seed_draws_the_same_and_another_something_else(monkeypatch):
    first = elsewhere(SMALL), compiled(SMALL)
    assert (elsewhere(SMALL), compiled(SMALL)) == first
    monkeypatch.setattr(ground_truth, "SEED", 32)
    assert elsewhere(SMALL) != first[0]
    assert compiled(SMALL) != first[1]


def test_a_draw_holds_its_settings_and_repeats_no_recipe():
    groups = elsewhere(SMALL)
    assert [len(group) for group in groups] == [3, 3]
    for group in groups:
        assert len({(r.precision, r.attention, r.optimizer) for r in group}) == 1
        assert {r.compile for r in group} == {"off"}
    assert len({r for group in groups for r in group}) == 6
    assert [r.compile for group in compiled(SMALL) for r in group] == ["on", "on"]
    assert compiled(SMALL)[0][0].precision == "bf16"


def test_a_model_of_one_length_is_drawn_at_that_length():
    """So many of few: what is drawn twice must be left out."""
    vit = replace(SHARES[-1], settings=1, sizes=40)
    assert Draw(vit).seqs() == (197,)
    (group,) = elsewhere(vit)
    assert {r.seq for r in group} == {197}
    assert len(set(group)) == len(group) == 40


@pytest.mark.parametrize("name", NAMES)
def test_every_order_is_legal(name, drawn):
    profile = datasheet_profile(parse_machine(MACHINE))
    for order in (*drawn[name], *shipped(name)):
        case = Case(workload=load_workload(order["model"]), profile=profile)
        assert not check(recipe(order), case), order
        assert order["set"] in {"development", "held_out"}


def test_as_many_are_drawn_as_each_share_asks_for_and_none_twice(drawn):
    for found in (drawn, {name: shipped(name) for name in NAMES}):
        assert Counter(order["model"] for order in found["elsewhere"]) == COUNTS
        assert len(found["compiled"]) == sum(share.compiled for share in SHARES) == 15
        for name in NAMES:
            assert len({(order["model"], recipe(order)) for order in found[name]}) == len(found[name])


def test_a_tenth_of_what_is_not_compiled_is_repeated_alone(drawn):
    for found in (drawn, {name: shipped(name) for name in NAMES}):
        plain = [*found["cell"], *found["elsewhere"]]
        assert len(plain) == 410
        assert len(found["repeats"]) == 41
        for order in found["repeats"]:
            assert order["alone"] is True
            assert {key: value for key, value in order.items() if key != "alone"} in plain
        assert not any("alone" in order for order in plain)


def test_either_set_has_about_half_of_the_orders(drawn):
    """Within three standard deviations of fair coins."""
    sets = Counter(order["set"] for name in ("cell", "elsewhere") for order in drawn[name])
    assert abs(sets["held_out"] - 205) < 3 * (410 / 4) ** 0.5


def test_what_was_shipped_is_what_the_seed_draws(drawn):
    """Models, sets and repeated places follow from the seed alone. Sizes are kept where the model says that they run,
    so orders of models whose predictions have changed since are others now."""
    for name in ("cell", "elsewhere", "compiled", "repeats"):
        told, found = (
            [(o["model"], o["set"], o.get("alone")) for o in orders] for orders in (shipped(name), drawn[name])
        )
        assert found == told
    assert {recipe(o) for o in drawn["cell"]} == {recipe(o) for o in shipped("cell")}
    same = [recipe(one) == recipe(other) for one, other in zip(drawn["elsewhere"], shipped("elsewhere"), strict=True)]
    assert sum(same) > 0.5 * len(same)


def test_what_shares_a_process_rises_in_need():
    """A worker that ran out of memory is not asked for more: in the cell by the micro-batch, all else alike."""
    groups = orders("pythia-410m", cell(), np.random.default_rng(0))
    for told, drawn_ in zip(groups, cell(), strict=True):
        assert {recipe(order) for order in told} == set(drawn_)
        for checkpointing in ("none", "every_2", "full"):
            batches = [o["recipe"]["micro_batch"] for o in told if o["recipe"]["checkpointing"] == checkpointing]
            assert batches == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
        kinds = [order["recipe"]["checkpointing"] for order in told]
        assert kinds != sorted(kinds, key=("none", "every_2", "full").index), "by need, not as listed"
