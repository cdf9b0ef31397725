"""Running many probes within one budget, and what they found as one value and one JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from calibration.probes.base import Probe, ProbeResult, Row, environment, first_line, free_memory
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import write_whole
from profiles.schema import Rate

Progress = Callable[[str, int, int], None]
"""Called before each probe with its name, its index and the number of probes."""


class ProbeReport(TypedDict):
    """What a run of the probes found.

    ``skipped`` maps a rate (or ``rate: case``, or a whole probe) to why it could not be measured; ``left_out`` a probe
    to how many of its cases the budget did not reach; ``probe_s`` a probe to its seconds.
    """

    device: str
    environment: str
    budget_s: float
    seconds: float
    rates: dict[str, Rate]
    rows: list[Row]
    skipped: dict[str, str]
    left_out: dict[str, int]
    probe_s: dict[str, float]


def run_all(
    probes: Sequence[Probe], device: str, budget_s: float, on_progress: Progress | None, names: Sequence[str] | None
) -> ProbeReport:
    """Runs the probes one after the other; each gets its share of what is left of the budget.

    Raises:
        UnknownNameError: a name in ``names`` that no probe has.
        InvalidInputError: a device that is not there, or a budget that is not positive.
    """
    chosen = _chosen(probes, names)
    _check(device, budget_s)
    start_s = time.perf_counter()
    report = _empty(device, budget_s)
    for index, probe in enumerate(chosen):
        if on_progress:
            on_progress(probe.name, index, len(chosen))
        left_s = max(0.0, budget_s - (time.perf_counter() - start_s))
        share = probe.share / sum(later.share for later in chosen[index:])
        _add(report, probe.name, run_one(probe, device, left_s * share))
    report["seconds"] = time.perf_counter() - start_s
    return report


def run_one(probe: Probe, device: str, budget_s: float) -> ProbeResult:
    """Runs one probe; its failure becomes the reason why its rates are missing."""
    start_s = time.perf_counter()
    try:
        result = probe.run(device, budget_s)
    except Exception as error:  # one probe's failure must not cost the others' results
        result = ProbeResult(rates={}, skipped=dict.fromkeys(probe.promises(), first_line(error)))
    free_memory(device)
    return ProbeResult(
        rates=result.rates,
        rows=result.rows,
        seconds=time.perf_counter() - start_s,
        skipped=result.skipped,
        left_out=result.left_out,
    )


def write_report(report: ProbeReport, path: Path) -> None:
    """Writes the report as one JSON object, whole or not at all. PacelineError if the disk does not take it."""
    write_whole(path, report_json(report).encode())


def report_json(report: ProbeReport) -> str:
    """The report as one JSON object."""
    rates = {name: asdict(rate) for name, rate in report["rates"].items()}
    rows = [asdict(row) for row in report["rows"]]
    return json.dumps({**report, "rates": rates, "rows": rows}, allow_nan=False)


def read_report(path: Path) -> ProbeReport:
    """Reads what ``write_report`` wrote.

    Raises:
        InvalidInputError: the file is missing, or is not a probe report.
    """
    try:
        return _parsed(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"probe report {path}", [f"cannot be read: {first_line(error)}"]) from error


def _parsed(plain: dict[str, Any]) -> ProbeReport:
    rows = [Row(**{**row, "samples_s": tuple(row["samples_s"])}) for row in plain["rows"]]
    return ProbeReport(
        device=plain["device"],
        environment=plain["environment"],
        budget_s=plain["budget_s"],
        seconds=plain["seconds"],
        rates={name: Rate(**rate) for name, rate in plain["rates"].items()},
        rows=rows,
        skipped=plain["skipped"],
        left_out=plain["left_out"],
        probe_s=plain["probe_s"],
    )


def _chosen(probes: Sequence[Probe], names: Sequence[str] | None) -> list[Probe]:
    known = [probe.name for probe in probes]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UnknownNameError("probe", unknown[0], known)
    return [probe for probe in probes if names is None or probe.name in names]


def _check(device: str, budget_s: float) -> None:
    import torch

    problems = []
    if not budget_s > 0:
        problems.append(f"budget is {budget_s} s; it must be positive")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        problems.append(f"device is {device!r}; allowed are cpu, cuda and cuda:<index>")
    elif kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        problems.append(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    if problems:
        raise InvalidInputError("probes", problems)


def _empty(device: str, budget_s: float) -> ProbeReport:
    return ProbeReport(
        device=device,
        environment=environment(device),
        budget_s=budget_s,
        seconds=0.0,
        rates={},
        rows=[],
        skipped={},
        left_out={},
        probe_s={},
    )


def _add(report: ProbeReport, name: str, result: ProbeResult) -> None:
    report["rates"].update(result.rates)
    report["rows"].extend(result.rows)
    report["skipped"].update(result.skipped)
    report["probe_s"][name] = result.seconds
    if result.left_out:
        report["left_out"][name] = result.left_out
