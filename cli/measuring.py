"""``calibrate``, ``verify``, ``evaluate`` and ``import``: commands that run, read or score measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import contract, question
from cli.progress import progress
from profiles.errors import InvalidInputError

if TYPE_CHECKING:
    from calibration import Calibration, Verification, Verified
    from cli.options import Asked
    from profiles.schema import Recipe
    from simulator import Case

SMALL_MODEL = {"cpu": "pythia-14m", "cuda": "pythia-160m"}
MOST_TOLD = 10
PRIORS = ("profile", "probes", "datasheet")


def default_model() -> str:
    """A model that this machine trains in seconds."""
    from calibration.machine import this_device

    return SMALL_MODEL[this_device()]


def calibrate(models: Sequence[str], *, budget: str, machine: str | None, seed: int, as_json: bool) -> None:
    """Measure, fit, and say where the profile is."""
    import calibration

    budget_s = question.duration_s("--budget", budget)
    with progress("calibrating") as tell:
        done = calibration.calibrate(
            models or [default_model()], budget_s=budget_s, machine=machine, seed=seed, on_progress=tell
        )
    tell_damage()
    if as_json:
        return contract.show(contract.calibration_json(done))
    show_calibration(done)


def tell_damage() -> None:
    """Say on standard error which lines of the user's measurements could not be used."""
    import typer

    from profiles.store import measurement_problems

    problems = measurement_problems()
    for problem in problems[:MOST_TOLD]:
        typer.echo(problem, err=True)
    if len(problems) > MOST_TOLD:
        typer.echo(f"{len(problems) - MOST_TOLD} more lines skipped; paceline doctor counts them", err=True)


def show_calibration(done: Calibration) -> None:
    """How many real runs it took, how they ended, and what comes next."""
    from cli import human, render

    by_status: dict[str, int] = {}
    for one in done.measurements:
        by_status[one.status] = by_status.get(one.status, 0) + 1
    ended = ", ".join(f"{count} {status}" for status, count in by_status.items()) or "none"
    machine = done.profile.machine.name
    model = next(iter(done.profile.fit.models), "MODEL")
    render.show_lines(
        [
            f"{machine}: {len(done.measurements)} real runs ({ended}) and probes in {human.seconds(done.seconds)}",
            f"profile: {done.profile_path}",
            f"next: paceline plan {model} --machine {machine}; paceline verify {model} --machine {machine}",
        ]
    )


def verify(asked: Asked, *, extra_random: int) -> None:
    """Run the best recipes for real and show predicted beside measured."""
    import calibration

    read = question.read(asked, here=True)
    with progress("verifying") as tell:
        done = calibration.verify(read.case, top=read.top, extra_random=extra_random, on_progress=tell)
    tell_damage()
    if asked.json:
        return contract.show(contract.verification_json(read.case, done))
    show_verification(read.case, done)


def show_verification(case: Case, done: Verification) -> None:
    """Predicted beside measured; errors are (predicted − measured) ÷ measured."""
    from cli import render
    from cli.recipes import knobs_text, shared_knobs

    shared = shared_knobs(case, [one.recipe for one in done.verified] or [done.best.recipe])
    rows = [
        (knobs_text(_own(case, one.recipe, shared), short=True) + (" (random)" if one.drawn else ""), *_compared(one))
        for one in done.verified
    ]
    render.show_lines([*render.header(case), f"every recipe: {knobs_text(shared)}", ""])
    columns = ("recipe", "predicted step", "measured step", "error", "GiB pred/meas")
    render.show_rows(columns, rows, right=columns[1:], folds=["recipe"])
    best = knobs_text(contract.recipe_json(case, done.best.recipe))
    render.show_lines(
        ["", "Below each step: its 90 % interval, predicted or over the measured windows.", f"best now: {best}",
         f"profile: {done.profile_path}"]
    )  # fmt: skip
    failures = [f"{one.measured.status}: {one.measured.reason}" for one in done.verified if one.measured.status != "ok"]
    render.show_lines(failures)


def _own(case: Case, recipe: Recipe, shared: Mapping[str, object]) -> dict[str, object]:
    return {knob: value for knob, value in contract.recipe_json(case, recipe).items() if knob not in shared}


def _compared(one: Verified) -> tuple[str, str, str, str]:
    from cli import human

    said, ran = one.predicted, one.measured
    predicted = f"{human.seconds(said.step_s)}\n{human.seconds_range(said.step_s_low, said.step_s_high)}"
    memory = f"{human.gib(said.peak_bytes)}\n{human.gib(ran.peak_bytes)}"
    if ran.step_s is None:
        return predicted, ran.status, "", memory
    measured = f"{human.seconds(ran.step_s)}\n{human.seconds_range(ran.step_s_low, ran.step_s_high)}"
    inside = said.step_s_low <= ran.step_s <= said.step_s_high
    return predicted, measured, human.percent(one.error, signed=True) + ("" if inside else "\noutside"), memory


def evaluate(
    table: Path, *, calibrate_on: Sequence[Path], calibrate: int, seed: int, prior: str, baselines: bool, as_json: bool
) -> None:
    """Score predictions against a table of measurements."""
    import calibration

    _check_evaluation(calibrate_on, calibrate, prior)
    with progress("evaluating"):
        scores = calibration.evaluate(
            table, calibrate_on=calibrate_on, calibrate=calibrate, seed=seed, prior=prior, baselines=baselines
        )
    if as_json:
        return contract.show(scores)
    show_scores(scores)


def _check_evaluation(calibrate_on: Sequence[Path], calibrate: int, prior: str) -> None:
    problems = []
    if calibrate_on and calibrate:
        problems.append("--calibrate-on and --calibrate exclude each other: fit on a file, or on rows of the table")
    if prior not in PRIORS:
        problems.append(f"--prior {prior!r} is not allowed; allowed: {', '.join(PRIORS)}")
    if problems:
        raise InvalidInputError("evaluate", problems)


def show_scores(scores: Mapping[str, object]) -> None:
    """One line a score; fractions as per cent."""
    from cli import render

    rows = list(_flat("", contract.plain(scores)))
    render.show_rows(("score", "value"), rows, right=("value",), folds=["value"])


def _flat(prefix: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for key, part in value.items() for row in _flat(f"{prefix} {key}".strip(), part)]
    if isinstance(value, list):
        return [row for number, part in enumerate(value, start=1) for row in _flat(f"{prefix} {number}", part)]
    return [(prefix, _score(value))]


def _score(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def import_table(table: Path, *, machine: str | None, as_json: bool) -> None:
    """Bring a table's rows into a profile and say what was skipped."""
    import calibration

    done = calibration.import_table(table, machine=machine)
    tell_damage()
    if as_json:
        return contract.show({"profile": done.profile_path, "imported": done.imported, "problems": list(done.problems)})
    from cli import render

    skipped = [f"skipped: {problem}" for problem in done.problems]
    render.show_lines([f"{done.imported} measurements imported; profile: {done.profile_path}", *skipped])
