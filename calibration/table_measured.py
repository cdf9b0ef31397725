"""What a row of a table measured: its outcome, seconds per step and peak memory, refused where it cannot be true."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.table_aliases import Aliases
from calibration.table_columns import Cells
from calibration.table_layout import Layout
from calibration.table_models import Found
from profiles.schema import Gpu, Status
from simulator.techniques.precision import PRECISIONS, product_flops_per_s
from simulator.units import GIB, TFLOPS, to_gib

_TIME = ("step_time_s", "tokens_per_s_per_gpu", "t_micro_s")
_MEMORY = ("peak_mem_gib", "peak_reserved_gib")
_SAME_TIME = 0.05
"""A step time and a token rate that differ by more than this fraction do not describe one run."""
_FLOPS_PER_PARAM = 6
"""Forward and backward of one position, without attention: a floor for the work done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak memory, each kind in its own field; ``kind`` is the table's word for ``peak_mem_gib``.

    A peak of unknown kind stands with torch's allocated one, and ``kind`` says so.
    """

    kind: str | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a row ended, and its peak memory."""

    status: Status
    peaks: Peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds per optimizer step, per micro-batch, and of the optimizer's part; ``None`` where unknown."""

    step_s: float | None
    micro_s: float | None
    optimizer_s: float | None


def outcome_of(cells: Cells, layout: Layout, precision: str, aliases: Aliases, problems: list[str]) -> Outcome | None:
    """How a row ended; ``None`` if it does not say, or says what cannot be, with the reason in ``problems``."""
    problems.extend(_above_peak(cells.number("tflops_per_gpu"), layout.gpu, precision, "tflops_per_gpu"))
    peaks = _peaks(cells, layout, aliases, problems)
    text = cells.text.get("oom", "")
    oom = aliases.meaning("oom", text) if text else None
    timed = any(name in cells.numbers for name in _TIME)
    if text and oom is None:
        problems.append(f"oom is {text!r}; allowed: 0, 1, or blank")
    elif oom == "1" and timed:
        problems.append("oom is 1, and there is a time: only one of them can be")
    elif oom is None and not timed and not any(name in cells.numbers for name in _MEMORY):
        problems.append("nothing is measured: no time, no memory, and oom is blank")
    elif peaks is not None:
        return Outcome(status="oom" if oom == "1" else "ok", peaks=peaks)
    return None


def times_of(cells: Cells, layout: Layout, precision: str, found: Found, problems: list[str]) -> Times:
    """The times of a row; what contradicts itself or the card's peak is added to ``problems``."""
    micro_s, optimizer_s = cells.number("t_micro_s"), cells.number("t_opt_s")
    by_tokens_s, by_parts_s = _by_tokens_s(cells, layout, found), _by_parts_s(micro_s, optimizer_s, layout.grad_accum)
    told_s = cells.number("step_time_s")
    if told_s and by_tokens_s and abs(told_s / by_tokens_s - 1) > _SAME_TIME:
        problems.append(f"step_time_s is {told_s:g}, but tokens_per_s_per_gpu makes {by_tokens_s:g}; a wrong unit?")
    step_s = told_s or by_tokens_s or by_parts_s
    if step_s is None and any(name in cells.numbers for name in _TIME):
        problems.append("the times do not give a step: tokens need seq_len, and t_micro_s needs t_opt_s")
    if step_s is not None and found.matrix_params is not None:
        positions_per_s = layout.global_batch * _positions(cells, found) / (step_s * layout.gpus)
        tflops = _FLOPS_PER_PARAM * found.matrix_params * positions_per_s / TFLOPS
        what = f"the rate of {_FLOPS_PER_PARAM} FLOPs a parameter in {step_s:g} s a step"
        problems.extend(_above_peak(tflops, layout.gpu, precision, what))
    return Times(step_s=step_s, micro_s=micro_s, optimizer_s=optimizer_s)


def _by_parts_s(micro_s: float | None, optimizer_s: float | None, grad_accum: int) -> float | None:
    return None if micro_s is None or optimizer_s is None else grad_accum * micro_s + optimizer_s


def _by_tokens_s(cells: Cells, layout: Layout, found: Found) -> float | None:
    rate, positions = cells.number("tokens_per_s_per_gpu"), _positions(cells, found)
    return layout.global_batch * positions / (rate * layout.gpus) if rate and positions else None


def _positions(cells: Cells, found: Found) -> int:
    """Positions per sample, encoder and decoder together; 0 where unknown."""
    seq = cells.whole("seq_len") or found.fixed_seq or 0
    if found.preset.decoder_seq is None:
        return seq
    return seq + (cells.whole("decoder_seq") or seq)


def _above_peak(tflops: float | None, gpu: Gpu, precision: str, what: str) -> list[str]:
    """What is said against a rate beyond the card's dense peak. A CPU's is of no one machine, and refuses nothing."""
    known = PRECISIONS.get(precision.removesuffix("_master"))
    peak = product_flops_per_s(gpu, known.product) if known and gpu.kind != "cpu" else None
    if known is None or tflops is None or peak is None or tflops * TFLOPS <= peak:
        return []
    limit = f"the dense {known.product} peak of {gpu.name}, {peak / TFLOPS:g}"
    return [f"{what} is {tflops:.4g} TFLOP/s, above {limit}; a wrong unit or precision?"]


def _peaks(cells: Cells, layout: Layout, aliases: Aliases, problems: list[str]) -> Peaks | None:
    text = cells.text.get("memory_kind", "allocated")
    kind = aliases.meaning("memory_kind", text)
    if kind is None:
        problems.append(f"memory_kind is {text!r}; known: {aliases.known('memory_kind')}")
    peak, reserved = (_bytes(cells, name, layout, problems) for name in _MEMORY)
    if kind == "reserved" and peak is not None:
        if reserved not in (None, peak):
            problems.append("peak_mem_gib is of kind reserved, and peak_reserved_gib is another value")
        return Peaks(kind=kind, reserved_bytes=peak)
    if peak is not None and reserved is not None and kind == "allocated" and reserved < peak:
        problems.append("peak_reserved_gib is below peak_mem_gib: less cannot be reserved than is allocated")
    if kind is None or peak is None:
        return Peaks(reserved_bytes=reserved) if kind else None
    if kind == "device":
        return Peaks(kind=kind, device_bytes=peak, reserved_bytes=reserved)
    return Peaks(kind=kind, allocated_bytes=peak, reserved_bytes=reserved)


def _bytes(cells: Cells, name: str, layout: Layout, problems: list[str]) -> int | None:
    size_gib = cells.number(name)
    if size_gib is None:
        return None
    if size_gib * GIB > layout.card_bytes and layout.gpu.kind != "cpu":
        problems.append(f"{name} is {size_gib:g}, and {layout.gpu.name} has {to_gib(layout.card_bytes):.1f} GiB")
    return round(size_gib * GIB)
