"""Tables: 80 columns, and every number with its interval and its provenance."""

import pytest

PLAN = ("plan", "pythia-14m", "--machine", "2x8xH100-80GB@8xib400", "--tokens", "300B", "--global-batch", "1024")


@pytest.mark.parametrize(
    "arguments",
    [
        PLAN,
        ("plan", "pythia-14m", "-m", "1xT4", "--tokens", "300B", "--top", "30"),
        ("predict", "pythia-14m", "-m", "1xH200", "--global-batch", "1000003", "-r", "checkpointing=every_2"),
        ("predict", "mamba-130m", "-m", "1xH200"),
        ("models",), ("models", "pythia-14m"), ("machines",), ("machines", "1xMI250X"), ("prices",), ("doctor",),
    ],
)  # fmt: skip
def test_fits_80_columns(paceline, arguments):
    ended = paceline(*arguments)
    assert ended.code == 0, ended.err
    assert ended.out.strip()
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "…" not in ended.out.replace("[MODEL…]", "")


def test_plan_shows_point_interval_bound_and_provenance(paceline):
    from calibration.question import build_case
    from cli import human
    from simulator import Run, plan

    shown = paceline(*PLAN, "--top", "1").out
    best = plan(build_case("pythia-14m", PLAN[3], Run(tokens=300e9, global_batch=1024), {})).best
    for text in (
        human.seconds(best.step_s), human.seconds_range(best.step_s_low, best.step_s_high), human.digits(best.days),
        human.days_range(best.days_low, best.days_high), human.usd(best.usd), f"≤ {human.gib(best.peak_bytes_high)}",
        human.percent(best.mfu), "datasheet",
    ):  # fmt: skip
        assert text in shown, text
    for label in ("best", "median", "worst", "naive", "recipes judged"):
        assert label in shown


def test_predict_says_what_does_not_fit(paceline):
    shown = paceline("predict", "pythia-14m", "-m", "1xT4", "-r", "micro_batch=1024,precision=fp32").out
    assert "oom" in shown
    assert "limit 14.6 GiB" in shown


def test_an_answer_from_the_data_sheet_says_so(paceline):
    assert "from the data sheet of T4" in paceline("plan", "pythia-14m", "-m", "1xT4").out
