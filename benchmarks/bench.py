"""``make bench``: recipes per second on one core, seconds of commands, and what calibration cost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import typer

MODEL, MACHINE = "pythia-1b", "1xH200"
PLAN = ["plan", MODEL, "--machine", MACHINE, "--tokens", "300B", "--global-batch", "1024", "--seq", "2048"]
REPEATS = 3
SECONDS = 3.0


def main() -> None:
    """Print one line a figure."""
    for batch, tolerance in ((1024, 0.0), (20_000, 0.3)):
        rate, size = recipes_per_s(batch, tolerance)
        typer.echo(
            f"{rate:>12,.0f} recipes/s on one core: {size:,} of {MODEL} on {MACHINE} at {batch:,}±{tolerance:.0%}"
        )
    typer.echo(f"{best_s(['--help']):>12.2f} s  paceline --help")
    typer.echo(f"{best_s(PLAN):>12.2f} s  paceline {' '.join(PLAN)}")
    for line in calibration_lines():
        typer.echo(line)


def recipes_per_s(global_batch: int, tolerance: float) -> tuple[float, int]:
    """Recipes scored for time and memory per second, and how many the whole space at that global batch holds."""
    from calibration.question import build_case
    from simulator import Run
    from simulator.planning import score
    from simulator.space import enumerate_space

    run = Run(tokens=300e9, seq=2048, global_batch=global_batch, global_batch_tolerance=tolerance)
    case = build_case(MODEL, MACHINE, run, {})
    space = enumerate_space(case)
    rounds, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < SECONDS:
        score(case, space)
        rounds += 1
    return rounds * len(space) / (time.perf_counter() - start_s), len(space)


def best_s(arguments: Sequence[str]) -> float:
    """Wall seconds of the quickest of a few fresh processes."""
    return min(_once_s(arguments) for _ in range(REPEATS))


def _once_s(arguments: Sequence[str]) -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def calibration_lines() -> list[str]:
    """Real runs and seconds behind the shipped profile, beside the number of recipes that a full search would run."""
    import profiles
    from calibration.question import build_case
    from simulator import Run, plan

    profile = profiles.load_profile(MACHINE)
    if profile is None or not profile.fit.measurements:
        return [f"no calibrated profile of {MACHINE}: nothing to say about what calibration cost"]
    answer = plan(build_case(MODEL, MACHINE, Run(tokens=300e9, seq=2048, global_batch=1024), {}), top=1)
    seconds = "an unknown number of" if profile.calibration_s is None else f"{profile.calibration_s:,.0f}"
    models = max(len(profile.fit.models), 1)
    return [
        f"{profile.fit.measurements:>12,} real runs in {seconds} s calibrated {models} models on {MACHINE}",
        f"{answer.space_size:>12,} real runs would try every recipe of one of them at one length and global batch",
    ]


if __name__ == "__main__":
    main()
