"""The shape of a product's efficiency: a peak per precision, and two half-saturation sizes that precisions share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibration.probes.base import Row

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

TILE = 128
PRIOR_HALF_K, PRIOR_HALF_TILES, PRIOR_SD_LOG = 100.0, 10.0, 1.5
"""Weak priors, in elements and tiles: a grid that cannot tell the two apart leaves them here."""
_RESIDUAL_SD_LOG = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """rate = peak · k/(k + half_k) · tiles/(tiles + half_tiles); k in elements, tiles of 128 × 128 outputs."""

    peaks_flops_per_s: dict[str, float]
    residual_sd_log: dict[str, float]
    half_k: float
    half_k_sd_log: float
    half_tiles: float
    half_tiles_sd_log: float

    def rate_flops_per_s(self, precision: str, rows: int, columns: int, inner: int) -> float:
        """Sustained FLOP/s of one product."""
        tiles = output_tiles(rows, columns)
        shape = inner / (inner + self.half_k) * tiles / (tiles + self.half_tiles)
        return self.peaks_flops_per_s[precision] * shape


def output_tiles(rows: float, columns: float) -> int:
    """Number of 128 × 128 tiles of a product's output."""
    return math.ceil(rows / TILE) * math.ceil(columns / TILE)


def fit_efficiency(rows: Mapping[str, Sequence[Row]]) -> Efficiency:
    """Least squares on log rates with a soft-L1 loss and weak priors on the two sizes.

    Args:
        rows: timed products by precision; their facts ``m``, ``n``, ``k`` are the product's shape.
    """
    import numpy as np
    from scipy.optimize import least_squares

    names = list(rows)
    index, inner, tiles, logs = _columns(rows)
    start = [*(float(logs[index == i].max()) for i in range(len(names))), *_prior()]

    def errors(parameters: NDArray[float64]) -> NDArray[float64]:
        half_k, half_tiles = np.exp(parameters[-2:])
        predicted = parameters[index] + np.log(inner / (inner + half_k)) + np.log(tiles / (tiles + half_tiles))
        left: NDArray[float64] = logs - predicted
        return left

    def residuals(parameters: NDArray[float64]) -> NDArray[float64]:
        held = (parameters[-2:] - np.array(_prior())) / PRIOR_SD_LOG
        return np.concatenate([errors(parameters) / _RESIDUAL_SD_LOG, held])

    low = [*(-np.inf for _ in names), math.log(1e-2), math.log(1e-2)]
    found = least_squares(residuals, start, bounds=(low, np.inf), loss="soft_l1")
    sds = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    left = errors(found.x)
    spread = {name: float(left[index == i].std()) for i, name in enumerate(names)}
    return _efficiency(names, [float(value) for value in found.x], [float(sd) for sd in sds], spread)


def _efficiency(names: list[str], logs: list[float], sds: list[float], spread: dict[str, float]) -> Efficiency:
    return Efficiency(
        peaks_flops_per_s={name: math.exp(log) for name, log in zip(names, logs, strict=False)},
        residual_sd_log=spread,
        half_k=math.exp(logs[-2]),
        half_k_sd_log=sds[-2],
        half_tiles=math.exp(logs[-1]),
        half_tiles_sd_log=sds[-1],
    )


def _prior() -> list[float]:
    return [math.log(PRIOR_HALF_K), math.log(PRIOR_HALF_TILES)]


def _columns(
    rows: Mapping[str, Sequence[Row]],
) -> tuple[NDArray[int64], NDArray[float64], NDArray[float64], NDArray[float64]]:
    import numpy as np

    flat = [(i, row) for i, found in enumerate(rows.values()) for row in found]
    return (
        np.array([i for i, _ in flat]),
        np.array([row.facts["k"] for _, row in flat]),
        np.array([output_tiles(row.facts["m"], row.facts["n"]) for _, row in flat]),
        np.array([math.log(row.per_s) for _, row in flat]),
    )
