"""Replayed calibrations: what a policy may look at, what is scored, and that the product's own choice pays."""

import json
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from benchmarks import choosing
from calibration.evaluate import predict_rows, starting_profile
from calibration.fit import fit_profile
from calibration.policies import POLICIES, table_of
from calibration.replay import PROBES_S, Score, choose_rows, replay, replay_table
from calibration.rows import memory_within, time_rows
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import SHIPPED
from profiles.records import read_measurements
from profiles.schema import Measurement, Recipe
from profiles.store import load_workload
from simulator.steptime import covariance

RECORDS = SHIPPED / "measured" / "1xH200"
PATHS = [RECORDS / f"{name}.jsonl" for name in ("calibration", "host_check", "development", "held_out")]
MODEL = "pythia-160m"
ALL = sorted(POLICIES)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@cache
def everything():
    return [r for path in PATHS for r in read_measurements(path)]


@cache
def records():
    """One model's rows of one session, runs out of memory included."""
    return [r for r in everything() if r.model == MODEL and r.session == "host-3"]


@cache
def workloads():
    return {name: load_workload(name) for name in {r.model for r in everything()}}


@cache
def profile():
    return starting_profile("1xH200", "probes")


def chosen(policy, count, some=None, seed=0):
    return choose_rows(policy, records() if some is None else some, workloads(), profile(), count, seed)


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_picks_that_many_rows_that_should_fit_and_none_twice(policy):
    picked = chosen(policy, 10)
    assert len(picked) == len(set(picked)) == 10
    assert picked == chosen(policy, 10), "the same seed picks the same rows"
    limit = profile().machine.gpu.memory_bytes
    for i in picked:
        record = records()[i]
        assert memory_within(record, workloads()[MODEL], profile().fit, limit).peak_bytes_high[0] <= limit
    everything_open = chosen(policy, 1000)
    assert len(everything_open) < len(records()), "some rows are predicted not to fit"
    assert len(set(everything_open)) == len(everything_open)


@pytest.mark.parametrize("policy", ALL)
def test_only_stochastic_policies_draw(policy):
    picks = {tuple(chosen(policy, 12, seed=seed)) for seed in range(4)}
    assert (len(picks) > 1) == POLICIES[policy].stochastic


@pytest.mark.parametrize("policy", ALL)
def test_no_policy_sees_the_results_of_rows_that_it_has_not_picked(policy):
    """Every measured figure of the rows that are never picked may be anything."""
    picked = chosen(policy, 10)
    garbled = [
        r if i in picked else replace(r, step_s=(r.step_s or 1.0) * 7.0, trial_s=500.0, peak_bytes=1)
        for i, r in enumerate(records())
    ]
    assert chosen(policy, 10, garbled) == picked


def test_the_adaptive_choice_listens_to_what_it_measures():
    """Were one kind of run to take three times as long, it would not go on as if nothing had happened."""
    slow = [replace(r, step_s=r.step_s * 3.0) if r.step_s and r.recipe.precision != "bf16" else r for r in records()]
    assert chosen("adaptive", 15, slow) != chosen("adaptive", 15)
    assert chosen("d_optimal", 15, slow) == chosen("d_optimal", 15)


def test_a_score_is_of_the_fit_to_the_picked_rows_on_all_the_others():
    (found,) = replay("adaptive", records(), workloads(), profile(), counts=(10,))
    picked = chosen("adaptive", 10)
    assert found.picked == tuple(picked)
    assert found.seconds == pytest.approx(10.0 + PROBES_S + sum(records()[i].trial_s for i in picked))
    fit = fit_profile([records()[i] for i in picked], workloads(), profile().rates)
    recipes = {records()[i].recipe for i in picked}
    unseen = [r for r in records() if r.status == "ok" and r.recipe not in recipes]
    rows = time_rows(unseen, workloads(), profile().rates)
    predicted, _ = predict_rows(rows, fit, profile(), workloads())
    error = [abs(p / r.step_s - 1.0) for p, r in zip(predicted, unseen, strict=True)]
    assert found.scored == len(unseen)
    assert found.mape == pytest.approx(np.mean(error))
    assert found.median == pytest.approx(np.median(error))
    assert found.p95 == pytest.approx(np.quantile(error, 0.95))


def test_repeats_of_a_picked_recipe_are_not_scored():
    twice = [*records(), *records()]
    table = table_of(twice, workloads(), profile())
    ran = sum(r.status == "ok" for r in twice)
    picked = next(i for i in table.allowed if records()[i].status == "ok")
    assert len(table.others([picked])) == ran - 2


def test_fewer_runs_are_the_first_of_more_unless_all_are_chosen_at_once():
    table = table_of(records(), workloads(), profile())
    for policy in ALL:
        few, many = replay_table(policy, table, (5, 9), seed=1)
        assert (few.count, many.count, len(few.picked), len(many.picked)) == (5, 9, 5, 9)
        assert (many.picked[:5] == few.picked) or POLICIES[policy].one_shot


def test_a_count_that_leaves_nothing_to_score_is_left_out():
    fits = [records()[i] for i in chosen("random", 8)]
    scores = replay("random", fits, workloads(), profile(), counts=(3, 8))
    assert [s.count for s in scores] == [3]


