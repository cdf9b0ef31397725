"""Regret, verdicts and the rules of picking, each against brute force or hand-made cells."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.regret import (
    by_prediction,
    cells_of,
    expected_best,
    if_called_fitting,
    if_ran,
    regret,
    regret_scores,
)
from calibration.rows import memory_within, time_rows
from calibration.rules import any_that_fits, researcher, rule_scores
from calibration.verdicts import NEAR_LIMIT, Verdicts, limit_bytes, oom_scores, verdicts_of
from profiles.files import SHIPPED
from profiles.records import read_measurements
from profiles.schema import Measurement, Recipe
from profiles.store import load_workload, read_profile

WORKLOADS = {"pythia-410m": load_workload("pythia-410m")}
PROFILE = read_profile(SHIPPED / "fitted" / "1xH200.json")


def record(micro_batch, step_s, status="ok", global_batch=64, **knobs):
    recipe = Recipe(micro_batch=micro_batch, grad_accum=global_batch // micro_batch, **{"seq": 2048, **knobs})
    return Measurement(
        model="pythia-410m",
        config_hash=WORKLOADS["pythia-410m"].config_hash,
        machine="1xH200",
        recipe=recipe,
        status=status if step_s else "oom",
        step_s=step_s,
    )


def scored(records, predicted, fits=None):
    admission = if_ran if fits is None else if_called_fitting(np.array(fits))
    return regret_scores(cells_of(records, WORKLOADS), by_prediction(np.array(predicted)), admission)


FOUR = [record(b, s) for b, s in ((1, 4.0), (2, 3.0), (4, 2.0), (8, 2.5))]


def test_the_score_is_the_picks_throughput_over_the_best_one():
    right = scored(FOUR, [4.0, 3.0, 2.0, 2.5])
    assert (right["cells"], right["top1"], right["top3"]) == (1, 1.0, 1.0)
    wrong = scored(FOUR, [1.0, 3.0, 4.0, 2.0])
    assert wrong["top1"] == pytest.approx(2.0 / 4.0)
    assert wrong["top3"] == pytest.approx(2.0 / 2.5)
    told = wrong["cells_detail"][0]
    assert (told["model"], told["seq"], told["global_batch"], told["recipes"]) == ("pythia-410m", 2048, 64, 4)
    assert told["pick"] == {"recipe": {"grad_accum": 64, "seq": 2048}, "status": "ok", "step_s": 4.0}
    assert (told["pick_verified"]["step_s"], told["optimum"]["step_s"]) == (2.5, 2.0)
    assert told["optimum"]["recipe"]["micro_batch"] == 4


def test_a_pick_that_runs_out_of_memory_is_worth_nothing_and_costs_a_trial():
    records = [*FOUR, record(16, None), record(32, None)]
    predicted = [4.0, 3.0, 2.0, 2.5, 1.0, 1.5]
    blind = scored(records, predicted, fits=[True] * 6)
    assert blind["top1"] == 0.0
    assert blind["top3"] == 1.0, "the third of the three is the best"
    assert blind["cells_detail"][0]["pick"]["status"] == "oom"
    assert blind["cells_detail"][0]["pick"]["step_s"] is None
    warned = scored(records, predicted, fits=[True] * 4 + [False] * 2)
    assert (warned["top1"], warned["top3"]) == (1.0, 1.0)
    three_bad = scored([*records, record(64, None)], [*predicted, 1.2], fits=[True] * 7)
    assert three_bad["top3"] == 0.0


def test_what_is_called_too_large_is_not_picked_even_if_it_ran():
    shy = scored(FOUR, [4.0, 3.0, 2.0, 2.5], fits=[True, True, False, False])
    assert shy["top1"] == pytest.approx(2.0 / 3.0)
    nothing = scored(FOUR, [4.0, 3.0, 2.0, 2.5], fits=[False] * 4)
    assert (nothing["top1"], nothing["top3"]) == (0.0, 0.0)
    assert nothing["cells_detail"][0]["pick"] is None


def test_mean_and_worst_are_over_cells():
    other = [record(b, s, global_batch=128) for b, s in ((1, 1.0), (2, 2.0), (4, 4.0))]
    both = scored([*FOUR, *other], [4.0, 3.0, 2.0, 2.5, 3.0, 2.0, 1.0])
    assert both["cells"] == 2
    assert both["top1"] == pytest.approx((1.0 + 0.25) / 2)
    assert both["top1_worst"] == pytest.approx(0.25)
    assert (both["top3"], both["top3_worst"]) == (1.0, 1.0)


def test_a_cell_needs_three_recipes_that_ran_and_are_alternatives():
    apart = [record(b, 1.0, global_batch=b) for b in (1, 2, 4, 8)]
    assert scored(apart, [1.0] * 4) == {
        "cells": 0, "top1": None, "top1_worst": None, "top3": None, "top3_worst": None, "cells_detail": []
    }  # fmt: skip
    assert cells_of([*FOUR[:2], record(16, None)], WORKLOADS) == ()
    again = [record(1, 4.0), record(1, 4.2), record(2, 3.0), record(2, 3.1)]
    assert cells_of(again, WORKLOADS) == (), "two recipes run twice are two recipes"


def test_repeats_of_a_recipe_are_one_candidate_at_their_median():
    open_length = replace(FOUR[0], recipe=replace(FOUR[0].recipe, seq=None), step_s=2.0)
    (cell,) = cells_of([*FOUR, open_length, record(4, None), record(4, 2.2)], WORKLOADS)
    assert [c.step_s for c in cell.candidates] == [3.0, 3.0, pytest.approx(2.1), 2.5], "the model's own length is 2048"
    assert cell.ran.all()


def test_rows_alone_can_be_scored_too():
    rows = time_rows(FOUR, WORKLOADS, PROFILE.rates)
    assert regret(rows, np.array([1.0, 3.0, 4.0, 2.0]))["top1"] == pytest.approx(0.5)
    assert regret(rows, np.array([1.0, 3.0, 4.0, 2.0]), WORKLOADS)["top3"] == pytest.approx(0.8)


CANDIDATES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), st.sampled_from([1.0, 2.0, 3.0]), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(CANDIDATES, st.integers(1, 4))
def test_ties_count_with_their_expectation(candidates, count):
    share, rank, admitted = (np.array(column) for column in zip(*candidates, strict=True))
    admitted = admitted.astype(bool)
    places = np.flatnonzero(admitted)
    outcomes = []
    for order in itertools.permutations(range(len(places))):
        ranked = sorted(range(len(places)), key=lambda i, order=order: (rank[places[i]], order[i]))
        outcomes.append(max((share[places[i]] for i in ranked[:count]), default=0.0))
    assert expected_best(share, rank, admitted, count) == pytest.approx(np.mean(outcomes))


# ------------------------------------------------------------------------------------------------ the rules


def first(records):
    (cell,) = cells_of(records, WORKLOADS)
    order = np.argsort(np.where(cell.ran, researcher(cell), np.inf), kind="stable")
    return cell.candidates[int(order[0])].recipe


def test_the_researcher_takes_the_largest_batch_that_fits_without_checkpointing():
    records = [
        record(4, 9.0),
        record(8, 9.5),
        record(16, None),
        record(16, 1.0, checkpointing="full"),
        record(64, 0.5, checkpointing="full"),
    ]
    assert (first(records).micro_batch, first(records).checkpointing) == (8, "none")


def test_then_the_researcher_checkpoints():
    tight = [record(b, None) for b in (1, 2)]
    tight += [record(b, 3.0, checkpointing="full") for b in (1, 2, 4)]
    tight += [record(8, None, checkpointing="full"), record(8, 1.0, checkpointing="every_2")]
    assert (first(tight).micro_batch, first(tight).checkpointing) == (4, "full")


def test_the_researcher_keeps_to_the_fields_habits():
    one = {"precision": "tf32"}, {"attention": "eager"}, {"compile": "off"}, {"optimizer": "sgd"}
    records = [record(1, 5.0, compile="on")]
    records += [record(8, 1.0, **{"compile": "on", **other}) for other in one]
    assert first(records) == records[0].recipe
    without = [record(b, 1.0, precision="fp16") for b in (1, 2)] + [record(4, 1.0, precision="fp32")]
    assert first(without).precision == "fp16", "what the cell does not hold cannot be asked for"
    assert first(without).micro_batch == 2


def test_the_researcher_looks_at_no_time():
    slow, fast = ([record(b, s * t) for b, s in ((1, 1), (2, 2), (4, 3))] for s, t in ((1, 1), (1, 1)))
    fast = [replace(r, step_s=10.0 / r.step_s) for r in slow]
    assert first(slow) == first(fast)


def test_random_is_the_mean_over_what_fits():
    cells = cells_of([*FOUR, record(16, None)], WORKLOADS)
    share = [2.0 / s for s in (4.0, 3.0, 2.0, 2.5)]
    told = rule_scores(cells)
    assert set(told) == {"researcher", "random"}
    assert told["random"]["top1"] == pytest.approx(np.mean(share))
    best = [max(three) for three in itertools.combinations(share, 3)]
    assert told["random"]["top3"] == pytest.approx(np.mean(best))
    assert told["researcher"]["top1"] == pytest.approx(2.0 / 2.5)
    assert len(set(any_that_fits(cells[0]))) == 1


# --------------------------------------------------------------------------------------------- out of memory


def test_out_of_memory_is_counted_near_the_limit_and_away_from_it():
    load = np.array([0.5, 0.98, 1.02, 1.2, 1.02, 1.2, 0.9])
    fits = np.array([True, False, False, False, False, False, True])
    ran = np.array([True, True, True, True, False, False, False])
    scores = oom_scores(Verdicts(load=load, fits=fits, ran=ran))
    whole = {"n_oom": 3, "n_ran": 4, "recall": 2 / 3, "false_fits": 1, "false_alarm": 0.75, "false_alarms": 3}
    near = {"n_oom": 1, "n_ran": 2, "recall": 1.0, "false_fits": 0, "false_alarm": 1.0, "false_alarms": 2}
    away = {"n_oom": 2, "n_ran": 2, "recall": 0.5, "false_fits": 1, "false_alarm": 0.5, "false_alarms": 1}
    assert scores == {**whole, "false_alarm_away_from_limit": 0.5, "near_limit": near, "away_from_limit": away}


def test_what_was_never_tried_has_no_share():
    nothing = oom_scores(verdicts_of([], WORKLOADS, PROFILE))
    assert (nothing["n_oom"], nothing["recall"], nothing["false_alarm"]) == (0, None, None)
    assert nothing["near_limit"]["recall"] is None


def test_verdicts_are_those_of_the_memory_model():
    records = [r for r in read_measurements(SHIPPED / "measured/1xH200/held_out.jsonl") if r.status in {"ok", "oom"}]
    workloads = {r.model: load_workload(r.model) for r in records}
    verdicts = verdicts_of(records, workloads, PROFILE)
    limit = PROFILE.machine.gpu.memory_bytes
    assert limit_bytes(PROFILE) == limit
    for i, one in enumerate(records):
        memory = memory_within(one, workloads[one.model], PROFILE.fit, limit)
        assert verdicts.load[i] == pytest.approx(memory.needed_bytes[0] / limit)
        assert verdicts.fits[i] == (memory.peak_bytes_high[0] <= limit)
        assert verdicts.ran[i] == (one.status == "ok")
    assert NEAR_LIMIT == 0.03
    assert (~verdicts.ran).sum() == sum(r.status == "oom" for r in records) >= 5
