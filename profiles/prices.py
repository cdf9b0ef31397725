"""Money and energy: what a GPU rents or sells for, and what a kilowatt-hour costs and emits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from profiles.catalogue import load_gpu
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import SHIPPED, home, parse_plain, read_toml
from profiles.schema import Energy, Price

_MONEY = ("rent_usd_per_gpu_h", "purchase_usd_per_gpu")
BASES = ("on-demand", "marketplace", "reserved", "list price", "street price", "own")


def prices() -> tuple[Price, ...]:
    """Every known price. The user's rents of a GPU replace the shipped rents of that GPU; purchases likewise.

    Raises:
        InvalidInputError: a price file cannot be used.
    """
    own = _read_prices(home() / "prices.toml", optional=True)
    taken = {(price.gpu, kind) for price in own for kind in _kinds(price)}
    shipped = _read_prices(SHIPPED / "prices.toml", optional=False)
    kept = (price for price in shipped if not any((price.gpu, kind) in taken for kind in _kinds(price)))
    return (*own, *kept)


def rent_price(gpu_name: str) -> Price | None:
    """The rent to plan with: the middle on-demand offer of that GPU (the lower one of two in the middle).

    The middle stands for what most people pay: the cheapest offer is often sold out, the dearest a list price that
    nobody pays. Offers of other bases (marketplace, reserved, own) count only where nobody rents it on demand, and an
    offer in the user's own file has already replaced the shipped ones. ``None``: no rent is known.
    """
    offers = [price for price in _of(gpu_name) if price.rent_usd_per_gpu_h is not None]
    on_demand = [price for price in offers if price.basis == "on-demand"]
    return _middle(on_demand or offers, "rent_usd_per_gpu_h")


def purchase_price(gpu_name: str) -> Price | None:
    """The purchase price to plan with: the middle known one of that GPU. ``None``: none is known."""
    return _middle([price for price in _of(gpu_name) if price.purchase_usd_per_gpu is not None], "purchase_usd_per_gpu")


def energy() -> Energy:
    """Electricity price, grid intensity, PUE and host watts: the user's ``energy.toml``, else the shipped defaults.

    Raises:
        InvalidInputError: the file cannot be used.
    """
    own = home() / "energy.toml"
    path = own if own.exists() else SHIPPED / "energy.toml"
    value = parse_plain(Energy, read_toml(path), str(path))
    problems = [f"pue: cannot be below 1, got {value.pue}"] if value.pue < 1 else []
    numbers = {field.name: getattr(value, field.name) for field in fields(value)}
    problems += [f"{name}: cannot be negative, got {number}" for name, number in numbers.items() if _negative(number)]
    if problems:
        raise InvalidInputError(str(path), problems)
    return value


def _of(gpu_name: str) -> list[Price]:
    try:
        name = load_gpu(gpu_name).name
    except UnknownNameError:
        name = gpu_name
    return [price for price in prices() if price.gpu == name]


def _middle(offers: Iterable[Price], field: str) -> Price | None:
    import statistics

    by_money = {getattr(price, field): price for price in offers}
    return by_money[statistics.median_low(by_money)] if by_money else None


def _kinds(price: Price) -> list[str]:
    return [kind for kind in _MONEY if getattr(price, kind) is not None]


def _negative(value: object) -> bool:
    return isinstance(value, int | float) and value < 0


def _read_prices(path: Path, *, optional: bool) -> tuple[Price, ...]:
    if optional and not path.exists():
        return ()
    rows = read_toml(path).get("price", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidInputError(str(path), ["price: must be a list of [[price]] tables"])
    found: list[Price] = []
    problems: list[str] = []
    canonical = functools.cache(lambda name: load_gpu(name).name)
    for number, row in enumerate(rows, start=1):
        try:
            found.append(_read_price(row, f"price {number}", canonical))
        except InvalidInputError as error:
            problems += [f"price {number}: {problem}" for problem in error.problems]
    if problems:
        raise InvalidInputError(str(path), problems)
    return tuple(found)


def _read_price(row: dict[str, Any], subject: str, canonical: Callable[[str], str]) -> Price:
    price = parse_plain(Price, row, subject)
    problems = [f"{kind}: must be above zero" for kind in _kinds(price) if getattr(price, kind) <= 0]
    if not _kinds(price):
        problems.append(f"needs {' or '.join(_MONEY)}")
    if price.basis not in BASES:
        problems.append(f"basis: {price.basis!r} is not one of {', '.join(BASES)}")
    if problems:
        raise InvalidInputError(subject, problems)
    return replace(price, gpu=canonical(price.gpu))
