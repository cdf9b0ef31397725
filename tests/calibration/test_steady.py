import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.steady import is_steady, noise, plateau, summarise, window_means

EVALUATION_STEP_MS = [1099.34, 1097.30, 1097.68, 1096.94, 1097.23, 1097.65, 1099.18, 1096.65, 35392.33]


def decaying(plateau_at: int, total: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    rise = [1.0 + 9.0 * (1.0 - i / plateau_at) for i in range(plateau_at)]
    return [level * (1.0 + 0.003 * rng.gauss(0.0, 1.0)) for level in rise + [1.0] * (total - plateau_at)]


def test_one_step_with_an_evaluation_in_it_leaves_the_median_and_is_reported_apart():
    summary = summarise(EVALUATION_STEP_MS)
    assert summary.median_s == 1097.65
    assert summary.high_s < 1100.0
    assert summary.overhead_s == pytest.approx(35392.33 - 1097.65)
    assert statistics.fmean(EVALUATION_STEP_MS) > 4 * summary.median_s  # what a mean would have said


def test_a_series_without_outliers_has_no_overhead():
    assert summarise(EVALUATION_STEP_MS[:-1]).overhead_s == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_plateau_after_a_hundred_decaying_values_is_found(seed):
    series = decaying(100, 160, seed)
    assert 95 <= plateau(series) <= 101
    assert summarise(series[plateau(series) :]).median_s == pytest.approx(1.0, rel=0.005)


@pytest.mark.parametrize("upto", [6, 20, 50, 90, 100])
def test_a_decaying_series_is_not_steady(upto):
    assert not is_steady(decaying(100, 160)[:upto])


def test_a_series_is_steady_once_it_is_flat():
    assert is_steady(decaying(100, 160)[:112])


def test_noise_alone_is_steady():
    rng = random.Random(3)
    settled = [is_steady([1.0 + 0.15 * rng.gauss(0.0, 1.0) for _ in range(12)]) for _ in range(400)]
    assert sum(settled) > 0.85 * len(settled)


def test_one_slow_sample_neither_ends_nor_starts_the_plateau():
    series = [1.0] * 20
    series[2] = 9.0
    assert plateau(series) == 0
    assert is_steady(series)


def test_work_billed_to_the_next_step_is_seen_by_windows():
    fast_then_slow = [0.2, 1.8] * 12
    assert window_means(fast_then_slow, 4) == pytest.approx((1.0,) * 6)
    assert summarise(window_means(fast_then_slow, 4)).median_s == pytest.approx(1.0)
    assert summarise(window_means(fast_then_slow, 4)).overhead_s == 0.0


def test_two_samples_are_never_steady():
    assert not is_steady([1.0, 1.0])
    assert not is_steady([])


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (4, 0), (7, 0), (8, 1), (11, 2), (20, 5)])
def test_the_interval_is_the_classic_one_of_order_statistics(count, left_out):
    samples = [float(i) for i in range(count)]
    summary = summarise(samples)
    assert (summary.low_s, summary.high_s) == (left_out, count - 1 - left_out)


@pytest.mark.parametrize("count", [5, 8, 13, 20])
def test_the_interval_covers_the_true_median(count):
    rng = random.Random(1)
    summaries = [summarise([rng.lognormvariate(0.0, 0.3) for _ in range(count)]) for _ in range(600)]
    assert sum(summary.low_s <= 1.0 <= summary.high_s for summary in summaries) / 600 >= 0.88


def test_noise_ignores_drift_and_outliers():
    rng = random.Random(0)
    series = [10.0 + 0.01 * i + 0.1 * rng.gauss(0.0, 1.0) for i in range(500)]
    series[100] = 1000.0
    assert noise(series) == pytest.approx(0.1, rel=0.15)


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=40), st.floats(0.01, 100.0))
def test_the_summary_is_ordered_and_scales(samples, factor):
    summary, scaled = summarise(samples), summarise([factor * sample for sample in samples])
    assert min(samples) <= summary.low_s <= summary.median_s <= summary.high_s <= max(samples)
    assert math.isclose(scaled.median_s, factor * summary.median_s, rel_tol=1e-9)
    assert 0 <= plateau(samples) < len(samples)
