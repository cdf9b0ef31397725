"""Plots of accuracy and of curves: pure functions from plain data to SVG text, the same bytes for the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from profiles.errors import InvalidInputError
from profiles.files import write_whole
from simulator.crossovers import Crossover
from simulator.curves import Curve, Point
from simulator.units import KB

if TYPE_CHECKING:  # matplotlib comes with development, not with the package
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Quantity = Literal["step_s", "tokens_per_s"]
Span = tuple[float, float]

MOST_BYTES = 120 * KB
"""A larger file is refused: too many points for one plot."""
BAND = 0.10
"""Half-width of the band around the 1:1 line, as a fraction."""
TARGET_NOMINAL, TARGET_LOW, TARGET_HIGH = 0.90, 0.87, 0.93
"""An interval of 90 % should cover between these shares."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette for every kind of colour vision, without its yellow, which white paper swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, GRID, SHADE = "#000000", "#D9D9D9", "#E8EEF4"
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 10.0,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,
}
_AXES = {
    "micro_batch": "micro-batch (samples per GPU)",
    "seq": "sequence length (tokens)",
    "depth": "depth (blocks)",
    "width": "width (hidden features)",
}
_QUANTITIES = {"step_s": "step time (s)", "tokens_per_s": "throughput (tokens/s)"}
_HOLDS = {"gpu_bound": "GPU-bound", "compile": "compile pays"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterPoint:
    """Seconds per step of one run, measured and predicted; whether the host decides them."""

    measured_s: float
    predicted_s: float
    group: str
    host_decides: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """Mean absolute error of step time, a fraction, after so many runs, which took ``seconds``."""

    runs: int
    seconds: float
    mape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveragePoint:
    """The share of rows that an interval of ``nominal`` coverage holds; both fractions."""

    nominal: float
    observed: float
    group: str


def write_plots(folder: Path, plots: Mapping[str, str]) -> list[Path]:
    """The files written, ``name.svg`` per plot.

    Raises:
        InvalidInputError: plots above ``MOST_BYTES``, all of them; nothing is written then.
        PacelineError: a file cannot be written.
    """
    data = {name: text.encode() for name, text in plots.items()}
    _require(
        [
            f"{name}.svg has {len(content):,} bytes; allowed: {MOST_BYTES:,} at most"
            for name, content in data.items()
            if len(content) > MOST_BYTES
        ]
    )
    return [write_whole(folder / f"{name}.svg", content) for name, content in data.items()]


# --------------------------------------------------------------------------------------- predicted, measured


def predicted_against_measured(points: Sequence[ScatterPoint]) -> str:
    """Every row on two logarithmic axes, with the 1:1 line and ±10 % around it; hollow where the host decides.

    Raises:
        InvalidInputError: no points, or seconds that are not above zero.
    """
    _require(
        [
            *_none_of(points, "points"),
            *_bad("measured_s", [p.measured_s for p in points], above=0.0),
            *_bad("predicted_s", [p.predicted_s for p in points], above=0.0),
        ]
    )
    return _svg("Predicted against measured step time", partial(_paint_scatter, points), height_in=6.0)


def _paint_scatter(points: Sequence[ScatterPoint], figure: Figure) -> None:
    axes = figure.add_subplot(xlabel="measured step time (s)", ylabel="predicted step time (s)", aspect="equal")
    seconds = [s for p in points for s in (p.measured_s, p.predicted_s)]
    low, high = min(seconds) / 1.3, max(seconds) * 1.3
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    _log_ticks(axes.xaxis)
    _log_ticks(axes.yaxis)
    ends = [low, high]
    band = axes.fill_between(ends, [s * (1 - BAND) for s in ends], [s * (1 + BAND) for s in ends], color=SHADE, lw=0)
    band.set(gid="band", label=f"±{BAND:.0%}")
    axes.plot(ends, ends, color=INK, linewidth=0.8, gid="one-to-one", label="predicted = measured")
    for index, group in enumerate(dict.fromkeys(p.group for p in points)):
        _group_markers(axes, index, group, [p for p in points if p.group == group])
    if any(p.host_decides for p in points):
        axes.plot([], [], "o", markerfacecolor="none", markeredgecolor=INK, label="hollow: the host decides")
    _legend(figure)


def _group_markers(axes: Axes, index: int, group: str, points: Sequence[ScatterPoint]) -> None:
    colour, marker = _look(index)
    axes.plot([], [], linestyle="none", marker=marker, color=colour, label=f"{group} (n = {len(points)})")
    for kind, host_decides in (("gpu", False), ("host", True)):
        chosen = [p for p in points if p.host_decides == host_decides]
        axes.plot(
            [p.measured_s for p in chosen],
            [p.predicted_s for p in chosen],
            linestyle="none",
            marker=marker,
            color=colour,
            markerfacecolor="none" if host_decides else colour,
            gid=f"points:{group}:{kind}",
        )


# --------------------------------------------------------------------------------------------- error by knob


def error_by_knob(by: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Bars of mean absolute error per knob and value, as under ``by`` in what ``evaluate`` answers.

    Raises:
        InvalidInputError: nothing to show, or values without a count ``n`` or an error ``mape``.
    """
    rows = [(f"{knob}={value}", score) for knob, values in by.items() for value, score in values.items()]
    missing = [f"{name} has no {key}" for name, score in rows for key in ("n", "mape") if key not in score]
    _require([*_none_of(rows, "values of knobs"), *missing])
    _require(_bad("mape", [score["mape"] for _, score in rows], least=0.0))
    height_in = 1.1 + 0.24 * (len(rows) + 1.5 * len(by))
    return _svg("Error of step time by knob", partial(_paint_bars, by), height_in=height_in)


def _paint_bars(by: Mapping[str, Mapping[str, Mapping[str, float]]], figure: Figure) -> None:
    axes = figure.add_subplot(xlabel="mean absolute error of step time (%)", ylabel="knob and value")
    ticks: dict[float, str] = {}
    place = 0.0
    for index, (knob, values) in enumerate((k, v) for k, v in by.items() if v):
        ticks[place] = knob
        places = [place + 1 + row for row in range(len(values))]
        ticks |= {at: f"{value}  (n = {s['n']:g})" for at, (value, s) in zip(places, values.items(), strict=True)}
        errors = [100.0 * score["mape"] for score in values.values()]
        bars = axes.barh(places, errors, height=0.72, color=_look(index)[0])
        for value, bar in zip(values, bars, strict=True):
            bar.set_gid(f"bar:{knob}={value}")
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8.5)
        place = places[-1] + 1.5
    axes.set_yticks(list(ticks), list(ticks.values()))
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in by else "normal")
    axes.set_ylim(place - 0.8, -0.8)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


# ------------------------------------------------------------------------------------------ cost and coverage


def cost_against_error(curves: Mapping[str, Sequence[CostPoint]]) -> str:
    """A line per policy of choosing runs: error over runs, and over the seconds that they took.

    Raises:
        InvalidInputError: no policy, one without points, or numbers below zero.
    """
    everything = [p for points in curves.values() for p in points]
    _require(
        [
            *_none_of(curves, "policies"),
            *(f"{policy} has no points" for policy, points in curves.items() if not points),
            *_bad("runs", [p.runs for p in everything], least=0.0),
            *_bad("seconds", [p.seconds for p in everything], least=0.0),
            *_bad("mape", [p.mape for p in everything], least=0.0),
        ]
    )
    return _svg("Error against what calibration cost", partial(_paint_costs, curves), height_in=4.4, width_in=9.0)


def _paint_costs(curves: Mapping[str, Sequence[CostPoint]], figure: Figure) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    left.set(xlabel="runs (count)", ylabel="mean absolute error of step time (%)")
    right.set(xlabel="time of the runs (s)")
    errors = [100.0 * p.mape for points in curves.values() for p in points]
    low, high = min(errors), max(errors)
    if low > 0 and high > 4 * low:
        left.set(yscale="log", ylim=(low / 1.2, high * 1.2))
        _log_ticks(left.yaxis)
    else:
        left.set_ylim(0.0, (high or 1.0) * 1.1)
    for index, (policy, points) in enumerate(curves.items()):
        colour, marker = _look(index)
        shown = [100.0 * p.mape for p in points]
        left.plot([p.runs for p in points], shown, color=colour, marker=marker, label=policy, gid=f"runs:{policy}")
        right.plot([p.seconds for p in points], shown, color=colour, marker=marker, gid=f"seconds:{policy}")
    for axes in (left, right):
        axes.set_xlim(left=0.0)
    _legend(figure)


def coverage(levels: Sequence[CoveragePoint]) -> str:
    """Observed against nominal coverage, a line per group; the box is what an interval of 90 % should reach.

    Raises:
        InvalidInputError: no levels, or such that are no fractions.
    """
    _require(
        [
            *_none_of(levels, "levels"),
            *_bad("nominal", [p.nominal for p in levels], least=0.0, most=1.0),
            *_bad("observed", [p.observed for p in levels], least=0.0, most=1.0),
        ]
    )
    return _svg("Coverage of the intervals", partial(_paint_coverage, levels), height_in=5.6)


def _paint_coverage(levels: Sequence[CoveragePoint], figure: Figure) -> None:
    from matplotlib.patches import Rectangle

    axes = figure.add_subplot(xlabel="nominal coverage (%)", ylabel="observed coverage (%)", aspect="equal")
    low = min(TARGET_LOW, *(share for p in levels for share in (p.nominal, p.observed)))
    low = math.floor(low * 20.0 - 0.5) * 5.0
    axes.set(xlim=(low, 101.0), ylim=(low, 101.0))
    side = 100.0 * (TARGET_HIGH - TARGET_LOW)
    target = f"{TARGET_LOW:.0%} to {TARGET_HIGH:.0%} at {TARGET_NOMINAL:.0%}".replace("%", " %")
    corner = (100.0 * TARGET_NOMINAL - side / 2, 100.0 * TARGET_LOW)
    axes.add_patch(Rectangle(corner, side, side, facecolor=SHADE, edgecolor=INK, lw=0.8, gid="target", label=target))
    axes.plot([low, 100.0], [low, 100.0], color=INK, linewidth=0.8, gid="one-to-one", label="observed = nominal")
    for index, group in enumerate(dict.fromkeys(p.group for p in levels)):
        colour, marker = _look(index)
        chosen = sorted((100.0 * p.nominal, 100.0 * p.observed) for p in levels if p.group == group)
        xs, ys = zip(*chosen, strict=True)
        axes.plot(xs, ys, color=colour, marker=marker, label=group, gid=f"levels:{group}")
    _legend(figure)


# ------------------------------------------------------------------------------------------------------ curves


def curve(found: Curve, *, quantity: Quantity = "step_s") -> str:
    """A curve with its 90 % interval, the calibrated range shaded, and the crossovers that lie between its points.

    A cross marks what does not fit, a black diamond what was measured. Crossovers that hold always or never, or lie
    along another axis, are left out.

    Raises:
        InvalidInputError: a curve without points, or with times that are not above zero.
    """
    _require(
        [
            *_none_of(found.points, "points"),
            *_bad("step_s_low", [p.prediction.step_s_low for p in found.points], above=0.0),
            *_bad("step_s_high", [p.prediction.step_s_high for p in found.points], above=0.0),
        ]
    )
    title = f"{_QUANTITIES[quantity].split(' (')[0].capitalize()} over {_AXES[found.axis].split(' (')[0]}"
    return _svg(title, partial(_paint_curve, found, quantity), height_in=4.8)


def _paint_curve(found: Curve, quantity: Quantity, figure: Figure) -> None:
    axes = figure.add_subplot(xlabel=_AXES[found.axis], ylabel=_QUANTITIES[quantity])
    values = [float(p.value) for p in found.points]
    steps = [(p.prediction.step_s_low, p.prediction.step_s, p.prediction.step_s_high) for p in found.points]
    rows = [sorted(_in(quantity, p, s) for s in row) for p, row in zip(found.points, steps, strict=True)]
    lows, middles, highs = zip(*rows, strict=True)
    limits = _log_limits(axes, values, [*lows, *highs])
    _shade_calibrated(axes, found.calibrated, limits)
    colour = COLOURS[0]
    axes.fill_between(values, lows, highs, color=colour, alpha=0.2, lw=0, label="90 % interval", gid="interval")
    axes.plot(values, middles, color=colour, label="predicted", gid="predicted")
    _mark_points(axes, found.points, middles, quantity)
    shown = [one for one in found.crossovers if one.axis == found.axis]
    for index, (cross, side, edge) in enumerate(e for one in shown for e in _edges(one, limits)):
        _draw_crossover(axes, cross, side, edge, COLOURS[1 + index % (len(COLOURS) - 1)])
    _legend(figure)


def _in(quantity: Quantity, point: Point, step_s: float) -> float:
    """The quantity if the point's step took so many seconds."""
    one = point.prediction
    return step_s if quantity == "step_s" else one.tokens_per_s * one.step_s / step_s


def _log_limits(axes: Axes, values: Sequence[float], heights: Sequence[float]) -> Span:
    """The horizontal limits, after setting both axes to what is shown."""
    low, high = min(values) / 1.08, max(values) * 1.08
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlim=(low, high), ylim=(min(heights) / 1.15, max(heights) * 1.15))
    _log_ticks(axes.xaxis, base=2)
    _log_ticks(axes.yaxis)
    return low, high


def _shade_calibrated(axes: Axes, calibrated: Span | None, limits: Span) -> None:
    if calibrated is None:
        return
    low, high = max(calibrated[0], limits[0]), min(calibrated[1], limits[1])
    if low <= high:
        axes.axvspan(low, high, color=SHADE, lw=0, zorder=0, gid="calibrated", label="calibrated range")


def _mark_points(axes: Axes, points: Sequence[Point], heights: Sequence[float], quantity: Quantity) -> None:
    for fits, marker, name in ((True, "o", "fits"), (False, "x", "does not fit")):
        chosen = [(p.value, at) for p, at in zip(points, heights, strict=True) if p.prediction.fits == fits]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            axes.plot(xs, ys, marker, color=COLOURS[0], label=name, gid=name.replace(" ", "-"))
    measured = [(p.value, _in(quantity, p, s)) for p in points if (s := p.prediction.measured_step_s) is not None]
    if measured:
        xs, ys = zip(*measured, strict=True)
        axes.plot(xs, ys, "D", color=INK, label="measured", gid="measured")


Edge = tuple[float, float | None, float | None]


def _edges(one: Crossover, limits: Span) -> Iterator[tuple[Crossover, str, Edge]]:
    """Where it starts and stops to hold inside the limits, each with its range."""
    sides: list[tuple[str, float | None, float | None, float | None]] = []
    if one.state in ("from", "between", "scattered"):
        sides.append(("from", one.first, one.first_low, one.first_high))
    if one.state in ("until", "between", "scattered"):
        sides.append(("until", one.last, one.last_low, one.last_high))
    for side, value, low, high in sides:
        if value is not None and limits[0] <= value <= limits[1]:
            yield one, side, (value, low, high)


def _draw_crossover(axes: Axes, one: Crossover, side: str, edge: Edge, colour: str) -> None:
    value, low, high = edge
    told = f"({_number(low)}–{_number(high)})"
    label = f"{_HOLDS.get(one.name, f'{one.name} pays')} {side} {_number(value)} {told}"
    axes.axvline(value, color=colour, linestyle="--", linewidth=1.2, label=label, gid=f"crossover:{one.name}:{side}")
    if low is not None and high is not None:
        axes.axvspan(low, high, color=colour, alpha=0.12, lw=0, gid=f"range:{one.name}:{side}")


# ------------------------------------------------------------------------------------------------------- shared


def _svg(title: str, paint: Callable[[Figure], None], *, height_in: float, width_in: float = 6.8) -> str:
    """What ``paint`` draws, in the shared style, without anything that changes from one writing to the next."""
    from matplotlib import style
    from matplotlib.figure import Figure

    stream = StringIO()
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        figure.suptitle(title, fontsize=11.0)
        paint(figure)
        figure.savefig(stream, format="svg", metadata={"Title": title, "Creator": "Paceline", "Date": None})
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside lower center", ncols=2)


def _look(index: int) -> tuple[str, str]:
    """Colour and marker of a group; no two alike before each of 56 was used."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def _log_ticks(axis: Axis, base: int = 10) -> None:
    """Ticks at plain numbers between the limits, evenly apart where fewer than two powers and their parts lie there."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if base == 10 else (1.0, 1.5) if high < 16.0 * low else (1.0,)
    powers = LogLocator(base=base, subs=subs)
    enough = sum(low <= tick <= high for tick in powers.tick_values(low, high)) > 1
    axis.set_major_locator(powers if enough else AutoLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: _number(value))


def _number(value: float | None) -> str:
    return "any" if value is None else f"{value:,.7g}"


def _none_of(things: Sequence[object] | Mapping[str, object], name: str) -> list[str]:
    return [] if things else [f"there are no {name} to show"]


def _bad(
    name: str,
    values: Sequence[float],
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> list[str]:
    """What is wrong with numbers that must be finite and within these limits; each value once."""
    wrong = [v for v in values if not (math.isfinite(v) and above < v and least <= v <= most)]
    bounds = [f"above {above:g}"] if above > -math.inf else [f"from {least:g}"]
    bounds += [f"to {most:g}"] if most < math.inf else []
    return [f"{name}={value:g} is not allowed; allowed: a number {' '.join(bounds)}" for value in dict.fromkeys(wrong)]


def _require(problems: Sequence[str]) -> None:
    if problems:
        raise InvalidInputError("plot", problems)
