"""``make quickstart``: the main job for real, on whatever this machine has, in a few minutes.

Calibrates on a small model, predicts its whole space, then really runs the predicted best three and three recipes
drawn at random that calibration never saw, and shows predicted beside measured.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from calibration import Verification, Verified
    from simulator import Case, Run

TOP = 3
AT_RANDOM = 3
ACCEPTABLE_ERROR = 0.25
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What suits a kind of device: a model that trains in seconds, a run, its lengths, and the time to calibrate."""

    model: str
    run: Run
    seqs: tuple[int, ...]
    budget_s: float


def setting(device: str) -> Setting:
    """The setting for ``cpu`` or ``cuda``."""
    from cli.measuring import SMALL_MODEL
    from simulator import Run

    model = SMALL_MODEL[device]
    if device == "cpu":
        return Setting(model=model, run=Run(tokens=20e6, seq=128, global_batch=8), seqs=(128,), budget_s=110.0)
    return Setting(model=model, run=Run(tokens=10e9, seq=2048, global_batch=128), seqs=(2048,), budget_s=150.0)


@app.command()
def quickstart(
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time to calibrate; default: fits the device.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of what is measured.")] = 0,
) -> None:
    """Calibrate, predict every recipe, verify the best and some random ones with real runs."""
    from calibration.machine import this_device, this_machine
    from cli import question, render

    wanted = setting(this_device())
    machine = this_machine().name
    budget_s = question.duration_s("--budget", budget) if budget else wanted.budget_s
    render.show_lines([_here(machine), ""])
    _calibrate(wanted, machine, budget_s, seed)
    case = _plan(wanted, machine)
    done = _verify(case)
    render.show_lines(["", *verdict(done), "", *_next(wanted.model, machine)])


def _here(machine: str) -> str:
    from cli.doctor import examine

    missing = [check.name for check in examine() if check.state == "missing"]
    return f"this machine: {machine}; missing: {', '.join(missing) or 'nothing'} (paceline doctor tells more)"


def _calibrate(wanted: Setting, machine: str, budget_s: float, seed: int) -> None:
    import calibration
    from cli import measuring, render
    from cli.progress import progress

    render.show_lines([f"1. calibrate on {wanted.model}, about {budget_s:.0f} s"])
    with progress("calibrating") as tell:
        done = calibration.calibrate(
            [wanted.model], budget_s=budget_s, machine=machine, seed=seed, seqs=wanted.seqs, on_progress=tell
        )
    measuring.show_calibration(done)


def _plan(wanted: Setting, machine: str) -> Case:
    import simulator
    from calibration.question import build_case
    from cli import render

    case = build_case(wanted.model, machine, wanted.run, {})
    render.show_lines(["", "2. predict the whole space"])
    render.show_plan(case, simulator.plan(case, top=TOP))
    return case


def _verify(case: Case) -> Verification:
    import calibration
    from cli import measuring, render
    from cli.progress import progress

    render.show_lines(["", f"3. really run the best {TOP} and {AT_RANDOM} random recipes that calibration never saw"])
    with progress("verifying") as tell:
        done = calibration.verify(case, top=TOP, extra_random=AT_RANDOM, on_progress=tell)
    measuring.show_verification(case, done)
    return done


def verdict(done: Verification) -> list[str]:
    """The median error of the top and of the random recipes, and plain words when it is too large."""
    known = _sizes(done.verified)
    if not known:
        return ["NO RUN SUCCEEDED: nothing can be said about the predictions; see the reasons above."]
    median = statistics.median(known)
    lines = [
        f"median error {median:.1%} over {len(known)} real runs: "
        f"{_median(done, drawn=False)} on the predicted best, {_median(done, drawn=True)} on random recipes"
    ]
    if median > ACCEPTABLE_ERROR:
        lines.append(
            f"THE PREDICTIONS ARE NOT GOOD HERE: the median error is above {ACCEPTABLE_ERROR:.0%}. Other work on this "
            "machine disturbs the timing; try again when it is idle, or calibrate with a larger --budget."
        )
    return lines


def _sizes(verified: Sequence[Verified]) -> list[float]:
    return [abs(one.error) for one in verified if one.error is not None]


def _median(done: Verification, *, drawn: bool) -> str:
    known = _sizes([one for one in done.verified if one.drawn == drawn])
    return f"{statistics.median(known):.1%}" if known else "unknown"


def _next(model: str, machine: str) -> list[str]:
    return [
        "next:",
        f"  paceline predict {model} --machine {machine} --recipe micro_batch=4 --seq 128",
        "  paceline plan pythia-1b --machine 1xH200 --tokens 300B",
        f"  paceline calibrate {model} --budget 10m",
    ]


if __name__ == "__main__":
    from cli.failures import run

    sys.exit(run(app, sys.argv[1:]))
