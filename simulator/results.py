"""What the simulator answers: predictions and plans, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from profiles.schema import Provenance, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One recipe's predicted time, money and memory.

    ``step_s`` is seconds per optimizer step; ``step_s_low`` and ``step_s_high`` bound it at 90 %. Memory is bytes per
    GPU: ``peak_bytes`` torch's peak allocated, ``peak_reserved_bytes`` with allocator slack, ``peak_device_bytes`` with
    context; ``peak_bytes_high`` is the device total's upper bound and alone decides ``fits``. ``mfu`` counts causal
    attention at half and no input embedding, against the data sheet's dense peak. ``compile_s`` is the one-off cost of
    compiling one shape, not part of a step. ``None`` is unknown.
    """

    recipe: Recipe
    step_s: float
    step_s_low: float
    step_s_high: float
    micro_s: float
    optimizer_s: float
    sync_s: float
    tokens_per_s: float
    global_batch: int
    steps: int | None
    days: float | None
    days_low: float | None
    days_high: float | None
    usd: float | None
    kwh: float | None
    mfu: float | None
    peak_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int
    peak_bytes_high: int
    memory_limit_bytes: int
    fit_probability: float
    fits: bool
    provenance: Provenance
    time_breakdown_s: dict[str, float] = field(default_factory=dict)
    memory_breakdown_bytes: dict[str, int] = field(default_factory=dict)
    measured_step_s: float | None = None
    compile_s: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``fits`` or ``oom``."""
        return "fits" if self.fits else "oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A run that nobody has made yet, and what it would do for an answer.

    ``factor`` is from the answer's point to either end of its 90 % interval once this run and those before it in the
    list are measured, ``factor_before`` the same without this run; means over the recipes of the answer.
    ``closes`` names what of the recipe the calibrated range would then cover.
    """

    recipe: Recipe
    factor_before: float
    factor: float
    closes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ranked recipes for a case. ``refused`` counts recipes per rule; ``oom`` those that do not fit.

    ``naive`` is the default recipe at the largest power-of-two micro-batch that fits; ``ties`` is how many recipes
    cannot be told from the best one inside the joint interval, and ``tied`` says which of ``recipes`` are among them.
    ``coverage`` are the runs that would narrow the best recipes' intervals most.
    """

    recipes: tuple[Prediction, ...]
    best: Prediction
    median: Prediction
    worst: Prediction
    naive: Prediction | None
    space_size: int
    feasible: int
    oom: int
    over_budget: int
    refused: dict[str, int]
    infeasible: dict[str, int]
    ties: int
    tied: tuple[bool, ...] = ()
    coverage: tuple[Extra, ...] = ()
    reasons: tuple[str, ...] = ()
