"""Dense products over a grid of transformer-like shapes, in the three layouts of training and every precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from calibration.probes.base import Case, Measured, ProbeResult, Row, make_rate, measure, repeats_sd_log
from calibration.probes.device import ELEMENT_BYTES, PRECISIONS, random_tensor, rough_flops_per_s, unsupported
from calibration.probes.matmul_fit import Efficiency, fit_efficiency
from calibration.timing import Call, sets_beyond_cache, stopwatch_for, time_call
from profiles.schema import Rate

_T = TypeVar("_T")

LAYOUTS = ("nt", "nn", "tn")
"""Forward x·wᵀ, input gradient dy·w, weight gradient dyᵀ·x."""
TOKENS = (128, 512, 2048, 8192, 32768)
WEIGHTS = (
    (256, 256), (512, 512), (2048, 512), (768, 3072), (1024, 1024), (3072, 1024), (1024, 4096), (2048, 2048),
    (8192, 2048), (4096, 4096), (2048, 8192), (50304, 512), (50304, 1024), (50304, 2048),
)  # fmt: skip
"""(out features, in features) of a linear layer; the last three are vocabularies."""
FAMILIES = {"16": ("bf16", "fp16"), "32": ("tf32", "fp32")}
_PREFIX = {"16": "matmul", "32": "matmul32"}
_MAX_SHAPES = 20
_MOST_ELEMENTS = 2**30
"""Of the output: 4 GiB in fp32."""
_FLOORS = 5.0
"""Products shorter than this many empty kernels say more about the kernel floor than about the product."""


class MatmulProbe:
    """Sustained rate of large aligned products, with what short inner dimensions and few tiles cost."""

    name = "matmul"
    share = 0.24

    def promises(self) -> tuple[str, ...]:
        """A rate for each precision; two shape parameters for each operand width."""
        rates = tuple(f"matmul_{precision}_flops_per_s" for precision in PRECISIONS)
        return (*rates, *(f"{prefix}_half_{of}" for prefix in _PREFIX.values() for of in ("k", "tiles")))

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times the grid of each precision and fits rate(k, tiles) = peak · k/(k + half) · tiles/(tiles + half)."""
        refused = {p: why for p in PRECISIONS if (why := unsupported(device, p))}
        able = [precision for precision in PRECISIONS if precision not in refused]
        cases = [case for p in able for case in _grid(device, p, budget_s / len(able))]
        measured = measure(self.name, cases, device, budget_s)
        floor_s = _floor_s(device)
        rates: dict[str, Rate] = {}
        for family in FAMILIES:
            rates |= _family_rates(family, measured, floor_s, device)
        skipped = measured.skipped(f"matmul_{precision}_flops_per_s" for precision in able)
        skipped |= {f"matmul_{precision}_flops_per_s": why for precision, why in refused.items()}
        skipped |= {name: "no product of this width ran" for name in self.promises() if name not in rates | skipped}
        return ProbeResult(rates=rates, rows=tuple(measured.rows), skipped=skipped, left_out=measured.left_out)


def product_case(
    device: str, precision: str, tokens: int, weight: tuple[int, int], layout: str, rate: str | None = None
) -> Case:
    """One product of a linear layer with ``weight`` (out, in) over ``tokens`` rows."""
    rows, columns, inner = product_shape(tokens, weight, layout)
    return Case(
        rate=rate or f"matmul_{precision}_flops_per_s",
        label=f"{layout} {rows}x{columns}x{inner} {precision}",
        amount=2.0 * rows * columns * inner,
        build=lambda: _products(device, precision, tokens, weight, layout),
        precision=precision,
        facts={"m": rows, "n": columns, "k": inner, "out": weight[0], "in": weight[1], "tokens": tokens},
    )


def product_shape(tokens: int, weight: tuple[int, int], layout: str) -> tuple[int, int, int]:
    """(rows, columns, inner dimension) of the product in this layout."""
    out_features, in_features = weight
    shapes = {
        "nt": (tokens, out_features, in_features),
        "nn": (tokens, in_features, out_features),
        "tn": (out_features, in_features, tokens),
    }
    return shapes[layout]


