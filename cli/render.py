"""Answers as tables that fit a terminal of 80 columns; every number with its interval and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cli import human
from cli.recipes import knobs_text, shared_knobs

if TYPE_CHECKING:
    from profiles.schema import Profile
    from simulator import Case, Plan, Prediction
    from simulator.results import Extra

Cell = str
_LEFT_OUT = 6


def console() -> Console:
    """Standard output; 80 columns wide where nobody says otherwise."""
    return Console(highlight=False, markup=False, emoji=False)


def table(*columns: str, right: Sequence[str] = (), folds: Sequence[str] = ()) -> Table:
    """A plain table; ``right`` names the columns of numbers, ``folds`` those that may break their lines."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        wraps = column in folds
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=not wraps, overflow="fold",
            ratio=1 if wraps else None,
        )  # fmt: skip
    return made


def show_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = (), folds: Sequence[str]
) -> None:
    """Print a table of text cells."""
    made = table(*columns, right=right, folds=folds)
    for row in rows:
        made.add_row(*row)
    console().print(made)


def show_lines(lines: Iterable[str]) -> None:
    """Print plain lines, folded at the terminal's width."""
    out = console()
    for line in lines:
        out.print(line)


def show_plan(case: Case, plan: Plan) -> None:
    """The ranked recipes, the four to compare with, and what lost."""
    marks = {"best": plan.best, "median": plan.median, "worst": plan.worst}
    if plan.naive is not None:
        marks["naive"] = plan.naive
    shared = shared_knobs(case, [one.recipe for one in [*plan.recipes, *marks.values()]])
    show_lines([*header(case), f"every recipe: {knobs_text(shared)}", ""])
    show_predictions(case, {str(rank): one for rank, one in enumerate(plan.recipes, start=1)}, shared)
    show_lines([""])
    show_predictions(case, marks, shared)
    show_lines(["", *LEGEND, "", *plan_notes(plan), *coverage_lines(case, plan.coverage)])
    show_warnings(plan.best.warnings)


LEGEND = (
    "Below each number: its 90 % interval; below GiB: the upper bound that decides",
    "whether it fits. Money, energy and MFU share the interval of the time.",
    "mb micro_batch, ga grad_accum, ckpt checkpointing; compile=off and",
    "checkpointing=none are not shown.",
)


def show_predictions(case: Case, named: Mapping[str, Prediction], shared: Mapping[str, object]) -> None:
    """One recipe a row, each number above its interval, provenance last."""
    made = table(
        "",
        "recipe",
        "step",
        "days",
        "USD",
        "GiB",
        "MFU",
        "basis",
        right=("step", "days", "USD", "GiB", "MFU"),
        folds=["recipe"],
    )
    for name, one in named.items():
        made.add_row(name, _recipe_cell(case, one, shared), *_numbers(one))
    console().print(made)


def _recipe_cell(case: Case, one: Prediction, shared: Mapping[str, object]) -> Cell:
    """The row's own knobs, and the batch that it really has where the asked one may be missed."""
    knobs = knobs_text(_own_knobs(case, one, shared), short=True)
    return f"{knobs} batch {one.global_batch:,}" if case.run.global_batch_tolerance > 0 else knobs


def _own_knobs(case: Case, one: Prediction, shared: Mapping[str, object]) -> dict[str, object]:
    from cli.contract import recipe_json

    return {knob: value for knob, value in recipe_json(case, one.recipe).items() if knob not in shared}


def _numbers(one: Prediction) -> list[Cell]:
    return [
        f"{human.seconds(one.step_s)}\n{human.seconds_range(one.step_s_low, one.step_s_high)}",
        f"{human.digits(one.days)}\n{human.days_range(one.days_low, one.days_high)}",
        human.usd(one.usd),
        f"{human.gib(one.peak_device_bytes)}\n≤ {human.gib(one.peak_bytes_high)}",
        human.percent(one.mfu),
        one.provenance + (f"\nran {human.seconds(one.measured_step_s)}" if one.measured_step_s else ""),
    ]


