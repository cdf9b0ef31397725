import pytest

from calibration.measuring import measured_accumulations, time_trainee
from calibration.trial import Trial
from calibration.windows import WINDOW_S, solve_accumulation, step_estimates, time_rounds, time_window, window_steps
from profiles.schema import Recipe


class AsyncDevice:
    """Takes work at once and does it only when somebody waits for it."""

    def __init__(self, micro_s=0.01, once_s=0.005, first_s=0.0):
        self.now_s, self.queued_s = 0.0, 0.0
        self.micro_s, self.once_s, self.first_s = micro_s, once_s, first_s
        self.steps = []
        self.waits = 0

    def clock(self):
        return self.now_s

    def step(self, grad_accum):
        self.now_s += 1e-5  # the host's share
        self.queued_s += self.micro_s * grad_accum + self.once_s + (0.0 if self.steps else self.first_s)
        self.steps.append(grad_accum)

    def synchronize(self):
        self.waits += 1
        self.now_s += self.queued_s
        self.queued_s = 0.0


def test_a_window_contains_the_work_of_the_device_and_nothing_queued_before():
    device = AsyncDevice(micro_s=0.03, once_s=0.0)
    device.step(1)
    seconds = time_window(lambda: device.step(1), 7, device.synchronize, device.clock)
    assert seconds == pytest.approx(0.03 + 1e-5)
    assert device.waits == 2  # at the edges, not in every step


def test_a_clock_without_synchronisation_would_have_seen_only_the_host():
    device = AsyncDevice(micro_s=0.03)
    assert time_window(lambda: device.step(1), 7, lambda: None, device.clock) == pytest.approx(1e-5)


def trial(grad_accum, solved_from=(2, 4)):
    return Trial(model="m", machine="cpu", recipe=Recipe(grad_accum=grad_accum), solved_from=solved_from)


@pytest.mark.parametrize("grad_accum", [1, 2])
def test_small_accumulations_are_measured_as_they_are(grad_accum):
    device = AsyncDevice(first_s=30.0)
    timed = time_trainee(device, measured_accumulations(trial(grad_accum)), 1.0, clock=device.clock)
    assert timed.accumulations == (grad_accum,)
    assert set(device.steps) == {grad_accum}
    step_s = 0.01 * grad_accum + 0.005 + 1e-5
    assert [windows[0] for windows in timed.series.settled] == pytest.approx([step_s] * len(timed.series.settled))
    assert timed.first_step_s > 30.0
    assert timed.series.steady


@pytest.mark.parametrize(("grad_accum", "solved_from", "accumulations"), [
    (3, (2, 4), (2, 3)), (4, (2, 4), (2, 4)), (5, (2, 4), (2, 4)), (512, (2, 4), (2, 4)), (48, (1, 2), (1, 2)),
])  # fmt: skip
def test_larger_ones_follow_from_two(grad_accum, solved_from, accumulations):
    device = AsyncDevice(micro_s=0.02, once_s=0.07)
    assert measured_accumulations(trial(grad_accum, solved_from)) == accumulations
    timed = time_trainee(device, accumulations, 1.0, clock=device.clock)
    micro_s, once_s = solve_accumulation(timed.series.settled, accumulations)
    assert micro_s == pytest.approx(0.02, rel=1e-6)
    assert once_s == pytest.approx(0.07, rel=1e-3)
    estimates = step_estimates(timed.series.settled, accumulations, grad_accum)
    assert estimates == pytest.approx([0.02 * grad_accum + 0.07] * len(estimates), rel=1e-3)


def test_two_published_points_give_their_parts():
    assert solve_accumulation([(0.45, 0.85), (0.47, 0.83), (0.44, 0.86)], (2, 4)) == pytest.approx((0.2, 0.05))


def test_two_optimizer_steps_pass_before_anything_counts():
    device = AsyncDevice()
    warm = []
    time_trainee(device, (1,), 1.0, clock=device.clock, warmed_up=lambda: warm.append(len(device.steps)))
    assert warm == [2]


@pytest.mark.parametrize("step_s", [1e-5, 0.004, 0.2, 5.0])
def test_a_window_is_long_enough_whatever_the_first_guess(step_s):
    count = window_steps(lambda _: step_s, guess_s=0.05)
    assert count >= 1
    assert count * step_s >= 0.7 * WINDOW_S


def test_a_series_that_never_settles_ends_and_says_so():
    now = [0.0]

    def falling():
        now[0] += 0.1
        return (1.0 / now[0],)

    series = time_rounds(falling, 1, 0.5, lambda: now[0])
    assert not series.steady
    assert now[0] == pytest.approx(1.5)
    assert series.settled == series.rounds


def test_warm_up_is_left_out_but_kept():
    now, levels = [0.0], iter([5.0, 4.0, 3.0, 2.0, 1.5] + [1.0] * 100)

    def settling():
        now[0] += 0.1
        return (next(levels),)

    series = time_rounds(settling, 1, 1.2, lambda: now[0])
    assert series.steady
    assert set(series.settled) == {(1.0,)}
    assert series.rounds[0] == (5.0,)
