"""The public test kit: a machine that answers from a script, through the very code that times real ones.

    machine = FakeMachine(step_s=lambda recipe: 0.01 * recipe.micro_batch * recipe.grad_accum)
    record = machine.measure(Trial(model="any", machine="fake", recipe=Recipe(micro_batch=4)))

It has its own clock, so nothing ever waits. Out of memory, hangs and crashes are scripted too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from calibration.measuring import Peaks, measured_accumulations, time_trainee, to_measurement
from calibration.trial import Trial, failed
from profiles.schema import Device, Measurement, Recipe

Seconds = Callable[[Recipe], float] | Mapping[Recipe, float]
Bytes = Callable[[Recipe], int | Sequence[int]] | Mapping[Recipe, int | Sequence[int]]


class FakeMachine:
    """A ``Measurer`` with scripted answers.

    Args:
        step_s: seconds per optimizer step. A function is asked with the accumulation that is really stepped; a table
            is looked up by the trial's recipe and taken to be proportional to the accumulation.
        peak_bytes: peak memory, by function or table: one number, or one per optimizer step of which the last stays
            (the peak of step 2 holds the optimizer's state, that of step 1 does not).
        memory_bytes: a step whose peak is above it, or above the trial's own limit, runs out of memory.
        hangs: whether a recipe never comes back; the trial's timeout then ends it.
        crash: the error that a recipe dies of, ``None`` for those that live.
        noise: relative standard deviation of every step.
        seed: of the noise.
    """

    def __init__(
        self,
        *,
        step_s: Seconds,
        peak_bytes: Bytes = lambda _: 1,
        memory_bytes: int | None = None,
        hangs: Callable[[Recipe], bool] = lambda _: False,
        crash: Callable[[Recipe], str | None] = lambda _: None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._step_s, self._peak_bytes, self._memory_bytes = step_s, peak_bytes, memory_bytes
        self._hangs, self._crash, self._noise = hangs, crash, noise
        self._random = random.Random(seed)
        self.now_s = 0.0
        self.trials: list[Trial] = []
        self.closed = False

    def measure(self, trial: Trial) -> Measurement:
        """The record of one trial, on this machine's own clock."""
        self.trials.append(trial)
        self.closed = False
        start_s = self.now_s
        error = self._crash(trial.recipe)
        record = failed(trial, "crash", error) if error else self._timed(trial)
        return replace(
            record, trial_s=self.now_s - start_s, device=Device(name="fake", memory_bytes=self._memory_bytes)
        )

    def measure_group(self, trials: Sequence[Trial]) -> Iterator[Measurement]:
        """The records of trials, one after the other."""
        return map(self.measure, trials)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _timed(self, trial: Trial) -> Measurement:
        trainee = _FakeTrainee(self, trial)
        try:
            timed = time_trainee(trainee, measured_accumulations(trial), trial.measure_s, clock=lambda: self.now_s)
        except MemoryError as error:
            return failed(trial, "oom", str(error))
        except TimeoutError as error:
            return failed(trial, "timeout", str(error))
        peak = trainee.peak_bytes
        return to_measurement(
            trial, timed, Peaks(allocated_bytes=peak, reserved_bytes=peak, device_bytes=peak, kind="allocated")
        )

    def step_seconds(self, recipe: Recipe, grad_accum: int) -> float:
        """Scripted seconds of one step at ``grad_accum`` micro-batches, with noise; a hang is infinite."""
        if self._hangs(recipe):
            return float("inf")
        if callable(self._step_s):
            seconds = self._step_s(replace(recipe, grad_accum=grad_accum))
        else:
            seconds = self._step_s[recipe] * grad_accum / recipe.grad_accum
        return seconds * max(0.0, 1.0 + self._noise * self._random.gauss(0.0, 1.0))

    def step_peak_bytes(self, recipe: Recipe, steps_done: int) -> int:
        """Scripted peak bytes of the step after ``steps_done`` whole ones."""
        peaks = self._peak_bytes(recipe) if callable(self._peak_bytes) else self._peak_bytes[recipe]
        return peaks if isinstance(peaks, int) else peaks[min(steps_done, len(peaks) - 1)]

    def limit_bytes(self, trial: Trial) -> int | None:
        """The lower of the machine's memory and the trial's own limit."""
        limits = [limit for limit in (self._memory_bytes, trial.limit_bytes) if limit is not None]
        return min(limits, default=None)


class _FakeTrainee:
    """Steps on a fake machine. Like a GPU it runs behind the host: time passes only at ``synchronize``."""

    def __init__(self, machine: FakeMachine, trial: Trial) -> None:
        self._machine, self._trial = machine, trial
        self._deadline_s = machine.now_s + trial.timeout_s
        self._queued_s = 0.0
        self._steps = 0
        self.peak_bytes = 0

    def step(self, grad_accum: int) -> None:
        peak = self._machine.step_peak_bytes(self._trial.recipe, self._steps)
        limit = self._machine.limit_bytes(self._trial)
        if limit is not None and peak > limit:
            raise MemoryError(f"out of memory in step {self._steps + 1}: {peak} bytes of {limit}")
        self.peak_bytes = max(self.peak_bytes, peak)
        self._queued_s += self._machine.step_seconds(self._trial.recipe, grad_accum)
        self._steps += 1

    def synchronize(self) -> None:
        done_s = self._machine.now_s + self._queued_s
        self._queued_s = 0.0
        self._machine.now_s = min(done_s, self._deadline_s)
        if done_s > self._deadline_s:
            raise TimeoutError(f"not done after {self._trial.timeout_s:g} s")
