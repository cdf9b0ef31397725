"""What one more measurement would tell: how much variance it takes out of predictions, and what is left afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows: what measuring a candidate would show of the log factors (``shares``), its noise, and its cost."""

    shares: FloatArray
    noise: FloatArray
    cost_s: FloatArray


def gain(candidates: Candidates, targets: FloatArray, covariance: FloatArray) -> FloatArray:
    """Mean reduction of the targets' predictive variance by measuring each candidate.

    With S the covariance and x a candidate's shares, measuring it takes S x xᵀ S / (noise² + xᵀ S x) away.
    """
    known = candidates.shares @ covariance
    reach = targets @ known.T
    variance = candidates.noise**2 + np.einsum("ij,ij->i", known, candidates.shares)
    reduction: FloatArray = np.mean(reach**2, axis=0) / variance
    return reduction


def after(covariance: FloatArray, share: FloatArray, noise: float) -> FloatArray:
    """The covariance once a row with these shares and this noise has been measured."""
    seen = covariance @ share
    updated: FloatArray = covariance - np.outer(seen, seen) / (noise**2 + share @ seen)
    return updated
