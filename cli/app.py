"""The commands: parse, ask, show. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.curves import curves
from cli.options import Asked, Json, Seed, asks

app = typer.Typer(
    name="paceline",
    help="How long will pre-training take, what will it cost, does it fit, and with which configuration.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Table = Annotated[Path, typer.Argument(metavar="TABLE", help="Measurements: .csv or .jsonl.")]
Machine = Annotated[str | None, typer.Option("--machine", "-m", metavar="M", help="Default: this machine.")]


@app.callback(invoke_without_command=True)
def _paceline(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"paceline {installed('paceline')}")
        raise typer.Exit


@app.command()
def doctor(*, json: Json = False) -> None:
    """What is installed and missing, which devices are here, which profile applies."""
    from cli import doctor as checks

    checks.show(checks.examine(), as_json=json)


@app.command()
def models(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="One model; default: list all.")] = None,
    *,
    json: Json = False,
) -> None:
    """Models known by name; of one of them, its counts."""
    from cli import catalogue

    catalogue.show_models(json) if model is None else catalogue.show_model(model, json)


@app.command()
def machines(
    machine: Annotated[str | None, typer.Argument(metavar="NAME", help="One machine; default: list GPUs.")] = None,
    *,
    json: Json = False,
) -> None:
    """GPUs known by name; of one machine, its rates and profile."""
    from cli import catalogue

    catalogue.show_gpus(json) if machine is None else catalogue.show_machine(machine, json)


@app.command()
def prices(*, json: Json = False) -> None:
    """Rents, purchase prices and energy defaults, each with its source."""
    from cli import catalogue

    catalogue.show_prices(json)


@app.command()
@asks()
def plan(asked: Asked) -> None:
    """Rank every recipe by time, money and memory.

    Judges the whole space of configurations for the model on the machine, shows the best with days, dollars, energy
    and memory, and says why the others lost. --recipe fixes knobs; the others are searched.
    """
    import simulator
    from cli import contract, question

    read = question.read(asked)
    answer = simulator.plan(read.case, top=read.top)
    if asked.json:
        return contract.show(contract.plan_json(read.case, answer))
    from cli import render

    render.show_plan(read.case, answer)


@app.command()
@asks()
def predict(asked: Asked) -> None:
    """Time and memory of one recipe, with both breakdowns.

    Knobs that --recipe does not name are at their defaults. A recipe that does not fit, or that breaks a limit, is an
    answer too.
    """
    import simulator
    from cli import contract, question
    from simulator.recipes import complete

    case = question.read(asked, published_batch=False).case
    answer = simulator.predict(case, complete(case.fixed, case))
    if asked.json:
        return contract.show(contract.predicted_json(case, answer))
    from cli import render

    render.show_prediction(case, answer)


app.command()(curves)


@app.command()
def calibrate(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Default: one small model.")] = None,
    *,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring: 10m, 90s, 1h.")] = "10m",
    machine: Machine = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure this machine: probes and real steps become its profile.

    No run starts once the time budget is spent; one that hangs is ended at its timeout. Stopped by Ctrl-C, the same
    command goes on where it was.
    """
    from cli import measuring

    measuring.calibrate(models or [], budget=budget, machine=machine, seed=seed, as_json=json)


@app.command()
@asks(top="3")
def verify(
    asked: Asked,
    *,
    random: Annotated[int, typer.Option(metavar="N", min=0, help="Also run this many recipes drawn at random.")] = 0,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest micro-batch that runs, by at most three runs, instead.")
    ] = False,
) -> None:
    """Run the top predictions for real: predicted beside measured.

    Needs the machine that it predicts for. What the runs show goes back into the profile. With --largest, --recipe
    fixes the other knobs; those that it does not name are at their defaults.
    """
    from cli import measuring

    if largest:
        return measuring.verify_largest(asked, extra_random=random)
    measuring.verify(asked, extra_random=random)


@app.command()
def evaluate(
    table: Table,
    *,
    calibrate_on: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Fit on these measurements; may be given several times.")
    ] = None,
    calibrate: Annotated[int, typer.Option(metavar="N", min=0, help="Fit on N of the rows; 0: on none.")] = 0,
    seed: Seed = 0,
    prior: Annotated[
        str, typer.Option(metavar="P", help="Where the fit starts: profile, probes or datasheet.")
    ] = "profile",
    choose: Annotated[
        str,
        typer.Option(
            metavar="P",
            help="How the N rows are picked: random, or by a policy such as adaptive.",
        ),
    ] = "random",
    repeats: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="More runs of the same recipes, for the noise floor.")
    ] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Score simpler predictors too.")] = False,
    ablate: Annotated[bool, typer.Option("--ablate", help="Score without one ingredient at a time, too.")] = False,
    json: Json = False,
) -> None:
    """Fit on part of a table of measurements, score the rest.

    Errors are (predicted - measured) / measured. Regret is the throughput of the picked recipe as a share of the best
    one's, over recipes that are alternatives: equal model, lengths and global batch.
    """
    from cli import scoring

    fitted = {"calibrate_on": calibrate_on or [], "calibrate": calibrate, "seed": seed, "choose": choose}
    asked = {"prior": prior, "baselines": baselines, "ablate": ablate, "repeats": repeats or []}
    scoring.evaluate(table, as_json=json, **fitted, **asked)


@app.command("import")
def import_(
    table: Table,
    *,
    machine: Annotated[
        str | None, typer.Option("--machine", "-m", metavar="M", help="Default: the only machine in the table.")
    ] = None,
    json: Json = False,
) -> None:
    """Bring measurements from elsewhere into a profile."""
    from cli import measuring

    measuring.import_table(table, machine=machine, as_json=json)


def main() -> None:
    """Entry point of ``paceline``."""
    from cli.failures import run

    sys.exit(run(app, sys.argv[1:]))
