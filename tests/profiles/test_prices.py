"""Prices and energy: sourced figures, a documented choice among offers, and the user's own before the shipped."""

import re

import pytest

from profiles.errors import InvalidInputError
from profiles.prices import BASES, energy, prices, purchase_price, rent_price
from profiles.store import gpu_names


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def test_every_price_has_one_kind_of_money_a_source_and_a_date():
    known = set(gpu_names())
    for price in prices():
        assert price.gpu in known
        assert (price.rent_usd_per_gpu_h is None) != (price.purchase_usd_per_gpu is None)
        assert len(price.source) > 10
        assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", price.date)
        assert price.basis in BASES
        assert 0.05 < (price.rent_usd_per_gpu_h or 1) < 20
        assert 500 < (price.purchase_usd_per_gpu or 1000) < 60_000


RENTED = [
    "T4", "L4", "A10", "V100-16GB", "V100-32GB", "A6000", "A100-40GB", "A100-80GB", "L40S", "H100", "H100-NVL",
    "H200", "B200", "3090", "4090", "5090", "MI300X",
]  # fmt: skip


@pytest.mark.parametrize("gpu", RENTED)
def test_what_people_rent_has_a_rent(gpu):
    assert rent_price(gpu).rent_usd_per_gpu_h > 0


@pytest.mark.parametrize(("gpu", "usd"), [("3090", 1300), ("A6000", 4800), ("A100-80GB", 19_000), ("H100", 30_000)])
def test_the_study_preset(gpu, usd):
    [study] = [
        price
        for price in prices()
        if price.provider == "100K-or-100-days study" and price.gpu == purchase_price(gpu).gpu
    ]
    assert study.purchase_usd_per_gpu == usd


def test_aws_rents_are_the_instance_divided_by_its_gpus():
    rents = {price.gpu: price.rent_usd_per_gpu_h for price in prices() if price.provider == "AWS"}
    assert rents["H100-80GB"] == pytest.approx(55.04 / 8)
    assert rents["V100-32GB"] == pytest.approx(31.212 / 8)
    assert rents["T4"] == 0.526


def test_rent_is_the_lower_middle_of_on_demand_offers():
    offers = [p for p in prices() if p.gpu == "H100-80GB" and p.basis == "on-demand" and p.rent_usd_per_gpu_h]
    ordered = sorted(offer.rent_usd_per_gpu_h for offer in offers)
    assert len(ordered) == 4
    assert rent_price("NVIDIA H100 80GB HBM3").rent_usd_per_gpu_h == ordered[1]


def test_a_marketplace_counts_only_where_nobody_rents_on_demand():
    assert rent_price("RTX-5090").basis == "marketplace"
    assert rent_price("RTX-4090").basis == "on-demand"


@pytest.mark.parametrize("gpu", ["MI250X", "cpu", "a GPU that nobody knows"])
def test_no_known_rent_is_none(gpu):
    assert rent_price(gpu) is None


def test_purchase_price_is_the_lower_middle():
    assert purchase_price("RTX-3090").purchase_usd_per_gpu == 1300
    assert purchase_price("T4") is None


OWN = """
[[price]]
gpu = "NVIDIA H200"
provider = "us"
rent_usd_per_gpu_h = {money}
basis = "{basis}"
source = "our invoice"
date = "2026-01-01"
"""


def test_own_rents_replace_the_shipped_rents_of_that_gpu_only(own):
    before = prices()
    (own / "prices.toml").write_text(OWN.format(money=1.25, basis="own"))
    assert rent_price("H200").rent_usd_per_gpu_h == 1.25
    assert {price.provider for price in prices() if price.gpu == "H200"} == {"us"}
    assert [price for price in prices() if price.gpu != "H200"] == [price for price in before if price.gpu != "H200"]


def test_all_problems_of_own_prices_at_once(own):
    bad = OWN.format(money=-1, basis="rumour") + OWN.format(money=1, basis="own").replace("NVIDIA H200", "H20O")
    (own / "prices.toml").write_text(bad + OWN.format(money=1, basis="own").replace("rent_usd_per_gpu_h = 1", ""))
    with pytest.raises(InvalidInputError) as caught:
        prices()
    text = str(caught.value)
    assert str(own / "prices.toml") in text
    assert "price 1: rent_usd_per_gpu_h: must be above zero" in text
    assert "price 1: basis: 'rumour' is not one of on-demand" in text
    assert "price 2: 'H20O' is not a known GPU; did you mean H200" in text
    assert "price 3: needs rent_usd_per_gpu_h or purchase_usd_per_gpu" in text


@pytest.mark.parametrize("content", ["price = 3", "price = [1, 2]"])
def test_prices_of_another_shape_are_refused(own, content):
    (own / "prices.toml").write_text(content)
    with pytest.raises(InvalidInputError, match=r"\[\[price\]\]"):
        prices()


def test_energy_defaults_are_plausible_and_sourced():
    value = energy()
    assert 0.05 < value.electricity_usd_per_kwh < 0.5
    assert 300 < value.grid_g_co2e_per_kwh < 600
    assert 1.0 <= value.pue < 2
    assert 50 < value.host_w_per_gpu < 500
    for word in ("electricity", "grid", "pue", "host_w_per_gpu"):
        assert word in value.basis
    assert "EIA" in value.source


def test_own_energy_replaces_the_defaults_and_is_checked(own):
    text = (
        "electricity_usd_per_kwh = {}\ngrid_g_co2e_per_kwh = 20.0\npue = {}\nhost_w_per_gpu = 90.0\n"
        'basis = "ours"\nsource = "bill"\ndate = "2026-01"\n'
    )
    (own / "energy.toml").write_text(text.format(0.3, 1.1))
    assert energy().electricity_usd_per_kwh == 0.3
    (own / "energy.toml").write_text(text.format(-0.3, 0.9))
    with pytest.raises(InvalidInputError) as caught:
        energy()
    assert len(caught.value.problems) == 2
