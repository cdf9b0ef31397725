"""What one more measurement tells: against the textbook's posterior of linear regression."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.gain import after, gain

seeds = st.integers(0, 10_000)
COUNT = 12


def problem(seed, factors=5):
    random = np.random.default_rng(seed)
    root = random.normal(0.0, 1.0, (factors, factors))
    return (
        random.dirichlet(np.ones(factors), COUNT),
        random.uniform(0.01, 0.3, COUNT),
        random.dirichlet(np.ones(factors), 30),
        root @ root.T / factors + 0.01 * np.eye(factors),
    )


def posterior(covariance, shares, noise):
    """(S⁻¹ + Xᵀ N⁻² X)⁻¹, the textbook's form."""
    return np.linalg.inv(np.linalg.inv(covariance) + shares.T @ np.diag(1.0 / np.asarray(noise) ** 2) @ shares)


def mean_variance(targets, covariance):
    return float(np.mean(np.einsum("ij,jk,ik->i", targets, covariance, targets)))


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_after_is_the_posterior_of_linear_regression(seed):
    shares, noises, _, covariance = problem(seed)
    found = covariance
    for share, noise in zip(shares, noises, strict=True):
        found = after(found, share, float(noise))
    assert found == pytest.approx(posterior(covariance, shares, noises), rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_gain_is_the_variance_that_really_goes_away(seed):
    shares, noises, targets, covariance = problem(seed)
    before = mean_variance(targets, covariance)
    really = [before - mean_variance(targets, posterior(covariance, shares[[i]], noises[[i]])) for i in range(COUNT)]
    assert gain(shares, noises, targets, covariance) == pytest.approx(really, rel=1e-6, abs=1e-10)
    assert (gain(shares, noises, targets, covariance) >= 0).all()
