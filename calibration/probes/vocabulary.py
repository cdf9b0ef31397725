"""What an unaligned vocabulary costs: products whose leading dimension is odd, or even but off the 16-byte grid."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from calibration.probes.base import Case, Measured, ProbeResult, Row, call_seconds, make_rate, measure, repeats_sd_log
from calibration.probes.device import rough_flops_per_s, sixteen_bit, unsupported
from calibration.probes.matmul import LAYOUTS, product_case
from profiles.schema import Rate

VOCABULARIES = {"aligned": 50304, "even": 50258, "odd": 50257}
"""Of 16-bit elements only the first is a multiple of 16 bytes; of 32-bit ones too."""
_IN_FEATURES = (1024, 128)
_MOST_TOKENS = 8192
_LEAST_TOKENS = 128


class VocabularyProbe:
    """Seconds per FLOP of odd and even vocabularies over those of an aligned one, for 16-bit, fp32 and TF32 products.

    Each factor is the mean on the log over the three layouts of training, and at least 1.
    """

    name = "vocabulary"
    share = 0.10

    def promises(self) -> tuple[str, ...]:
        """Two factors for each width; those of TF32 apart from those of full fp32."""
        return tuple(f"matmul_{pad}_factor_{width}" for width in ("16", "32", "tf32") for pad in ("odd", "even"))

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times an output layer over three vocabularies in three layouts at each precision."""
        widths = {"16": sixteen_bit(device), "32": "fp32", "tf32": "tf32"}
        refused = {width: why for width, precision in widths.items() if (why := unsupported(device, precision))}
        able = {width: precision for width, precision in widths.items() if width not in refused}
        call_s = call_seconds(budget_s, len(able) * len(VOCABULARIES) * len(LAYOUTS))
        cases = [case for width, precision in able.items() for case in _cases(device, width, precision, call_s)]
        measured = measure(self.name, cases, device, budget_s)
        rates: dict[str, Rate] = {}
        skipped = {f"matmul_{pad}_factor_{w}": why for w, why in refused.items() for pad in ("odd", "even")}
        for width in able:
            for pad in ("odd", "even"):
                _add_factor(f"matmul_{pad}_factor_{width}", measured, width, pad, rates, skipped, device)
        return ProbeResult(rates=rates, rows=tuple(measured.rows), skipped=skipped, left_out=measured.left_out)


def _cases(device: str, width: str, precision: str, call_s: float) -> list[Case]:
    fitting = rough_flops_per_s(device, precision) * call_s / 2 / VOCABULARIES["aligned"]
    width_in = _IN_FEATURES[0] if fitting >= _IN_FEATURES[0] * _LEAST_TOKENS else _IN_FEATURES[1]
    tokens = max(_LEAST_TOKENS, min(_MOST_TOKENS, int(fitting / width_in) // 64 * 64))
    return [
        product_case(device, precision, tokens, (size, width_in), layout, rate=f"{layout}_{pad}_{width}")
        for layout in LAYOUTS
        for pad, size in VOCABULARIES.items()
    ]


def _add_factor(
    name: str, measured: Measured, width: str, pad: str, rates: dict[str, Rate], skipped: dict[str, str], device: str
) -> None:
    pairs = _pairs(measured, width, pad)
    if len(pairs) < len(LAYOUTS):
        failed = (
            why for (rate, _), why in measured.failed.items() if rate.endswith((f"{pad}_{width}", f"aligned_{width}"))
        )
        skipped[name] = next(failed, "not every layout was measured")
        return
    logs = [math.log(aligned.per_s / row.per_s) for aligned, row in pairs]
    rows = [row for pair in pairs for row in pair]
    sd_log = math.hypot(statistics.pstdev(logs), repeats_sd_log(rows))
    rates[name] = make_rate(max(1.0, math.exp(statistics.fmean(logs))), sd_log, rows, device)


def _pairs(measured: Measured, width: str, pad: str) -> Sequence[tuple[Row, Row]]:
    found = [(measured.of(f"{layout}_aligned_{width}"), measured.of(f"{layout}_{pad}_{width}")) for layout in LAYOUTS]
    return [(aligned[0], row[0]) for aligned, row in found if aligned and row]
