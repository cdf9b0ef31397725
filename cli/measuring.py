"""``calibrate``, ``verify`` and ``import``: commands that run or read measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import contract, question
from cli.progress import progress
from profiles.errors import InvalidInputError

if TYPE_CHECKING:
    from calibration import Calibration, Verification, Verified
    from calibration.largest import LargestFound
    from cli.options import Asked
    from profiles.schema import Recipe
    from simulator import Case

SMALL_MODEL = {"cpu": "pythia-14m", "cuda": "pythia-160m"}
MOST_TOLD = 10


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


def verify_largest(asked: Asked, *, extra_random: int) -> None:
    """Find the largest micro-batch that runs and show each run behind it."""
    from calibration.largest import verify_largest as search

    if extra_random:
        raise InvalidInputError("verify", ["--largest and --random exclude each other"])
    case = question.read(asked, here=True, published_batch=False).case
    with progress("searching") as tell:
        done = search(case, on_progress=tell)
    tell_damage()
    if asked.json:
        return contract.show(contract.largest_json(case, done))
    show_largest(case, done)


def show_largest(case: Case, done: LargestFound) -> None:
    """The runs in order, predicted beside measured memory, and what they prove."""
    from cli import human, render
    from cli.recipes import knobs_text

    knobs = {k: v for k, v in contract.recipe_json(case, done.recipe).items() if k not in {"micro_batch", "grad_accum"}}
    rows = [
        (
            str(one.recipe.micro_batch),
            one.measured.status,
            human.gib(one.predicted.peak_bytes),
            human.gib(one.measured.peak_bytes),
            human.seconds(one.measured.step_s),
        )
        for one in done.verified
    ]
    render.show_lines([*render.header(case), f"every run: {knobs_text(knobs)}", ""])
    columns = ("micro-batch", "ended", "GiB predicted", "GiB measured", "step")
    render.show_rows(columns, rows, right=columns[2:], folds=["ended"])
    render.show_lines(["", *largest_lines(done)])
    render.show_lines(
        f"{one.measured.status} at {one.recipe.micro_batch}: {one.measured.reason}"
        for one in done.verified
        if one.measured.status != "ok"
    )


def largest_lines(done: LargestFound) -> list[str]:
    """In words: the answer, how sure it is, what was predicted, and where the records went."""
    from cli import human

    found = done.largest
    answer = f"largest micro-batch that ran: {found.micro_batch}" if found.micro_batch else "not even the smallest ran"
    above = f"smallest that ran out of memory: {found.smallest_oom or 'none was tried'}"
    sure = "proven" if found.proven else f"nothing larger fits with {human.percent(found.exact_probability)}"
    lines = [f"{answer} ({sure}); {above}", f"predicted as safe before any run: {found.predicted}"]
    return lines if done.profile_path is None else [*lines, f"profile: {done.profile_path}"]


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
