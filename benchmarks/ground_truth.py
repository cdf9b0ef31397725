"""The ground truth of one GPU: one exhaustive cell, and a seeded random fraction of the space for other models.

    python -m benchmarks.ground_truth draw --out FOLDER
    python -m benchmarks.ground_truth measure FOLDER/cell.drawn.jsonl --out cell.jsonl --budget 500
    python -m benchmarks.ground_truth warm FOLDER/compiled.drawn.jsonl --processes 5

Drawing uses the data sheet alone, so nothing measured leans on it. Each order carries the set it belongs to, half and
half: the model's form may be judged on ``development``; ``held_out`` is for the score. A tenth of all recipes that are
not compiled is drawn once more, each for a process of its own: the noise floor.

``warm`` compiles the drawn shapes in several processes at once and keeps no record; runs after it find their kernels
on disk, so their ``compile_s`` is left empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.orders import expected, measure
from calibration.question import load_or_trace
from profiles.machines import parse_machine
from profiles.schema import Recipe
from simulator.case import Case
from simulator.rates import datasheet_profile
from simulator.recipes import check, recipe_of

MACHINE = "1xH200"
SEED = 31
CELL_MODEL, CELL_SEQ, CELL_BATCH = "pythia-410m", 2048, 48
CELL_MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
CELL_PRECISIONS = ("bf16", "bf16_pure", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of one model's space is drawn: settings that a process holds, sizes for each, compiled shapes."""

    model: str
    settings: int
    sizes: int
    compiled: int
    seqs: tuple[int, ...] = (512, 1024, 2048, 4096)


SHARES = (
    Share(model="pythia-410m", settings=6, sizes=5, compiled=3),
    Share(model="pythia-160m", settings=8, sizes=5, compiled=3),
    Share(model="llama-3.2-1b", settings=9, sizes=5, compiled=3),
    Share(model="bert-large", settings=8, sizes=5, compiled=2, seqs=(128, 256, 384, 512)),
    Share(model="t5-base", settings=8, sizes=5, compiled=2, seqs=(256, 512, 1024)),
    Share(model="vit-l16", settings=7, sizes=5, compiled=2),
)
PRECISIONS = ("bf16", "bf16", "bf16_pure", "fp16", "tf32")
ATTENTION = ("sdpa", "sdpa", "eager")
OPTIMIZERS = ("adamw_fused", "adamw_fused", "adamw_forloop", "sgd", "adafactor", "lion")
CHECKPOINTING = ("none", "none", "every_2", "full")
ACCUMULATIONS = (1, 1, 1, 2)
MOST_MICRO_BATCH = 160
MOST_MICRO_S, MOST_NEED = 1.2, 1.35
"""No drawn micro-batch is thought to take longer, nor to need more of the memory than this share."""
NEAR_SHARE, NEAR, NEAR_ATTEMPTS = 0.25, 0.15, 60
"""This share of the sizes is put within ``NEAR`` of the memory limit, where so many draws find one there."""
REPEATED = 0.1
COMPILED_NEED, LEAST_COMPILED = 0.45, 3
"""Compiled shapes are few: none so small that only the host decides, none too large for several processes at once."""


class Draw:
    """Recipes of one model, drawn with a seed."""

    def __init__(self, share: Share) -> None:
        self.share, self.workload = share, load_or_trace(share.model)
        self.case = Case(workload=self.workload, profile=datasheet_profile(parse_machine(MACHINE)))
        self.random = np.random.default_rng([SEED, *share.model.encode()])

    def one(self, values: Sequence[Any]) -> Any:  # noqa: ANN401
        """Any of the values."""
        return values[int(self.random.integers(len(values)))]

    def settings(self) -> Recipe:
        """The knobs that a process holds, legal for this model."""
        while True:
            recipe = recipe_of(
                {
                    "precision": self.one(PRECISIONS),
                    "attention": self.one(ATTENTION),
                    "optimizer": self.one(OPTIMIZERS),
                    "seq": self.seqs()[0],
                }
            )
            if not check(recipe, self.case):
                return recipe

    def sized(self, held: Recipe, compile_: str = "off") -> Recipe:
        """Those knobs with sizes and checkpointing, affordable, some near the memory limit."""
        near = compile_ == "off" and self.random.random() < NEAR_SHARE
        least = LEAST_COMPILED if compile_ == "on" else 1
        for attempt in count():
            near = near and attempt < NEAR_ATTEMPTS
            recipe = replace(
                held,
                micro_batch=int(np.exp(self.random.uniform(np.log(least), np.log(MOST_MICRO_BATCH)))),
                grad_accum=self.one(ACCUMULATIONS),
                seq=self.one(self.seqs()),
                checkpointing=self.one(CHECKPOINTING),
                compile=compile_,
            )
            if not check(recipe, self.case) and self._wanted(recipe, near):
                return recipe
        raise AssertionError

    def seqs(self) -> tuple[int, ...]:
        """The lengths of this model."""
        return (self.workload.seq,) if self.workload.fixed_seq else self.share.seqs

    def _wanted(self, recipe: Recipe, near: bool) -> bool:
        micro_s, need = expected(self.case, recipe)
        most = COMPILED_NEED if recipe.compile == "on" else MOST_NEED
        return micro_s <= MOST_MICRO_S and need <= most and (not near or abs(need - 1.0) <= NEAR)


