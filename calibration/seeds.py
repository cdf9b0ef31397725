"""The runs that every calibration starts with: enough of each kind that the adaptive choice has something to adapt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibration.candidates import Pool
from profiles.schema import Recipe

Alternatives = list[int]
"""Trials of which one is to be measured: the first that is affordable."""


def seed_groups(pool: Pool) -> list[Alternatives]:
    """What to measure first, in this order.

    For the first model its smallest run, then a large one in every precision that keeps 32-bit weights and one with the
    other attention; for every further model the smallest and a large one. Then one compiled run, and the run that is
    predicted to come nearest to the memory limit. A large run shows what the device decides, a small one the host.
    """
    models = list(dict.fromkeys(t.model for t in pool.trials))
    first = pool.trials[0].recipe
    groups: list[Alternatives] = []
    for model in models:
        default = _alike(pool, model, first)
        groups.append(default[::-1][:1])
        kinds = _kinds(pool, first) if model == models[0] else [first]
        groups += [_alike(pool, model, kind) for kind in kinds]
    compiled = [i for model in models for i in _alike(pool, model, replace(first, compile="on"))]
    by_memory = np.argsort(-pool.needed_bytes, kind="stable").tolist()
    return [group for group in (*groups, compiled[len(compiled) // 2 :], by_memory) if group]


def _kinds(pool: Pool, first: Recipe) -> list[Recipe]:
    """The default recipe, the same in every other precision but pure ones, and with the other attention."""
    precisions = dict.fromkeys(t.recipe.precision for t in pool.trials if not t.recipe.precision.endswith("_pure"))
    attentions = dict.fromkeys(t.recipe.attention for t in pool.trials)
    kinds = [replace(first, precision=p) for p in precisions] + [replace(first, attention=a) for a in attentions]
    return list(dict.fromkeys([first, *kinds]))


def _alike(pool: Pool, model: str, kind: Recipe) -> Alternatives:
    """Trials of the model that differ from ``kind`` in size only, by falling size."""
    plain = replace(kind, checkpointing="none", optimizer="adamw_fused")
    found = [
        i
        for i, t in enumerate(pool.trials)
        if t.model == model and replace(t.recipe, micro_batch=plain.micro_batch, seq=plain.seq) == plain
    ]
    return sorted(found, key=lambda i: -float(pool.seconds[i].sum()))
