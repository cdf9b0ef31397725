"""The choice of runs against Bayesian linear regression done the long way."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.choose import Candidates, after, gain, pick, sequence


def problem(seed, candidates=12, targets=30, factors=5):
    random = np.random.default_rng(seed)
    root = random.normal(0.0, 1.0, (factors, factors))
    return (
        Candidates(
            shares=random.dirichlet(np.ones(factors), candidates),
            noise=random.uniform(0.01, 0.3, candidates),
            cost_s=random.uniform(1.0, 20.0, candidates),
        ),
        random.dirichlet(np.ones(factors), targets),
        root @ root.T / factors + 0.01 * np.eye(factors),
    )


def posterior(covariance, shares, noise):
    """(S⁻¹ + Xᵀ N⁻² X)⁻¹, the textbook's form."""
    return np.linalg.inv(np.linalg.inv(covariance) + shares.T @ np.diag(1.0 / np.asarray(noise) ** 2) @ shares)


def mean_variance(targets, covariance):
    return float(np.mean(np.einsum("ij,jk,ik->i", targets, covariance, targets)))


seeds = st.integers(0, 10_000)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_after_is_the_posterior_of_linear_regression(seed):
    some, _, covariance = problem(seed)
    found = covariance
    for share, noise in zip(some.shares, some.noise, strict=True):
        found = after(found, share, float(noise))
    assert found == pytest.approx(posterior(covariance, some.shares, some.noise), rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_gain_is_the_variance_that_really_goes_away(seed):
    some, targets, covariance = problem(seed)
    before = mean_variance(targets, covariance)
    really = [
        before - mean_variance(targets, posterior(covariance, some.shares[[i]], some.noise[[i]]))
        for i in range(len(some.noise))
    ]
    assert gain(some, targets, covariance) == pytest.approx(really, rel=1e-6, abs=1e-10)
    assert (gain(some, targets, covariance) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seeds, st.data())
def test_pick_takes_the_best_per_second_of_those_allowed(seed, data):
    some, targets, covariance = problem(seed)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=12, max_size=12)))
    chosen = pick(some, targets, covariance, allowed)
    if not allowed.any():
        assert chosen is None
        return
    worth = gain(some, targets, covariance) / some.cost_s
    assert chosen is not None
    assert allowed[chosen]
    assert worth[chosen] == max(worth[allowed])


def test_of_two_equal_runs_the_cheaper_one_is_taken_and_of_two_equal_costs_the_calmer_one():
    share = np.array([[0.5, 0.5], [0.5, 0.5]])
    covariance, targets = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]])
    cheap = Candidates(shares=share, noise=np.array([0.1, 0.1]), cost_s=np.array([9.0, 3.0]))
    calm = Candidates(shares=share, noise=np.array([0.1, 0.5]), cost_s=np.array([3.0, 3.0]))
    everything = np.ones(2, dtype=bool)
    assert pick(cheap, targets, covariance, everything) == 1
    assert pick(calm, targets, covariance, everything) == 0


def test_what_is_known_is_not_measured_again():
    """Two factors, one already sharp: the run that shows the other one is worth more."""
    both = Candidates(shares=np.eye(2), noise=np.full(2, 0.05), cost_s=np.ones(2))
    sharp = np.diag([1e-6, 1.0])
    assert pick(both, np.full((1, 2), 0.5), sharp, np.ones(2, dtype=bool)) == 1


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(0.0, 150.0))
def test_a_sequence_keeps_its_budget_takes_seeds_first_and_nothing_twice(seed, budget_s):
    some, targets, covariance = problem(seed)
    order = sequence(some, targets, covariance, [3, 7, 3], budget_s)
    assert len(set(order)) == len(order)
    assert sum(some.cost_s[order]) <= budget_s + 1e-9
    left_s = budget_s - sum(some.cost_s[order])
    rest = [i for i in range(len(some.cost_s)) if i not in order]
    assert all(some.cost_s[i] > left_s for i in rest), "it stops only when nothing is affordable"
    affordable = [i for i in (3, 7) if some.cost_s[i] <= budget_s]
    if affordable:
        assert order[0] == affordable[0]


def test_a_sequence_follows_the_greedy_rule_step_by_step():
    some, targets, covariance = problem(4)
    order = sequence(some, targets, covariance, [], 1e9)
    assert sorted(order) == list(range(12))
    for done in range(6):
        known = posterior(covariance, some.shares[order[:done]], some.noise[order[:done]])
        worth = {
            i: (mean_variance(targets, known) - mean_variance(targets, after(known, some.shares[i], some.noise[i])))
            / some.cost_s[i]
            for i in range(12)
            if i not in order[:done]
        }
        assert order[done] == max(worth, key=lambda i: worth[i])


def test_a_sequence_can_be_stopped():
    some, targets, covariance = problem(5)
    assert len(sequence(some, targets, covariance, [], 1e9, stop=lambda done: done >= 4)) == 4


def test_the_adaptive_sequence_beats_random_orders_at_equal_cost():
    better = []
    for seed in range(30):
        some, targets, covariance = problem(seed, candidates=60, factors=10)
        budget_s, random = 60.0, np.random.default_rng(seed)
        chosen = sequence(some, targets, covariance, [], budget_s)
        own = mean_variance(targets, posterior(covariance, some.shares[chosen], some.noise[chosen]))
        drawn = []
        for _ in range(5):
            order = random.permutation(60)
            order = order[np.cumsum(some.cost_s[order]) <= budget_s]
            drawn.append(mean_variance(targets, posterior(covariance, some.shares[order], some.noise[order])))
        better.append(own / np.mean(drawn))
    assert np.mean(better) < 0.5
    assert max(better) < 1.0


def test_greedy_comes_close_to_the_best_pair():
    some, targets, covariance = problem(6)
    same_cost = Candidates(shares=some.shares, noise=some.noise, cost_s=np.ones(12))
    chosen = sequence(same_cost, targets, covariance, [], 2.0)
    best = min(
        mean_variance(targets, posterior(covariance, some.shares[list(pair)], some.noise[list(pair)]))
        for pair in combinations(range(12), 2)
    )
    before = mean_variance(targets, covariance)
    own = mean_variance(targets, posterior(covariance, some.shares[chosen], some.noise[chosen]))
    assert before - own >= (1 - 1 / np.e) * (before - best)