def cell() -> list[list[Recipe]]:
    """The exhaustive cell: every legal combination at one global batch, one list per setting of a process."""
    return [
        [
            recipe_of(
                {
                    "micro_batch": batch,
                    "grad_accum": CELL_BATCH // batch,
                    "seq": CELL_SEQ,
                    "precision": precision,
                    "attention": attention,
                    "checkpointing": checkpointing,
                }
            )
            for checkpointing, batch in product(("none", "every_2", "full"), CELL_MICRO_BATCHES)
        ]
        for precision, attention in product(CELL_PRECISIONS, ("sdpa", "eager"))
    ]


def elsewhere(share: Share) -> list[list[Recipe]]:
    """The random fraction of one model, one list per setting of a process."""
    draw = Draw(share)
    lists: list[list[Recipe]] = []
    known: set[Recipe] = set()
    for _ in range(share.settings):
        held = draw.settings()
        sized: list[Recipe] = []
        while len(sized) < share.sizes:
            recipe = draw.sized(held)
            if recipe not in known:
                known.add(recipe)
                sized.append(recipe)
        lists.append(sized)
    return lists


def compiled(share: Share) -> list[list[Recipe]]:
    """Compiled shapes of one model: bf16 first, then whatever the draw gives."""
    draw = Draw(share)
    bf16 = recipe_of({"precision": "bf16", "seq": draw.seqs()[0]})
    return [[draw.sized(bf16 if i == 0 else draw.settings(), "on")] for i in range(share.compiled)]


def orders(model: str, lists: Iterable[list[Recipe]], random: np.random.Generator) -> list[list[dict[str, Any]]]:
    """Lists of orders, each list by rising need of memory, each order with its set."""
    workload = load_or_trace(model)
    case = Case(workload=workload, profile=datasheet_profile(parse_machine(MACHINE)))
    return [
        [
            {
                "model": model,
                "set": "held_out" if random.random() < 0.5 else "development",
                "recipe": dataclasses.asdict(recipe),
            }
            for recipe in sorted(recipes, key=lambda r: expected(case, r)[1])
        ]
        for recipes in lists
    ]


def draw_all(folder: Path) -> None:
    """Write every drawn file."""
    random = np.random.default_rng(SEED)
    in_cell = orders(CELL_MODEL, cell(), random)
    outside = [group for share in SHARES for group in orders(share.model, elsewhere(share), random)]
    outside = [outside[int(i)] for i in random.permutation(len(outside))]
    shapes = [group for share in SHARES for group in orders(share.model, compiled(share), random)]
    shapes = [shapes[int(i)] for i in random.permutation(len(shapes))]
    plain = [order for group in (*in_cell, *outside) for order in group]
    again = random.choice(len(plain), round(REPEATED * len(plain)), replace=False)
    repeats = [[{**plain[int(i)], "alone": True}] for i in again]
    folder.mkdir(parents=True, exist_ok=True)
    for name, groups in (("cell", in_cell), ("elsewhere", outside), ("compiled", shapes), ("repeats", repeats)):
        lines = "".join(json.dumps(order) + "\n" for group in groups for order in group)
        (folder / f"{name}.drawn.jsonl").write_text(lines)


def warm_up(path: Path, processes: int) -> None:
    """Compile every drawn shape once, several at a time, for the kernels on disk alone."""
    lines = path.read_text().splitlines()
    running = []
    for i in range(processes):
        part = Path(f"{path}.part{i}")
        part.write_text("".join(f"{line}\n" for line in lines[i::processes]))
        command = [sys.executable, "-m", "benchmarks.ground_truth", "measure", str(part), "--measure", "0.01"]
        running.append(subprocess.Popen([*command, "--out", f"{part}.out"], env=os.environ.copy()))
    for process in running:
        process.wait()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--out", type=Path, required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("drawn", type=Path)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--budget", type=float, default=600.0)
    measuring.add_argument("--measure", type=float, default=0.6)
    measuring.add_argument("--warm", action="store_true", help="kernels are on disk already: record no compile_s")
    warming = commands.add_parser("warm")
    warming.add_argument("drawn", type=Path)
    warming.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    if options.command == "draw":
        draw_all(options.out)
    elif options.command == "warm":
        warm_up(options.drawn, options.processes)
    else:
        done = measure(
            options.drawn, options.out, budget_s=options.budget, measure_s=options.measure, warm=options.warm
        )
        sys.stderr.write(f"{done} records\n")


if __name__ == "__main__":
    main()
