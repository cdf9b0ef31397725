"""Held-out records: recipes drawn at random beforehand, then measured; the fit never sees them.

    python -m benchmarks.held_out draw --models pythia-160m,pythia-410m --machine 1xH200 --seed 7 --out drawn.jsonl
    python -m benchmarks.held_out measure drawn.jsonl --out held_out.jsonl --budget 300

Drawing uses the data sheet alone, so nothing measured can lean on the draw. Recipes on both sides of the memory limit
are drawn on purpose; a few per model are put near it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.orders import expected, measure
from calibration.question import load_or_trace
from profiles.machines import parse_machine
from profiles.schema import Recipe, Workload
from simulator.case import Case
from simulator.rates import datasheet_profile
from simulator.recipes import check, recipe_of

PRECISIONS = ("bf16", "bf16", "fp16", "tf32", "fp32", "bf16_pure")
CHECKPOINTING = ("none", "none", "full", "every_2", "every_3")
OPTIMIZERS = ("adamw_fused",) * 5 + ("adamw_foreach", "adamw_forloop", "sgd", "lion", "adafactor")
ACCUMULATIONS = (1, 1, 1, 2, 8)
MAX_MICRO_S = 2.5
OBVIOUS_OOM = 1.6
NEAR = 0.12
"""A recipe whose need is predicted within this share of the limit counts as near it."""


def draw(workload: Workload, machine: str, seed: int, plain: int, near: int, compiled: int) -> list[Recipe]:
    """``plain`` recipes anywhere, ``near`` ones near the memory limit, ``compiled`` ones, all legal and affordable."""
    random = np.random.default_rng([seed, *workload.name.encode()])
    case = Case(workload=workload, profile=datasheet_profile(parse_machine(machine)))
    drawn: list[Recipe] = []
    for count, compile_, edge in ((plain, "off", False), (near, "off", True), (compiled, "on", False)):
        target = len(drawn) + count
        while len(drawn) < target:
            recipe = _random_recipe(random, workload, compile_)
            if recipe not in drawn and not check(recipe, case) and _wanted(case, recipe, edge):
                drawn.append(recipe)
    return drawn


def _random_recipe(random: np.random.Generator, workload: Workload, compile_: str) -> Recipe:
    lengths = (workload.seq,) if workload.fixed_seq else (workload.seq, workload.seq // 2, workload.seq // 4)
    one = lambda values: values[int(random.integers(len(values)))]  # noqa: E731
    return recipe_of(
        {
            "micro_batch": int(np.exp(random.uniform(0.0, np.log(160.0)))),
            "grad_accum": one(ACCUMULATIONS),
            "seq": one(lengths),
            "precision": one(PRECISIONS),
            "attention": one(("sdpa", "sdpa", "eager")),
            "compile": compile_,
            "checkpointing": one(CHECKPOINTING),
            "optimizer": one(OPTIMIZERS),
        }
    )


def _wanted(case: Case, recipe: Recipe, near: bool) -> bool:
    micro_s, share = expected(case, recipe)
    return micro_s <= MAX_MICRO_S and share < OBVIOUS_OOM and (not near or abs(share - 1.0) < NEAR)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--models", required=True)
    drawing.add_argument("--machine", required=True)
    drawing.add_argument("--seed", type=int, default=7)
    for name, default in (("plain", 30), ("near", 4), ("compiled", 2)):
        drawing.add_argument(f"--{name}", type=int, default=default)
    drawing.add_argument("--out", type=Path, required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("drawn", type=Path)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--budget", type=float, default=600.0)
    measuring.add_argument("--measure", type=float, default=1.2)
    options = parser.parse_args()
    if options.command == "measure":
        done = measure(options.drawn, options.out, budget_s=options.budget, measure_s=options.measure)
        sys.stderr.write(f"{done} records\n")
        return
    orders = []
    for model in options.models.split(","):
        recipes = draw(
            load_or_trace(model), options.machine, options.seed, options.plain, options.near, options.compiled
        )
        orders += [{"model": model, "recipe": dataclasses.asdict(r)} for r in recipes]
    np.random.default_rng(options.seed).shuffle(orders)
    compiled_last = sorted(orders, key=lambda o: o["recipe"]["compile"] == "on")
    options.out.write_text("".join(json.dumps(o) + "\n" for o in compiled_last))


if __name__ == "__main__":
    main()
