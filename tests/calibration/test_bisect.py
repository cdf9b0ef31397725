"""The search for the largest micro-batch: never more than three runs, and how often they give the exact answer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calibration.bisect import MOST_RUNS, Largest, Memories, Ran, largest_that_runs

GIB = 2**30


def memories(
    limit_gib: float = 80.0, fixed_gib: float = 4.0, sample_gib: float = 1.3, count: int = 4096, **changes: object
) -> Memories:
    sizes = np.arange(1, count + 1)
    facts = {
        "micro_batches": tuple(sizes.tolist()),
        "fixed_bytes": np.full(count, fixed_gib * GIB),
        "moving_bytes": sizes * sample_gib * GIB,
        "scale_sd_log": 0.02,
        "outside_bytes": 0.6 * GIB,
        "outside_sd_bytes": 0.1 * GIB,
        "lost": 0.003,
        "limit_bytes": limit_gib * GIB,
    }
    return Memories(**{**facts, **changes})  # type: ignore[arg-type]


class Perturbed:
    """A machine that needs something else than the model says: scale, outside, and share lost are drawn."""

    def __init__(self, said: Memories, random: np.random.Generator, scale_sd_log: float) -> None:
        scale, lost = np.exp(random.normal(0.0, scale_sd_log)), random.uniform(0.0, 2 * said.lost)
        self.said, self.outside = said, max(0.0, random.normal(said.outside_bytes, said.outside_sd_bytes))
        self.allocated = said.fixed_bytes + scale * said.moving_bytes
        self.fits = self.allocated * (1 + lost) + self.outside <= said.limit_bytes
        self.asked: list[int] = []

    def run(self, micro_batch: int) -> Ran:
        self.asked.append(micro_batch)
        index = self.said.micro_batches.index(micro_batch)
        if not self.fits[index]:
            return Ran(fits=False)
        return Ran(fits=True, peak_bytes=round(self.allocated[index]), outside_bytes=round(self.outside))

    def edge(self) -> int:
        """The answer by brute force: every size tried."""
        return max((b for b, fits in zip(self.said.micro_batches, self.fits, strict=True) if fits), default=0)


def check(found: Largest, machine: Perturbed) -> None:
    """What three runs can prove: nothing is claimed that did not run, and nothing proven that is not so."""
    asked, sizes = machine.asked, machine.said.micro_batches
    assert len(asked) == len(set(asked)) == len(found.runs) <= MOST_RUNS
    worked = [b for b in asked if b <= machine.edge()]
    failed = [b for b in asked if b > machine.edge()]
    assert found.micro_batch == max(worked, default=0)
    assert found.smallest_oom == min(failed, default=None)
    above = next((b for b in sizes if b > found.micro_batch), None)
    assert found.proven == (above == found.smallest_oom)
    if found.proven:
        assert found.micro_batch == machine.edge()


@pytest.mark.parametrize("sample_gib", [0.4, 1.3, 6.0, 30.0])
@pytest.mark.parametrize("limit_gib", [24.0, 80.0, 141.0])
def test_three_runs_are_enough_and_almost_always_exact(sample_gib: float, limit_gib: float) -> None:
    """A sample of 0.3 % of the device or more; the model is off as much as it says it is. Exact 98 times in 100."""
    random, exact = np.random.default_rng(7), []
    for _ in range(50):
        said = memories(limit_gib, fixed_gib=limit_gib * random.uniform(0.02, 0.4), sample_gib=sample_gib, count=384)
        machine = Perturbed(said, random, said.scale_sd_log)
        found = largest_that_runs(said, machine.run)
        check(found, machine)
        exact.append(found.micro_batch == machine.edge())
    assert np.mean(exact) >= 0.98


@pytest.mark.parametrize(("off", "exact_share", "mean_share"), [(0.05, 0.9, 0.995), (0.12, 0.85, 0.96)])
def test_a_model_that_is_off_by_many_times_what_it_says(off: float, exact_share: float, mean_share: float) -> None:
    random, exact, shares = np.random.default_rng(11), [], []
    for _ in range(150):
        said = memories(80.0, sample_gib=random.uniform(0.5, 4.0), count=256, scale_sd_log=0.01)
        machine = Perturbed(said, random, off)
        found = largest_that_runs(said, machine.run)
        check(found, machine)
        exact.append(found.micro_batch == machine.edge())
        shares.append(found.micro_batch / machine.edge())
    assert np.mean(exact) >= exact_share
    assert np.mean(shares) >= mean_share
    assert min(shares) > 0.5, "something always ran"


def test_samples_far_smaller_than_the_doubt_still_end_within_a_per_cent() -> None:
    random, shares = np.random.default_rng(3), []
    for _ in range(40):
        said = memories(141.0, sample_gib=0.08, scale_sd_log=0.01)
        machine = Perturbed(said, random, said.scale_sd_log)
        found = largest_that_runs(said, machine.run)
        check(found, machine)
        shares.append(found.micro_batch / machine.edge())
    assert np.mean(shares) > 0.995
    assert min(shares) > 0.98


def test_the_claimed_probability_is_kept() -> None:
    random, claimed, exact = np.random.default_rng(5), [], []
    for _ in range(150):
        said = memories(80.0, sample_gib=random.uniform(0.1, 2.0), count=1024)
        machine = Perturbed(said, random, said.scale_sd_log)
        found = largest_that_runs(said, machine.run)
        claimed.append(found.exact_probability)
        exact.append(found.micro_batch == machine.edge())
    assert np.mean(exact) >= np.mean(claimed) - 0.05


def test_answers_are_not_powers_of_two_and_all_sizes_occur() -> None:
    found = set()
    for edge in range(1, 60):
        said = memories(4.6 + 0.003 * (4 + 1.3 * edge) + 1.3 * (edge + 0.5), outside_sd_bytes=0.0, count=100)
        machine = Perturbed(said, np.random.default_rng(edge), 0.0)
        found.add(largest_that_runs(said, machine.run).micro_batch)
        assert machine.edge() == edge
    assert found == set(range(1, 60))


def test_only_sizes_that_are_offered_are_run() -> None:
    divisors = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    for seed, edge in itertools.product(range(10), (1.5, 5.0, 13.0, 30.0)):
        full = memories(4.6 + 1.31 * edge, count=48)
        rows = np.array(divisors) - 1
        said = memories(
            4.6 + 1.31 * edge, micro_batches=divisors, fixed_bytes=full.fixed_bytes[rows],
            moving_bytes=full.moving_bytes[rows], count=48,
        )  # fmt: skip
        machine = Perturbed(said, np.random.default_rng(seed), 0.02)
        found = largest_that_runs(said, machine.run)
        check(found, machine)
        assert found.micro_batch == machine.edge()


def test_nothing_runs() -> None:
    said = memories(limit_gib=4.0)
    found = largest_that_runs(said, lambda _: Ran(fits=False))
    assert (found.micro_batch, found.smallest_oom, found.predicted, found.proven) == (0, 1, 0, True)
    assert found.runs == (1,)


def test_everything_runs_up_to_the_last_size() -> None:
    said = memories(limit_gib=1e6, count=32)
    machine = Perturbed(said, np.random.default_rng(0), 0.02)
    found = largest_that_runs(said, machine.run)
    assert (found.micro_batch, found.smallest_oom, found.runs, found.proven) == (32, None, (32,), True)


def test_the_first_run_is_the_largest_that_is_called_safe() -> None:
    said = memories()
    need = (said.fixed_bytes + said.moving_bytes) * 1.003 + 0.6 * GIB
    doubt = 2.33 * np.hypot(0.02 * said.moving_bytes, 0.1 * GIB)
    safe = int(np.sum(need + doubt <= 80 * GIB))
    found = largest_that_runs(said, Perturbed(said, np.random.default_rng(1), 0.0).run)
    assert found.runs[0] == found.predicted == safe
    assert safe < np.sum(need <= 80 * GIB), "the point alone would have been riskier"


def test_a_measured_peak_moves_the_guess_to_where_it_says() -> None:
    """A model that says twice what is needed: the second run is already near the edge."""
    said = memories(sample_gib=2.6, scale_sd_log=0.03)
    allocated = said.fixed_bytes + said.moving_bytes / 2
    edge = int(np.sum(allocated * 1.003 + 0.6 * GIB <= 80 * GIB))
    asked: list[int] = []

    def run(micro_batch: int) -> Ran:
        asked.append(micro_batch)
        peak = round(allocated[micro_batch - 1])
        return Ran(fits=micro_batch <= edge, peak_bytes=peak, outside_bytes=round(0.6 * GIB))

    found = largest_that_runs(said, run)
    assert asked[0] < 0.6 * edge
    assert abs(asked[1] - edge) <= 1
    assert found.micro_batch == edge


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_run_that_says_nothing_of_memory_ends_the_search(after: int) -> None:
    said = memories(sample_gib=0.3)
    machine = Perturbed(said, np.random.default_rng(2), 0.02)

    def run(micro_batch: int) -> Ran:
        return machine.run(micro_batch) if len(machine.asked) < after else Ran(fits=None)

    found = largest_that_runs(said, run)
    assert len(found.runs) == after + 1
    assert found.micro_batch == max((b for b in machine.asked if b <= machine.edge()), default=0)
    assert not found.proven or found.smallest_oom == found.micro_batch + 1
