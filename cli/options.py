"""Options that several commands share, declared once.

Values arrive as text and are parsed in ``cli.question``, so that one answer lists everything that is wrong with them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; progress and messages on stderr.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of everything drawn at random.", min=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What ``plan``, ``predict`` and ``verify`` are asked, as typed."""

    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A preset, a path to a config.json, or a hub id in the local cache.")
    ]
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", "-m", metavar="M", help="For example 1xH200, 4xA100-80GB, 2x8xH100-80GB@8xib400, cpu."
        ),
    ] = None
    tokens: Annotated[str | None, typer.Option(metavar="N", help="Tokens to train on: 300B, 1.5T, 2e9.")] = None
    samples: Annotated[str | None, typer.Option(metavar="N", help="Samples to train on, in place of tokens.")] = None
    steps: Annotated[str | None, typer.Option(metavar="N", help="Optimizer steps, in place of tokens.")] = None
    seq: Annotated[str | None, typer.Option(metavar="N", help="Positions per sample; default: the model's.")] = None
    decoder_seq: Annotated[
        str | None, typer.Option(metavar="N", help="Decoder positions per sample; default: as --seq.")
    ] = None
    global_batch: Annotated[
        str | None, typer.Option(metavar="N[±P%]", help="Samples per optimizer step over all GPUs: 1024, 1024±2%.")
    ] = None
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", metavar="K=V,…", help="Fixes knobs: micro_batch=16,precision=bf16.")
    ] = None
    max_days: Annotated[str | None, typer.Option(metavar="X", help="Limit on the whole run's days.")] = None
    max_usd: Annotated[str | None, typer.Option(metavar="X", help="Limit on the whole run's rent.")] = None
    max_kwh: Annotated[str | None, typer.Option(metavar="X", help="Limit on the whole run's energy.")] = None
    price: Annotated[str | None, typer.Option(metavar="X", help="Rent in USD per GPU-hour; default: known prices.")] = (
        None
    )
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this machine's profile; default: the best known one.")
    ] = None
    top: Annotated[str, typer.Option(metavar="N", help="How many of the best recipes to show or verify.")] = "10"
    json: Json = field(default=False)


def asks(**defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of ``Asked`` in place of its first parameter, which receives them as one value.

    ``defaults`` replaces the default of options by name.
    """
    hints = get_type_hints(Asked, include_extras=True)
    shared = [_parameter(part.name, hints[part.name], defaults.get(part.name, part.default)) for part in fields(Asked)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def wrapped(**values: Any) -> None:  # noqa: ANN401
            asked = Asked(**{parameter.name: values.pop(parameter.name) for parameter in shared})
            command(asked, **values)

        functools.update_wrapper(wrapped, command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        del wrapped.__wrapped__  # type: ignore[attr-defined]
        parameters = [*shared, *(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own)]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    known = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=known, annotation=annotation)
