"""Plots read back from their SVG: places by the ticks beside them, counts, labels, and the same bytes every time."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from calibration import plots
from calibration.plots import CostPoint, CoveragePoint, ScatterPoint
from profiles.errors import InvalidInputError
from profiles.schema import Recipe
from simulator.crossovers import Crossover
from simulator.curves import Curve, Point
from simulator.results import Prediction

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


# ------------------------------------------------------------------------------------------ reading an SVG


class Sheet:
    """An SVG's elements by id, and values from places, judged by the panel's own ticks."""

    def __init__(self, text):
        self.text = text
        self.root = ET.fromstring(text)
        named = [one for one in self.root.iter() if "id" in one.attrib]
        self.by_id = {one.attrib["id"]: one for one in named}
        assert len(self.by_id) == len(named), "ids are unique"

    @property
    def words(self):
        return [one.text for one in self.root.iter(f"{SVG}text")]

    def markers(self, name):
        """Places of the markers under an id."""
        return [(float(u.attrib["x"]), float(u.attrib["y"])) for u in self.by_id[name].iter(f"{SVG}use")]

    def outline(self, name):
        """Places along the first path under an id."""
        path = next(self.by_id[name].iter(f"{SVG}path"))
        numbers = [float(n) for n in NUMBER.findall(path.attrib["d"])]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def ticks(self, side, panel=1):
        """(place, value) of the labelled ticks along ``x`` or ``y``."""
        found = []
        for one in self.by_id[f"axes_{panel}"].iter():
            if re.fullmatch(rf"{side}tick_\d+", one.attrib.get("id", "")):
                place = float(next(one.iter(f"{SVG}use")).attrib[side])
                found.append((place, float(next(one.iter(f"{SVG}text")).text.replace(",", ""))))
        return found

    def values(self, places, side, panel=1, log=True):
        """What places along an axis stand for, from its first and its last tick."""
        (p, a), (q, b) = (self.ticks(side, panel)[row] for row in (0, -1))
        if not log:
            return [a + (b - a) * (place - p) / (q - p) for place in places]
        return [a * (b / a) ** ((place - p) / (q - p)) for place in places]


def close(values):
    return pytest.approx(values, rel=2e-4, abs=1e-3)


def size(text):
    return len(text.encode())


# --------------------------------------------------------------------------------------------- what is drawn

SCATTER = [
    ScatterPoint(measured_s=0.02, predicted_s=0.021, group="small", host_decides=True),
    ScatterPoint(measured_s=0.5, predicted_s=0.4, group="small", host_decides=False),
    ScatterPoint(measured_s=3.0, predicted_s=3.3, group="large <1B> & more", host_decides=False),
    ScatterPoint(measured_s=7.0, predicted_s=6.5, group="large <1B> & more", host_decides=False),
]
BY = {
    "precision": {"bf16": {"n": 12, "mape": 0.03, "bias": 0.0}, "fp32": {"n": 3, "mape": 0.12}},
    "seq": {"512": {"n": 15, "mape": 0.048}},
}
COST = {
    "by information": [CostPoint(runs=10, seconds=40.0, mape=0.2), CostPoint(runs=30, seconds=150.0, mape=0.04)],
    "at random": [
        CostPoint(runs=10, seconds=90.0, mape=0.5),
        CostPoint(runs=20, seconds=200.0, mape=0.2),
        CostPoint(runs=40, seconds=380.0, mape=0.1),
    ],
}
LEVELS = [
    CoveragePoint(nominal=0.9, observed=0.92, group="gpu"),
    CoveragePoint(nominal=0.5, observed=0.55, group="gpu"),
    CoveragePoint(nominal=0.9, observed=0.8, group="host"),
]


def prediction(step_s, **changed):
    return replace(_prediction(), step_s=step_s, step_s_low=step_s * 0.9, step_s_high=step_s * 1.25, **changed)


@cache
def _prediction():
    unknown = dict.fromkeys(["steps", "days", "days_low", "days_high", "usd", "kwh", "mfu"])
    sizes = ["peak_bytes", "peak_reserved_bytes", "peak_device_bytes", "peak_bytes_high", "memory_limit_bytes"]
    return Prediction(
        recipe=Recipe(),
        **dict.fromkeys(["step_s", "step_s_low", "step_s_high", "micro_s", "optimizer_s", "sync_s"], 1.0),
        tokens_per_s=1000.0,
        global_batch=1,
        **unknown,
        **dict.fromkeys(sizes, 1),
        fit_probability=1.0,
        fits=True,
        provenance="fitted",
    )


def point(value, step_s, **changed):
    return Point(value=value, prediction=prediction(step_s, **changed), gpu_s=1.0, host_s=0.5, calibrated=True)


CROSSOVERS = (
    Crossover(name="gpu_bound", axis="micro_batch", state="from", first=4.0, first_low=3.0, first_high=6.0, last=64.0),
    Crossover(name="compile", axis="micro_batch", state="between", first=2.0, last=24.0, last_low=20.0, last_high=30.0),
    Crossover(name="checkpointing=full", axis="memory_bytes", state="from", first=8.0, first_low=7.0, first_high=9.0),
    Crossover(name="checkpointing=every_2", axis="micro_batch", state="from", first=500.0),
    Crossover(name="checkpointing=every_4", axis="micro_batch", state="always", first=1.0, last=64.0),
)
POINTS = (
    point(1, 0.1, measured_step_s=0.11),
    point(4, 0.12),
    point(16, 0.4),
    point(64, 1.6, fits=False),
)
CURVE = Curve(
    axis="micro_batch",
    recipe=Recipe(),
    points=POINTS,
    calibrated=(2.0, 32.0),
    crossovers=CROSSOVERS,
    every_value=True,
)


@cache
def drawn(name):
    return Sheet(draw(name))


def draw(name):
    return {
        "scatter": lambda: plots.predicted_against_measured(SCATTER),
        "bars": lambda: plots.error_by_knob(BY),
        "cost": lambda: plots.cost_against_error(COST),
        "coverage": lambda: plots.coverage(LEVELS),
        "curve": lambda: plots.curve(CURVE),
        "throughput": lambda: plots.curve(CURVE, quantity="tokens_per_s"),
    }[name]()


NAMES = ("scatter", "bars", "cost", "coverage", "curve", "throughput")


# ------------------------------------------------------------------------------------------------ every plot


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("scatter", {"measured step time (s)", "predicted step time (s)"}),
        ("bars", {"mean absolute error of step time (%)"}),
        ("cost", {"runs (count)", "time of the runs (s)", "mean absolute error of step time (%)"}),
        ("coverage", {"nominal coverage (%)", "observed coverage (%)"}),
        ("curve", {"micro-batch (samples per GPU)", "step time (s)"}),
        ("throughput", {"micro-batch (samples per GPU)", "throughput (tokens/s)"}),
    ],
)
def test_axes_are_labelled_with_their_units_in_text(name, labels):
    assert labels <= set(drawn(name).words)


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_is_white_and_nothing_is_dated(name):
    sheet = drawn(name)
    assert "fill: #ffffff" in next(sheet.by_id["figure_1"].iter(f"{SVG}path")).attrib["style"]
    assert not re.search(r"20\d\d-\d\d-\d\d|dc:date|matplotlib v", sheet.text, re.IGNORECASE)
    assert not re.search(r"[ \t]$", sheet.text, re.MULTILINE)


def test_the_same_data_gives_the_same_bytes_whatever_the_settings():
    import matplotlib

    with matplotlib.rc_context({"font.size": 20.0, "svg.fonttype": "path", "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        for name in NAMES:
            assert draw(name) == drawn(name).text
        assert dict(matplotlib.rcParams) == before


def test_another_process_gives_the_same_bytes(tmp_path):
    code = (
        "import sys; from calibration import plots as p\n"
        "points = [p.ScatterPoint(measured_s=float(i + 1), predicted_s=2.0, group=str(i), host_decides=i % 2 == 0)"
        " for i in range(4)]\n"
        "sys.stdout.buffer.write(p.predicted_against_measured(points).encode())\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "MPLCONFIGDIR": str(tmp_path), "PYTHONHASHSEED": "7"}
    env |= {"SOURCE_DATE_EPOCH": "1000000000", "HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    points = [
        ScatterPoint(measured_s=i + 1.0, predicted_s=2.0, group=str(i), host_decides=i % 2 == 0) for i in range(4)
    ]
    assert ended.stdout.decode() == plots.predicted_against_measured(points)


def test_other_data_gives_another_plot():
    moved = [*SCATTER[:-1], replace(SCATTER[-1], predicted_s=6.6)]
    assert plots.predicted_against_measured(moved) != drawn("scatter").text


def test_each_colour_and_marker_is_one_group_only():
    looks = [plots._look(index) for index in range(56)]
    assert len(set(looks)) == 56


# ---------------------------------------------------------------------------------------------- the scatter


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("points:small:host", SCATTER[:1]),
        ("points:small:gpu", SCATTER[1:2]),
        ("points:large <1B> & more:gpu", SCATTER[2:]),
        ("points:large <1B> & more:host", []),
    ],
)
def test_points_lie_where_their_seconds_say(name, rows):
    sheet = drawn("scatter")
    xs, ys = zip(*sheet.markers(name), strict=True) if rows else ((), ())
    assert sheet.values(xs, "x") == close([p.measured_s for p in rows])
    assert sheet.values(ys, "y") == close([p.predicted_s for p in rows])


def test_both_axes_of_the_scatter_have_the_same_ticks():
    sheet = drawn("scatter")
    values = [value for _, value in sheet.ticks("x")]
    assert values == [value for _, value in sheet.ticks("y")]
    assert values == [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


def test_points_are_hollow_where_the_host_decides():
    sheet = drawn("scatter")
    hollow, filled = (next(sheet.by_id[f"points:small:{kind}"].iter(f"{SVG}use")) for kind in ("host", "gpu"))
    assert "fill: none" in hollow.attrib["style"] or "fill-opacity: 0" in hollow.attrib["style"]
    assert "fill: #0072b2" in filled.attrib["style"]
    assert {"small (n = 2)", "large <1B> & more (n = 2)", "hollow: the host decides"} <= set(sheet.words)
    without = Sheet(plots.predicted_against_measured(SCATTER[1:]))
    assert "hollow: the host decides" not in without.words


def test_the_line_is_one_to_one_and_the_band_ten_percent():
    sheet = drawn("scatter")
    for x, y in sheet.outline("one-to-one"):
        assert sheet.values([x], "x") == close(sheet.values([y], "y"))
    low = min(s for p in SCATTER for s in (p.measured_s, p.predicted_s))
    ratios = {round(b / a, 3) for a, b in _band(sheet)}
    assert ratios == {0.9, 1.1}
    assert min(a for a, _ in _band(sheet)) < low


def _band(sheet):
    # the outline is stored around the use's own offset
    use = next(sheet.by_id["band"].iter(f"{SVG}use"))
    dx, dy = float(use.attrib["x"]), float(use.attrib["y"])
    xs, ys = zip(*((x + dx, y + dy) for x, y in sheet.outline("band")), strict=True)
    return list(zip(sheet.values(xs, "x"), sheet.values(ys, "y"), strict=True))


# ------------------------------------------------------------------------------------------------- the bars


def test_bars_are_as_long_as_errors_and_grouped_by_knob():
    sheet = drawn("bars")
    ends = {name: sheet.outline(name) for name in sheet.by_id if name.startswith("bar:")}
    lengths = {name: length(sheet, outline) for name, outline in ends.items()}
    expected = {"bar:precision=bf16": 3.0, "bar:precision=fp32": 12.0, "bar:seq=512": 4.8}
    assert lengths == close(expected)
    middles = [sum(y for _, y in outline[:4]) / 4 for outline in ends.values()]
    assert middles == sorted(middles), "from top to bottom as given"
    gaps = [b - a for a, b in pairwise(middles)]
    assert gaps[1] == close(2.5 * gaps[0])


def length(sheet, outline):
    left, right = sheet.values([pick(x for x, _ in outline) for pick in (min, max)], "x", log=False)
    assert left == close(0.0)
    return right


def test_counts_stand_beside_values_and_errors_behind_bars():
    words = drawn("bars").words
    assert {"bf16  (n = 12)", "fp32  (n = 3)", "512  (n = 15)", "precision", "seq", "3.0", "12.0", "4.8"} <= set(words)


def test_more_rows_make_a_taller_plot():
    heights = []
    for count in (2, 20):
        many = {"seq": {str(n): {"n": 1, "mape": 0.1} for n in range(count)}}
        heights.append(float(Sheet(plots.error_by_knob(many)).root.attrib["viewBox"].split()[3]))
    assert heights[1] - heights[0] == pytest.approx(18 * 0.24 * 72)


# ----------------------------------------------------------------------------------------- cost and coverage


@pytest.mark.parametrize("policy", COST)
def test_errors_lie_over_runs_and_over_seconds(policy):
    sheet = drawn("cost")
    for panel, kind, costs in (
        (1, "runs", [p.runs for p in COST[policy]]),
        (2, "seconds", [p.seconds for p in COST[policy]]),
    ):
        xs, ys = zip(*sheet.outline(f"{kind}:{policy}"), strict=True)
        xs, ys = xs[: len(costs)], ys[: len(costs)]
        assert sheet.values(xs, "x", panel, log=False) == close(costs)
        assert sheet.values(ys, "y", 1) == close([100 * p.mape for p in COST[policy]])
    assert sheet.words.count(policy) == 1


def test_errors_that_hardly_differ_start_at_zero():
    flat = {"only": [CostPoint(runs=1, seconds=2.0, mape=0.0), CostPoint(runs=2, seconds=3.0, mape=0.1)]}
    sheet = Sheet(plots.cost_against_error(flat))
    assert sheet.ticks("y")[0][1] == 0.0
    ys = [y for _, y in sheet.outline("runs:only")][:2]
    assert sheet.values(ys, "y", log=False) == close([0.0, 10.0])


def test_coverage_lies_where_its_levels_say():
    sheet = drawn("coverage")
    xs, ys = zip(*sheet.outline("levels:gpu")[:2], strict=True)
    assert sheet.values(xs, "x", log=False) == close([50.0, 90.0])
    assert sheet.values(ys, "y", log=False) == close([55.0, 92.0])
    assert {"gpu", "host", "observed = nominal"} <= set(sheet.words)


def test_the_target_box_spans_87_to_93_percent_around_90():
    sheet = drawn("coverage")
    xs, ys = zip(*sheet.outline("target"), strict=True)
    across, up = sheet.values(xs, "x", log=False), sheet.values(ys, "y", log=False)
    assert [min(up), max(up)] == close([87.0, 93.0])
    assert (min(across) + max(across)) / 2 == close(90.0)


# ------------------------------------------------------------------------------------------------ the curves


def test_a_curve_lies_where_its_points_say():
    sheet = drawn("curve")
    xs, ys = zip(*sheet.outline("predicted"), strict=True)
    assert sheet.values(xs, "x") == close([1, 4, 16, 64])
    assert sheet.values(ys, "y") == close([0.1, 0.12, 0.4, 1.6])
    assert [value for _, value in sheet.ticks("x")] == [1, 2, 4, 8, 16, 32, 64]


def test_throughput_is_the_tokens_of_a_step_over_its_time():
    sheet = drawn("throughput")
    _, ys = zip(*sheet.outline("predicted"), strict=True)
    assert sheet.values(ys, "y") == close([1000.0] * 4)
    assert extremes(sheet, "interval") == close([1000 / 1.25, 1000 / 0.9])
    (_, measured) = sheet.markers("measured")[0]
    assert sheet.values([measured], "y") == close([1000 * 0.1 / 0.11])


def test_the_interval_of_a_curve_is_the_predictions_own():
    assert extremes(drawn("curve"), "interval") == close([0.1 * 0.9, 1.6 * 1.25])


def extremes(sheet, name):
    dy = float(next(sheet.by_id[name].iter(f"{SVG}use")).attrib["y"])
    values = sheet.values([y + dy for _, y in sheet.outline(name)], "y")
    return [min(values), max(values)]


def test_the_calibrated_range_is_shaded_and_cut_to_what_is_shown():
    assert span(drawn("curve"), "calibrated") == close([2.0, 32.0])
    wide = Sheet(plots.curve(replace(CURVE, calibrated=(0.01, 32.0))))
    left_edge = min(x for x, _ in wide.outline("patch_2"))
    assert min(x for x, _ in wide.outline("calibrated")) == close(left_edge)
    for calibrated in (None, (100.0, 200.0)):
        sheet = Sheet(plots.curve(replace(CURVE, calibrated=calibrated)))
        assert "calibrated" not in sheet.by_id
        assert "calibrated range" not in sheet.words


def span(sheet, name):
    values = sheet.values([x for x, _ in sheet.outline(name)], "x")
    return [min(values), max(values)]


def test_crossovers_are_lines_with_their_range():
    sheet = drawn("curve")
    assert span(sheet, "crossover:gpu_bound:from") == close([4.0, 4.0])
    assert span(sheet, "range:gpu_bound:from") == close([3.0, 6.0])
    assert span(sheet, "crossover:compile:from") == close([2.0, 2.0])
    assert span(sheet, "crossover:compile:until") == close([24.0, 24.0])
    assert span(sheet, "range:compile:until") == close([20.0, 30.0])
    assert "stroke-dasharray" in next(sheet.by_id["crossover:compile:until"].iter(f"{SVG}path")).attrib["style"]
    told = {"GPU-bound from 4 (3–6)", "compile pays from 2 (any–any)", "compile pays until 24 (20–30)"}
    assert told <= set(sheet.words)


def test_no_line_for_what_always_holds_lies_elsewhere_or_has_no_range():
    names = {name for name in drawn("curve").by_id if name.startswith(("crossover:", "range:"))}
    lines = {"crossover:gpu_bound:from", "crossover:compile:from", "crossover:compile:until"}
    assert names == lines | {"range:gpu_bound:from", "range:compile:until"}


def test_points_that_do_not_fit_or_were_measured_are_marked():
    sheet = drawn("curve")
    assert sheet.values([x for x, _ in sheet.markers("fits")], "x") == close([1, 4, 16])
    assert sheet.values([x for x, _ in sheet.markers("does-not-fit")], "x") == close([64])
    assert sheet.values([y for _, y in sheet.markers("measured")], "y") == close([0.11])
    plain = Sheet(plots.curve(replace(CURVE, points=POINTS[1:3])))
    assert not {"does-not-fit", "measured"} & set(plain.by_id)


@pytest.mark.parametrize("shown", [POINTS[:1], POINTS[:2], (point(1000, 0.1), point(1100, 0.101))])
def test_a_narrow_curve_has_two_ticks_on_either_axis(shown):
    sheet = Sheet(plots.curve(replace(CURVE, points=shown)))
    assert min(len(sheet.ticks(side)) for side in "xy") >= 2
    assert sheet.values([x for x, _ in sheet.markers("fits")], "x") == close([p.value for p in shown])
    assert sheet.values([y for _, y in sheet.markers("fits")], "y") == close([p.prediction.step_s for p in shown])


# -------------------------------------------------------------------------------------- refusals and writing


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: plots.predicted_against_measured([]), ["no points"]),
        (lambda: plots.predicted_against_measured([replace(SCATTER[0], measured_s=0.0)]), ["measured_s=0", "above 0"]),
        (
            lambda: plots.predicted_against_measured([replace(SCATTER[0], measured_s=-1.0, predicted_s=math.inf)]),
            ["measured_s=-1", "predicted_s=inf"],
        ),
        (lambda: plots.error_by_knob({"seq": {}}), ["no values of knobs"]),
        (lambda: plots.error_by_knob({"seq": {"1": {"n": 1}, "2": {"mape": 0.1}}}), ["seq=1 has no mape", "seq=2"]),
        (lambda: plots.error_by_knob({"seq": {"1": {"n": 1, "mape": math.nan}}}), ["mape=nan"]),
        (lambda: plots.cost_against_error({}), ["no policies"]),
        (lambda: plots.cost_against_error({"a": [], "b": []}), ["a has no points", "b has no points"]),
        (lambda: plots.coverage([]), ["no levels"]),
        (lambda: plots.coverage([replace(LEVELS[0], observed=92.0)]), ["observed=92", "from 0 to 1"]),
        (lambda: plots.curve(replace(CURVE, points=())), ["no points"]),
        (lambda: plots.curve(replace(CURVE, points=(point(1, 0.0),))), ["step_s_low=0", "step_s_high=0"]),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_every_problem(make, told):
    with pytest.raises(InvalidInputError) as caught:
        make()
    for text in told:
        assert text in str(caught.value)


def test_plots_are_written_by_name(tmp_path):
    written = plots.write_plots(tmp_path / "plots", {"one": drawn("bars").text, "±two": drawn("cost").text})
    assert written == [tmp_path / "plots" / "one.svg", tmp_path / "plots" / "±two.svg"]
    assert written[0].read_bytes() == drawn("bars").text.encode()
    assert ET.parse(written[1]).getroot().tag == f"{SVG}svg"


def test_a_plot_too_large_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(InvalidInputError, match=r"large\.svg has 120,001 bytes; allowed: 120,000") as caught:
        plots.write_plots(tmp_path, {"small": "<svg/>", "large": "x" * 120_001, "edge": "x" * 120_000})
    assert len(caught.value.problems) == 1
    assert not list(tmp_path.iterdir())


def test_five_hundred_rows_stay_below_the_limit():
    rows = [
        ScatterPoint(measured_s=1.01**i, predicted_s=1.01**i, group=f"model {i % 9}", host_decides=i % 3 == 0)
        for i in range(500)
    ]
    text = plots.predicted_against_measured(rows)
    assert size(text) < plots.MOST_BYTES
    sheet = Sheet(text)
    names = [name for name in sheet.by_id if name.startswith("points:")]
    assert sum(len(sheet.markers(name)) for name in names) == 500