def test_the_d_optimal_pair_is_the_best_of_all_pairs():
    """By brute force over the determinant of the information, S⁻¹ + Σ x xᵀ / noise²."""
    table = table_of(records(), workloads(), profile())
    prior = covariance(profile().fit, profile().rates)
    shares = table.pool.shares(profile())
    from calibration.choose import Belief

    noise = Belief(shares, prior).noise

    def log_det(pair):
        x = shares[list(pair)] / noise[list(pair)][:, None]
        return np.linalg.slogdet(np.linalg.inv(prior) + x.T @ x)[1]

    best = max(log_det(pair) for pair in combinations(table.allowed, 2))
    assert log_det(chosen("d_optimal", 2)) == pytest.approx(best, abs=1e-6)


def test_an_unknown_policy_is_named_with_those_that_there_are():
    with pytest.raises(UnknownNameError, match="adaptive"):
        chosen("adaptiv", 3)
    with pytest.raises(UnknownNameError):
        replay("best", records(), workloads(), profile())


# ----------------------------------------------------------------------------------------------- on shipped records


@cache
def scores():
    """Calibrations of all models of one session at once."""
    some = {key: table for key, table in choosing.tables(PATHS).items() if key[1] == choosing.POOLED}
    return list(choosing.replayed(some, (6, 10, 20, 30), seeds=4))


def mean_mape(policy):
    return np.mean([s.mape for _, s in scores() if s.policy == policy])


def test_the_product_chooses_better_than_at_random_and_than_all_at_once():
    assert {key for key, _ in scores()} == {("host-2", choosing.POOLED), ("host-3", choosing.POOLED)}
    assert mean_mape("adaptive") < 0.95 * mean_mape("random")
    assert mean_mape("adaptive") < 0.95 * mean_mape("d_optimal")


# ------------------------------------------------------------------------------------------------- the command


def test_tables_never_mix_sessions():
    found = choosing.tables(PATHS)
    for (session, model), table in found.items():
        assert {r.session for r in table.records} == {session}
        assert model == choosing.POOLED or {r.model for r in table.records} == {model}
        assert len(table.records) >= choosing.LEAST_ROWS
    assert ("host-2", MODEL) in found
    assert len(found["host-2", choosing.POOLED].records) > len(found["host-2", MODEL].records)


def scripted(policy, count, seed, mape, regret=None):
    return Score(
        policy=policy, count=count, seed=seed, scored=9, mape=mape, median=0.01, p95=0.2, coverage90=0.9, regret=regret,
        seconds=100.0, picked=(0,),
    )  # fmt: skip


def test_a_summary_is_the_mean_over_seeds_and_then_over_tables():
    some = [
        (("a", "one"), scripted("random", 6, 0, 0.10, regret=0.9)),
        (("a", "one"), scripted("random", 6, 1, 0.30)),
        (("a", "two"), scripted("random", 6, 0, 0.50)),
        (("a", choosing.POOLED), scripted("random", 6, 0, 0.07)),
    ]
    each, pooled = choosing.summary(some, (6, 10))
    assert (each["scope"], each["tables"], each["seeds"]) == ("each", 2, 2)
    assert each["mape"] == pytest.approx((0.20 + 0.50) / 2)
    assert each["mape_sd"] == pytest.approx((0.10 + 0.0) / 2)
    assert each["regret"] == pytest.approx(0.9)
    assert (pooled["scope"], pooled["mape"], pooled["regret"]) == ("pooled", pytest.approx(0.07), None)
    lines = list(choosing.page([each, pooled]))
    assert lines[2] == "| random | each | 6 | 35.0% ± 5.0% | 1.0% | 20.0% | 90% | 90.0% | 100 |"
    assert lines[3] == "| random | pooled | 6 | 7.0% | 1.0% | 20.0% | 90% |  | 100 |"


def test_the_command_prints_one_object(monkeypatch, capsys):
    arguments = ["choosing", str(PATHS[3]), "--counts", "4", "--seeds", "2", "--json"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert choosing.main() == 0
    answer = json.loads(capsys.readouterr().out)
    assert {line["policy"] for line in answer["summary"]} == set(POLICIES)
    assert {(s["policy"], s["seed"]) for s in answer["scores"]} >= {("random", 1), ("adaptive", 0)}


def test_rows_of_several_machines_or_too_few_are_refused(tmp_path, monkeypatch, capsys):
    from profiles.records import append_measurement

    path = tmp_path / "few.jsonl"
    append_measurement(path, Measurement(model=MODEL, machine="1xH200", recipe=Recipe(), status="ok", step_s=1.0))
    with pytest.raises(InvalidInputError, match="no session has the"):
        choosing.tables([path])
    append_measurement(path, Measurement(model=MODEL, machine="1xA10", recipe=Recipe(), status="ok", step_s=1.0))
    monkeypatch.setattr(sys, "argv", ["choosing", str(path)])
    assert choosing.main() == 2
    assert "1xA10, 1xH200" in capsys.readouterr().err
