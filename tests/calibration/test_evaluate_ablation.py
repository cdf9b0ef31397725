"""Each ablation takes out what its name says, and nothing else."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from calibration import evaluate
from calibration.ablation import ABLATIONS, ablations, no_probes, no_shrinkage
from calibration.evaluate import Split
from calibration.fit import fit_profile
from calibration.rows import time_rows
from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.records import read_measurements
from profiles.schema import Fit
from profiles.store import load_workload, read_profile
from simulator.components import COMPONENTS, INDEX
from simulator.rates import datasheet_rates
from simulator.steptime import log_factors, step_times

RECORDS = SHIPPED / "measured" / "1xH200"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@cache
def split():
    shipped = read_profile(SHIPPED / "fitted" / "1xH200.json")
    rates = {**datasheet_rates(shipped.machine.gpu), **shipped.rates}
    return Split(
        fitted=read_measurements(RECORDS / "calibration.jsonl")[:30] + read_measurements(RECORDS / "host_check.jsonl"),
        scored=read_measurements(RECORDS / "held_out.jsonl"),
        workloads={name: load_workload(name) for name in ("pythia-160m", "pythia-410m", "pythia-1b")},
        profile=replace(shipped, rates=rates, fit=Fit()),
    )


@cache
def told():
    return ablations(split())


def fitted(one):
    return fit_profile(one.fitted, one.workloads, one.profile.rates, start=one.profile.fit)


def ablated(name):
    (one,) = ABLATIONS[name](split())
    return one


def left(name, starts):
    """Seconds of components whose names start so, under the ablated fit and, for comparison, the intact one."""
    columns = [INDEX[c] for c in COMPONENTS if c.startswith(starts)]
    totals = []
    for one in (ablated(name), split()):
        rows = time_rows(one.scored, one.workloads, one.profile.rates)
        corrected = rows.seconds * np.exp(log_factors(fitted(one)))
        totals.append(corrected[:, columns].sum())
    return totals


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("no_launch", ("dispatch.", "optimizer_dispatch.", "floor", "optimizer.floor")),
        ("no_host", ("dispatch.", "optimizer_dispatch.")),
        ("no_power", ("power",)),
    ],
)
def test_components_that_are_taken_out_stay_out_of_the_fit(name, starts):
    gone, intact = left(name, starts)
    assert gone < 1e-9 * intact
    kept, before = left(name, ("matmul.", "attention."))
    assert 0.5 * before < kept < 4 * before


def test_every_ablation_is_scored_on_the_same_rows():
    scores, problems = told()
    ran = sum(r.status == "ok" for r in split().scored)
    assert set(scores) == set(ABLATIONS)
    assert {name for name, one in scores.items() if one is None} == {"no_adaptive_choice"}
    assert all(one["n"] == ran for one in scores.values() if one)
    assert len(problems) == 1
    assert problems[0].startswith("ablation no_adaptive_choice skipped: ")
    assert len({one["mape"] for one in scores.values() if one}) >= 8, "each changes something of its own"


def test_what_matters_most_costs_most():
    scores, _ = told()
    intact = evaluate_intact()["mape"]
    for name in ("no_fit", "no_launch", "no_host", "no_sessions"):
        assert scores[name]["mape"] > 1.3 * intact, name


@cache
def evaluate_intact():
    from calibration.scores import predict_rows, time_scores

    one = split()
    rows, fit = time_rows(one.scored, one.workloads, one.profile.rates), fitted(one)
    return time_scores(rows, *predict_rows(rows, fit, one.profile, one.workloads), fit)


def test_no_probes_starts_from_the_data_sheet():
    (one,) = no_probes(split())
    assert one.profile.rates == datasheet_rates(split().profile.machine.gpu)
    assert one.profile.fit == Fit()
    assert {rate.basis for rate in one.profile.rates.values()} == {"datasheet"}


def residuals(one, records):
    """Log of measured ÷ predicted, with each row's host time as in its session."""
    rows, fit = time_rows(records, one.workloads, one.profile.rates), fitted(one)
    seconds = rows.seconds.copy()
    session = np.array([fit.host_sessions.get(s, 0.0) for s in rows.sessions])
    seconds[:, ["dispatch" in component for component in COMPONENTS]] *= np.exp(session)[:, None]
    return rows.log_step - np.log(step_times(seconds, rows.grad_accum, log_factors(fit)).step_s)


def test_no_shrinkage_fits_closer_and_predicts_worse():
    (loose,) = no_shrinkage(split())
    near, far = (np.abs(residuals(one, one.fitted)).mean() for one in (loose, split()))
    assert near < 0.95 * far
    unseen, before = (np.abs(residuals(one, one.scored)).mean() for one in (loose, split()))
    assert unseen > 1.1 * before
    moved, shrunk = (np.abs(log_factors(fitted(one))).max() for one in (loose, split()))
    assert moved > 2 * shrunk, "what the rows do not say runs away"


def test_rates_at_their_neutral_value():
    assert {r.value for n, r in ablated("no_attention_tail").profile.rates.items() if n.endswith("_tail")} == {0.0}
    padding = ablated("no_padding").profile.rates
    assert {r.value for n, r in padding.items() if "odd_factor" in n or "even_factor" in n} == {1.0}
    untouched = {n for n in padding if padding[n] == split().profile.rates[n]}
    assert set(padding) - untouched == {n for n in padding if "_factor_" in n and n.startswith("matmul_")}


def test_sessions_are_one():
    assert fitted(ablated("no_sessions")).host_sessions == {}
    assert {r.session for r in ablated("no_sessions").scored} == {None}


def test_without_fitted_rows_only_the_prior_can_be_ablated():
    scores = evaluate(RECORDS / "held_out.jsonl", ablate=True)
    none = {name for name, one in scores["ablations"].items() if one is None}
    assert none == {"no_fit", "no_shrinkage", "no_adaptive_choice"}
    assert sum("skipped" in problem for problem in scores["problems"]) == 3


def test_random_rows_in_place_of_chosen_ones():
    scores = evaluate(RECORDS / "held_out.jsonl", calibrate=6, choose="adaptive", prior="probes", ablate=True)
    random = scores["ablations"]["no_adaptive_choice"]
    assert random["draws"] == 5
    assert random["n"] <= scores["step_time"]["n"]
    assert random["mape"] != random["mape_intact"]
    assert not [problem for problem in scores["problems"] if "no_adaptive_choice" in problem]


def test_nothing_is_ablated_unasked():
    assert evaluate(RECORDS / "held_out.jsonl")["ablations"] is None
    with pytest.raises(InvalidInputError, match="choose=lucky"):
        evaluate(RECORDS / "held_out.jsonl", choose="lucky", ablate=True)
