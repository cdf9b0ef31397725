"""From typed options to a ``Case``: everything is parsed, and every problem is told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cli.options import Asked
from profiles.errors import InvalidInputError

if TYPE_CHECKING:
    from simulator import Case, Run

T = TypeVar("T")
P = TypeVar("P")
LONGEST_SEQ = 10**8
MOST_SHOWN = 10**4
MOST_STEPS = 10**12
MOST_COUNTED = 1e18
COUNTS = "a number from 1 to 1e18, with K, M, B or T for 1e3, 1e6, 1e9, 1e12, such as 300B"
MACHINE_EXAMPLES = "1xH200, 4xA100-80GB, 2x8xH100-80GB@8xib400, cpu"


class Problems:
    """Collects what is wrong with the options, so that one message can list all of it."""

    def __init__(self) -> None:
        self.errors: list[InvalidInputError] = []

    def parse(self, parser: Callable[[P], T], given: P | None) -> T | None:
        """The parsed value; ``None`` if nothing was given or it cannot be used."""
        if given is None:
            return None
        try:
            return parser(given)
        except InvalidInputError as error:
            self.errors.append(error)
            return None

    def add(self, subject: str, problem: str) -> None:
        """Note one problem."""
        self.errors.append(InvalidInputError(subject, [problem]))

    def raise_any(self) -> None:
        """Raise what was collected: one error as it is, several as one that lists them all.

        Raises:
            InvalidInputError: anything was collected.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            lines = [_line(error.subject, problem) for error in self.errors for problem in error.problems]
            raise InvalidInputError("the command line", lines)


def _line(subject: str, problem: str) -> str:
    return problem if subject.startswith("unknown ") else f"{subject}: {problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A parsed question. ``fixed`` holds the knobs that ``--recipe`` names; ``asked`` is as typed."""

    asked: Asked
    case: Case
    top: int


def read(asked: Asked, *, here: bool = False, published_batch: bool = True) -> Question:
    """The question that the options ask. With ``here``, no ``--machine`` means this machine.

    ``published_batch``: whether the global batch of the model's published run stands in for one that is not given.

    Raises:
        InvalidInputError: with every problem of the command line.
    """
    from calibration.question import build_case

    problems = Problems()
    machine = asked.machine or (_this_machine() if here else None)
    if machine is None:
        problems.add("--machine", f"is required; for example {MACHINE_EXAMPLES}")
    run, fixed = _run(asked, problems), _fixed(asked, problems)
    price = problems.parse(_amount("--price"), asked.price)
    top = problems.parse(_whole("--top", MOST_SHOWN), asked.top)
    if problems.errors:
        _names(asked.model, machine, problems)
    problems.raise_any()
    case = build_case(
        asked.model,
        machine or "",
        run,
        fixed,
        price_usd_per_gpu_h=price,
        profile=asked.profile,
        published_batch=published_batch,
    )
    return Question(asked=asked, case=case, top=top or 1)


def _names(model: str, machine: str | None, problems: Problems) -> None:
    """Adds what is wrong with the model and the machine to what is wrong elsewhere."""
    from calibration.models import resolve
    from profiles import parse_machine

    problems.parse(resolve, model)
    problems.parse(parse_machine, machine)


def _run(asked: Asked, problems: Problems) -> Run:
    from simulator import Run
    from simulator.units import parse_batch

    lengths = {"--tokens": asked.tokens, "--samples": asked.samples, "--steps": asked.steps}
    given = [option for option, text in lengths.items() if text is not None]
    if len(given) > 1:
        problems.add("the run's length", f"give one of {', '.join(lengths)}, not {' and '.join(given)}")
    batch, tolerance = problems.parse(lambda text: parse_batch(text, "--global-batch"), asked.global_batch) or (
        None,
        0.0,
    )
    return Run(
        tokens=problems.parse(_count("--tokens"), asked.tokens),
        samples=problems.parse(_count("--samples"), asked.samples),
        steps=problems.parse(_whole("--steps", MOST_STEPS), asked.steps),
        seq=problems.parse(_whole("--seq", LONGEST_SEQ), asked.seq),
        decoder_seq=problems.parse(_whole("--decoder-seq", LONGEST_SEQ), asked.decoder_seq),
        global_batch=batch,
        global_batch_tolerance=tolerance,
        max_days=problems.parse(_amount("--max-days"), asked.max_days),
        max_usd=problems.parse(_amount("--max-usd"), asked.max_usd),
        max_kwh=problems.parse(_amount("--max-kwh"), asked.max_kwh),
    )


def _fixed(asked: Asked, problems: Problems) -> Mapping[str, object]:
    from simulator.recipes import parse_recipe

    fixed = problems.parse(parse_recipe, asked.recipe) or {}
    for knob, option in (("seq", asked.seq), ("decoder_seq", asked.decoder_seq)):
        if knob in fixed and option is not None and str(fixed[knob]) != option.strip():
            problems.add("--recipe", f"{knob}={fixed[knob]} contradicts --{knob.replace('_', '-')} {option}")
    return fixed


def _count(option: str) -> Callable[[str], float]:
    """A parser of counts of tokens or samples."""
    return lambda text: _bounded(option, text, MOST_COUNTED, COUNTS)


def _amount(option: str) -> Callable[[str], float]:
    from simulator.units import parse_amount

    return lambda text: parse_amount(text, option)


def _whole(option: str, most: int) -> Callable[[str], int]:
    """A parser of whole numbers; ``10k`` and ``1e3`` are some too."""
    from simulator.units import refused

    allowed = f"a whole number from 1 to {most:,}"

    def parse(text: str) -> int:
        value = _bounded(option, text, most, allowed)
        if not value.is_integer():
            raise refused(option, text, allowed)
        return int(value)

    return parse


def _bounded(option: str, text: str, most: float, allowed: str) -> float:
    from simulator.units import parse_count, refused

    try:
        value = parse_count(text, option)
    except InvalidInputError:
        raise refused(option, text, allowed) from None
    if not 1 <= value <= most:
        raise refused(option, text, allowed)
    return value


def duration_s(option: str, text: str) -> float:
    """Seconds of ``10m``, ``1h30m``.

    Raises:
        InvalidInputError: it is no duration.
    """
    from simulator.units import parse_duration_s

    return parse_duration_s(text, option)


def _this_machine() -> str:
    from calibration.machine import this_machine

    return this_machine().name
