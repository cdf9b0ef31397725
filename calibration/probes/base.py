"""What a probe is: named cases, each timed on the device, folded into rates."""

from __future__ import annotations

import gc
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from calibration.probes.device import matmul_precision
from calibration.timing import Call, Timing, stopwatch_for, time_call
from profiles.schema import Rate

MIN_SD_LOG = 0.02
_MAX_CASE_S = {"cpu": 0.6, "cuda": 0.08}
_MOST_RESERVED_BYTES = 8 * 2**30
_TIMED_SHARE = 0.6
"""Of a case's time, the part that timing may take; the rest is for buffers and the overrun of a last sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call to time for one rate; ``amount`` is the FLOPs or bytes of the call, ``facts`` its shape."""

    rate: str
    label: str
    amount: float
    build: Callable[[], Sequence[Call]]
    precision: str = "fp32"
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The raw result of one case, kept for the records."""

    probe: str
    rate: str
    label: str
    amount: float
    median_s: float
    samples_s: tuple[float, ...]
    calls_per_sample: int
    method: str
    facts: dict[str, float]

    @property
    def per_s(self) -> float:
        """FLOPs or bytes per second."""
        return self.amount / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one probe found: rates, raw rows, what could not run and why, how many cases the budget left out."""

    rates: dict[str, Rate]
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: int = 0


class Probe(Protocol):
    """One micro-measurement. ``share`` is its part of the total budget; ``promises`` names every rate it may give."""

    name: str
    share: float

    def promises(self) -> tuple[str, ...]:
        """Every rate this probe can give; each is either in the result's rates or in what it skipped."""
        ...

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Measures on ``device`` within about ``budget_s`` seconds."""
        ...


@dataclass(slots=True, kw_only=True)
class Measured:
    """Rows of the cases that ran, the reasons of those that could not, and the number the budget left out."""

    rows: list[Row] = field(default_factory=list)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: int = 0

    def of(self, rate: str) -> list[Row]:
        """The rows of one rate."""
        return [row for row in self.rows if row.rate == rate]

    def skipped(self, rates: Iterable[str]) -> dict[str, str]:
        """Reasons by rate where nothing of it ran, by ``rate: case`` where only that case failed."""
        bare = {rate for rate in rates if not self.of(rate)}
        lost = {rate: next((why for (name, _), why in self.failed.items() if name == rate), None) for rate in bare}
        reasons = {rate: why or "no case of it fitted the budget" for rate, why in lost.items()}
        partly = {f"{rate}: {label}": why for (rate, label), why in self.failed.items() if rate not in bare}
        return {**reasons, **partly}


def measure(probe: str, cases: Sequence[Case], device: str, budget_s: float) -> Measured:
    """Times the cases, first ones of every rate first, until the budget is spent; every rate gets one at least."""
    measured, start_s = Measured(), time.perf_counter()
    ordered = _by_turns(cases)
    for index, case in enumerate(ordered):
        left_s = budget_s - (time.perf_counter() - start_s)
        if left_s <= 0 and measured.of(case.rate):
            measured.left_out += 1
            continue
        case_s = min(max(left_s, 0.0) / (len(ordered) - index), _MAX_CASE_S[device.split(":", maxsplit=1)[0]])
        try:
            measured.rows.append(make_row(probe, case, _time_case(case, device, case_s)))
        except (RuntimeError, NotImplementedError) as error:  # out of memory, no kernel, dtype not supported
            measured.failed[case.rate, case.label] = first_line(error)
            free_memory(device)
        _trim_memory(device)
    return measured


def call_seconds(budget_s: float, cases: int, *, most_s: float = 0.02) -> float:
    """How long one call of a case may take so that warm-up, repeats and buffers of all cases fit the budget."""
    return max(1e-5, min(most_s, budget_s / max(cases, 1) / 10))


def fold_rates(
    probe: str, cases: Sequence[Case], device: str, budget_s: float, refused: dict[str, str] | None = None
) -> ProbeResult:
    """Measures the cases and gives each rate they name as the mean over its cases.

    ``refused`` holds rates that the device cannot have, with the reason.
    """
    measured = measure(probe, cases, device, budget_s)
    names = tuple(dict.fromkeys(case.rate for case in cases))
    rates = {name: fold_rate(rows, device) for name in names if (rows := measured.of(name))}
    skipped = {**(refused or {}), **measured.skipped(names)}
    return ProbeResult(rates=rates, rows=tuple(measured.rows), skipped=skipped, left_out=measured.left_out)


def fold_rate(rows: Sequence[Row], device: str) -> Rate:
    """Geometric mean rate of the rows; its spread is over the cases and their repeats together, at least 2 %."""
    logs = [math.log(row.per_s) for row in rows]
    return make_rate(math.exp(statistics.fmean(logs)), spread_log(rows), rows, device)


def spread_log(rows: Sequence[Row]) -> float:
    """Standard deviation on the log of one case around the rate: spread over cases and of their repeats."""
    logs = [math.log(row.per_s) for row in rows]
    return math.hypot(statistics.pstdev(logs), repeats_sd_log(rows))


def repeats_sd_log(rows: Sequence[Row]) -> float:
    """Root mean square over the rows of the spread of their repeats, on the log."""
    spreads = [
        Timing(samples_s=row.samples_s, calls_per_sample=row.calls_per_sample, method=row.method).sd_log for row in rows
    ]
    return math.sqrt(statistics.fmean(spread**2 for spread in spreads))


def make_rate(value: float, sd_log: float, rows: Sequence[Row], device: str) -> Rate:
    """A probed rate with its source text and today's date."""
    labels = list(dict.fromkeys(row.label for row in rows))
    shown = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
    source = f"probe {rows[0].probe}: {shown}; {environment(device)}"
    today = datetime.now(UTC).date().isoformat()
    return Rate(value=value, sd_log=max(MIN_SD_LOG, sd_log), basis="probe", source=source, date=today)


def environment(device: str) -> str:
    """Torch version and device name in words."""
    import torch

    if device.startswith("cuda"):
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__}, cpu {platform.machine()}, {torch.get_num_threads()} threads"


def free_memory(device: str) -> None:
    """Gives cached device memory back, so that no probe runs in what another left."""
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    """The error's type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _trim_memory(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        if torch.cuda.memory_reserved(device) > _MOST_RESERVED_BYTES:
            torch.cuda.empty_cache()


def _by_turns(cases: Sequence[Case]) -> list[Case]:
    seen: dict[str, int] = {}
    turns: list[tuple[int, Case]] = []
    for case in cases:
        turns.append((seen.setdefault(case.rate, 0), case))
        seen[case.rate] += 1
    return [case for _, case in sorted(turns, key=lambda turn: turn[0])]


def _time_case(case: Case, device: str, case_s: float) -> Timing:
    with matmul_precision(case.precision):
        return time_call(case.build(), stopwatch_for(device), budget_s=_TIMED_SHARE * case_s)


def make_row(probe: str, case: Case, timing: Timing) -> Row:
    """The raw result of a case."""
    return Row(
        probe=probe,
        rate=case.rate,
        label=case.label,
        amount=case.amount,
        median_s=timing.median_s,
        samples_s=timing.samples_s,
        calls_per_sample=timing.calls_per_sample,
        method=timing.method,
        facts=case.facts,
    )
