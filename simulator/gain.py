"""What one more measurement would tell: how much variance it takes out of predictions, and what is left afterwards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def gain(shares: FloatArray, noise: FloatArray, targets: FloatArray, covariance: FloatArray) -> FloatArray:
    """Mean reduction of the targets' predictive variance by measuring each candidate, shape (candidates,).

    ``shares`` and ``targets`` have a row a recipe: ∂ log step time / ∂ log factor; ``noise`` is the candidates' own
    standard deviation on the log. With S the covariance of the log factors and x a candidate's shares, measuring it
    takes S x xᵀ S / (noise² + xᵀ S x) away.
    """
    known = shares @ covariance
    reach = targets @ known.T
    variance = noise**2 + np.einsum("ij,ij->i", known, shares)
    reduction: FloatArray = np.mean(reach**2, axis=0) / variance
    return reduction


def after(covariance: FloatArray, share: FloatArray, noise: float) -> FloatArray:
    """The covariance once a row with these shares and this noise has been measured."""
    seen = covariance @ share
    updated: FloatArray = covariance - np.outer(seen, seen) / (noise**2 + share @ seen)
    return updated
