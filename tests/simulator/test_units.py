import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidInputError
from simulator.units import parse_amount, parse_batch, parse_count, parse_duration_s, to_gib


@pytest.mark.parametrize(
    ("text", "count"),
    [("300B", 300e9), ("1.5t", 1.5e12), ("2e9", 2e9), ("100_000", 1e5), ("7 M", 7e6), ("12k", 12e3), ("1", 1.0)],
)
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "0B", "-3B", "B", "3Q", "1e999", "nan", "inf", "1,000", "3BB", "_1", "1_", "1__0"]
)
def test_counts_refused(text):
    with pytest.raises(InvalidInputError, match="above zero") as caught:
        parse_count(text, "tokens")
    assert caught.value.subject == "tokens"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172800), ("1h30m", 5400), ("1 H 5 s", 3605)]
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0m", "-5m", "5w", "m", "m5", "1h30"])
def test_durations_refused(text):
    with pytest.raises(InvalidInputError, match="such as 90s, 10m"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("1024", (1024, 0.0)),
        ("1024±2%", (1024, 0.02)),
        ("1024+-2%", (1024, 0.02)),
        ("1024 +/- 2.5 %", (1024, 0.025)),
        ("1_024±0%", (1024, 0.0)),
    ],
)
def test_batches(text, batch):
    assert parse_batch(text) == pytest.approx(batch)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-8", "1.5", "1024±2", "1024±100%", "1024±-2%", "±2%", "1e3", "2000000000", "1_", "1__0", "9" * 5000],
)
def test_batches_refused(text):
    with pytest.raises(InvalidInputError, match="1024±2%") as caught:
        parse_batch(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["0", "-1", "", "ten", "1e400"])
def test_amounts_refused(text):
    with pytest.raises(InvalidInputError, match="--max-usd"):
        parse_amount(text, "--max-usd")


def test_conversions():
    assert parse_amount("0.5") == 0.5
    assert to_gib(3 * 1024**3) == 3


@given(st.integers(1, 10**6), st.integers(0, 99))
def test_a_printed_batch_parses_back(batch, percent):
    assert parse_batch(f"{batch}±{percent}%") == (batch, percent / 100)
