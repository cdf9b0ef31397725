"""The runs that every calibration starts with: enough of each kind that the adaptive choice has something to adapt."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from calibration.candidates import Pool
from profiles.schema import Recipe

Alternatives = list[int]
"""Trials of which one is to be measured: the first that is affordable."""
PLAIN = Recipe(micro_batch=1)
"""Seeds are sizes and variations of this recipe."""
SIZES = {"micro_batch", "seq", "decoder_seq"}
HOST_RUNS = 2
"""Host-bound runs that every calibration takes at least: one alone may be a stray."""


def seed_groups(pool: Pool) -> list[Alternatives]:
    """What to measure first, in this order.

    A large run of the first model, host-bound small ones, and large ones of the first model in every precision that
    keeps 32-bit weights and with the other attention; a large run of every further model; one compiled run; and the
    run that is predicted to come nearest to the memory limit. A large run shows what the device decides, a small one
    the host. Of each kind, trials that are plain in everything else come first.
    """
    models = list(dict.fromkeys(t.model for t in pool.trials))
    first = _first_kind(pool)
    kinds = _kinds(pool, first)
    groups = [_alike(pool, models[0], first), *_host_bound(pool, models, first)]
    groups += [_alike(pool, models[0], kind) for kind in kinds[1:]]
    groups += [_alike(pool, model, first) for model in models[1:]]
    compiled = [i for model in models for i in _alike(pool, model, replace(first, compile="on"))]
    by_memory = np.argsort(-pool.needed_bytes, kind="stable").tolist()
    return [group for group in (*groups, compiled[len(compiled) // 2 :], by_memory) if group]


def _first_kind(pool: Pool) -> Recipe:
    """The plain recipe, in the precision and with the attention that most trials of the pool have if it has none so."""
    recipes = [t.recipe for t in pool.trials]
    if any((r.precision, r.attention) == (PLAIN.precision, PLAIN.attention) for r in recipes):
        return PLAIN
    usual = max(recipes, key=lambda r: sum((o.precision, o.attention) == (r.precision, r.attention) for o in recipes))
    return replace(PLAIN, precision=usual.precision, attention=usual.attention)


def _kinds(pool: Pool, first: Recipe) -> list[Recipe]:
    """The first kind, the same in every other precision but pure ones, and with the other attention."""
    precisions = dict.fromkeys(t.recipe.precision for t in pool.trials if not t.recipe.precision.endswith("_pure"))
    attentions = dict.fromkeys(t.recipe.attention for t in pool.trials)
    kinds = [replace(first, precision=p) for p in precisions] + [replace(first, attention=a) for a in attentions]
    return list(dict.fromkeys([first, *kinds]))


def _host_bound(pool: Pool, models: list[str], first: Recipe) -> list[Alternatives]:
    """The smallest runs of the first kind: one a model, and of the first model also a checkpointed one."""
    kinds = [(model, first) for model in models] + [(models[0], replace(first, checkpointing="full"))]
    return [_alike(pool, model, kind, largest=False) for model, kind in kinds][:HOST_RUNS]


def _alike(pool: Pool, model: str, kind: Recipe, largest: bool = True) -> Alternatives:
    """Trials of the model in ``kind``'s precision, attention and compilation: plainest first, then by size."""
    sign = -1.0 if largest else 1.0
    found = [i for i, t in enumerate(pool.trials) if t.model == model and _family(t.recipe) == _family(kind)]
    return sorted(found, key=lambda i: (_off(pool.trials[i].recipe, kind), sign * float(pool.seconds[i].sum())))


def _family(recipe: Recipe) -> tuple[str, str, str]:
    return recipe.precision, recipe.attention, recipe.compile


def _off(recipe: Recipe, kind: Recipe) -> int:
    """How many knobs apart from sizes differ."""
    return sum(getattr(recipe, f.name) != getattr(kind, f.name) for f in fields(Recipe) if f.name not in SIZES)
