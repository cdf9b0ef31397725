"""Sizes as monomials: reading them off primes, and the algebra on them, against plain integer arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.monomials import Point, add, pick_primes, product, scale, value

POINT = Point(micro_batch=131, seq=53, decoder_seq=179)
POWER = st.integers(0, 3)
TERM = st.tuples(st.integers(-9, 9).map(float), POWER, POWER, POWER)
POLY = st.lists(TERM, max_size=5).map(tuple)
SIZE = st.integers(1, 60)


@given(coefficient=st.integers(1, 50), i=POWER, j=POWER, k=POWER)
def test_a_number_made_of_the_primes_gives_back_its_exponents(coefficient: int, i: int, j: int, k: int) -> None:
    assert POINT.term(coefficient * 131**i * 53**j * 179**k) == (float(coefficient), i, j, k)


def test_a_length_of_one_means_no_such_length() -> None:
    assert Point(micro_batch=131, seq=1).term(131 * 7) == (7.0, 1, 0, 0)


def test_zero_is_a_constant_zero() -> None:
    assert POINT.term(0) == (0.0, 0, 0, 0)


@given(left=POLY, right=POLY, b=SIZE, s=SIZE, t=SIZE)
def test_adding_polynomials_adds_their_values(left, right, b: int, s: int, t: int) -> None:  # type: ignore[no-untyped-def]
    assert value(add(left, right), b, s, t) == value(left, b, s, t) + value(right, b, s, t)


@given(poly=POLY, b=SIZE, s=SIZE, t=SIZE)
def test_scaling_a_polynomial_scales_its_value(poly, b: int, s: int, t: int) -> None:  # type: ignore[no-untyped-def]
    assert value(scale(poly, -3.0), b, s, t) == -3.0 * value(poly, b, s, t)


@given(left=TERM, right=TERM, b=SIZE, s=SIZE, t=SIZE)
def test_a_product_of_terms_has_the_product_of_their_values(left, right, b: int, s: int, t: int) -> None:  # type: ignore[no-untyped-def]
    both = value((left,), b, s, t) * value((right,), b, s, t)
    assert value((product(left, right),), b, s, t) == pytest.approx(both, rel=1e-12)


def test_terms_that_cancel_leave_nothing_and_equal_exponents_merge() -> None:
    assert add(((2.0, 1, 1, 0), (5.0, 0, 0, 0)), ((-2.0, 1, 1, 0), (1.0, 0, 0, 0))) == ((6.0, 0, 0, 0),)


def test_primes_avoid_every_size_of_the_model() -> None:
    # 101 and 103 divide sizes that are taken, 107 is free.
    assert pick_primes([101, 3 * 103, 64], None, 2) == (107, 109)


def test_a_size_of_one_or_zero_takes_no_prime() -> None:
    assert pick_primes([0, 1], None, 1) == (101,)


def test_no_prime_above_the_limit_is_handed_out() -> None:
    with pytest.raises(ValueError, match="between 101 and 105"):
        pick_primes([], 105, 3)
