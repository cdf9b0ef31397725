"""What to measure next: the run that takes most variance out of the predictions per second that it costs.

Candidates and the recipes whose predictions matter are both sampled from the legal space. After each measurement the
covariance of the log factors is updated exactly (a rank-one step), so the choice adapts to what is already known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def pick(candidates: Candidates, targets: FloatArray, covariance: FloatArray, allowed: NDArray[np.bool_]) -> int | None:
    """The allowed candidate with the largest gain per second; ``None`` if none is allowed."""
    if not allowed.any():
        return None
    worth = np.where(allowed, gain(candidates, targets, covariance) / candidates.cost_s, -np.inf)
    return int(np.argmax(worth))


def sequence(
    candidates: Candidates,
    targets: FloatArray,
    covariance: FloatArray,
    seeds: Sequence[int],
    budget_s: float,
    stop: Callable[[int], bool] = lambda _: False,
) -> list[int]:
    """The order in which to measure until the budget is spent: the seeds, then by gain per second."""
    allowed = np.ones(len(candidates.cost_s), dtype=bool)
    spent = 0.0
    order: list[int] = []
    waiting = list(dict.fromkeys(seeds))
    while True:
        affordable = allowed & (candidates.cost_s <= budget_s - spent)
        waiting = [i for i in waiting if affordable[i]]
        chosen = waiting.pop(0) if waiting else pick(candidates, targets, covariance, affordable)
        if chosen is None or stop(len(order)):
            return order
        order.append(chosen)
        allowed[chosen] = False
        spent += float(candidates.cost_s[chosen])
        covariance = after(covariance, candidates.shares[chosen], float(candidates.noise[chosen]))
