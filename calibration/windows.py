"""Timing whole steps: windows with the device synchronised at their edges, repeated until they have settled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibration.steady import is_steady, plateau, summarise

WINDOW_S = 0.15
"""A window lasts at least this long, so that the clock and one synchronisation weigh nothing."""
MIN_ROUNDS = 4
"""Rounds wanted before the interval may end the timing early."""
SPREAD_GOAL = 0.02
"""Width of the interval of the median, as a fraction, at which more windows would tell no more."""
PATIENCE = 3.0
"""A series that has not settled gets this many times the measuring time before it is taken as it is."""

Clock = Callable[[], float]
Round = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Rounds of windows: in each, one window per accumulation, in seconds per optimizer step.

    ``settled`` are the rounds from the plateau on; ``rounds`` are all of them.
    """

    rounds: tuple[Round, ...]
    settled: tuple[Round, ...]
    steps: int
    steady: bool


def time_window(step: Callable[[], None], count: int, synchronize: Callable[[], None], clock: Clock) -> float:
    """Seconds per step over ``count`` steps; the device is idle when the clock is read, and only then."""
    synchronize()
    start_s = clock()
    for _ in range(count):
        step()
    synchronize()
    return (clock() - start_s) / count


def window_steps(timed: Callable[[int], float], guess_s: float) -> int:
    """How many steps make a window of at least ``WINDOW_S``; ``timed(count)`` times that many, in seconds a step."""
    count = max(1, math.ceil(WINDOW_S / max(guess_s, 1e-6)))
    for _ in range(3 if guess_s < WINDOW_S else 0):
        lasted_s = timed(count) * count
        if lasted_s >= 0.7 * WINDOW_S:
            break
        count = math.ceil(count * WINDOW_S / max(lasted_s, 1e-6))
    return count


def time_rounds(timed_round: Callable[[], Round], steps: int, measure_s: float, clock: Clock) -> Series:
    """Rounds until the median is narrow or ``measure_s`` has passed on a settled series, within ``PATIENCE``."""
    rounds: list[Round] = []
    start_s = clock()
    while True:
        rounds.append(timed_round())
        levels = [sum(windows) for windows in rounds]
        begin = plateau(levels)
        steady = is_steady(levels[begin:])
        if _enough(levels[begin:], steady, clock() - start_s, measure_s):
            settled = rounds[begin:] if steady else rounds
            return Series(rounds=tuple(rounds), settled=tuple(settled), steps=steps, steady=steady)


def _enough(levels: Sequence[float], steady: bool, elapsed_s: float, measure_s: float) -> bool:
    if elapsed_s >= PATIENCE * measure_s:
        return True
    if not steady:
        return False
    return elapsed_s >= measure_s or (len(levels) >= MIN_ROUNDS and summarise(levels).spread <= SPREAD_GOAL)


def solve_accumulation(rounds: Sequence[Round], accumulations: tuple[int, int]) -> tuple[float, float]:
    """Seconds of one micro-batch and of everything that happens once a step, from steps at two accumulations.

    The second is never below 0: a negative one is noise.
    """
    low, high = accumulations
    micro_s = statistics.median((slow - fast) / (high - low) for fast, slow in rounds)
    once_s = statistics.median(fast - low * (slow - fast) / (high - low) for fast, slow in rounds)
    return micro_s, max(0.0, once_s)


def step_estimates(rounds: Sequence[Round], accumulations: Sequence[int], grad_accum: int) -> tuple[float, ...]:
    """Seconds per step at ``grad_accum`` that each round implies: measured, or along the line through two points."""
    if len(accumulations) == 1:
        return tuple(windows[0] for windows in rounds)
    low, high = accumulations
    return tuple(fast + (grad_accum - low) * (slow - fast) / (high - low) for fast, slow in rounds)
