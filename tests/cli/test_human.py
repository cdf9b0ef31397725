import pytest

from cli import human


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "?"), (0.0, "0.00 ns"), (3e-6, "3.00 µs"), (0.0374, "37.4 ms"), (1.0, "1.00 s"), (59.9, "59.9 s"),
        (60.0, "1.00 min"), (7200.0, "2.00 h"), (86400.0 * 120, "120 d"),
    ],
)  # fmt: skip
def test_seconds(value_s, text):
    assert human.seconds(value_s) == text


def test_a_range_says_its_unit_once_unless_it_changes():
    assert human.seconds_range(0.0351, 0.0399) == "35.1–39.9 ms"
    assert human.seconds_range(0.9, 1.1) == "900 ms–1.10 s"
    assert human.days_range(1.0, 22.5) == "1.00–22.5"
    assert human.days_range(None, 2.0) == "?"


def test_memory_is_in_gib():
    assert human.gib(2**30 * 12.34) == "12.3"
    assert human.gib(None) == "?"


@pytest.mark.parametrize(("value", "text"), [(300e9, "300B"), (1.0117e9, "1.01B"), (70_426_624, "70.4M"), (12, "12")])
def test_counts(value, text):
    assert human.count(value) == text


def test_money_and_ratios():
    assert human.usd(1234.5) == "$1,234"
    assert human.usd(9.5) == "$9.50"
    assert human.usd(None) == "?"
    assert human.percent(0.06) == "6.0%"
    assert human.percent(-0.06, signed=True) == "-6.0%"
    assert human.percent(None) == "?"
