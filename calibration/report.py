"""``python -m calibration.report docs``: the accuracy page and its plots, from the records that ship with the project."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.evidence import LEVELS, RUNS, SEEDS, Cost, Evidence, RowError, gather
from calibration.replay import PROBES_S
from calibration.sections import HEAD, LIMITS, NOTES
from profiles.files import write_whole

if TYPE_CHECKING:
    from simulator.curves import Curve

Scores = Mapping[str, Any]
TIME_HEAD = ("rows", "n", "MAPE", "median", "p95", "bias", "inside 90 % interval", "interval × / ÷")
NOISE_ALLOWED, ROOT_2 = 1.25, 2.0**0.5
"""A run strays by the difference of two runs ÷ √2, which is √2 times how far each lies from their middle."""
CURVE_MODEL = "pythia-410m"


def page(told: Evidence, curves: Mapping[str, Curve]) -> str:
    """The page in Markdown."""
    parts = [
        HEAD,
        *_summary(told),
        *_time(told),
        *_noise(told.pooled["repeat_noise"], *told.repeats_gpu_bound),
        *_models(told.left_out),
        *_beyond(told.beyond),
        *_memory(told),
        *_choice(told.pooled),
        *_baselines(told.pooled),
        *_ablations(told.pooled),
        *_costs(told.costs),
        *_coverage(told),
        *_knobs(told.pooled["by"]),
        *_curves(curves),
        NOTES,
        LIMITS,
    ]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table: words left, numbers right."""
    return [
        f"| {' | '.join(head)} |",
        f"|---{'|--:' * (len(head) - 1)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def percent(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """A fraction in per cent; a dash where there is none."""
    return "–" if value is None else f"{value:{'+' if signed else ''}.{digits}%}"


# --------------------------------------------------------------------------------------------------- sections


def _summary(told: Evidence) -> list[str]:
    gpu = {
        name: _errors([r for r in told.rows if not r.host_bound and r.in_cell == inside])
        for name, inside in (("in the exhaustive cell", True), ("outside it", False))
    }
    steady, host, noise = (told.pooled[k] for k in ("step_time_repeatable", "step_time_host_bound", "repeat_noise"))
    oom, memory, regret = told.pooled["oom"], told.pooled["memory"], told.pooled["regret"]
    aim = NOISE_ALLOWED * ROOT_2 * noise["noisy"]["mean"]
    coverage, calm, most = told.pooled["step_time"]["coverage90"], _mean_of(told.left_out, "gpu_bound"), 0.06
    worst = max(one["gpu_bound"]["mape"] for one in told.left_out.values() if one["gpu_bound"])
    away = oom["false_alarm_away_from_limit"]
    rows = [
        *(
            (f"step time, GPU-bound rows {name}, n {n}", f"MAPE {percent(mape)}, p95 {percent(p95)}", "≤ 3 %, ≤ 8 %", mape <= 0.03 and p95 <= 0.08)
            for name, (n, mape, p95) in gpu.items()
        ),
        (f"step time, rows that repeat within 3 %, n {steady['n']}", f"MAPE {percent(steady['mape'])}, p95 {percent(steady['p95'])}", "≤ 3 %, ≤ 8 %", steady["mape"] <= 0.03 and steady["p95"] <= 0.08),
        ("step time, host-bound rows", f"MAPE {percent(host['mape'])}", f"≤ 1.25 × noise = {percent(aim)}", host["mape"] <= aim),
        ("a model never measured, GPU-bound rows", f"MAPE {percent(calm)}; worst model {percent(worst)}", "≤ 6 %", worst <= most),
        ("a model never measured, all rows", f"MAPE {percent(_mean_of(told.left_out, None))}", "≤ 6 %", _mean_of(told.left_out, None) <= most),
        ("peak allocated memory", f"median {percent(memory['median'], 2)}, p95 {percent(memory['p95'])}", "≤ 1 %, ≤ 4 %", memory["p95"] <= 0.04),
        ("out of memory found", f"{percent(oom['recall'])} of {oom['n_oom']}, {oom['false_fits']} false “fits”", "≥ 99 %", oom["recall"] >= 0.99),
        ("false alarms away from the limit", percent(away), "≤ 3 %", away <= 0.03),
        ("first picked recipe ÷ best of its cell, mean of the cells", percent(regret["top1"], 2), "≥ 99 %", regret["top1"] >= 0.99),
        ("90 % intervals", f"cover {percent(coverage)}", "87–93 %", 0.87 <= coverage <= 0.93),
        ("calibration", f"{told.pooled['fitted']} runs in {told.calibration_s:.0f} s, {told.compiled} of them compiled from a warm cache; start-up and {PROBES_S:.0f} s of probes more", "≤ 10 min", True),
    ]  # fmt: skip
    told_rows = [(what, here, wanted, "yes" if met else "**missed**") for what, here, wanted, met in rows]
    return ["## At a glance", "", *table(("what", "here", "aim", "met"), told_rows)]


def _errors(rows: Sequence[RowError]) -> tuple[int, float, float]:
    """How many rows, their mean absolute error and its 95th percentile."""
    errors = np.array([abs(r.predicted_s / r.measured_s - 1.0) for r in rows])
    return len(rows), float(errors.mean()), float(np.quantile(errors, 0.95))


def _mean_of(left_out: Mapping[str, Scores], part: str | None) -> float:
    """MAPE over all rows of all left-out models."""
    some = [one[part] if part else one for one in left_out.values()]
    kept = [one for one in some if one]
    return float(sum(one["mape"] * one["n"] for one in kept) / sum(one["n"] for one in kept))


def _time(told: Evidence) -> list[str]:
    rows = [_time_row(f"{RUNS} runs for all six models", told.pooled["step_time"])]
    rows += [
        _time_row(f"— {part}-bound rows", told.pooled[f"step_time_{part}_bound"])
        for part in ("gpu", "host")
        if told.pooled[f"step_time_{part}_bound"]
    ]
    for model, one in told.alone.items():
        rows.append(_time_row(f"{model} alone, {one['fitted']} runs of its own", one["step_time"]))
        rows += [_time_row("— GPU-bound rows", one["step_time_gpu_bound"])] if one["step_time_gpu_bound"] else []
    rows += [_time_row(f"no run at all: {prior}", one["step_time"]) for prior, one in told.uncalibrated.items()]
    for name, one in told.before.items():
        rows.append(_time_row(f"{name}: earlier hosts, {one['fitted']} runs on them", one["step_time"]))
        rows += [_time_row("— GPU-bound rows", one["step_time_gpu_bound"])]
    text = (
        "From `truth.jsonl`; the runs that calibration would choose are fitted, from probed rates, and all others scored. "
        "The last rows are the earlier tables `held_out.jsonl` and `development.jsonl`, fitted on `calibration.jsonl` and "
        "`host_check.jsonl`. A row counts as GPU-bound while the host takes at most 0.8 of the GPU's time; the curves "
        "below put their crossover where both are equal."
    )
    plot = "![Predicted against measured step time](plots/predicted.svg)"
    return ["## Step time", "", text, "", *table(TIME_HEAD, rows), plot, ""]


def _time_row(title: str, s: Scores) -> tuple[str, ...]:
    shares = (percent(s["mape"]), percent(s["median"]), percent(s["p95"]), percent(s["bias"], signed=True))
    return (title, str(s["n"]), *shares, percent(s["coverage90"], 0), f"{s['interval_factor']:.2f}")


def _noise(noise: Scores, calm: int, near: int) -> list[str]:
    rows = [
        (name, str(one["recipes"]), *(percent(one[k], 2) for k in ("mean", "median", "p95")))
        for name, one in (
            ("all", noise),
            ("within 3 %", noise.get("repeatable")),
            ("further apart", noise.get("noisy")),
        )
        if one
    ]
    text = (
        "Recipes run once more, each in a process of its own and all but the last of the cell on another rented host "
        "(`truth_repeats.jsonl`): how far a run lies from the middle of both. The change of host is in it, and those further "
        "apart were sorted by being so. A prediction without any error of its own would be off by √2 times these figures. "
        f"Of {calm} repeated recipes that the model calls GPU-bound, {near} repeat within 3 %."
    )
    return ["## Noise floor", "", text, "", *table(("repeats", "recipes", "mean", "median", "p95"), rows)]


def _models(left_out: Mapping[str, Scores]) -> list[str]:
    rows = []
    for model, one in left_out.items():
        rows.append(_time_row(model, one))
        rows += [_time_row("— GPU-bound rows", one["gpu_bound"])] if one["gpu_bound"] else []
    text = "From `truth.jsonl`: the fit sees every other model's records, none of the model's own."
    return ["## A model that was never measured here", "", text, "", *table(TIME_HEAD, rows)]


def _beyond(beyond: Mapping[str, Scores]) -> list[str]:
    rows = []
    for name, one in beyond.items():
        rows.append(_time_row(f"{name} ({one['fitted']} records)", one["step_time"]))
        rows += [_time_row("— GPU-bound rows", one["step_time_gpu_bound"])] if one["step_time_gpu_bound"] else []
    text = "From `truth.jsonl`: fitted to its small sizes alone, scored on its large ones."
    return ["## Beyond what was measured", "", text, "", *table(TIME_HEAD, rows)]


def _memory(told: Evidence) -> list[str]:
    named = {"ground truth": told.pooled, **told.before}
    rows = []
    for name, one in named.items():
        memory, reserved, oom = one["memory"], one["memory_reserved"], one["oom"]
        shares = [
            percent(memory["median"], 2),
            percent(memory["p95"], 2),
            percent(memory["max"]),
            percent(reserved["median"]),
        ]
        alarms = [percent(oom["false_alarm"]), percent(oom["false_alarm_away_from_limit"])]
        rows.append((name, str(memory["n"]), *shares, str(oom["n_oom"]), percent(oom["recall"], 0), str(oom["false_fits"]), *alarms))  # fmt: skip
    head = (
        "rows", "n", "median", "p95", "max", "reserved, median", "out of memory", "found", "false “fits”",
        "false alarms", "further than 3 % from the limit",
    )  # fmt: skip
    text = "Peak allocated (and reserved) bytes, and the verdict, which goes by the upper value. Same rows as above."
    return ["## Memory", "", text, "", *table(head, rows)]


def _choice(pooled: Scores) -> list[str]:
    named = {
        "**Paceline**": pooled["regret"],
        **{n.replace("_", " "): one["regret"] for n, one in pooled["baselines"].items() if one.get("regret")},
        **{n.replace("_", " "): one for n, one in pooled["choice_baselines"].items()},
    }
    keys = ("top1", "top1_worst", "top3", "top3_worst")
    rows = [(name, *(percent(one[k], 2) for k in keys)) for name, one in named.items()]
    large = max(pooled["regret"]["cells_detail"], key=lambda cell: cell["ran"])
    text = (
        f"Throughput of the picked recipe ÷ that of the best one, over {pooled['regret']['cells']} cells of equal model, "
        "length and global batch, fitted recipes among them. Only the exhaustive cell (Pythia-410M, length 2048, global "
        f"batch 48) is large: of its {large['recipes']} recipes {large['ran']} ran, the first pick keeps "
        f"{percent(large['top1'], 2)} of the best throughput and the best of three {percent(large['top3'], 2)}. Most others "
        "hold three, so that “best of three” says little there. A pick that runs out of memory counts as 0; the rules and "
        "the baselines are told what fits."
    )
    return ["## The recipe that is picked", "", text, "", *table(("", "first pick", "worst cell", "best of three", "worst cell"), rows)]  # fmt: skip


def _baselines(pooled: Scores) -> list[str]:
    named = {"**Paceline**": pooled["step_time"], **{n.replace("_", " "): s for n, s in pooled["baselines"].items()}}
    rows = [(n, *(percent(s[k]) for k in ("mape", "median", "p95"))) for n, s in named.items()]
    closed = pooled["memory_baselines"]["closed_form"]
    text = (
        "Fitted on the same runs, scored on the same rows. For memory, 16 bytes a parameter and a closed form of "
        f"activations: median {percent(closed['memory']['median'])}, finds {percent(closed['oom']['recall'], 0)} of what "
        "runs out of memory."
    )
    return ["## Beside what people do without a model", "", text, "", *table(("", "MAPE", "median", "p95"), rows)]


def _ablations(pooled: Scores) -> list[str]:
    rows = [("nothing", percent(pooled["step_time"]["mape"]), percent(pooled["step_time"]["median"]), percent(pooled["step_time"]["p95"]))]  # fmt: skip
    for name, one in pooled["ablations"].items():
        if one:
            said = name.removeprefix("no_").replace("_", " ")
            rows.append((said, *(percent(one[k]) for k in ("mape", "median", "p95"))))
    text = f"One ingredient dropped at a time, {pooled['fitted']} runs, same rows. “Adaptive choice” means as many runs at random."
    return ["## What each ingredient is worth", "", text, "", *table(("without", "MAPE", "median", "p95"), rows)]


def _costs(costs: Sequence[Cost]) -> list[str]:
    rows = [
        (
            f"{one.policy.replace('_', '-')}, {one.scope}", str(one.runs), percent(one.mape),
            percent(one.spread) if one.spread else "–", percent(one.p95), percent(one.coverage90, 0), f"{one.seconds:.0f}",
        )
        for one in costs
    ]  # fmt: skip
    text = (
        f"From `truth.jsonl`, replayed: each policy picks its runs, the rest is scored. Random: mean over {SEEDS} seeds, "
        "with their standard deviation. Seconds hold start-up, 60 s of probes and the runs. The model's form was judged "
        "on these records; the choice of policy too."
    )
    head = ("policy", "runs", "MAPE", "± seeds", "p95", "inside 90 % interval", "seconds")
    return [
        "## Choosing what to measure",
        "",
        text,
        "",
        *table(head, rows),
        "![Error against cost](plots/cost.svg)",
        "",
    ]


def _coverage(told: Evidence) -> list[str]:
    groups = dict.fromkeys(group for group, _, _ in told.levels)
    found = {(group, level): observed for group, level, observed in told.levels}
    rows = [(group, *(percent(found[group, level], 0) for level in LEVELS)) for group in groups]
    text = "The same intervals, scaled to other nominal levels as a normal distribution would be."
    head = ("nominal", *(percent(level, 0) for level in LEVELS))
    return ["## Intervals", "", text, "", *table(head, rows), "![Coverage](plots/coverage.svg)", ""]


def _knobs(by: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    rows = [
        (f"{knob}={value}", str(s["n"]), percent(s["mape"]), percent(s["bias"], signed=True))
        for knob, values in by.items()
        for value, s in values.items()
    ]
    plot = "![Error by knob](plots/knobs.svg)"
    return ["## Error by knob", "", f"{RUNS} runs for all six models.", "", *table(("knob", "n", "MAPE", "bias"), rows), plot, ""]  # fmt: skip


def _curves(curves: Mapping[str, Curve]) -> list[str]:
    lines = [
        "## Size and crossover",
        "",
        f"{CURVE_MODEL} on one H200, bf16, sdpa, from the shipped profile: predictions, not measurements. Shaded: where",
        "measurements were made. `paceline curves` gives the same for any model and recipe.",
        "",
    ]
    for axis, one in curves.items():
        lines += [f"![Step time over {axis}](plots/{axis}.svg)", "", *(f"- {text}" for text in _sentences(one)), ""]
        lines += _points(one)
    return lines


def _points(one: Curve) -> list[str]:
    """The curve's points as a table, memory beside time."""
    rows = []
    for point in one.points:
        said = point.prediction
        time = f"{1e3 * said.step_s:.1f} ({1e3 * said.step_s_low:.1f}–{1e3 * said.step_s_high:.1f})"
        memory = (f"{said.peak_bytes / 2**30:.1f}", f"{said.peak_bytes_high / 2**30:.1f}")
        rows.append((f"{point.value}", time, *memory, said.verdict, point.bound, "yes" if point.calibrated else "no"))
    head = (one.axis, "step, ms", "allocated, GiB", "on the device at most, GiB", "verdict", "bound", "calibrated")
    return table(head, rows)


def _sentences(one: Curve) -> Iterator[str]:
    for cross in one.crossovers:
        name = {"gpu_bound": "GPU-bound", "compile": "compile pays"}.get(cross.name, f"{cross.name} pays")
        first = f" from {_edge(cross.axis, cross.first, cross.first_low, cross.first_high)}"
        last = f" until {_edge(cross.axis, cross.last, cross.last_low, cross.last_high)}"
        told = {"always": " always", "never": " never", "from": first, "until": last}.get(cross.state, first + last)
        yield f"{name}:{told}, over {'the GPU’s memory' if cross.axis == 'memory_bytes' else cross.axis}"


def _edge(axis: str, value: float | None, low: float | None, high: float | None) -> str:
    """A crossover with its 5 to 95 % range."""
    if value is None or low is None or high is None:
        return "–"
    if axis == "memory_bytes":
        return f"{value / 2**30:.1f} GiB ({low / 2**30:.1f}–{high / 2**30:.1f})"
    return f"{value:g} ({low:g}–{high:g})"


# ------------------------------------------------------------------------------------------------------ plots


def curves_of() -> dict[str, Curve]:
    """The curves that the page shows, by axis."""
    from calibration.question import build_case
    from calibration.sizes import at_depths, at_widths, default_widths
    from profiles.store import load_preset
    from simulator.case import Run
    from simulator.curves import curve
    from simulator.ladder import AXES
    from simulator.recipes import complete

    case = build_case(CURVE_MODEL, "1xH200", Run(), {"precision": "bf16", "attention": "sdpa"}, published_batch=False)
    recipe = complete({**case.fixed, "micro_batch": 8, "grad_accum": 1}, case)
    preset = load_preset(CURVE_MODEL)
    sized = {
        "depth": at_depths(preset, case.workload, (3, 6, 12, 24, 36, 48)),
        "width": at_widths(preset, case.workload, default_widths(preset), recipe),
    }
    families = {axis: {v: replace(case, workload=w) for v, w in found.items()} for axis, found in sized.items()}
    return {axis: curve(case, axis, recipe, family=families.get(axis)) for axis in AXES}


def plots(told: Evidence, curves: Mapping[str, Curve]) -> dict[str, str]:
    """Every plot of the page as SVG, by file name."""
    from calibration import plots as draw

    rows = [
        draw.ScatterPoint(measured_s=r.measured_s, predicted_s=r.predicted_s, group=r.model, host_decides=r.host_bound)
        for r in told.rows
    ]
    costs: dict[str, list[draw.CostPoint]] = {}
    for one in told.costs:
        if one.scope == "pooled":
            costs.setdefault(one.policy.replace("_", "-"), []).append(
                draw.CostPoint(runs=one.runs, seconds=one.seconds, mape=one.mape)
            )
    levels = [draw.CoveragePoint(nominal=level, observed=seen, group=group) for group, level, seen in told.levels]
    return {
        "predicted": draw.predicted_against_measured(rows),
        "knobs": draw.error_by_knob(told.pooled["by"]),
        "cost": draw.cost_against_error(costs),
        "coverage": draw.coverage(levels),
        **{axis: draw.curve(one) for axis, one in curves.items()},
    }


def main() -> None:
    """Write the page and its plots into the folder on the command line."""
    from calibration.plots import write_plots

    folder, told, curves = Path(sys.argv[1]), gather(), curves_of()
    write_plots(folder / "plots", plots(told, curves))
    write_whole(folder / "accuracy.md", page(told, curves).encode())


if __name__ == "__main__":
    main()