def plan_notes(plan: Plan) -> list[str]:
    """How large the space was, what fell out of it and why, and what the best recipe's time goes to."""
    out = ", ".join(f"{count:,} by {limit}" for limit, count in plan.infeasible.items() if count) or "none"
    rules = sorted(plan.refused.items(), key=lambda item: -item[1])
    hidden = len(rules) - _LEFT_OUT
    told = [f"{rule} {count:,}" for rule, count in rules[:_LEFT_OUT]] + ([f"{hidden} more rules"] if hidden > 0 else [])
    lines = [f"{plan.space_size:,} recipes judged, {plan.feasible:,} possible; left out: {out}"]
    if told:
        lines.append(f"never proposed, by rule: {', '.join(told)}")
    if plan.ties > 1:
        lines.append(f"{plan.ties:,} of them cannot be told from the best inside the joint interval{_tied_text(plan)}")
    return [*lines, *plan.reasons]


def _tied_text(plan: Plan) -> str:
    """Which of the recipes shown are ties, where some are and some are not."""
    ranks = [str(rank) for rank, tied in enumerate(plan.tied, start=1) if tied]
    return f" (shown: {', '.join(ranks)})" if 0 < len(ranks) < len(plan.tied) else ""


def coverage_lines(case: Case, extra: Sequence[Extra]) -> list[str]:
    """The runs that would narrow the answer most, with the interval that they would leave."""
    from cli.contract import recipe_json

    if not extra:
        return []
    told = [
        f"  ± {human.percent(one.factor - 1)} after {knobs_text(recipe_json(case, one.recipe), short=True)}"
        + (f", which covers {', '.join(one.closes)}" if one.closes else "")
        for one in extra
    ]
    return [f"measuring these in turn would narrow ± {human.percent(extra[0].factor_before - 1)} most:", *told]


def header(case: Case) -> list[str]:
    """What was asked, and on which knowledge the answer rests."""
    run, recipe_seq = case.run, case.fixed.get("seq")
    length = {"tokens": run.tokens, "samples": run.samples, "steps": run.steps}
    parts = [f"{human.count(value)} {name}" for name, value in length.items() if value is not None]
    parts.append(f"seq {recipe_seq or run.seq or case.workload.seq:,}")
    if run.global_batch is not None:
        tolerance = f" ± {human.percent(run.global_batch_tolerance)}" if run.global_batch_tolerance > 0 else ""
        parts.append(f"global batch {run.global_batch:,}{tolerance}")
    if case.price is not None and case.price.rent_usd_per_gpu_h is not None:
        said = f"{case.price.provider} {case.price.date}".strip()
        parts.append(f"{human.usd(case.price.rent_usd_per_gpu_h)} per GPU-hour ({said})")
    return [f"{case.workload.name} on {case.machine.name}: {', '.join(parts)}", profile_line(case.profile)]


def profile_line(profile: Profile) -> str:
    """Where the rates and the fit come from."""
    if profile.provenance == "datasheet":
        return f"from the data sheet of {profile.machine.gpu.name}: nothing was measured, intervals are wide"
    models = ", ".join(profile.fit.models) or "probes alone"
    runs = f"{profile.fit.measurements} real runs" if profile.fit.measurements else "no real runs"
    return (
        f"from the {profile.provenance} profile of {profile.machine.name}, {profile.created_at[:10]}: {runs} ({models})"
    )


def show_prediction(case: Case, one: Prediction) -> None:
    """One recipe: time, money and memory, each with its interval, and both breakdowns."""
    from cli.contract import recipe_json
    from simulator.coverage import coverage

    show_lines([*header(case), f"recipe: {knobs_text(recipe_json(case, one.recipe))}", ""])
    facts = table("", "", "90 % interval", "basis", folds=["90 % interval"])
    for row in _facts(one):
        facts.add_row(*row)
    console().print(facts)
    show_lines(limit_lines(case, one))
    show_lines([""])
    _show_breakdown("time per step", one.time_breakdown_s, human.seconds, one.step_s)
    show_lines([""])
    _show_breakdown("memory", one.memory_breakdown_bytes, _gib_text, one.peak_device_bytes)
    show_memory_phases(case, one)
    show_lines(["", *coverage_lines(case, coverage(case, [one.recipe]))])
    show_warnings(one.warnings)


