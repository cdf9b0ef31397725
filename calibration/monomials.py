"""Sizes as polynomials, read off one trace.

A model is traced at a micro-batch and at lengths that are primes found in none of its own sizes. Every number the
trace yields then factors uniquely: 1009·2003·64 is 64 · micro_batch · seq. No fitting, no rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiles.schema import Poly, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The primes a trace was taken at. ``decoder_seq`` and ``seq`` are 1 where the model has no such length."""

    micro_batch: int
    seq: int
    decoder_seq: int = 1

    def term(self, value: int) -> Term:
        """``value`` as coefficient and exponents; a value that mentions no length is a constant."""
        exponents = []
        for prime in (self.micro_batch, self.seq, self.decoder_seq):
            power = 0
            while prime > 1 and value and value % prime == 0:
                value //= prime
                power += 1
            exponents.append(power)
        return (float(value), exponents[0], exponents[1], exponents[2])


def add(*polys: Poly) -> Poly:
    """Sum, terms of equal exponents merged, zero terms dropped, in a canonical order."""
    sums: dict[tuple[int, int, int], float] = {}
    for poly in polys:
        for coefficient, i, j, k in poly:
            sums[i, j, k] = sums.get((i, j, k), 0.0) + coefficient
    return tuple((c, *key) for key, c in sorted(sums.items()) if c)


def scale(poly: Poly, factor: float) -> Poly:
    """``poly`` times a number."""
    return tuple((c * factor, i, j, k) for c, i, j, k in poly if c * factor)


def product(*terms: Term) -> Term:
    """Product of monomials."""
    coefficient, i, j, k = 1.0, 0, 0, 0
    for c, ti, tj, tk in terms:
        coefficient, i, j, k = coefficient * c, i + ti, j + tj, k + tk
    return (coefficient, i, j, k)


def value(poly: Poly, micro_batch: float, seq: float, decoder_seq: float = 0.0) -> float:
    """The polynomial at a point, for tests and for single look-ups."""
    return sum(c * micro_batch**i * seq**j * decoder_seq**k for c, i, j, k in poly)


def pick_primes(taken: Iterable[int], below: int | None, count: int, start: int = 101) -> tuple[int, ...]:
    """``count`` ascending primes of at least ``start`` that divide none of ``taken``.

    Raises:
        ValueError: if fewer than ``count`` such primes lie at or below ``below``.
    """
    numbers = [n for n in set(taken) if n > 1]
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if below is not None and candidate > below:
            raise ValueError(f"no {count} primes between {start} and {below} that the model's own sizes leave free")
        is_prime = candidate > 1 and all(candidate % d for d in range(2, int(candidate**0.5) + 1))
        if is_prime and all(n % candidate for n in numbers):
            found.append(candidate)
        candidate += 1
    return tuple(found)
