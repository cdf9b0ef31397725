"""Every fact about the world says where it is from."""

import re

import pytest

import profiles

DATE = re.compile(r"(19|20)\d\d(-\d\d(-\d\d)?)?")


def check(fact: object) -> None:
    source, date = fact.source, fact.date
    assert len(source) >= 10, f"{fact}: a source is a document, not a word"
    assert DATE.fullmatch(date), f"{fact}: {date!r} is no ISO date"


@pytest.fixture(autouse=True)
def _shipped_files_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", profiles.gpu_names())
def test_gpus(name):
    gpu = profiles.load_gpu(name)
    check(gpu)
    assert gpu.basis


@pytest.mark.parametrize("name", profiles.preset_names())
def test_models(name):
    preset = profiles.load_preset(name)
    check(preset)
    if preset.run:
        check(preset.run)


def test_prices_and_energy():
    assert profiles.prices()
    for price in profiles.prices():
        check(price)
        assert price.basis
    check(profiles.energy())
    assert profiles.energy().basis


@pytest.mark.parametrize("name", profiles.profile_names())
def test_rates_of_shipped_profiles(name):
    profile = profiles.load_profile(name)
    assert profile.provenance == "measured"
    assert profile.measurement_files or not profile.fit.measurements
    for rate in profile.rates.values():
        assert rate.source
        assert DATE.match(rate.date)
