"""The timer, on scripted stopwatches: what it repeats, when it stops, what it reports."""

from __future__ import annotations

import itertools
import math
import time
from types import SimpleNamespace

import pytest

from calibration import timing
from calibration.timing import CudaStopwatch, HostStopwatch, Timing, relative_interval, sets_beyond_cache, time_call


class ScriptedStopwatch:
    """Every call takes the next scripted second; time passes only inside windows."""

    method = "scripted"

    def __init__(self, seconds_per_call):
        self.script = itertools.cycle(seconds_per_call)
        self.clock_s = 100.0
        self.windows = []

    def now_s(self):
        return self.clock_s

    def window_s(self, calls):
        for call in calls:
            call()
        self.windows.append(len(calls))
        elapsed_s = len(calls) * next(self.script)
        self.clock_s += elapsed_s
        return elapsed_s


def nothing():
    return None


def test_a_steady_call_is_sampled_five_times():
    timed = time_call([nothing], ScriptedStopwatch([0.004]), budget_s=10.0)
    assert timed.samples_s == (0.004,) * 5
    assert timed.median_s == 0.004
    assert timed.sd_log == 0.0
    assert (timed.calls_per_sample, timed.method) == (1, "scripted")


def test_short_calls_are_repeated_until_a_sample_lasts_two_milliseconds():
    watch = ScriptedStopwatch([1e-4])
    timed = time_call([nothing], watch, budget_s=10.0)
    assert timed.calls_per_sample == 20
    assert watch.windows == [1, 20, 20, 20, 20, 20]
    assert timed.median_s == pytest.approx(1e-4)


def test_no_sample_has_more_calls_than_a_launch_queue_holds():
    assert time_call([nothing], ScriptedStopwatch([1e-8]), budget_s=1.0).calls_per_sample == 64


def test_a_noisy_call_is_sampled_until_the_budget_is_spent():
    timed = time_call([nothing], ScriptedStopwatch([0.01, 0.03]), budget_s=0.2)
    assert sum(timed.samples_s) + 0.01 >= 0.2
    assert sum(timed.samples_s[:-1]) + 0.01 < 0.2


def test_at_least_three_samples_whatever_the_budget():
    assert len(time_call([nothing], ScriptedStopwatch([5.0]), budget_s=0.001).samples_s) == 3


def test_at_most_the_given_number_of_samples():
    noisy = ScriptedStopwatch([0.01, 0.03])
    assert len(time_call([nothing], noisy, budget_s=1e9, max_samples=7).samples_s) == 7
    assert len(time_call([nothing], noisy, budget_s=1e9).samples_s) == timing.MAX_SAMPLES


def test_buffers_are_used_in_turn_after_each_was_warmed_up():
    used = []
    calls = [lambda name=name: used.append(name) for name in "abc"]
    time_call(calls, ScriptedStopwatch([0.01]), budget_s=1.0)
    assert used == list("abc") + list("abcabc")


def test_the_interval_of_the_median_is_the_notch_of_a_box_plot():
    samples_s = (1.0, 2.0, 3.0, 4.0, 5.0)
    assert relative_interval(samples_s) == pytest.approx(1.57 * (4.0 - 2.0) / math.sqrt(5) / 3.0)


def test_spread_is_a_robust_deviation_of_the_log():
    samples_s = tuple(math.exp(log) for log in (0.0, 0.1, 0.2, 0.3, 9.0))
    assert Timing(samples_s=samples_s, calls_per_sample=1, method="host").sd_log == pytest.approx(0.14826)


def test_the_host_stopwatch_covers_all_calls():
    watch = HostStopwatch()
    before_s = watch.now_s()
    window_s = watch.window_s([lambda: time.sleep(0.005)] * 2)
    assert 0.01 <= window_s <= watch.now_s() - before_s


def test_buffer_sets_exceed_the_cache_twice_over():
    cache_bytes = timing._CPU_CACHE_BYTES
    assert sets_beyond_cache(2 * cache_bytes, "cpu") == 1
    assert sets_beyond_cache(cache_bytes / 2, "cpu") == 4
    assert sets_beyond_cache(1, "cpu") == 8
    assert sets_beyond_cache(1, "cpu", limit=3) == 3


class FakeCuda:
    """Stands for ``torch.cuda``: events that report scripted states, and a record of sleeps."""

    def __init__(self, started):
        self.started, self.sleeps = iter(started), []

    def Event(self, enable_timing):
        assert enable_timing
        return SimpleNamespace(
            record=nothing, query=lambda: next(self.started), elapsed_time=lambda last: 3.0 + len(self.sleeps)
        )

    def device(self, device):
        assert str(device) == "cuda:0"
        return memoryview(b"")  # any context manager

    def synchronize(self, device=None):
        pass

    def _sleep(self, cycles):
        self.sleeps.append(cycles)


def cuda_stopwatch(started):
    watch, cuda = CudaStopwatch("cuda:0"), FakeCuda(started)
    watch._torch = SimpleNamespace(cuda=cuda)
    return watch, cuda


def test_cuda_windows_queue_behind_a_sleeping_kernel():
    watch, cuda = cuda_stopwatch([False])
    assert watch.window_s([nothing] * 4) == pytest.approx(4e-3)
    assert watch.method == "queued"
    assert len(cuda.sleeps) == 1


def test_a_cuda_window_is_tried_again_with_a_longer_sleep_until_it_is_queued():
    watch, cuda = cuda_stopwatch([True, True, False])
    assert watch.window_s([nothing]) == pytest.approx(6e-3)
    assert watch.method == "queued"
    assert cuda.sleeps == sorted(cuda.sleeps)
    assert cuda.sleeps[2] >= 4 * cuda.sleeps[0] - 2


def test_a_cuda_window_that_cannot_be_queued_says_so():
    watch, cuda = cuda_stopwatch([True] * 3)
    assert watch.window_s([nothing]) == pytest.approx(6e-3)
    assert (watch.method, len(cuda.sleeps)) == ("events", 3)
