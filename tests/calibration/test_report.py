"""The accuracy page's wording: tables, shares, means and crossovers, each against text written by hand."""

from dataclasses import replace

import pytest

from calibration import report
from simulator.crossovers import Crossover


def test_a_table_has_its_words_left_and_its_numbers_right():
    assert report.table(("a", "b", "c"), [("x", "1", "2"), ("y", "3", "4")]) == [
        "| a | b | c |",
        "|---|--:|--:|",
        "| x | 1 | 2 |",
        "| y | 3 | 4 |",
        "",
    ]
    assert report.table(("a",), []) == ["| a |", "|---|", ""]


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (0.0123, {}, "1.2%"),
        (0.0123, {"digits": 0}, "1%"),
        (0.0123, {"digits": 2}, "1.23%"),
        (0.0123, {"signed": True}, "+1.2%"),
        (-0.0123, {"signed": True}, "-1.2%"),
        (1.0, {}, "100.0%"),
        (0.0, {}, "0.0%"),
        (None, {}, "–"),
        (None, {"digits": 2, "signed": True}, "–"),
    ],
)
def test_shares_in_per_cent(value, options, text):
    assert report.percent(value, **options) == text


def test_a_mean_over_models_weighs_each_by_its_rows():
    left_out = {
        "a": {"mape": 0.2, "n": 4, "gpu_bound": {"mape": 0.1, "n": 3}},
        "b": {"mape": 0.5, "n": 1, "gpu_bound": {"mape": 0.5, "n": 1}},
        "c": {"mape": 0.3, "n": 5, "gpu_bound": None},
    }
    assert report._mean_of(left_out, "gpu_bound") == pytest.approx((0.3 + 0.5) / 4)
    assert report._mean_of(left_out, None) == pytest.approx((0.8 + 0.5 + 1.5) / 10)


WHERE = Crossover(name="compile", axis="seq", state="from", first=877.0, first_low=834.0, first_high=971.0)
UNTIL = {"last": 4000.0, "last_low": 3000.0, "last_high": 5000.0}


@pytest.mark.parametrize(
    ("cross", "text"),
    [
        (WHERE, "compile pays: from 877 (834–971), over seq"),
        (replace(WHERE, name="gpu_bound"), "GPU-bound: from 877 (834–971), over seq"),
        (replace(WHERE, state="always"), "compile pays: always, over seq"),
        (replace(WHERE, state="never", name="checkpointing=full"), "checkpointing=full pays: never, over seq"),
        (replace(WHERE, state="until", **UNTIL), "compile pays: until 4000 (3000–5000), over seq"),
        (replace(WHERE, state="between", **UNTIL), "compile pays: from 877 (834–971) until 4000 (3000–5000), over seq"),
    ],
)
def test_a_crossover_in_words(cross, text):
    assert list(report._sentences(_Curve(cross))) == [text]


def test_memory_at_a_crossover_is_in_gib():
    gib = 2.0**30
    cross = replace(WHERE, axis="memory_bytes", first=7.34 * gib, first_low=7.0 * gib, first_high=8.0 * gib)
    assert list(report._sentences(_Curve(cross))) == ["compile pays: from 7.3 GiB (7.0–8.0), over the GPU’s memory"]


class _Curve:
    """A curve with nothing but crossovers."""

    def __init__(self, *crossovers):
        self.crossovers = crossovers
