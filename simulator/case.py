"""What is asked: a run, and the case that joins model, machine and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.schema import Energy, Machine, Price, Profile, Recipe, Variant, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the person wants done.

    ``global_batch`` counts samples per optimizer step over all ranks; ``global_batch_tolerance`` is the fraction by
    which it may be missed. Limits are totals of the whole run. ``None`` means not given.
    """

    tokens: float | None = None
    samples: float | None = None
    steps: int | None = None
    seq: int | None = None
    decoder_seq: int | None = None
    global_batch: int | None = None
    global_batch_tolerance: float = 0.0
    max_days: float | None = None
    max_usd: float | None = None
    max_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model on a machine for a run: everything that a recipe is judged against.

    ``price`` is the rent used; ``None`` when no price is known. ``fixed`` holds the knobs that the person fixed,
    ``warnings`` what every answer has to say.
    """

    workload: Workload
    profile: Profile
    run: Run = Run()
    price: Price | None = None
    energy: Energy | None = None
    fixed: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def machine(self) -> Machine:
        """The machine that the profile describes."""
        return self.profile.machine

    @property
    def ranks(self) -> int:
        """Data-parallel ranks: one per GPU."""
        return self.machine.gpus_per_node * self.machine.nodes

    def seq(self, recipe: Recipe) -> int:
        """Positions per sample: the recipe's, else the run's, else the model's default."""
        return recipe.seq or self.run.seq or self.workload.seq

    def decoder_seq(self, recipe: Recipe) -> int:
        """Decoder positions per sample; 0 without a decoder stack of its own. Defaults to the encoder's length."""
        if self.workload.decoder_seq is None:
            return 0
        given = recipe.decoder_seq or self.run.decoder_seq
        if given:
            return given
        lengthened = recipe.seq or self.run.seq
        return lengthened or self.workload.decoder_seq

    def positions(self, recipe: Recipe) -> int:
        """Positions per sample that count as tokens: encoder plus decoder."""
        return self.seq(recipe) + self.decoder_seq(recipe)


def variant_of(workload: Workload, numerics: str, attention: str, checkpointed: bool) -> Variant | None:
    """The traced variant with these three choices, or ``None`` if the model has none."""
    for variant in workload.variants:
        if (variant.numerics, variant.attention, variant.checkpointed) == (numerics, attention, checkpointed):
            return variant
    return None