def _products(device: str, precision: str, tokens: int, weight: tuple[int, int], layout: str) -> Sequence[Call]:
    out_features, in_features = weight
    elements = tokens * in_features + out_features * in_features + tokens * out_features
    sets = sets_beyond_cache(elements * ELEMENT_BYTES[precision], device)
    return [_product(device, precision, tokens, weight, layout) for _ in range(sets)]


def _product(device: str, precision: str, tokens: int, weight: tuple[int, int], layout: str) -> Call:
    import torch

    out_features, in_features = weight
    if layout == "nt":
        x = random_tensor((tokens, in_features), precision, device)
        w = random_tensor((out_features, in_features), precision, device)
        return lambda: torch.mm(x, w.t())
    grad = random_tensor((tokens, out_features), precision, device)
    if layout == "nn":
        w = random_tensor((out_features, in_features), precision, device)
        return lambda: torch.mm(grad, w)
    x = random_tensor((tokens, in_features), precision, device)
    return lambda: torch.mm(grad.t(), x)


def _grid(device: str, precision: str, budget_s: float) -> list[Case]:
    """Shapes spread evenly over the work that fits the budget, each in the three layouts."""
    wanted = _MAX_SHAPES if budget_s > 2 else max(4, round(_MAX_SHAPES * budget_s / 2))
    call_s = min(0.01, budget_s / (3 * wanted) / 8)
    most = rough_flops_per_s(device, precision) * call_s
    least = 2.0 * 512**3 if device.startswith("cuda") else 0.0
    shapes = sorted(
        ((tokens, weight) for tokens in TOKENS for weight in WEIGHTS if tokens * max(weight) <= _MOST_ELEMENTS),
        key=lambda shape: shape[0] * math.prod(shape[1]),
    )
    fitting = [s for s in shapes if least <= 2.0 * s[0] * math.prod(s[1]) <= most] or shapes[:1]
    chosen = spread_evenly(fitting, wanted)
    return [product_case(device, precision, *shape, layout) for shape in chosen for layout in LAYOUTS]


def spread_evenly(items: Sequence[_T], count: int) -> list[_T]:
    """At most ``count`` of the items, first and last included, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def _floor_s(device: str) -> float:
    tiny = random_tensor((16,), "fp32", device)
    return time_call([lambda: tiny.add_(1.0)], stopwatch_for(device), budget_s=0.02).median_s


def _family_rates(family: str, measured: Measured, floor_s: float, device: str) -> dict[str, Rate]:
    rows = {p: _long(measured.of(f"matmul_{p}_flops_per_s"), floor_s) for p in FAMILIES[family]}
    rows = {precision: found for precision, found in rows.items() if found}
    if not rows:
        return {}
    fitted = fit_efficiency(rows)
    rates = {
        f"matmul_{precision}_flops_per_s": make_rate(
            fitted.peaks_flops_per_s[precision],
            math.hypot(fitted.residual_sd_log[precision], repeats_sd_log(found)),
            found,
            device,
        )
        for precision, found in rows.items()
    }
    return rates | _shape_rates(_PREFIX[family], fitted, [row for found in rows.values() for row in found], device)


def _shape_rates(prefix: str, fitted: Efficiency, rows: Sequence[Row], device: str) -> dict[str, Rate]:
    return {
        f"{prefix}_half_k": make_rate(fitted.half_k, fitted.half_k_sd_log, rows, device),
        f"{prefix}_half_tiles": make_rate(fitted.half_tiles, fitted.half_tiles_sd_log, rows, device),
    }


def _long(rows: Sequence[Row], floor_s: float) -> list[Row]:
    """The rows well above the kernel floor, or all of them if none is."""
    return [row for row in rows if row.median_s >= _FLOORS * floor_s] or list(rows)