def limit_lines(case: Case, one: Prediction) -> list[str]:
    """Per limit that was given: whether the recipe keeps it."""
    from cli.contract import within_limits

    words = {True: "kept", False: "NOT kept", None: "unknown, the run has no length or no price"}
    return [f"{name} {getattr(case.run, name):g}: {words[kept]}" for name, kept in within_limits(case, one).items()]


def _facts(one: Prediction) -> list[tuple[Cell, Cell, Cell, Cell]]:
    basis: Cell = one.provenance
    days = "" if one.days is None else human.days_range(one.days_low, one.days_high)
    rows = [
        ("step", human.seconds(one.step_s), human.seconds_range(one.step_s_low, one.step_s_high), basis),
        ("days", human.digits(one.days), days, basis),
        ("rent", human.usd(one.usd), "as days", basis),
        ("energy", f"{human.digits(one.kwh)} kWh", "as days", basis),
        ("tokens per second", human.digits(one.tokens_per_s), "as step", basis),
        ("MFU", human.percent(one.mfu), "as step; causal attention at half, no embedding", basis),
        ("allocated", _gib_text(one.peak_bytes), "", basis),
        ("reserved", _gib_text(one.peak_reserved_bytes), "", basis),
        ("on the device", _gib_text(one.peak_device_bytes), f"up to {_gib_text(one.peak_bytes_high)}", basis),
        (
            "verdict",
            one.verdict,
            f"limit {_gib_text(one.memory_limit_bytes)}; fits with {one.fit_probability:.1%}",
            basis,
        ),
    ]
    if one.compile_s:
        rows.insert(2, ("compile", human.seconds(one.compile_s), "once a shape, not in the days", "typical"))
    if one.measured_step_s is not None:
        rows.insert(1, ("really run", human.seconds(one.measured_step_s), "", "measured"))
    return rows


def _show_breakdown(title: str, parts: Mapping[str, float], text: Callable[[float], str], total: float) -> None:
    made = table(title, "amount", "share", right=("amount", "share"))
    for name, value in sorted(parts.items(), key=lambda part: -part[1]):
        if value == 0:
            continue
        sign, size = ("−", -value) if value < 0 else ("", value)
        made.add_row(name, f"{sign}{text(size)}", human.percent(value / total))
    made.add_row("total", text(total), "")
    console().print(made)


def show_memory_phases(case: Case, one: Prediction) -> None:
    """The peak by phase of a step, and the largest single tensors behind it."""
    from simulator.memory_phases import memory_phases

    found = memory_phases(case, one.recipe)
    rows = [
        (phase.replace("_", " "), _gib_text(size_bytes), "the peak" if phase == found.peak_phase else "")
        for phase, size_bytes in {"loading, at most": found.load_peak_bytes, **found.phases_bytes}.items()
    ]
    show_lines([""])
    show_rows(("allocated, by phase", "amount", ""), rows, right=("amount",), folds=[""])
    buffers = [(buffer.name.replace("_", " "), f"{buffer.mib:,.1f} MiB") for buffer in found.buffers]
    show_lines([""])
    show_rows(("largest single tensors", "one copy"), buffers, right=("one copy",), folds=["largest single tensors"])
    if len(found.attention_bytes) > 1:
        totals = ", ".join(f"{_gib_text(total)} with {name}" for name, total in found.attention_bytes.items())
        show_lines(["", f"on the device by attention: {totals}"])


def _gib_text(size_bytes: float) -> str:
    return f"{human.gib(size_bytes)} GiB"


def show_warnings(warnings: Sequence[str]) -> None:
    """What weakens the answer."""
    if warnings:
        show_lines(["", *(f"note: {warning}" for warning in warnings)])
